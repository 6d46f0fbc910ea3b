"""Results as notebooks show them: a card of HTML with small charts, without scripts and without a chart library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from graphwright.analyze.step_profile import StepProfile, by_layer, by_op_type
from graphwright.report.flop_count import FlopCount
from graphwright.report.page import environment
from graphwright.report.results import Inspection, MemoryPlan
from graphwright.report.summary import (
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
from graphwright.report.tables import (
    Table,
    chosen,
    decision_table,
    flop_columns,
    layer_table,
    op_type_table,
    parameter_columns,
    profile_columns,
    tabulated,
)
from graphwright.report.terminal_flops import flop_facts, flop_verdict
from graphwright.report.terminal_parameters import parameter_facts, parameters_verdict
from graphwright.report.terminal_profile import profile_facts, profile_verdict
from graphwright.report.units import format_percent

if TYPE_CHECKING:
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
        roles=ROLE_COLORS,
        tables=[layer_table(layers_by_share(inspection.layers)), op_type_table(inspection.op_types)],
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
        roles=ROLE_COLORS,
        tables=[decision_table(plan.decisions), layer_table(layers_by_share(plan.layers))],
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
    warnings = [
        f"not counted: {op_type} × {ops.count} ({ops.reason}), {format_percent(ops.node_share)} of the operations"
        for op_type, ops in flops.unknown.items()
    ]
    groups = (("Per op type", list(flops.per_op_type.values())), ("Per layer", list(flops.per_layer.values())))
    tables = [tabulated("", title, "", rows, flop_columns("name", rows)) for title, rows in groups]
    return _card("FLOPs", flop_verdict(flops), facts=flop_facts(flops), tables=tables, warnings=warnings)


def parameter_table_html(table: ParameterTable) -> str:
    """Parameters by layer and by dtype."""
    groups = (("By layer", table.by_layer), ("By dtype", table.by_dtype))
    tables = [tabulated("", title, "", list(sums.items()), parameter_columns("name")) for title, sums in groups]
    warnings = [str(warning) for warning in table.warnings]
    return _card("Parameters", parameters_verdict(table), facts=parameter_facts(table), tables=tables, warnings=warnings)


def profile_html(profile: StepProfile) -> str:
    """A measured step: the times of op types and layers."""
    shown = ("name", "time", "share", "forward", "backward", "allocated=bytes", "FLOPs", "runs")
    columns = chosen(profile_columns("name"), *shown)
    groups = (("Per op type", by_op_type(profile)), ("Per layer", by_layer(profile)))
    tables = [tabulated("", title, "", list(rows.values()), columns) for title, rows in groups]
    return _card("Profile", profile_verdict(profile), facts=profile_facts(profile), tables=tables)


_EMPTY: Mapping[str, Any] = {"tone": "neutral", "facts": (), "charts": (), "roles": {}, "warnings": (), "hint": ""}


def _card(kind: str, verdict: str, *, tables: Sequence[Table], **shown: Any) -> str:
    """A card with what is shown: any of `_EMPTY`."""
    template = environment().get_template("notebook.html")
    return template.render({**_EMPTY, **shown}, kind=kind, verdict=verdict, tables=[_shown(table) for table in tables])


def _shown(table: Table) -> Table:
    """The first rows, without columns that a page shows only when asked."""
    keep = [k for k, column in enumerate(table.columns) if not column.optional]
    rows = tuple(tuple(row[k] for k in keep) for row in table.rows[:_ROWS])
    return replace(table, columns=tuple(table.columns[k] for k in keep), rows=rows)
