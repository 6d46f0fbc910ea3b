"""The commands about costs: parse, call, print. `add_to(app)` adds them to the command line, whose commands print errors."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from graphwright.analyze.device_models import HERE
from graphwright.commands.inputs import (
    EXIT_CHECK_FAILED,
    EXIT_INFEASIBLE,
    AsJson,
    Batch,
    BatchFeeds,
    Device,
    Feeds,
    Html,
    Mode,
    ModeOption,
    OpenFeeds,
    OrderOption,
    Outputs,
    Target,
    bytes_in,
    load_target,
    load_targets,
    names_in,
    parse_amount,
    parse_batches,
    parse_feeds,
    parse_open_feeds,
    unset,
    written_file,
)
from graphwright.commands.output import echo, print_result, write_html
from graphwright.costs.baseline import read_costs
from graphwright.errors import ArgumentError, printable

_COLUMNS = (
    "time, share, host_time, accelerator_time, bytes, peak_bytes, residual_bytes, output_bytes, parameters, flops, flops_per_s, "
    "intensity, occurrences"
)
View = Literal["scope", "graph", "op", "code"]


def add_to(app: typer.Typer, panel: str) -> None:
    """Add the commands to the command line, in this panel of its help."""
    for command in (flops, params, shapes, peak, sweep, max_batch, profile, compare, check):
        app.command(command.__name__.replace("_", "-"), rich_help_panel=panel)(command)


# Read from the graph


def _print_rules(wanted: bool) -> None:
    if not wanted:
        return
    from graphwright.ops.flops import built_in_rules

    families: dict[str, dict[str, list[str]]] = {}
    for op_type, rule in built_in_rules().items():
        families.setdefault(rule.family, {}).setdefault(rule.formula, []).append(op_type)
    for family, formulas in sorted(families.items(), key=lambda item: item[0] == "no arithmetic"):
        echo(f"{family[0].upper()}{family[1:]}")
        for formula, op_types in formulas.items():
            for text, indent in ((formula, "  "), (", ".join(op_types), "      ")):
                echo(textwrap.fill(text, 80, initial_indent=indent, subsequent_indent=indent))
        echo("")
    raise typer.Exit


def flops(
    target: Target,
    batch: Batch = None,
    feed: OpenFeeds = None,
    outputs: Outputs = None,
    mode: ModeOption = "auto",
    as_json: AsJson = False,
    rules: Annotated[bool, typer.Option("--rules", callback=_print_rules, is_eager=True, help="Print each op type's rule.")] = False,  # noqa: ARG001
) -> None:
    """FLOPs of a step: forward, backward and optimizer, per op type and per layer.

    Where the batch size is open, the total is a line in it, and all other figures are for a batch of 8.
    """
    feeds, fetched = parse_feeds(feed, open_sizes=True), names_in(outputs)
    loaded = load_target(target)
    from graphwright.costs.flops import count_flops

    print_result(count_flops(loaded, feeds=feeds, outputs=fetched, mode=mode, batch=batch), as_json=as_json, then="flops --all")


def params(
    target: Target,
    batch: Batch = None,
    feed: OpenFeeds = None,
    outputs: Outputs = None,
    mode: ModeOption = "auto",
    depth: Annotated[int, typer.Option(min=1, help="The number of name parts that form a layer.")] = 2,
    as_json: AsJson = False,
) -> None:
    """Parameters: trainable or not, optimizer state, by layer and dtype; what a step does with them.

    With --batch or --feed the step of a Keras model is looked at too: which variables it reads and writes, and likely mistakes.
    """
    feeds, fetched = parse_feeds(feed, open_sizes=True), names_in(outputs)
    loaded = load_target(target)
    from graphwright.costs.parameters import count_parameters

    print_result(count_parameters(loaded, feeds, outputs=fetched, mode=mode, batch=batch, depth=depth), as_json=as_json)


def shapes(target: Target, feed: OpenFeeds = None, outputs: Outputs = None, mode: ModeOption = "auto", as_json: AsJson = False) -> None:
    """Shapes: which sizes are free, what depends on them and how, and what is not known, and why."""
    feeds, fetched = parse_feeds(feed, open_sizes=True), names_in(outputs)
    loaded = load_target(target)
    from graphwright.costs.shapes import infer_shapes

    print_result(infer_shapes(loaded, feeds, outputs=fetched, mode=mode), as_json=as_json)


def peak(
    target: Target,
    batch: Batch = None,
    feed: Feeds = None,
    outputs: Outputs = None,
    mode: ModeOption = "auto",
    order: OrderOption = "executor",
    threads: Annotated[int | None, unset("Inter-op threads of the executor; those of this machine by default.", min=1)] = None,
    device: Device = HERE,
    as_json: AsJson = False,
) -> None:
    """Peak memory of a step, predicted: how much, where, and what is live there."""
    feeds, fetched = parse_feeds(feed), names_in(outputs)
    loaded = load_target(target)
    from graphwright.costs.peak import predict_peak

    prediction = predict_peak(loaded, feeds, outputs=fetched, order=order, threads=threads, mode=mode, batch=batch, device=device)
    print_result(prediction, as_json=as_json)


def sweep(
    target: Target,
    batch: Annotated[str, typer.Option(help="Batch sizes: 1..32, or 1,2,4,8.")] = "1,2,4,8,16,32",
    budget: Annotated[str | None, unset('Bytes, or text such as "8GiB".', "--budget")] = None,
    feed: BatchFeeds = None,
    outputs: Outputs = None,
    mode: ModeOption = "auto",
    optimized: Annotated[
        str | None,
        unset('Show the peaks with memory-saving plans too: their budget, in bytes, or as a share of each peak: "50%".', "--optimized"),
    ] = None,
    beside: Annotated[list[str] | None, unset("Another target to show beside it; once per target.", "--beside")] = None,
    html: Html = None,
    order: OrderOption = "executor",
    device: Device = HERE,
    as_json: AsJson = False,
) -> None:
    """Peak memory against the batch size, also with memory-saving plans or of another model; the largest batch that fits a budget."""
    batches, feeds, fetched = parse_batches(batch), parse_open_feeds(feed), names_in(outputs)
    amount = None if budget is None else parse_amount(budget)
    plans = None if optimized is None else parse_amount(optimized, "optimized")
    names = [target, *(beside or ())]
    targets = zip(names, load_targets(*names), strict=True)
    from graphwright.costs.sweep import sweep as sweep_batches

    sweeps = [
        (name, sweep_batches(loaded, feeds, batches, amount, outputs=fetched, mode=mode, optimized=plans, order=order, device=device))
        for name, loaded in targets
    ]
    (_, result), *others = sweeps
    for name, other in others:
        result = result.beside(**{other.name if other.name not in result.all else name: other})
    print_result(result, as_json=as_json)
    write_html(result, html, quiet=as_json)


def max_batch(
    target: Target,
    budget: Annotated[str, typer.Option("--budget", help='Bytes, or text such as "8GiB".')],
    feed: BatchFeeds = None,
    outputs: Outputs = None,
    mode: ModeOption = "auto",
    measure: Annotated[
        bool, typer.Option("--measure", help="Confirm it: run the step with that batch and with one example more, each in a fresh process.")
    ] = False,
    order: OrderOption = "executor",
    device: Device = HERE,
    as_json: AsJson = False,
) -> None:
    """The largest batch whose peak memory fits a budget; exit code 3 where none does.

    Of a Keras model the batch size is known. Else --feed says where it goes.
    """
    feeds, fetched, amount = parse_open_feeds(feed), names_in(outputs), bytes_in(budget)
    loaded = load_target(target, runs=measure)
    from graphwright.costs.max_batch import max_batch as find_max_batch

    answer = find_max_batch(loaded, amount, feeds, outputs=fetched, mode=mode, measure=measure, order=order, device=device)
    print_result(answer, as_json=as_json, then="" if measure else f"max-batch --budget {budget} --measure --trust")
    if answer.batch == 0:
        raise typer.Exit(EXIT_INFEASIBLE)


# Measured by a run


def profile(
    target: Target,
    batch: Batch = None,
    feed: Feeds = None,
    outputs: Outputs = None,
    mode: ModeOption = "auto",
    steps: Annotated[int, typer.Option(min=1, help="Steps to record; the step with the median time is reported.")] = 3,
    threads: Annotated[int | None, unset("Operations that may run at once; those of this machine by default.", min=1)] = None,
    trace: Annotated[Path | None, written_file("Write a Chrome trace, which ui.perfetto.dev opens.", "--trace", metavar="FILE")] = None,
    tensorboard: Annotated[Path | None, unset("Write an event file: graph, times, memory.", metavar="FOLDER")] = None,
    html: Html = None,
    by: Annotated[View | None, unset("Show a tree: by name scope, dataflow, op type or line of code.")] = None,
    columns: Annotated[str | None, unset(f"Of the tree, with commas: {_COLUMNS}.")] = None,
    sort: Annotated[str | None, unset("Column by which siblings are sorted, or name.")] = None,
    depth: Annotated[int | None, unset("Levels of the tree.", min=0)] = None,
    show: Annotated[list[str] | None, unset("Show only these names.", metavar="REGEX")] = None,
    hide: Annotated[list[str] | None, unset("Hide these names; what is below them moves up.", metavar="REGEX")] = None,
    start: Annotated[list[str] | None, unset("Begin at these names.", metavar="REGEX")] = None,
    trim: Annotated[list[str] | None, unset("Show nothing below these names.", metavar="REGEX")] = None,
    account: Annotated[list[str] | None, unset("Count only these op types and devices.", metavar="REGEX")] = None,
    least: Annotated[
        list[str] | None, unset("Show what reaches an amount: time=0.001 (seconds), bytes=1000000.", "--min", metavar="COLUMN=N")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a step, and say where its time and memory went.

    It runs on made-up inputs, in a separate process. Without options of the tree, tables by op type and by layer are shown. REGEX
    is a regular expression that matches a whole name, as often as wanted.
    """
    feeds, fetched = parse_feeds(feed), names_in(outputs)
    words = _tree_words(by, columns, sort, depth, least, show=show, hide=hide, start=start, trim=trim, account=account)
    loaded = load_target(target, runs=True)
    from graphwright.costs.profile import profile as run_profile

    measured = run_profile(loaded, feeds, outputs=fetched, mode=mode, batch=batch, steps=steps, inter_op_threads=threads)
    then = "" if words or html else "profile --html profile.html"
    print_result(measured.tree(**words) if words else measured, as_json=as_json, then=then)
    written = {"trace": trace and measured.write_trace(trace), "event file": tensorboard and measured.write_tensorboard(tensorboard)}
    for what, path in written.items():
        if path is not None and not as_json:
            echo(f"{what} written to {path}")
    write_html(measured, html, quiet=as_json)


