"""Draw the pictures of the concept pages into docs/figures, as SVGs that are readable on light and dark backgrounds.

    python -m bench.pictures            # all; plans `memory_over_the_step` again, runs nothing
    python -m bench.pictures --drawn    # the pictures that need no TensorFlow

`ways.svg` draws the table of docs/concepts/ways.md.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
BLUE, ORANGE, GREEN, GRAY = "#2f7fd6", "#e07b24", "#2ca089", "#8884"
ROLE_COLORS = {
    "weights": "#6d7a8a",
    "optimizer state": "#98a3b1",
    "inputs": "#c9b68c",
    "residuals": BLUE,
    "gradients": ORANGE,
    "temporaries": GREEN,
}
STYLE = (
    ".ground{fill:#fff}text,.ink{fill:#24292f}.line{stroke:#57606a;fill:none}"
    "@media(prefers-color-scheme:dark){.ground{fill:#1c1f26}text,.ink{fill:#dde2e8}.line{stroke:#9aa4b0}}"
)
ROW = re.compile(r"^\| (?P<way>[^|]+) \| (?P<model>[^|]+) \| (?P<memory>\d+) % \| (?P<time>[\d.]+) \|", re.MULTILINE)
WAY_COLORS = {
    "recompute": BLUE,
    "parts": ORANGE,
    "segments": GREEN,
    "reversible": "#8d6bc2",
    "recompute_grad": "#6d7a8a",
}


def picture(width: int, height: int, label: str, parts: Iterable[str]) -> str:
    """An SVG that carries both of its color schemes."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" font-family="sans-serif" font-size="12" '
        f'role="img" aria-label="{escape(label)}">\n<style>{STYLE}</style>\n<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" '
        'markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" class="ink"/></marker></defs>\n'
        f'<rect class="ground" width="{width}" height="{height}" rx="6"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def text(x: float, y: float, words: str, anchor: str = "middle", **attributes: str) -> str:
    """One line of words."""
    more = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in attributes.items())
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(words)}</text>'


def box(x: float, y: float, words: Sequence[str], color: str = GRAY, width: float = 110) -> list[str]:
    """A box with lines of words, its middle at (x, y)."""
    height = 14 + 15 * len(words)
    corner = f'x="{x - width / 2:.1f}" y="{y - height / 2:.1f}" width="{width}" height="{height}"'
    rect = f'<rect {corner} rx="4" fill="{color}" fill-opacity=".28" stroke="{color}"/>'
    return [rect, *(text(x, y - 15 * len(words) / 2 + 12 + 15 * k, line) for k, line in enumerate(words))]


def arrow(x1: float, y1: float, x2: float, y2: float, bend: float = 0, color: str = "", dashed: bool = False) -> str:
    """An arrow, bent upwards by so much."""
    look = (f' style="stroke:{color}"' if color else "") + (' stroke-dasharray="5 4"' if dashed else "")
    path = f"M{x1:.1f} {y1:.1f}Q{(x1 + x2) / 2:.1f} {(y1 + y2) / 2 - bend:.1f} {x2:.1f} {y2:.1f}"
    return f'<path class="line" d="{path}" stroke-width="1.5" marker-end="url(#tip)"{look}/>'


def shapes() -> str:
    """A feed binds the input, rules propagate it, and some sizes are known only at run time."""
    parts: list[str] = []
    columns = [
        (90, ["image", "(None, 28, 28, 1)"], ["feed 32", "(32, 28, 28, 1)"], BLUE),
        (255, ["Conv2D, stride 2", "(None, 14, 14, 8)"], ["rule", "(32, 14, 14, 8)"], GREEN),
        (420, ["Reshape", "(None, None)"], ["folded constants", "(32, 1568)"], GREEN),
        (585, ["boolean_mask", "(None,)"], ["only the run knows", "(?,)"], ORANGE),
    ]
    for k, (x, traced, bound, color) in enumerate(columns):
        parts += [*box(x, 55, traced, width=140), *box(x, 145, bound, color, 140), arrow(x, 79, x, 120)]
        if k:
            parts += [arrow(x - 93, 55, x - 72, 55), arrow(x - 93, 145, x - 72, 145)]
    parts += [
        text(8, 18, "as traced: the batch is open", "start", font_weight="bold"),
        text(8, 190, "with a feed: bytes and FLOPs are numbers", "start", font_weight="bold"),
    ]
    return picture(670, 202, "Shapes as traced, and with a feed that binds the batch", parts)


