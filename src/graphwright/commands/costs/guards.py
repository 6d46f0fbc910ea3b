"""`compare` and `check`: costs held against others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from graphwright.commands.inputs import (
    EXIT_CHECK_FAILED,
    AsJson,
    Batch,
    Feeds,
    Mode,
    ModeOption,
    Outputs,
    Target,
    bytes_in,
    load_target,
    names_in,
    parse_feeds,
    unset,
)
from graphwright.commands.output import echo, print_result, write_html
from graphwright.errors import ArgumentError, printable


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="What inspect takes as TARGET, or a baseline: a .json file.", show_default=False)],
    b: Annotated[str, typer.Argument(metavar="B", help="What is held against it.", show_default=False)],
    batch: Batch = None,
    feed: Feeds = None,
    outputs: Outputs = None,
    mode: ModeOption = "train",
    batch_b: Annotated[int | None, unset("Batch size of B, where it is another one.", min=1)] = None,
    mode_b: Annotated[Mode | None, unset("Mode of B, where it is another one.")] = None,
    html: Annotated[Path | None, unset("Write the comparison to this file.", "--html")] = None,
    as_json: AsJson = False,
) -> None:
    """Two steps side by side: peak, parameters, FLOPs, nodes, and the layers that differ."""
    feeds, fetched = parse_feeds(feed), names_in(outputs)
    first_target, second_target = load_target(a), load_target(b)
    from graphwright.costs.compare import compare_costs, step_costs

    first = step_costs(first_target, feeds=feeds, outputs=fetched, mode=mode, batch=batch)
    second = step_costs(second_target, feeds=feeds, outputs=fetched, mode=mode_b or mode, batch=batch if batch_b is None else batch_b)
    compared = compare_costs(first, second)
    print_result(compared, as_json=as_json)
    write_html(compared, html, quiet=as_json)


def check(
    target: Target,
    batch: Batch = None,
    feed: Feeds = None,
    outputs: Outputs = None,
    mode: ModeOption = "train",
    max_peak: Annotated[str | None, unset('The most bytes: "4GiB", or a number.')] = None,
    max_flops: Annotated[str | None, unset('The most FLOPs of a step: "20G", or a number.')] = None,
    max_parameters: Annotated[str | None, unset('The most parameters, the optimizer\'s left out: "30M", or a number.')] = None,
    max_nodes: Annotated[str | None, unset("The most nodes of the graph, calls inlined.")] = None,
    baseline: Annotated[Path | None, unset("A file that --write-baseline wrote; what has grown since fails.")] = None,
    tolerance: Annotated[list[str] | None, unset("How much it may have grown: 2%, or for one figure peak=5%. Once per figure.")] = None,
    write_baseline: Annotated[Path | None, unset("Write the figures to this .json file.")] = None,
    form: Annotated[
        Literal["text", "json", "github"], typer.Option("--format", help="github adds annotations as GitHub Actions shows them.")
    ] = "text",
    as_json: AsJson = False,
) -> None:
    """Hold a step against limits and a baseline: exit code 0 where it keeps them, 4 where it does not, 2 for an error.

    Figures are predicted from the graph; nothing is run. Tolerances are for peak, resident, parameters, flops, bytes and nodes.
    """
    feeds, fetched, shares = parse_feeds(feed), names_in(outputs), _shares(tolerance)
    if as_json:
        form = "json"
    loaded = load_target(target)
    from graphwright.costs.check import check as run_check

    result = run_check(
        loaded,
        feeds,
        outputs=fetched,
        max_peak=None if max_peak is None else bytes_in(max_peak),
        max_flops=max_flops,
        max_parameters=max_parameters,
        max_nodes=max_nodes,
        baseline=baseline,
        tolerance=shares,
        write_baseline=write_baseline,
        mode=mode,
        batch=batch,
    )
    print_result(result, as_json=form == "json")
    if form == "github":
        for line in result.annotations():
            echo(printable(line))  # a name with a line end would be an annotation of its own
    if not result.passed:
        raise typer.Exit(EXIT_CHECK_FAILED)


def _shares(texts: Sequence[str] | None) -> float | str | dict[str, float | str]:
    """Tolerances: `2%` for all figures, or `peak=5%` for one."""
    named = [text.rpartition("=") for text in texts or ()]
    if len(named) == 1 and not named[0][1]:
        return named[0][2]
    if any(not name for name, _, _ in named):
        raise ArgumentError(
            f"{' '.join(texts or ())!r} are no tolerances", where="option --tolerance", remedy="write 2%, or peak=5% flops=1%"
        )
    return {name: share for name, _, share in named}
