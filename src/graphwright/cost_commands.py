"""The commands about costs: parse, call, print. `add_to(app)` puts them into the command line, whose commands print errors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer

from graphwright.command_inputs import (
    EXIT_CHECK_FAILED,
    AsJson,
    Batch,
    Mode,
    Target,
    load_target,
    parse_amount,
    parse_feeds,
)
from graphwright.errors import ArgumentError
from graphwright.source.tensorflow_import import start_quietly

_FEED_HELP = "Shape of one input: NAME=8,572,572,1 or, with a dtype, NAME=8:int32. Once per input."
_OPEN_FEED_HELP = f"{_FEED_HELP} The word batch as first size leaves it open."

Feeds = Annotated[list[str] | None, typer.Option("--feed", help=_FEED_HELP, show_default=False)]
OpenFeeds = Annotated[list[str] | None, typer.Option("--feed", help=_OPEN_FEED_HELP, show_default=False)]
Outputs = Annotated[
    list[str] | None,
    typer.Option("--outputs", help="Of a graph: what is fetched, by name; once per name, or with commas.", show_default=False),
]
ModeOption = Annotated[Mode, typer.Option("--mode", help="Of a Keras model: the training step, or the forward pass alone.")]


class Order(StrEnum):
    """In which order operations run."""

    TRACED = "traced"
    EXECUTOR = "executor"


class AnnotationFormat(StrEnum):
    """How a check is written."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"


class _Result(Protocol):
    def to_json(self) -> dict[str, object]: ...


def add_to(app: typer.Typer, panel: str) -> None:
    """Put the commands into the command line, listed in this panel of its help."""
    for command in (flops, peak, compare, check):
        app.command(rich_help_panel=panel)(command)


def flops(
    target: Target,
    batch: Batch = None,
    feed: OpenFeeds = None,
    outputs: Outputs = None,
    mode: ModeOption = Mode.TRAIN,
    as_json: AsJson = False,
) -> None:
    """FLOPs of a step: forward, backward and optimizer, per op type and per layer.

    Where the batch size is open, the figures are formulas of it.
    """
    feeds, fetched = parse_feeds(feed, open_batch=True), _names(outputs)
    loaded = _loaded(target, fetched)
    from graphwright.costs.flops import count_flops

    _show(count_flops(loaded, feeds=feeds, outputs=fetched, mode=mode.value, batch=batch), as_json)


def peak(
    target: Target,
    batch: Batch = None,
    feed: Feeds = None,
    mode: ModeOption = Mode.TRAIN,
    order: Annotated[
        Order, typer.Option(help="The order in which the step was traced, or the one that TensorFlow's executor takes.")
    ] = Order.TRACED,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Inter-op threads of the executor; those of this machine by default.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Peak memory of a step, predicted: how much, where, and what is live there."""
    feeds = parse_feeds(feed)
    loaded = load_target(target)
    from graphwright.costs.peak import predict_peak

    _show(predict_peak(loaded, feeds, order=order.value, threads=threads, mode=mode.value, batch=batch), as_json)


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="What inspect takes as TARGET, or a baseline: a .json file.", show_default=False)],
    b: Annotated[str, typer.Argument(metavar="B", help="What is held against it.", show_default=False)],
    batch: Batch = None,
    feed: Feeds = None,
    outputs: Outputs = None,
    mode: ModeOption = Mode.TRAIN,
    batch_b: Annotated[int | None, typer.Option(min=1, help="Batch size of B, where it is another one.", show_default=False)] = None,
    mode_b: Annotated[Mode | None, typer.Option(help="Mode of B, where it is another one.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Two steps side by side: peak, parameters, FLOPs, nodes, and the layers that differ."""
    feeds, fetched = parse_feeds(feed), _names(outputs)
    first_target, second_target = _loaded(a, fetched), _loaded(b, fetched)
    from graphwright.costs.compare import compare_costs, step_costs

    first = step_costs(first_target, feeds=feeds, outputs=fetched, mode=mode.value, batch=batch)
    second = step_costs(
        second_target, feeds=feeds, outputs=fetched, mode=(mode_b or mode).value, batch=batch if batch_b is None else batch_b
    )
    _show(compare_costs(first, second), as_json)


def check(
    target: Target,
    batch: Batch = None,
    feed: Feeds = None,
    outputs: Outputs = None,
    mode: ModeOption = Mode.TRAIN,
    max_peak: Annotated[str | None, typer.Option(help='The most bytes: "4GiB", or a number.', show_default=False)] = None,
    max_flops: Annotated[str | None, typer.Option(help='The most FLOPs of a step: "20G", or a number.', show_default=False)] = None,
    max_parameters: Annotated[
        str | None, typer.Option(help='The most parameters, the optimizer\'s left out: "30M", or a number.', show_default=False)
    ] = None,
    max_nodes: Annotated[str | None, typer.Option(help="The most nodes of the graph, calls inlined.", show_default=False)] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="A file that --write-baseline wrote; what has grown since fails.", show_default=False)
    ] = None,
    tolerance: Annotated[
        list[str] | None,
        typer.Option(help="How much it may have grown: 2%, or for one figure peak=5%. Once per figure.", show_default=False),
    ] = None,
    write_baseline: Annotated[Path | None, typer.Option(help="Write the figures to this .json file.", show_default=False)] = None,
    form: Annotated[
        AnnotationFormat, typer.Option("--format", help="github adds annotations as GitHub Actions shows them.")
    ] = AnnotationFormat.TEXT,
    as_json: AsJson = False,
) -> None:
    """Hold a step against limits and a baseline: exit code 0 where it keeps them, 4 where it does not, 2 for an error.

    Figures are predicted from the graph; nothing is run. Tolerances are for peak, resident, parameters, flops, bytes and nodes.
    """
    feeds, fetched, shares = parse_feeds(feed), _names(outputs), _shares(tolerance)
    if as_json:
        form = AnnotationFormat.JSON
    loaded = _loaded(target, fetched)
    from graphwright.costs.check import check as run_check

    result = run_check(
        loaded,
        feeds,
        outputs=fetched,
        max_peak=None if max_peak is None else _bytes_limit(max_peak),
        max_flops=max_flops,
        max_parameters=max_parameters,
        max_nodes=max_nodes,
        baseline=baseline,
        tolerance=shares,
        write_baseline=write_baseline,
        mode=mode.value,
        batch=batch,
    )
    _show(result, form is AnnotationFormat.JSON)
    if form is AnnotationFormat.GITHUB:
        for line in result.annotations():
            typer.echo(line)
    if not result.passed:
        raise typer.Exit(EXIT_CHECK_FAILED)


def _bytes_limit(text: str) -> int | str:
    amount = parse_amount(text)
    return text if isinstance(amount, float) else amount


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


def _names(texts: Sequence[str] | None) -> list[str] | None:
    """Names, each text holding one or several with commas between."""
    names = [name.strip() for text in texts or () for name in text.split(",")]
    if not all(names):
        raise ArgumentError(f"{','.join(texts or ())!r} holds an empty name", where="option --outputs")
    return names or None


def _loaded(target: str, outputs: Sequence[str] | None = None) -> Any:
    """What TARGET names; a graph whose outputs are given, and a baseline, stay a path."""
    if Path(target).exists() and (outputs is not None or Path(target).suffix == ".json"):
        start_quietly()
        return Path(target)
    return load_target(target)


def _show(result: _Result, as_json: bool) -> None:
    typer.echo(json.dumps(result.to_json(), allow_nan=False) if as_json else str(result))
