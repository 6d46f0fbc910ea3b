"""A measured step as text for a terminal: what it took, and where, per op type, per layer, and as a tree."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from graphwright.analyze.profile_tree import TreeNode, TreeOptions
from graphwright.analyze.step_profile import StepProfile, by_layer, by_op_type, whole
from graphwright.plain import plain
from graphwright.report.draw import Printed
from graphwright.report.summary import NO_LAYER, Fact
from graphwright.report.tables import Column, chosen, profile_column, profile_columns
from graphwright.report.terminal_layout import Page, listed
from graphwright.report.units import counted, format_bytes, format_count, format_flops, format_percent, format_time, printable

_ROWS = 12
_FEW = 4
_TYPICAL = 1.5
"""How many times as long as a plain step a recorded one may take, or the other way round, to count as typical."""
_TREE_ROWS = 200


class _Measured(Protocol):
    """What a profile holds beside its records."""

    @property
    def step(self) -> StepProfile: ...
    @property
    def how(self) -> Mapping[str, str]: ...


def print_profile(measured: _Measured, page: Page) -> None:
    profile, whole = measured.step, page.shows("all")
    page.headline(profile_verdict(profile))
    facts = profile_facts(profile)
    op_types = chosen(profile_columns("op type"), "op type", "time", "share", "runs", "FLOP/s", "FLOP/B", "allocated=bytes")
    if not whole:
        page.flow([f"{name} {format_percent(share)}" for name, share in _directions(profile)], "   ", indent=2)
        for fact in facts:
            if fact.label == "FLOPs" or fact.label.startswith("peak"):
                page.paragraph(f"{fact.label[:1].upper()}{fact.label[1:]}: {fact.value}, {fact.note}")
        page.ranking("Layers", [(row.name or NO_LAYER, row.time_s) for row in by_layer(profile).values()], format_time)
        columns = [column for column in op_types if column.label != "FLOP/B"]
        page.lines(listed(page.width, list(by_op_type(profile).values())[:_FEW], columns))
    if whole:
        page.facts(facts)
        page.table("Per op type", by_op_type(profile).values(), op_types, limit=_ROWS)
        layers = chosen(profile_columns("layer"), "layer", "forward", "back, opt.", "share", "params", "FLOP/s", "bytes")
        page.table("Per layer", by_layer(profile).values(), layers, limit=_ROWS)
    page.origins(measured.how.items())


def profile_verdict(profile: StepProfile) -> str:
    """One sentence: how long the step took, and what took most of it."""
    first = next(iter(by_op_type(profile).values()), None)
    most = f"; {first.name} takes {format_percent(first.share)} of the time of all operations" if first is not None else ""
    time = f"{format_time(profile.step_time_s)} a step"
    if math.isfinite(profile.plain_time_s):
        time = f"{format_time(profile.plain_time_s)} a step, {format_time(profile.step_time_s)} while recorded"
    ratio = profile.step_time_s / profile.plain_time_s if profile.plain_time_s else 1.0
    caution = " The recorded step was not a typical one, so shares may mislead." if ratio > _TYPICAL or ratio < 1 / _TYPICAL else ""
    return f"{printable(profile.name)}: {time}{most}.{caution}"


def _directions(profile: StepProfile) -> list[tuple[str, float]]:
    """The share of each part of the step in the time of its operations."""
    total = whole(profile)
    parts = ("forward", total.forward_time_s), ("backward", total.backward_time_s), ("optimizer", total.optimizer_time_s)
    return [(name, part / total.time_s) for name, part in parts if part and total.time_s]


def profile_facts(profile: StepProfile) -> list[Fact]:
    total = whole(profile)
    plain = f"; {format_time(profile.plain_time_s)} without the recording" if math.isfinite(profile.plain_time_s) else ""
    facts = [Fact("step", format_time(profile.step_time_s), f"as recorded, from the first operation's start to the last one's end{plain}")]
    threads = len({(run.device, run.thread) for run in profile.runs})
    runs = f"{counted(total.occurrences, 'run')} on {counted(threads, 'lane')}"
    split = ", ".join(f"{name} {format_percent(share)}" for name, share in _directions(profile))
    facts.append(Fact("operations", format_time(total.time_s), f"{runs}; {split}"))
    if total.flops:
        time_s = profile.plain_time_s if plain else profile.step_time_s
        rate = f"{format_flops(total.flops / time_s)}/s" if time_s else "rate not known"
        left_out = f"; {counted(total.unknown, 'run')} not counted" if total.unknown else ""
        facts.append(
            Fact(
                "FLOPs",
                format_flops(total.flops),
                f"{rate}; {total.arithmetic_intensity:.3g} FLOP per byte moved by the kernels that ran{left_out}",
            )
        )
    if total.parameters:
        facts.append(Fact("parameters", format_count(total.parameters), "elements of weights, trained or not"))
    for track in profile.memory:
        before = (
            f"; {format_bytes(track.resident_bytes)} of it from before the step" if track.resident_bytes else " on top of what was there"
        )
        facts.append(Fact(f"peak {track.device}", format_bytes(track.peak_bytes), f"allocated by {track.allocator}{before}"))
    return facts


@dataclass(frozen=True)
class ProfileTree(Printed):
    """A tree that prints itself. What `Profile.tree` gives.

    Attributes:
        root: the whole; what is not shown is in its totals, unless the options say otherwise.
        options: how it was made.
    """

    root: TreeNode
    options: TreeOptions

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
            {"depth": depth, "name": node.name, "op_type": node.op_type, "own": plain(node.own), "total": plain(node.total)}
            for depth, node in self.rows()
        ]
        return {"options": plain(self.options), "rows": rows}


def print_tree(tree: ProfileTree, page: Page, *, limit: int = _TREE_ROWS) -> None:
    """Put the tree on a page.

    Args:
        limit: rows at most; a line says how many more there are.
    """
    heading = {"scope": "scope", "graph": "node", "op": "op type", "code": "line"}[tree.options.by]
    columns: list[Column[tuple[int, TreeNode]]] = [Column(heading, lambda row: _label(*row, tree.options), kind="name")]
    for name in tree.options.columns:
        column = profile_column(name)
        columns.append(Column(column.label, lambda row, of=column.of: of(row[1].total), column.form))
    for line in listed(page.width, tree.rows(), columns, limit=limit, more="more rows"):
        page.line(line)


def _label(depth: int, node: TreeNode, options: TreeOptions) -> str:
    name = printable(node.name)
    if (options.by == "scope" and depth > 1) or options.by == "code":
        name = name.rsplit("/", 1)[-1]
    return "  " * min(depth, 12) + name
