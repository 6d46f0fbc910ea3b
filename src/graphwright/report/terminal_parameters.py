"""A table of parameters as text for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import RenderableType
from rich.text import Text

from graphwright.analyze.lookup_tables import LookupTable
from graphwright.analyze.parameters import KINDS, Parameter, ParameterKind, ParameterSums, sum_parameters
from graphwright.report.parameter_table import ParameterTable
from graphwright.report.summary import NO_LAYER, Fact
from graphwright.report.terminal_layout import Page, figures_table, wrapped
from graphwright.report.units import format_bytes, format_count, printable

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


@dataclass(slots=True)
class _Scope:
    """A scope with what lies in it and below it."""

    parameters: list[Parameter] = field(default_factory=list[Parameter])
    children: dict[str, _Scope] = field(default_factory=dict[str, "_Scope"])


def print_parameters(table: ParameterTable, page: Page) -> None:
    page.headline(parameters_verdict(table))
    page.facts(_facts(table))
    for warning in table.warnings:
        page.line(Text("\n" + wrapped(f"Warning: {warning}.", page.width), style="bold red"))
    if table.parameters:
        page.section("By scope", *_tree(table, page.body_width))
        page.section("By dtype", _sums_table(table.by_dtype, "dtype", page.body_width))
    if table.embeddings:
        page.section("Embeddings", *_listed(table.embeddings, page.body_width))
    if table.quantized:
        page.section("Quantized", *_listed(table.quantized, page.body_width))
    if table.tables:
        headings = ("table", "op type", "maps", "entries")
        page.table("Lookup tables", headings, [_table_row(t) for t in table.tables], left=(1, 2))
    if table.collections:
        page.pairs("Collections", _collections(table))
    if table.step:
        page.section("The step", *_step(table, page.body_width))
    page.origins(table.how.items())


def parameters_verdict(table: ParameterTable) -> str:
    """One sentence: how many parameters, and how many bytes with everything."""
    rest = f"; the shapes of {len(table.unknown)} are not known" if table.unknown else ""
    return f"{printable(table.name)}: {format_count(table.total)} parameters, {format_bytes(table.total_bytes)} with all state{rest}."


def _facts(table: ParameterTable) -> list[Fact]:
    sums = table.sums
    shown: list[ParameterKind] = [kind for kind in KINDS if sums.elements[kind] or kind in ("trainable", "non-trainable")]
    return [Fact(kind, format_count(sums.elements[kind]), _note(kind, sums.nbytes[kind])) for kind in shown]


def _note(kind: ParameterKind, nbytes: int) -> str:
    return ", ".join(part for part in (format_bytes(nbytes), _NOTES[kind]) if part)


def _tree(table: ParameterTable, width: int) -> list[RenderableType]:
    root = _Scope()
    for parameter in table.parameters:
        parts = parameter.scope.split("/")[: table.depth] if parameter.scope else [NO_LAYER]
        root.parameters.append(parameter)
        scope = root
        for part in parts:
            scope = scope.children.setdefault(part, _Scope())
            scope.parameters.append(parameter)
    rows: list[tuple[str, ParameterSums]] = []
    _add_rows(root, 0, rows)
    shown = rows[:_ROWS]
    cells = [_cells(name, sums) for name, sums in shown]
    printed: list[RenderableType] = [figures_table(width, _COLUMNS, cells)]
    if len(rows) > len(shown):
        printed.append(Text(f"{format_count(len(rows) - len(shown))} more scopes; a smaller depth adds them up", style="dim"))
    return printed


_COLUMNS = ("scope", "count", "trainable", "other weights", "state", "bytes")


def _add_rows(scope: _Scope, level: int, rows: list[tuple[str, ParameterSums]]) -> None:
    for name, child in scope.children.items():
        rows.append(("  " * level + printable(name), sum_parameters(child.parameters)))
        _add_rows(child, level + 1, rows)


def _cells(name: str, sums: ParameterSums) -> tuple[str, ...]:
    elements = sums.elements
    figures = (
        sums.count,
        elements["trainable"],
        elements["non-trainable"] + elements["constant"],
        elements["optimizer state"] + elements["other state"],
    )
    return (name, *(format_count(figure) if figure else "" for figure in figures), format_bytes(sums.total_bytes))


def _sums_table(groups: Mapping[str, ParameterSums], heading: str, width: int) -> RenderableType:
    return figures_table(width, (heading, *_COLUMNS[1:]), [_cells(printable(name), sums) for name, sums in groups.items()])


def _listed(parameters: Sequence[Parameter], width: int) -> list[RenderableType]:
    rows = [(printable(p.name), _shape(p), p.dtype, p.use, format_bytes(p.nbytes or 0)) for p in parameters[:_FEW]]
    table = figures_table(width, ("name", "shape", "dtype", "use", "bytes"), rows, left=(1, 2, 3))
    return [table, *_more(len(parameters) - _FEW)]


def _table_row(table: LookupTable) -> tuple[str, ...]:
    entries = "not known" if table.entries is None else format_count(table.entries)
    return printable(table.name), table.op_type, f"{table.key_dtype} to {table.value_dtype}", entries


def _shape(parameter: Parameter) -> str:
    return "not known" if parameter.shape is None else "x".join("?" if d is None else str(d) for d in parameter.shape) or "scalar"


def _more(count: int) -> list[RenderableType]:
    return [Text(f"{format_count(count)} more", style="dim")] if count > 0 else []


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
        rows = [(printable(s.variable), s.effect, printable(s.node)) for s in table.side_effects[:_FEW]]
        room = max(24, width - 18 - 4 - max(len(row[0]) for row in rows))
        rows = [(name, effect, node if len(node) <= room else "…" + node[-room + 1 :]) for name, effect, node in rows]
        headings = ("side effect on", "effect", "by node")
        parts += [figures_table(width, headings, rows, left=(1, 2)), *_more(len(table.side_effects) - _FEW)]
    return parts