def update_ops() -> str:
    """Two train ops: with a path to the updates, and without."""
    parts: list[str] = []
    for x0, title, run in ((10, "train_op = minimize(loss)", False), (350, "under control_dependencies(UPDATE_OPS)", True)):
        parts.append(text(x0 + 8, 20, title, "start", font_weight="bold"))
        parts += [*box(x0 + 60, 70, ["batch norm"]), *box(x0 + 160, 70, ["loss"], width=60), *box(x0 + 255, 70, ["train_op"], BLUE, 80)]
        parts += [*box(x0 + 60, 150, ["moving mean", "-= 0.01 * ..."], GREEN if run else ORANGE)]
        parts += [arrow(x0 + 116, 70, x0 + 129, 70), arrow(x0 + 191, 70, x0 + 214, 70), arrow(x0 + 60, 86, x0 + 60, 127)]
        if run:
            parts += [arrow(x0 + 116, 150, x0 + 250, 87, dashed=True), text(x0 + 215, 150, "control edge: it runs")]
        else:
            parts += [text(x0 + 215, 150, "no path: it never runs"), text(x0 + 215, 166, "UPDATE_OPS is only a list")]
    return picture(690, 192, "A train op without a path to UPDATE_OPS, and one with it", parts)


def backward() -> str:
    """A chain, its backward pass, and the residuals between them."""
    parts: list[str] = []
    xs = [132, 248, 364, 480]
    for k, x in enumerate(xs):
        parts += [
            *box(x, 45, [f"layer {k + 1}", f"h{k + 1} = f(h{k})"], BLUE, 96),
            *box(x, 165, [f"gradient {k + 1}", "dh, dw"], ORANGE, 96),
        ]
        parts += [arrow(x, 70, x, 140, color=BLUE), text(x + 6, 110, f"h{k}, w{k + 1}", "start", font_size="11")]
        if k:
            parts += [arrow(x - 67, 45, x - 50, 45), arrow(x - 50, 165, x - 67, 165)]
    parts += [*box(600, 105, ["loss"], width=70), arrow(529, 45, 588, 87), arrow(588, 123, 529, 165)]
    parts += [text(14, 49, "forward", "start", font_weight="bold"), text(14, 169, "backward", "start", font_weight="bold")]
    parts += [
        text(14, 110, "residuals", "start", fill=BLUE, font_weight="bold"),
        text(350, 214, "h0 is made first and used last: it waits longest"),
    ]
    return picture(670, 228, "Forward and backward pass of a chain, with the residuals between them", parts)


