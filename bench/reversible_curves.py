"""Draw loss and accuracy of `examples/train_reversible_network.py` as an SVG for the guide: a line per network and seed.

for seed in 1 2 3 4 5; do
    python examples/train_reversible_network.py --folder runs/$seed --seed $seed --epochs 20 --curves runs/$seed.json
done
python -m bench.reversible_curves docs/figures/reversible_curves.svg runs/*.json    # and stores them in results/reversible_curves.json
python -m bench.reversible_curves docs/figures/reversible_curves.svg                # draws the stored curves again
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "reversible_curves.json"
HELD_OUT = 450
"""Digits that the networks do not learn from."""
Run = dict[str, list[dict[str, float]]]
"""By network, loss and accuracy of each epoch."""
WIDTH, HEIGHT, LEFT, TOP, GAP = 330, 190, 44, 26, 40
COLORS = ("#0f62fe", "#b8500c")


def panel(title: str, curves: dict[str, list[list[float]]], x0: int, top: float) -> list[str]:
    """One chart: the lines of each network over the epochs, from 0 to `top`."""
    parts = [f'<text x="{x0}" y="16" font-weight="bold">{title}</text>']
    longest = max(len(values) for lines in curves.values() for values in lines)
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = TOP + HEIGHT * (1 - share)
        parts.append(f'<line x1="{x0}" x2="{x0 + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#8888" stroke-width="0.5"/>')
        parts.append(f'<text x="{x0 - 6}" y="{y + 4:.1f}" text-anchor="end">{top * share:.2g}</text>')
    for (name, lines), color in zip(curves.items(), COLORS, strict=False):
        for values in lines:
            points = [(x0 + WIDTH * k / max(longest - 1, 1), TOP + HEIGHT * (1 - min(value / top, 1.0))) for k, value in enumerate(values)]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1"><title>{name}</title></polyline>')
    ends = ((0, "start"), (longest - 1, "end"))
    parts += [
        f'<text x="{x0 + WIDTH * k / max(longest - 1, 1):.1f}" y="{TOP + HEIGHT + 16}" text-anchor="{anchor}">epoch {k + 1}</text>'
        for k, anchor in ends
    ]
    return parts


def draw(runs: Sequence[Run]) -> str:
    """Both charts, with a legend."""
    names = list(runs[0])
    losses = {name: [[row["loss"] for row in run[name]] for run in runs] for name in names}
    accuracies = {name: [[row["val_accuracy"] for row in run[name]] for run in runs] for name in names}
    right = LEFT + WIDTH + GAP + LEFT
    parts = panel("training loss", losses, LEFT, max(value for lines in losses.values() for values in lines for value in values))
    parts += panel("accuracy on held-out digits", accuracies, right, 1.0)
    for k, (name, color) in enumerate(zip(names, COLORS, strict=False)):
        x = right + 180 + 75 * k
        parts.append(f'<line x1="{x}" x2="{x + 16}" y1="12" y2="12" stroke="{color}" stroke-width="2"/>')
        parts.append(f'<text x="{x + 20}" y="16">{name}</text>')
    body = "\n".join(parts)
    width, height = right + WIDTH + 12, TOP + HEIGHT + 26
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11" fill="#777" '
        f'role="img" aria-label="Training loss and accuracy of {" and ".join(names)} by epoch">\n{body}\n</svg>\n'
    )


def _drawn(row: dict[str, float]) -> dict[str, float]:
    """Return the drawn figures of an epoch."""
    return {key: round(row[key], 6) for key in ("loss", "val_accuracy")}


def last_epochs(runs: Sequence[Run]) -> str:
    """Return how many held-out digits each network classifies correctly after its last epoch, run by run."""
    lines: list[str] = []
    for name in runs[0]:
        right = [round(HELD_OUT * run[name][-1]["val_accuracy"]) for run in runs]
        lines.append(f"{name}: {', '.join(map(str, right))} of {HELD_OUT}, mean {sum(right) / len(right):.1f}")
    return "\n".join(lines)


def main(argv: Sequence[str]) -> None:
    target, *sources = map(Path, argv)
    if sources:
        kept = [{name: [_drawn(row) for row in rows] for name, rows in json.loads(source.read_text()).items()} for source in sources]
        RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
    runs: list[Run] = json.loads(RESULTS.read_text())
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(draw(runs))
    print(last_epochs(runs))


if __name__ == "__main__":
    main(sys.argv[1:])