def _tree_words(
    by: View | None, columns: str | None, sort: str | None, depth: int | None, least: Sequence[str] | None, **expressions: list[str] | None
) -> dict[str, Any]:
    from graphwright.analyze.profile_tree import TreeOptions

    words: dict[str, Any] = {key: patterns for key, patterns in expressions.items() if patterns}
    options = {"by": by, "columns": columns and [name.strip() for name in columns.split(",")], "order_by": sort, "depth": depth}
    words |= {key: value for key, value in options.items() if value is not None}
    for text in least or ():
        name, equals, amount = text.partition("=")
        key = next((key for key in TreeOptions.__annotations__ if key in (f"min_{name}", f"min_{name}_s")), "")
        try:
            words[key] = float(amount)
        except ValueError:
            key = ""
        if not key or not equals:
            known = ", ".join(key.removeprefix("min_").removesuffix("_s") for key in TreeOptions.__annotations__ if key.startswith("min_"))
            raise ArgumentError(
                f"{text!r} is not an amount of a column", where="option --min", remedy=f"write COLUMN=NUMBER, with one of {known}"
            )
    TreeOptions(**words)
    return words


# Costs held against others


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A target, as for inspect, or a baseline: a .json file.", show_default=False)],
    b: Annotated[str, typer.Argument(metavar="B", help="The target to compare with A.", show_default=False)],
    batch: Batch = None,
    feed: Feeds = None,
    outputs: Outputs = None,
    mode: ModeOption = "auto",
    batch_b: Annotated[int | None, unset("Batch size of B, where it is another one.", min=1)] = None,
    mode_b: Annotated[Mode | None, unset("Mode of B, where it is another one.")] = None,
    html: Annotated[Path | None, written_file("Write the comparison to this file.", "--html")] = None,
    order: OrderOption = "executor",
    device: Device = HERE,
    as_json: AsJson = False,
) -> None:
    """Two steps side by side: peak, parameters, FLOPs, nodes, and the layers that differ."""
    feeds, fetched = parse_feeds(feed), names_in(outputs)
    first_target, second_target = load_targets(a, b)
    from graphwright.costs.compare import both_costs, compare_costs

    of_b = second_target, mode_b or mode, batch if batch_b is None else batch_b
    targets: list[tuple[Any, Mode, int | None]] = [(first_target, mode, batch), of_b]
    compared = compare_costs(*both_costs(targets, feeds, outputs=fetched, device=device, order=order))
    print_result(compared, as_json=as_json, then="compare --all")
    write_html(compared, html, quiet=as_json)


