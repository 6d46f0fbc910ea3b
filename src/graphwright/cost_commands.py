"""The commands about costs: parse, call, print. `add_to(app)` puts them into the command line, whose commands print errors."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

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
from graphwright.command_output import print_result
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


_COLUMNS = (
    "time, share, host_time, accelerator_time, bytes, peak_bytes, residual_bytes, output_bytes, parameters, flops, flops_per_s, "
    "intensity, occurrences"
)


def _regex(text: str) -> Any:
    return typer.Option(help=text, metavar="REGEX", show_default=False)


class Order(StrEnum):
    """In which order operations run."""

    TRACED = "traced"
    EXECUTOR = "executor"


class View(StrEnum):
    """What a profile tree is made of."""

    SCOPE = "scope"
    GRAPH = "graph"
    OP = "op"
    CODE = "code"


class AnnotationFormat(StrEnum):
    """How a check is written."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"


def add_to(app: typer.Typer, panel: str) -> None:
    """Put the commands into the command line, listed in this panel of its help."""
    for command in (flops, params, peak, profile, compare, check):
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

    print_result(count_flops(loaded, feeds=feeds, outputs=fetched, mode=mode.value, batch=batch), as_json=as_json)


def params(
    target: Target,
    batch: Batch = None,
    feed: OpenFeeds = None,
    outputs: Outputs = None,
    mode: ModeOption = Mode.TRAIN,
    depth: Annotated[int, typer.Option(min=1, help="How many parts of a name layers are told apart by.")] = 2,
    as_json: AsJson = False,
) -> None:
    """Parameters: trainable or not, optimizer state, by layer and dtype; what a step does with them.

    With --batch or --feed the step of a Keras model is looked at too: which variables it reads and writes, and likely mistakes.
    """
    feeds, fetched = parse_feeds(feed, open_batch=True), _names(outputs)
    loaded = _path(target) if feeds is None and batch is None else _loaded(target, fetched)
    from graphwright.costs.parameters import count_parameters

    print_result(count_parameters(loaded, feeds, outputs=fetched, mode=mode.value, batch=batch, depth=depth), as_json=as_json)


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

    print_result(predict_peak(loaded, feeds, order=order.value, threads=threads, mode=mode.value, batch=batch), as_json=as_json)