def ways() -> str:
    """Memory against time of each row of the table."""
    rows = [
        (m["way"].strip(), m["model"].strip(), int(m["memory"]) / 100, float(m["time"]))
        for m in ROW.finditer((DOCS / "concepts" / "ways.md").read_text(encoding="utf-8"))
    ]
    left, top, width, height, most = 60, 30, 560, 250, 1.5
    x_of, y_of = (lambda share: left + width * share), (lambda time: top + height * (most - time) / (most - 0.8))
    parts = [text(left, 18, "time of a step, of the plain step's", "start")]
    for time in (0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5):
        y = y_of(time)
        parts += [
            f'<line class="line" x1="{left}" x2="{left + width}" y1="{y:.1f}" y2="{y:.1f}" stroke-width="{1.2 if time == 1 else 0.3}"/>',
            text(left - 8, y + 4, f"{time:.1f}", "end"),
        ]
    for share in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        parts.append(text(x_of(share), top + height + 18, f"{share:.0%}"))
    parts += [
        text(left + width / 2, top + height + 36, "measured peak, of the plain step's"),
        f'<circle cx="{x_of(1)}" cy="{y_of(1):.1f}" r="6" class="ink"/>',
        text(x_of(1) - 10, y_of(1) - 8, "plain step", "end"),
    ]
    for way, model, share, time in rows:
        color = WAY_COLORS[way.split()[0].strip("`")]
        title = escape(f"{way}, {model}: {share:.0%} of the memory, {time} times the time")
        parts.append(f'<circle cx="{x_of(share):.1f}" cy="{y_of(time):.1f}" r="5" fill="{color}"><title>{title}</title></circle>')
    for k, (way, color) in enumerate(WAY_COLORS.items()):
        x, y = left + 10 + 190 * (k % 3), top + height + 60 + 20 * (k // 3)
        parts += [
            f'<circle cx="{x}" cy="{y - 4}" r="5" fill="{color}"/>',
            text(x + 12, y, "tf.recompute_grad" if way == "recompute_grad" else way, "start"),
        ]
    return picture(left + width + 30, top + height + 96, "Memory against time of the ways to need less memory", parts)


def memory_over_the_step(plans: Sequence[tuple[str, Any]]) -> str:
    """Timelines of one step, stacked by role, all to the same scale."""
    top_bytes = max(timeline.peak_bytes for _, timeline in plans) * 1.06
    width, height, gap, parts = 205, 150, 18, list[str]()
    for k, (title, timeline) in enumerate(plans):
        x0, y0, last = 20 + k * (width + gap), 40, len(timeline.total_bytes) - 1
        below = [0.0] * (last + 1)
        for role, color in ROLE_COLORS.items():
            row = timeline.bytes_by_role.get(role) or (0,) * (last + 1)
            above = [base + nbytes for base, nbytes in zip(below, row, strict=True)]
            points = [*enumerate(above), *reversed(list(enumerate(below)))]
            path = " ".join(f"{x0 + width * step / last:.1f},{y0 + height * (1 - nbytes / top_bytes):.1f}" for step, nbytes in points)
            parts.append(f'<polygon points="{path}" fill="{color}"><title>{role}</title></polygon>')
            below = above
        parts += [text(x0, 18, title, "start", font_weight="bold"), text(x0, 33, f"peak {timeline.peak_bytes / 2**20:.1f} MiB", "start")]
        parts.append(f'<line class="line" x1="{x0}" x2="{x0 + width}" y1="{y0 + height}" y2="{y0 + height}" stroke-width="1"/>')
    for k, (role, color) in enumerate(ROLE_COLORS.items()):
        x = 20 + 112 * k
        parts += [f'<rect x="{x}" y="206" width="10" height="10" fill="{color}"/>', text(x + 15, 215, role, "start", font_size="11")]
    return picture(20 + len(plans) * (width + gap), 228, "Memory over a training step: " + ", ".join(title for title, _ in plans), parts)


def planned_timelines() -> list[tuple[str, Any]]:
    """The model of the start page as traced, recomputed, and in parts of its batch."""
    import keras

    import graphwright as gw

    def plan(budget: float | str, **options: Any) -> Any:
        keras.utils.clear_session()
        layers = [keras.layers.Conv2D(32, 3, padding="same", activation="relu") for _ in range(8)]
        model = keras.Sequential(
            [keras.Input((32, 32, 3)), *layers, keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(10, "softmax")]
        )
        model.compile("adam", "sparse_categorical_crossentropy")
        inputs = (keras.ops.zeros((64, 32, 32, 3)), keras.ops.zeros((64,)))
        return gw.optimize_memory(model, budget, inputs=inputs, cache_dir=None, **options).memory_plan()

    half, parts = plan(0.5), plan(0.3, allow="all")
    return [("as traced", half.timeline_before), ("recomputed", half.timeline_after), ("in parts of the batch", parts.timeline_after)]


def main(arguments: Sequence[str]) -> None:
    made = {"shapes": shapes(), "update_ops": update_ops(), "backward": backward(), "ways": ways()}
    if "--drawn" not in arguments:
        made["memory_over_the_step"] = memory_over_the_step(planned_timelines())
    for name, svg in made.items():
        (DOCS / "figures" / f"{name}.svg").write_text(svg, encoding="utf-8")
        print(f"docs/figures/{name}.svg, {len(svg) / 1024:.0f} KiB")


if __name__ == "__main__":
    main(sys.argv[1:])
