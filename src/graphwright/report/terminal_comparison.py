"""Costs, comparisons and checks as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.text import Text

from graphwright.report.comparison import FIGURES, LAYER_FIGURES, CheckResult, Comparison, Finding, LayerPair, StepCosts, model_scope
from graphwright.report.summary import NO_LAYER, Fact
from graphwright.report.tables import Cell, Column, signed
from graphwright.report.terminal_layout import Page, listed, wrapped
from graphwright.report.units import feeds_text, format_count, format_percent, printable, shorten_middle

_ROWS = 20
_FIRST = ("peak_bytes", "resident_bytes", "parameters", "total_flops", "bytes_moved")
_SIGNS = {"added": "+", "removed": "-", "changed": "~", "same": " "}
_STYLES = {"added": "green", "removed": "red", "changed": "yellow", "same": ""}


def print_costs(costs: StepCosts, page: Page) -> None:
    """Put the figures of a step on a page."""
    page.headline(_title(costs))
    page.facts(_facts(costs))


def _facts(costs: StepCosts) -> list[Fact]:
    return [Fact(figure.label, figure.format(costs.figures[name]), figure.how) for name, figure in FIGURES.items()]


def print_comparison(comparison: Comparison, page: Page) -> None:
    page.headline(comparison_verdict(comparison))
    alike = comparison.a.feeds == comparison.b.feeds
    for letter, costs in (("A", comparison.a), ("B", comparison.b)):
        page.paragraph(f"{letter}: {shorten_middle(printable(costs.name) if alike else _title(costs), 2 * page.width - 20)}")
    if alike and comparison.a.feeds:
        page.paragraph(f"Inputs: {shorten_middle(feeds_text(comparison.a.feeds), 2 * page.width - 20)}")
    a, b = comparison.a.figures, comparison.b.figures
    shown = [name for name in FIGURES if page.shows("all") or (a[name] != b[name] and name in _FIRST)]
    page.lines(listed(page.width, shown, figure_columns(comparison), empty="All figures are the same."))
    if not page.shows("all"):
        if "resident_bytes" in shown:
            page.paragraph(f"resident: {FIGURES['resident_bytes'].how}")
        return
    _print_layers(comparison, page)
    for letter, costs in (("A", comparison.a), ("B", comparison.b)):
        if costs.unknown_flop_ops:
            names = ", ".join(map(printable, costs.unknown_flop_ops))
            page.section(f"Without FLOPs in {letter}", Text(wrapped(names, page.body_width)))
    page.origins(comparison.b.how.items())


def comparison_verdict(comparison: Comparison) -> str:
    """One sentence: what B needs more or less, and how many layers differ."""
    parts = [_more_or_less(comparison, name) for name in ("peak_bytes", "total_flops", "parameters")]
    counts = [f"{n} {change}" for change in ("added", "removed", "changed") if (n := len(comparison.with_change(change)))]
    return f"B against A: {', '.join(parts)}. Layers: {', '.join(counts) or 'all the same'}."


def _more_or_less(comparison: Comparison, name: str) -> str:
    label = FIGURES[name].label
    if not comparison.difference(name):
        return f"the same {label}"
    ratio = comparison.ratio(name)
    return f"{label} {_change_of(ratio) if math.isfinite(ratio) else FIGURES[name].format(comparison.b.figures[name])}"


def _change_of(ratio: float) -> str:
    if not math.isfinite(ratio):
        return "new"
    text = format_percent(ratio - 1)
    return f"+{text}" if ratio > 1 else text


def figure_columns(comparison: Comparison) -> list[Column[str]]:
    """Both steps' figures by name, told apart, and what B's are more."""
    a, b = comparison.a.figures, comparison.b.figures

    def change(name: str) -> Cell:
        ratio = comparison.ratio(name)
        return Cell("" if a[name] == b[name] or math.isnan(b[name] - a[name]) else _change_of(ratio), ratio if math.isfinite(ratio) else -1)

    def difference(name: str) -> str:
        return FIGURES[name].format(b[name] - a[name], signed=True) if a[name] != b[name] else "same"

    return [
        Column("figure", lambda name: FIGURES[name].label, kind="name"),
        Column("A", lambda name: Cell(FIGURES[name].apart(a[name], b[name])[0], a[name])),
        Column("B", lambda name: Cell(FIGURES[name].apart(a[name], b[name])[1], b[name])),
        Column("B - A", lambda name: Cell(difference(name), b[name] - a[name]), wide=True),
        Column("change", change),
    ]


def difference_column(name: str, heading: str = "") -> Column[LayerPair]:
    """What B's layers have more of one of `LAYER_FIGURES`."""
    figure = LAYER_FIGURES[name]
    return Column(heading or figure.label, lambda pair: pair.difference(name), signed(figure.format), note=f"B - A: {figure.how}")


