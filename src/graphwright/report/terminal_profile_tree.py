"""The tree of a measured step, as a table for a terminal and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from rich.text import Text

from graphwright.analyze.profile_tree import Column, TreeNode, TreeOptions, column_value
from graphwright.report.terminal_layout import Page, figures_table, rendered
from graphwright.report.units import format_bytes, format_count, format_flops, format_percent, format_time, printable

_HEADINGS: dict[Column, str] = {
    "host_time": "host",
    "accelerator_time": "accel.",
    "peak_bytes": "peak",
    "residual_bytes": "residual",
    "output_bytes": "output",
    "parameters": "params",
    "flops": "FLOPs",
    "flops_per_s": "FLOP/s",
    "intensity": "FLOP/B",
    "occurrences": "runs",
}
_ROWS = 200


@dataclass(frozen=True)
class ProfileTree:
    """A tree that prints itself. What `Profile.tree` gives.

    Attributes:
        root: the whole; what is not shown is in its totals, unless the options say otherwise.
        options: how it was made.
    """

    root: TreeNode
    options: TreeOptions

    def __str__(self) -> str:
        return rendered(print_tree, self)

    def rows(self) -> Iterator[tuple[int, TreeNode]]:
        """The nodes that are shown, each with its depth, from the top."""
        stack = [(0, self.root)]
        while stack:
            depth, node = stack.pop()
            yield depth, node
            stack.extend((depth + 1, child) for child in reversed(node.children))

    def to_json(self) -> dict[str, object]:
        """The rows from the top, with depths; a nested document would be too deep for some readers."""
        rows = [
            {"depth": depth, "name": node.name, "op_type": node.op_type, "own": node.own.to_json(), "total": node.total.to_json()}
            for depth, node in self.rows()
        ]
        return {"options": asdict(self.options), "rows": rows}


def print_tree(tree: ProfileTree, page: Page, *, limit: int = _ROWS) -> None:
    """Put the tree on a page.

    Args:
        limit: rows at most; a line says how many more there are.
    """
    columns = tree.options.columns
    every = list(tree.rows())
    rows = [
        (_label(depth, node, tree.options), *(format_column(column_value(node.total, column), column) for column in columns))
        for depth, node in every[:limit]
    ]
    heading = {"scope": "scope", "graph": "node", "op": "op type", "code": "line"}[tree.options.by]
    page.line(figures_table(page.width, (heading, *(_HEADINGS.get(c, c) for c in columns)), rows))
    if len(every) > limit:
        page.line(Text(f"{format_count(len(every) - limit)} more rows", style="dim"))


def _label(depth: int, node: TreeNode, options: TreeOptions) -> str:
    name = printable(node.name)
    if (options.by == "scope" and depth > 1) or options.by == "code":
        name = name.rsplit("/", 1)[-1]
    return "  " * min(depth, 12) + name


def format_column(figure: float, column: Column) -> str:
    """A figure as its column shows it."""
    if not math.isfinite(figure):
        return ""
    if column.endswith("time"):
        return format_time(figure)
    if column.endswith("bytes"):
        return format_bytes(figure)
    if column == "share":
        return format_percent(figure)
    if column in ("flops", "flops_per_s"):
        return format_flops(figure).removesuffix("FLOP").strip()
    return f"{figure:.3g}" if column == "intensity" else format_count(int(figure))