def profile(
    target: Target,
    batch: Batch = None,
    feed: Feeds = None,
    outputs: Outputs = None,
    mode: ModeOption = Mode.TRAIN,
    steps: Annotated[int, typer.Option(min=1, help="Steps that are recorded; the one of median time is kept.")] = 3,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Operations that may run at once; those of this machine by default.", show_default=False)
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write a Chrome trace, which ui.perfetto.dev opens.", metavar="FILE", show_default=False)
    ] = None,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Write an event file: graph, times, memory.", metavar="FOLDER", show_default=False)
    ] = None,
    by: Annotated[
        View | None, typer.Option(help="Show a tree: by name scope, dataflow, op type or line of code.", show_default=False)
    ] = None,
    columns: Annotated[str | None, typer.Option(help=f"Of the tree, with commas: {_COLUMNS}.", show_default=False)] = None,
    sort: Annotated[str | None, typer.Option(help="Column by which siblings are sorted, or name.", show_default=False)] = None,
    depth: Annotated[int | None, typer.Option(min=0, help="Levels of the tree.", show_default=False)] = None,
    show: Annotated[list[str] | None, _regex("Show only these names.")] = None,
    hide: Annotated[list[str] | None, _regex("Hide these names; what is below them moves up.")] = None,
    start: Annotated[list[str] | None, _regex("Begin at these names.")] = None,
    trim: Annotated[list[str] | None, _regex("Show nothing below these names.")] = None,
    account: Annotated[list[str] | None, _regex("Count only these op types and devices.")] = None,
    least: Annotated[
        list[str] | None,
        typer.Option(
            "--min", help="Show what reaches an amount: time=0.001 (seconds), bytes=1000000.", metavar="COLUMN=N", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a step, and say where its time and memory went.

    It runs on made-up inputs, in a process of its own. Without options of the tree, tables by op type and by layer are shown. REGEX
    is a regular expression that matches a whole name, as often as wanted.
    """
    feeds, fetched = parse_feeds(feed), _names(outputs)
    words = _tree_words(by, columns, sort, depth, least, show=show, hide=hide, start=start, trim=trim, account=account)
    loaded = _loaded(target, fetched)
    from graphwright.costs.profile import profile as run_profile

    measured = run_profile(loaded, feeds, outputs=fetched, mode=mode.value, batch=batch, steps=steps, inter_op_threads=threads)
    print_result(measured.tree(**words) if words else measured, as_json=as_json)
    written = {"trace": trace and measured.write_trace(trace), "event file": tensorboard and measured.write_tensorboard(tensorboard)}
    for what, path in written.items():
        if path is not None and not as_json:
            typer.echo(f"{what} written to {path}")


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="What inspect takes as TARGET, or a baseline: a .json file.", show_default=False)],
    b: Annotated[str, typer.Argument(metavar="B", help="What is held against it.", show_default=False)],
    batch: Batch = None,
    feed: Feeds = None,
    outputs: Outputs = None,
    mode: ModeOption = Mode.TRAIN,
    batch_b: Annotated[int | None, typer.Option(min=1, help="Batch size of B, where it is another one.", show_default=False)] = None,
    mode_b: Annotated[Mode | None, typer.Option(help="Mode of B, where it is another one.", show_default=False)] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write the comparison to this file.", show_default=False)] = None,
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
    compared = compare_costs(first, second)
    print_result(compared, as_json=as_json)
    if html is not None:
        written = compared.write_html(html)
        if not as_json:
            typer.echo(f"report written to {written}")


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
    print_result(result, as_json=form is AnnotationFormat.JSON)
    if form is AnnotationFormat.GITHUB:
        for line in result.annotations():
            typer.echo(line)
    if not result.passed:
        raise typer.Exit(EXIT_CHECK_FAILED)


def _bytes_limit(text: str) -> int | str:
    amount = parse_amount(text)
    return text if isinstance(amount, float) else amount


def _tree_words(
    by: View | None,
    columns: str | None,
    sort: str | None,
    depth: int | None,
    least: Sequence[str] | None,
    **expressions: list[str] | None,
) -> dict[str, Any]:
    """Options of a tree that were given, as `Profile.tree` takes them; checked, since the step takes a while."""
    from graphwright.analyze.profile_tree import TreeOptions, TreeWords

    words: dict[str, Any] = {key: patterns for key, patterns in expressions.items() if patterns}
    given = {"by": by and by.value, "columns": columns and [name.strip() for name in columns.split(",")], "order_by": sort, "depth": depth}
    words |= {key: value for key, value in given.items() if value is not None}
    for text in least or ():
        name, equals, amount = text.partition("=")
        key = next((key for key in TreeWords.__annotations__ if key in (f"min_{name}", f"min_{name}_s")), "")
        try:
            words[key] = float(amount)
        except ValueError:
            key = ""
        if not key or not equals:
            known = ", ".join(key.removeprefix("min_").removesuffix("_s") for key in TreeWords.__annotations__ if key.startswith("min_"))
            raise ArgumentError(
                f"{text!r} is no amount of a column", where="option --min", remedy=f"write COLUMN=NUMBER, with one of {known}"
            )
    TreeOptions(**words)
    return words


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


def _path(target: str) -> Any:
    """A file stays a path, since it may hold what no signature reaches; else what `module:name` names."""
    start_quietly()
    return Path(target) if Path(target).exists() else load_target(target)


def _loaded(target: str, outputs: Sequence[str] | None = None) -> Any:
    """What TARGET names; a graph whose outputs are given, and a baseline, stay a path."""
    if Path(target).exists() and (outputs is not None or Path(target).suffix == ".json"):
        start_quietly()
        return Path(target)
    return load_target(target)
