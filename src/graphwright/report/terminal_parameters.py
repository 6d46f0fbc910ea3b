"""A table of parameters as text for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rich.console import RenderableType
from rich.text import Text

from graphwright.analyze.lookup_tables import LookupTable
from graphwright.analyze.parameters import KINDS, Parameter, ParameterKind, ParameterSums, sum_parameters
from graphwright.report.parameter_table import ParameterTable, SideEffect
from graphwright.report.summary import NO_LAYER, Fact
from graphwright.report.tables import Column, parameter_columns
from graphwright.report.terminal_layout import Page, listed, wrapped
from graphwright.report.units import NOT_KNOWN, format_bytes, format_count, printable

_ROWS = 40
_FEW = 12
_NAMES = 4
_NOTES: Mapping[ParameterKind, str] = {
    "trainable": "",
    "non-trainable": "frozen weights, moving statistics",
    "optimizer state": "momentum and what else only the optimizer needs",
    "other state": "metrics, counters, states of random numbers",
    "constant": "weights that lie in the graph as constants",
}


def print_parameters(table: ParameterTable, page: Page) -> None:
    page.headline(parameters_verdict(table))
    page.facts(parameter_facts(table))
    for warning in table.warnings:
        page.line(Text("\n" + wrapped(f"Warning: {warning}.", page.width), style="bold red"))
    if table.parameters:
        page.table("By scope", _scopes(table), parameter_columns("scope"), limit=_ROWS, more="more scopes; a smaller depth adds them up")
        page.table("By dtype", table.by_dtype.items(), parameter_columns("dtype"))
    if table.tables:
        page.table("Lookup tables", table.tables, _TABLES)
    page.pairs("Collections", _collections(table))
    if table.step:
        page.section("The step", *_step(table, page.body_width))
    page.origins(table.how.items())


def parameters_verdict(table: ParameterTable) -> str:
    """One sentence: how many parameters, and how many bytes with everything."""
    rest = f"; the shapes of {len(table.unknown)} are not known" if table.unknown else ""
    return f"{printable(table.name)}: {format_count(table.total)} parameters, {format_bytes(table.total_bytes)} with all state{rest}."


def parameter_facts(table: ParameterTable) -> list[Fact]:
    sums = table.sums
    shown: list[ParameterKind] = [kind for kind in KINDS if sums.elements[kind] or kind in ("trainable", "non-trainable")]
    notes = {kind: f", {note}" if note else "" for kind, note in _NOTES.items()}
    return [Fact(kind, format_count(sums.elements[kind]), format_bytes(sums.nbytes[kind]) + notes[kind]) for kind in shown]


def _scopes(table: ParameterTable) -> list[tuple[str, ParameterSums]]:
    """Each scope with the sums of what lies in it and below it, indented below the one around it."""
    groups: dict[tuple[str, ...], list[Parameter]] = {}
    for parameter in table.parameters:
        parts = tuple(parameter.scope.split("/")[: table.depth]) if parameter.scope else (NO_LAYER,)
        for end in range(1, len(parts) + 1):
            groups.setdefault(parts[:end], []).append(parameter)
    rank = {path: k for k, path in enumerate(groups)}
    paths = sorted(groups, key=lambda path: [rank[path[:end]] for end in range(1, len(path) + 1)])
    return [("  " * (len(path) - 1) + path[-1], sum_parameters(groups[path])) for path in paths]


_TABLES: Sequence[Column[LookupTable]] = (
    Column("table", lambda t: t.name, kind="name"),
    Column("op type", lambda t: t.op_type, kind="text"),
    Column("maps", lambda t: f"{t.key_dtype} to {t.value_dtype}", kind="text"),
    Column("entries", lambda t: NOT_KNOWN if t.entries is None else t.entries),
)
_SIDE_EFFECTS: Sequence[Column[SideEffect]] = (
    Column("side effect on", lambda s: s.variable, kind="name"),
    Column("effect", lambda s: s.effect, kind="text"),
    Column("by node", lambda s: s.node, kind="name"),
)


def _collections(table: ParameterTable) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for key, collection in table.collections.items():
        items = ", ".join(collection.items[:_NAMES]) + (", ..." if len(collection.items) > _NAMES else "")
        rows.append((key, f"{collection.meaning}. {format_count(len(collection.items))}: {items}"))
    return rows


def _step(table: ParameterTable, width: int) -> list[RenderableType]:
    text = f"{table.step}: reads {format_count(len(table.reads))} variables, writes {format_count(len(table.writes))}"
    counts = Counter(effect.effect for effect in table.side_effects)
    if counts:
        text += "; by side effect " + ", ".join(f"{format_count(n)} x {effect}" for effect, n in counts.items())
    parts: list[RenderableType] = [Text(wrapped(text + ".", width))]
    if table.side_effects:
        shown = table.side_effects[:_FEW]
        room = max(24, width - 18 - 4 - max(len(printable(s.variable)) for s in shown))
        short = [s if len(s.node) <= room else replace(s, node="…" + s.node[-room + 1 :]) for s in table.side_effects]
        parts += listed(width, short, _SIDE_EFFECTS, limit=_FEW)
    return parts
