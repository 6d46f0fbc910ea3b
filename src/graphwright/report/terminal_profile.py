"""A measured step as text for a terminal: what it took, and where, per op type and per layer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from rich.console import RenderableType
from rich.text import Text

from graphwright.analyze.step_profile import ProfileRow, StepProfile, by_layer, by_op_type, whole
from graphwright.report.summary import NO_LAYER, Fact
from graphwright.report.terminal_layout import Page, figures_table
from graphwright.report.terminal_profile_tree import format_column
from graphwright.report.units import format_bytes, format_count, format_flops, format_percent, format_time, printable

_ROWS = 12


def print_profile(profile: StepProfile, how: Mapping[str, str], page: Page) -> None:
    page.headline(profile_verdict(profile))
    page.facts(_facts(profile))
    page.section("Per op type", *_op_types(by_op_type(profile).values(), page.body_width))
    page.section("Per layer", *_layers(by_layer(profile).values(), page.body_width))
    if how:
        page.origins(how.items())


def profile_verdict(profile: StepProfile) -> str:
    """One sentence: how long the step took, and what took most of it."""
    first = next(iter(by_op_type(profile).values()), None)
    most = f"; {first.name} takes {format_percent(first.share)} of the time of all operations" if first is not None else ""
    return f"{printable(profile.name)}: {format_time(profile.step_time_s)} a step{most}."


def _facts(profile: StepProfile) -> list[Fact]:
    total = whole(profile)
    lowest, highest = min(profile.step_times_s, default=math.nan), max(profile.step_times_s, default=math.nan)
    facts = [Fact("step", format_time(profile.step_time_s), "as recorded, from the first operation's start to the last one's end")]
    facts.append(Fact("recorded calls", f"{format_time(lowest)} to {format_time(highest)}", "by the clock, from call to result"))
    if math.isfinite(profile.plain_time_s):
        facts.append(Fact("not recorded", format_time(profile.plain_time_s), "median of calls without the recording, by the clock"))
    threads = len({(run.device, run.thread) for run in profile.runs})
    parts = [(total.forward_time_s, "forward"), (total.backward_time_s, "backward"), (total.optimizer_time_s, "optimizer")]
    split = ", ".join(f"{name} {format_percent(part / total.time_s)}" for part, name in parts if part and total.time_s)
    facts.append(Fact("operations", format_time(total.time_s), f"{format_count(total.occurrences)} runs on {threads} threads; {split}"))
    if total.flops:
        rate = f"{format_flops(total.flops / profile.step_time_s)}/s" if profile.step_time_s else ""
        left_out = f"; {format_count(total.unknown)} runs have no rule" if total.unknown else ""
        facts.append(Fact("FLOPs", format_flops(total.flops), f"{rate}; {total.arithmetic_intensity:.3g} FLOP per byte moved{left_out}"))
    if total.parameters:
        facts.append(Fact("parameters", format_count(total.parameters), "elements of trainable variables"))
    for track in profile.memory:
        before = f", of which {format_bytes(track.resident_bytes)} were there before" if track.resident_bytes else ""
        facts.append(Fact(f"peak {track.device}", format_bytes(track.peak_bytes), f"given out by {track.allocator}{before}"))
    return facts


def _op_types(rows: Iterable[ProfileRow], width: int) -> list[RenderableType]:
    every = list(rows)
    headings = ("op type", "time", "share", "runs", "FLOP/s", "FLOP/B", "bytes")
    figures = [
        (
            printable(row.name),
            format_time(row.time_s),
            format_percent(row.share),
            format_count(row.occurrences),
            format_column(row.flops_per_s, "flops_per_s") if row.flops else "",
            format_column(row.arithmetic_intensity, "intensity") if row.flops else "",
            format_bytes(row.allocated_bytes),
        )
        for row in every[:_ROWS]
    ]
    return [figures_table(width, headings, figures), *_rest(len(every))]


def _layers(rows: Iterable[ProfileRow], width: int) -> list[RenderableType]:
    every = list(rows)
    headings = ("layer", "forward", "back, opt.", "share", "params", "FLOP/s", "bytes")
    figures = [
        (
            printable(row.name) or NO_LAYER,
            format_time(row.forward_time_s),
            format_time(row.backward_time_s + row.optimizer_time_s),
            format_percent(row.share),
            format_count(row.parameters) if row.parameters else "",
            format_column(row.flops_per_s, "flops_per_s") if row.flops else "",
            format_bytes(row.allocated_bytes),
        )
        for row in every[:_ROWS]
    ]
    return [figures_table(width, headings, figures), *_rest(len(every))]


def _rest(count: int) -> list[RenderableType]:
    return [Text(f"{format_count(count - _ROWS)} more", style="dim")] if count > _ROWS else []
