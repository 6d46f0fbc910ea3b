"""Draws loss and accuracy of `examples/train_reversible_network.py` as an SVG for the guide.

python examples/train_reversible_network.py --folder runs --epochs 12 --curves curves.json
python -m bench.reversible_curves curves.json docs/figures/reversible_curves.svg
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

WIDTH, HEIGHT, LEFT, TOP, GAP = 330, 190, 44, 26, 40
COLORS = ("#0f62fe", "#b8500c")


def panel(title: str, curves: dict[str, list[float]], x0: int, top: float) -> list[str]:
    """One chart: a line per network over the epochs, from 0 to `top`."""
    parts = [f'<text x="{x0}" y="16" font-weight="bold">{title}</text>']
    longest = max(len(values) for values in curves.values())
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = TOP + HEIGHT * (1 - share)
        parts.append(f'<line x1="{x0}" x2="{x0 + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#8888" stroke-width="0.5"/>')
        parts.append(f'<text x="{x0 - 6}" y="{y + 4:.1f}" text-anchor="end">{top * share:.2g}</text>')
    for (name, values), color in zip(curves.items(), COLORS, strict=False):
        points = [(x0 + WIDTH * k / max(longest - 1, 1), TOP + HEIGHT * (1 - min(value / top, 1.0))) for k, value in enumerate(values)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"><title>{name}</title></polyline>')
    ends = ((0, "start"), (longest - 1, "end"))
    parts += [
        f'<text x="{x0 + WIDTH * k / max(longest - 1, 1):.1f}" y="{TOP + HEIGHT + 16}" text-anchor="{anchor}">epoch {k + 1}</text>'
        for k, anchor in ends
    ]
    return parts


def draw(curves: dict[str, list[dict[str, float]]]) -> str:
    """Both charts, with a legend."""
    losses = {name: [row["loss"] for row in rows] for name, rows in curves.items()}
    accuracies = {name: [row["val_accuracy"] for row in rows] for name, rows in curves.items()}
    right = LEFT + WIDTH + GAP + LEFT
    parts = panel("training loss", losses, LEFT, max(value for values in losses.values() for value in values))
    parts += panel("accuracy on held-out digits", accuracies, right, 1.0)
    for k, (name, color) in enumerate(zip(curves, COLORS, strict=False)):
        x = right + 180 + 75 * k
        parts.append(f'<line x1="{x}" x2="{x + 16}" y1="12" y2="12" stroke="{color}" stroke-width="2"/>')
        parts.append(f'<text x="{x + 20}" y="16">{name}</text>')
    body = "\n".join(parts)
    width, height = right + WIDTH + 12, TOP + HEIGHT + 26
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11" fill="#777" '
        f'role="img" aria-label="Training loss and accuracy of {" and ".join(curves)} by epoch">\n{body}\n</svg>\n'
    )


def main(argv: Sequence[str]) -> None:
    source, target = map(Path, argv)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(draw(json.loads(source.read_text())))


if __name__ == "__main__":
    main(sys.argv[1:])