def check(
    target: Target,
    batch: Batch = None,
    feed: Feeds = None,
    outputs: Outputs = None,
    mode: ModeOption = "auto",
    max_peak: Annotated[str | None, unset('The most bytes: "4GiB", or a number.')] = None,
    max_flops: Annotated[str | None, unset('The most FLOPs of a step: "20G", or a number.')] = None,
    max_parameters: Annotated[str | None, unset('The most parameters, the optimizer\'s left out: "30M", or a number.')] = None,
    max_nodes: Annotated[str | None, unset("The most nodes of the graph, calls inlined.")] = None,
    baseline: Annotated[Path | None, unset("A file that --write-baseline wrote; what has grown since fails.")] = None,
    tolerance: Annotated[list[str] | None, unset("How much it may have grown: 2%, or for one figure peak=5%. Once per figure.")] = None,
    write_baseline: Annotated[Path | None, written_file("Write the figures to this .json file.", "--write-baseline")] = None,
    form: Annotated[
        Literal["text", "json", "github"], typer.Option("--format", help="github adds annotations for GitHub Actions.")
    ] = "text",
    order: OrderOption = "executor",
    device: Device = HERE,
    as_json: AsJson = False,
) -> None:
    """Hold a step against limits and a baseline: exit code 0 where it keeps them, 4 where it does not, 2 for an error.

    Figures are predicted from the graph; nothing is run. Tolerances are for peak, resident, parameters, flops, bytes and nodes.
    """
    feeds, fetched, shares = parse_feeds(feed), names_in(outputs), _shares(tolerance)
    peak_bytes = None if max_peak is None else bytes_in(max_peak, "max_peak")
    if all(given is None for given in (max_peak, max_flops, max_parameters, max_nodes, baseline, write_baseline)):
        raise ArgumentError(
            "there is nothing to check against",
            cause="a check without a limit and without a baseline always passes",
            remedy="give --max-peak, --max-flops, --max-parameters, --max-nodes or --baseline; or --write-baseline, for later",
        )
    if as_json:
        form = "json"
    if baseline is not None:
        read_costs(baseline)
    loaded = load_target(target)
    from graphwright.costs.check import check as run_check

    result = run_check(
        loaded,
        feeds,
        outputs=fetched,
        max_peak=peak_bytes,
        max_flops=max_flops,
        max_parameters=max_parameters,
        max_nodes=max_nodes,
        baseline=baseline,
        tolerance=shares,
        write_baseline=write_baseline,
        mode=mode,
        batch=batch,
        device=device,
        order=order,
    )
    over = any(not finding.passed and finding.figure == "peak_bytes" for finding in result.findings)
    print_result(result, as_json=form == "json", then=f"advise --memory {max_peak}" if max_peak and over and form == "text" else "")
    if form == "github":
        for line in result.annotations():
            echo(printable(line))  # a name with a line end would be a separate annotation
    if not result.passed:
        raise typer.Exit(EXIT_CHECK_FAILED)


def _shares(texts: Sequence[str] | None) -> float | str | dict[str, float | str]:
    named = [text.rpartition("=") for text in texts or ()]
    if len(named) == 1 and not named[0][1]:
        return named[0][2]
    if any(not name for name, _, _ in named):
        raise ArgumentError(
            f"{' '.join(texts or ())!r} are not tolerances", where="option --tolerance", remedy="write 2%, or peak=5% flops=1%"
        )
    return {name: share for name, _, share in named}
