"""Results as notebooks show them: a card of HTML with small charts, without scripts and without a chart library."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from markupsafe import Markup

from graphwright.analyze.step_profile import ProfileRow, StepProfile, by_layer, by_op_type, whole
from graphwright.report.flop_count import FlopCount, FlopRow
from graphwright.report.page import environment
from graphwright.report.page_tables import (
    Cell,
    Column,
    Item,
    Table,
    bytes_cell,
    count_cell,
    decision_table,
    flops_cell,
    layer_table,
    op_type_table,
    ratio_cell,
    tabulated,
    time_cell,
)
from graphwright.report.results import Inspection, MemoryPlan
from graphwright.report.summary import (
    NO_LAYER,
    Fact,
    Tone,
    chart_top_bytes,
    inspection_facts,
    inspection_verdict,
    layers_by_share,
    plan_facts,
    plan_tone,
    plan_verdict,
)
from graphwright.report.svg import ROLE_COLORS, lines_svg, timeline_svg
from graphwright.report.sweep import SweepResult
from graphwright.report.terminal_profile import profile_verdict
from graphwright.report.units import format_bytes, format_count, format_flops, format_percent, format_time

if TYPE_CHECKING:
    from graphwright.analyze.parameters import ParameterSums
    from graphwright.report.parameter_table import ParameterTable

_ROWS = 12
_PAGE_HINT = "write_html(path) writes the whole report as one file that needs no network."


def inspection_html(inspection: Inspection) -> str:
    """An inspection: verdict, figures, memory over the step, layers and op types."""
    return _card(
        "Inspection",
        inspection_verdict(inspection),
        facts=inspection_facts(inspection),
        charts=[("", timeline_svg(inspection.timeline))],
        with_roles=True,
        tables=[layer_table(layers_by_share(inspection.layers), linked=False), op_type_table(inspection.op_types)],
        hint=_PAGE_HINT,
    )


def plan_html(plan: MemoryPlan) -> str:
    """A plan: verdict, figures, memory before and after, what becomes of the residuals."""
    top = chart_top_bytes(plan)
    before = timeline_svg(plan.timeline_before, top, plan.budget_bytes)
    after = timeline_svg(plan.timeline_after, top, plan.budget_bytes)
    return _card(
        "Memory plan",
        plan_verdict(plan),
        tone=plan_tone(plan),
        facts=plan_facts(plan),
        charts=[("", after)] if plan.status == "unchanged" else [("Before", before), ("Planned", after)],
        with_roles=True,
        tables=[decision_table(plan.decisions, linked=False), layer_table(layers_by_share(plan.layers), linked=False)],
        hint=_PAGE_HINT,
    )


def sweep_html(sweep: SweepResult) -> str:
    return _card(
        "Sweep",
        sweep.verdict,
        charts=[("", lines_svg(sweep.series, sweep.summary, sweep.budget_bytes))],
        tables=[sweep.table()],
        hint=_PAGE_HINT,
    )


def flop_count_html(flops: FlopCount) -> str:
    """FLOPs by direction, op type and layer, and what could not be counted."""
    if flops.formula is not None:
        facts = [Fact(name.replace("_", " "), str(formula)) for name, formula in flops.formulas.items()]
        verdict = f"{flops.name}: {flops.formula} FLOPs."
    else:
        verdict = f"{flops.name}: {format_flops(flops.total)}, {flops.arithmetic_intensity:.3g} per byte moved."
        facts = [
            Fact("forward", format_flops(flops.forward)),
            Fact("backward", format_flops(flops.backward)),
            Fact("optimizer", format_flops(flops.optimizer)),
            Fact("bytes moved", format_bytes(flops.bytes_moved)),
        ]
    warnings = [
        f"not counted: {op_type} × {ops.count} ({ops.reason}), {format_percent(ops.node_share)} of the operations"
        for op_type, ops in flops.unknown.items()
    ]
    tables = [_flop_table("Per op type", flops.per_op_type.values()), _flop_table("Per layer", flops.per_layer.values())]
    return _card("FLOPs", verdict, facts=facts, tables=tables, warnings=warnings)


def parameter_table_html(table: ParameterTable) -> str:
    """Parameters by layer and by dtype."""
    size = format_bytes(table.total_bytes)
    verdict = (
        f"{table.name}: {format_count(table.total)} parameters, {format_count(table.trainable)} of them trained; {size} with all state."
    )
    facts = [
        Fact("trainable", format_count(table.trainable)),
        Fact("non-trainable", format_count(table.non_trainable)),
        Fact("optimizer state", format_count(table.optimizer_state)),
        Fact("other state", format_count(table.other_state)),
    ]
    tables = [_parameter_rows("By layer", table.by_layer), _parameter_rows("By dtype", table.by_dtype)]
    return _card("Parameters", verdict, facts=facts, tables=tables, warnings=[str(warning) for warning in table.warnings])


def profile_html(profile: StepProfile) -> str:
    """A measured step: the times of op types and layers."""
    total = whole(profile)
    facts = [
        Fact("step", format_time(profile.step_time_s)),
        Fact("all operations", format_time(total.time_s)),
        Fact("backward", format_time(total.backward_time_s)),
        Fact("FLOPs", format_flops(total.flops)),
        *(Fact(f"peak on {track.device}", format_bytes(track.peak_bytes)) for track in profile.memory),
    ]
    tables = [
        _profile_table("Per op type", list(by_op_type(profile).values())),
        _profile_table("Per layer", list(by_layer(profile).values())),
    ]
    return _card("Profile", profile_verdict(profile), facts=facts, tables=tables)


def _card(
    kind: str,
    verdict: str,
    *,
    tone: Tone = "neutral",
    facts: Sequence[Fact] = (),
    charts: Sequence[tuple[str, Markup]] = (),
    with_roles: bool = False,
    tables: Sequence[Table] = (),
    warnings: Sequence[str] = (),
    hint: str = "",
) -> str:
    return (
        environment()
        .get_template("notebook.html")
        .render(
            kind=kind,
            verdict=verdict,
            tone=tone,
            facts=facts,
            charts=charts,
            roles=ROLE_COLORS if with_roles else {},
            tables=[_shown(table) for table in tables],
            warnings=warnings,
            hint=hint,
        )
    )


def _shown(table: Table) -> Table:
    """The first rows, without columns that a page shows only when asked."""
    keep = [k for k, column in enumerate(table.columns) if not column.optional]
    rows = tuple(tuple(row[k] for k in keep) for row in table.rows[:_ROWS])
    return replace(table, columns=tuple(table.columns[k] for k in keep), rows=rows)


def _table(title: str, rows: Iterable[Item], cells: Mapping[str, Callable[[Item], Cell]]) -> Table:
    figures = ((Column(label, "number" if k else "name"), cell) for k, (label, cell) in enumerate(cells.items()))
    return tabulated("", title, "", list(rows), figures)


def _flop_table(title: str, rows: Iterable[FlopRow]) -> Table:
    cells: dict[str, Callable[[FlopRow], Cell]] = {
        "name": lambda row: Cell(row.name or NO_LAYER),
        "FLOPs": lambda row: Cell(f"{row.formula} FLOP") if row.formula is not None else flops_cell(row.total),
        "forward": lambda row: flops_cell(row.forward),
        "backward": lambda row: flops_cell(row.backward),
        "moved": lambda row: bytes_cell(row.bytes_moved),
        "FLOP/B": lambda row: ratio_cell(row.total, row.bytes_moved),
        "ops": lambda row: count_cell(row.ops),
    }
    return _table(title, rows, cells)


def _parameter_rows(title: str, groups: Mapping[str, ParameterSums]) -> Table:
    cells: dict[str, Callable[[tuple[str, ParameterSums]], Cell]] = {
        "name": lambda row: Cell(row[0] or NO_LAYER),
        "weights": lambda row: count_cell(row[1].weights),
        "trainable": lambda row: count_cell(row[1].elements["trainable"]),
        "non-trainable": lambda row: count_cell(row[1].elements["non-trainable"]),
        "optimizer state": lambda row: count_cell(row[1].elements["optimizer state"]),
        "bytes": lambda row: bytes_cell(row[1].total_bytes),
    }
    return _table(title, groups.items(), cells)


def _profile_table(title: str, rows: Sequence[ProfileRow]) -> Table:
    cells: dict[str, Callable[[ProfileRow], Cell]] = {
        "name": lambda row: Cell(row.name or NO_LAYER),
        "time": lambda row: time_cell(row.time_s),
        "share": lambda row: Cell(format_percent(row.share)),
        "forward": lambda row: time_cell(row.forward_time_s),
        "backward": lambda row: time_cell(row.backward_time_s),
        "allocated": lambda row: bytes_cell(row.allocated_bytes),
        "FLOPs": lambda row: flops_cell(row.flops),
        "runs": lambda row: count_cell(row.occurrences),
    }
    return _table(title, rows, cells)
