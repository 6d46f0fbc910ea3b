"""Costs, comparisons and checks as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rich.console import RenderableType
from rich.text import Text

from graphwright.report.comparison import FIGURES, CheckResult, Comparison, Finding, LayerPair, StepCosts, model_scope
from graphwright.report.summary import NO_LAYER, Fact
from graphwright.report.terminal_layout import Page, figures_table, wrapped
from graphwright.report.units import format_bytes, format_bytes_apart, format_count, format_flops, format_percent, printable

_ROWS = 20
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
    page.line(Text())
    for letter, costs in (("A", comparison.a), ("B", comparison.b)):
        page.line(Text(_indented(f"{letter}: {_title(costs)}", page.body_width)))
    page.section("Figures", _figures(comparison, page.body_width))
    _print_layers(comparison, page)
    for letter, costs in (("A", comparison.a), ("B", comparison.b)):
        if costs.unknown_flop_ops:
            names = ", ".join(map(printable, costs.unknown_flop_ops))
            page.section(f"Without FLOPs in {letter}", Text(wrapped(names, page.body_width)))
    page.origins(comparison.b.how.items())


def comparison_verdict(comparison: Comparison) -> str:
    """One sentence: what B needs more or less, and how many layers differ."""
    parts = [_more_or_less(comparison, name) for name in ("peak_bytes", "total_flops", "parameters")]
    counts = [f"{len(comparison.with_change(change))} {change}" for change in ("added", "removed", "changed")]
    return f"B against A: {'; '.join(parts)}. Layers: {', '.join(counts)}."


def _more_or_less(comparison: Comparison, name: str) -> str:
    label, difference = FIGURES[name].label, comparison.difference(name)
    if not difference:
        return f"the same {label}"
    amount = FIGURES[name].format(abs(difference))
    ratio = comparison.ratio(name)
    share = f" ({_change_of(ratio)})" if math.isfinite(ratio) else ""
    return f"{label} {amount} {'more' if difference > 0 else 'less'}{share}"


def _change_of(ratio: float) -> str:
    if not math.isfinite(ratio):
        return "new"
    text = format_percent(ratio - 1)
    return f"+{text}" if ratio > 1 else text


def _figures(comparison: Comparison, width: int) -> RenderableType:
    rows: list[Sequence[Text | str]] = []
    for name, figure in FIGURES.items():
        a, b = comparison.a.figures[name], comparison.b.figures[name]
        first, second = format_bytes_apart(a, b) if figure.unit == "bytes" else (figure.format(a), figure.format(b))
        difference = figure.format(b - a, signed=True) if b != a else "same"
        rows.append((figure.label, first, second, difference, "" if b == a else _change_of(comparison.ratio(name))))
    return figures_table(width, ("", "A", "B", "B - A", "change"), rows)


def _print_layers(comparison: Comparison, page: Page, *, rows: int = _ROWS) -> None:
    differing = [pair for pair in comparison.layers if pair.change != "same"]
    if not differing:
        page.section("Layers", Text(f"all {format_count(len(comparison.layers))} cost the same", style="dim"))
        return
    shown = sorted(differing, key=_weight, reverse=True)[:rows]
    order = {id(pair): k for k, pair in enumerate(comparison.layers)}
    scopes = model_scope(comparison.a.layers), model_scope(comparison.b.layers)
    cells = [_layer_row(pair, *scopes) for pair in sorted(shown, key=lambda pair: order[id(pair)])]
    table = figures_table(page.body_width, ("", "nodes", "trainable", "FLOPs", "residuals", "at peak"), cells)
    title = f"Layers that differ: {format_count(len(differing))} of {format_count(len(comparison.layers))}; + added, - removed, ~ changed"
    rest = len(differing) - len(shown)
    more = [Text(f"{format_count(rest)} more, which differ less", style="dim")] if rest else []
    page.section(title, table, *more)


def _weight(pair: LayerPair) -> tuple[float, float, float]:
    return (
        abs(pair.difference("residual_bytes")) + abs(pair.difference("peak_share_bytes")),
        abs(pair.difference("total_flops")),
        abs(pair.difference("parameters")),
    )


def _layer_row(pair: LayerPair, scope_a: str, scope_b: str) -> tuple[Text | str, ...]:
    change = pair.change
    names = [
        printable(layer.layer.removeprefix(scope)) or NO_LAYER
        for layer, scope in ((pair.a, scope_a), (pair.b, scope_b))
        if layer is not None
    ]
    name = " → ".join(dict.fromkeys(names))
    return (
        Text(f"{_SIGNS[change]} {name}", style=_STYLES[change]),
        _signed(pair.difference("nodes"), lambda n: format_count(int(n))),
        _signed(pair.difference("parameters"), lambda n: format_count(int(n))),
        _signed(pair.difference("total_flops"), format_flops),
        _signed(pair.difference("residual_bytes"), format_bytes),
        _signed(pair.difference("peak_share_bytes"), format_bytes),
    )


def _signed(amount: float, write: Callable[[float], str]) -> str:
    return "" if not amount else ("+" if amount > 0 else "") + write(amount)


def print_check(result: CheckResult, page: Page) -> None:
    style = "bold green" if result.passed else "bold red"
    page.headline(check_verdict(result), style)
    page.line(Text(_indented(_title(result.costs), page.body_width)))
    if result.findings:
        columns: list[tuple[str, Callable[[Finding], Text | str]]]
        columns = [("", _label), ("", _word), ("is", lambda f: _apart(f)[0]), ("at most", lambda f: _apart(f)[1])]
        columns += [("over by", _excess)] if not result.passed else []
        columns += [("was", _before)] if result.comparison is not None else []
        rows = [[write(finding) for _, write in columns] for finding in result.findings]
        page.table("Checked", [title for title, _ in columns], rows)
    else:
        page.facts(_facts(result.costs))
    if result.comparison is not None:
        _print_layers(result.comparison, page)
    for warning in result.warnings:
        page.section("Warning", Text(wrapped(warning, page.body_width)))
    if result.written is not None:
        page.line(Text(f"\nbaseline written to {result.written}"))


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
    figure = FIGURES[finding.figure]
    if figure.unit == "bytes":
        return format_bytes_apart(finding.amount, finding.limit)
    return figure.format(finding.amount), figure.format(finding.limit)


def _label(finding: Finding) -> str:
    return FIGURES[finding.figure].label


def _word(finding: Finding) -> Text:
    return Text("ok", style="green") if finding.passed else Text("FAIL", style="bold red")


def _excess(finding: Finding) -> str:
    return "" if finding.passed else FIGURES[finding.figure].format(finding.amount - finding.limit)


def _before(finding: Finding) -> str:
    return "" if finding.baseline is None else FIGURES[finding.figure].format(finding.baseline)


def github_annotations(result: CheckResult) -> tuple[str, ...]:
    """Workflow commands for failed figures and for warnings."""
    failed = [("error", f"{_sentence(finding)} ({result.costs.name})") for finding in result.findings if not finding.passed]
    warned = [("warning", f"{warning} ({result.costs.name})") for warning in result.warnings]
    return tuple(f"::{kind} title=graphwright check::{_escaped(text)}" for kind, text in [*failed, *warned])


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _title(costs: StepCosts) -> str:
    feeds = ", ".join(f"{name} ({', '.join(map(str, shape))})" for name, shape in costs.feeds.items())
    return printable(costs.name + (f", with {feeds}" if feeds else ""))


def _indented(text: str, width: int) -> str:
    return "\n".join(f"  {line}" for line in wrapped(text, width).splitlines())