def _print_layers(comparison: Comparison, page: Page, *, rows: int = _ROWS) -> None:
    differing = [pair for pair in comparison.layers if pair.change != "same"]
    if not differing:
        page.section("Layers", Text(f"all {format_count(len(comparison.layers))} cost the same", style="dim"))
        return
    shown = sorted(differing, key=_weight, reverse=True)[:rows]
    order = {id(pair): k for k, pair in enumerate(comparison.layers)}
    scopes = model_scope(comparison.a.layers), model_scope(comparison.b.layers)
    columns = [
        Column[LayerPair]("", lambda pair: _layer_name(pair, *scopes), kind="name", style=lambda pair: _STYLES[pair.change]),
        *map(difference_column, LAYER_FIGURES),
    ]
    title = f"Layers that differ: {format_count(len(differing))} of {format_count(len(comparison.layers))}; + added, - removed, ~ changed"
    shown.sort(key=lambda pair: order[id(pair)])
    more = [Text(f"{format_count(len(differing) - rows)} more, which differ less", style="dim")] if len(differing) > rows else []
    page.section(title, *listed(page.body_width, shown, columns), *more)


def _weight(pair: LayerPair) -> tuple[float, float, float]:
    return (
        abs(pair.difference("residual_bytes")) + abs(pair.difference("peak_share_bytes")),
        abs(pair.difference("total_flops")),
        abs(pair.difference("parameters")),
    )


def _layer_name(pair: LayerPair, scope_a: str, scope_b: str) -> str:
    layers = ((pair.a, scope_a), (pair.b, scope_b))
    names = [layer.layer.removeprefix(scope) or NO_LAYER for layer, scope in layers if layer is not None]
    return f"{_SIGNS[pair.change]} {' → '.join(dict.fromkeys(names))}"


def print_check(result: CheckResult, page: Page) -> None:
    style = "bold green" if result.passed else "bold red"
    page.headline(check_verdict(result), style)
    page.paragraph(_title(result.costs))
    if result.findings:
        hidden = {"over by"} if result.passed else set[str]()
        hidden |= {"was"} if result.comparison is None else set[str]()
        page.lines(listed(page.width, result.findings, [column for column in _FINDINGS if column.label not in hidden]))
    else:
        page.facts(_facts(result.costs))
    if result.comparison is not None and page.shows("all"):
        _print_layers(result.comparison, page)
    for warning in result.warnings:
        page.section("Warning", Text(wrapped(warning, page.body_width)))
    if result.written is not None:
        page.line(Text(f"\nbaseline written to {result.written}"))


_FINDINGS: Sequence[Column[Finding]] = (
    Column("", lambda f: FIGURES[f.figure].label, kind="name"),
    Column(" ", lambda f: "ok" if f.passed else "FAIL", style=lambda f: "green" if f.passed else "bold red"),
    Column("is", lambda f: _apart(f)[0]),
    Column("at most", lambda f: _apart(f)[1]),
    Column("over by", lambda f: "" if f.passed else FIGURES[f.figure].format(f.amount - f.limit)),
    Column("was", lambda f: "" if f.baseline is None else FIGURES[f.figure].format(f.baseline)),
)


def check_verdict(result: CheckResult) -> str:
    """One sentence: passed or failed, and by which figures."""
    if not result.findings:
        return "Nothing was checked: no limit and no baseline was given." if result.written is None else "The baseline was written."
    failed = [finding for finding in result.findings if not finding.passed]
    if failed:
        return f"Check failed: {'; '.join(_sentence(finding) for finding in failed)}."
    return f"Check passed: {', '.join(dict.fromkeys(FIGURES[finding.figure].label for finding in result.findings))} within the limits."


def _sentence(finding: Finding) -> str:
    figure = FIGURES[finding.figure]
    amount, limit = _apart(finding)
    if finding.baseline is None:
        return f"{figure.label} {amount}, at most {limit} allowed"
    change = _change_of(finding.amount / finding.baseline) if finding.baseline else "new"
    return f"{figure.label} {amount}, {change} over the baseline"


def _apart(finding: Finding) -> tuple[str, str]:
    return FIGURES[finding.figure].apart(finding.amount, finding.limit)


def github_annotations(result: CheckResult) -> tuple[str, ...]:
    """Workflow commands for failed figures and for warnings."""
    failed = [("error", f"{_sentence(finding)} ({result.costs.name})") for finding in result.findings if not finding.passed]
    warned = [("warning", f"{warning} ({result.costs.name})") for warning in result.warnings]
    escapes = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
    return tuple(f"::{kind} title=graphwright check::{text.translate(escapes)}" for kind, text in [*failed, *warned])


def _title(costs: StepCosts) -> str:
    return printable(costs.name + (f", with {feeds_text(costs.feeds)}" if costs.feeds else ""))
