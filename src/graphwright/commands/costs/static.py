"""`flops`, `params`, `shapes`, `peak`, `formulas`, `sweep`, `max-batch`: what is read from the graph."""

from __future__ import annotations

from typing import Annotated

import typer

from graphwright.commands.inputs import (
    EXIT_INFEASIBLE,
    AsJson,
    Batch,
    BatchFeeds,
    Feeds,
    Html,
    ModeOption,
    OpenFeeds,
    OrderOption,
    Outputs,
    Target,
    bytes_in,
    load_target,
    names_in,
    parse_amount,
    parse_batches,
    parse_feeds,
    parse_open_feeds,
    unset,
)
from graphwright.commands.output import print_result, write_html


def flops(
    target: Target,
    batch: Batch = None,
    feed: OpenFeeds = None,
    outputs: Outputs = None,
    mode: ModeOption = "train",
    as_json: AsJson = False,
) -> None:
    """FLOPs of a step: forward, backward and optimizer, per op type and per layer.

    Where the batch size is open, the figures are formulas of it.
    """
    feeds, fetched = parse_feeds(feed, open_sizes=True), names_in(outputs)
    loaded = load_target(target)
    from graphwright.costs.flops import count_flops

    print_result(count_flops(loaded, feeds=feeds, outputs=fetched, mode=mode, batch=batch), as_json=as_json)


def params(
    target: Target,
    batch: Batch = None,
    feed: OpenFeeds = None,
    outputs: Outputs = None,
    mode: ModeOption = "train",
    depth: Annotated[int, typer.Option(min=1, help="How many parts of a name layers are told apart by.")] = 2,
    as_json: AsJson = False,
) -> None:
    """Parameters: trainable or not, optimizer state, by layer and dtype; what a step does with them.

    With --batch or --feed the step of a Keras model is looked at too: which variables it reads and writes, and likely mistakes.
    """
    feeds, fetched = parse_feeds(feed, open_sizes=True), names_in(outputs)
    loaded = load_target(target)
    from graphwright.costs.parameters import count_parameters

    print_result(count_parameters(loaded, feeds, outputs=fetched, mode=mode, batch=batch, depth=depth), as_json=as_json)


def shapes(target: Target, feed: OpenFeeds = None, outputs: Outputs = None, mode: ModeOption = "train", as_json: AsJson = False) -> None:
    """Shapes: which sizes are free, what depends on them and how, and what is not known, and why."""
    feeds, fetched = parse_feeds(feed, open_sizes=True), names_in(outputs)
    loaded = load_target(target)
    from graphwright.costs.shapes import infer_shapes

    print_result(infer_shapes(loaded, feeds, outputs=fetched, mode=mode), as_json=as_json)


def peak(
    target: Target,
    batch: Batch = None,
    feed: Feeds = None,
    mode: ModeOption = "train",
    order: OrderOption = "traced",
    threads: Annotated[int | None, unset("Inter-op threads of the executor; those of this machine by default.", min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Peak memory of a step, predicted: how much, where, and what is live there."""
    feeds = parse_feeds(feed)
    loaded = load_target(target)
    from graphwright.costs.peak import predict_peak

    print_result(predict_peak(loaded, feeds, order=order, threads=threads, mode=mode, batch=batch), as_json=as_json)


def formulas(target: Target, feed: BatchFeeds = None, mode: ModeOption = "train", as_json: AsJson = False) -> None:
    """What a step costs as formulas of its batch size: peak, resident and activation bytes, FLOPs."""
    feeds = parse_open_feeds(feed)
    loaded = load_target(target)
    from graphwright.costs.formulas import batch_formulas

    print_result(batch_formulas(loaded, feeds, mode=mode), as_json=as_json)


def sweep(
    target: Target,
    batch: Annotated[str, typer.Option(help="Batch sizes: 1..32, or 1,2,4,8.")] = "1..32",
    budget: Annotated[str | None, unset('Bytes, or text such as "8GiB".', "--budget")] = None,
    feed: BatchFeeds = None,
    mode: ModeOption = "train",
    optimized: Annotated[
        str | None,
        unset('Show the peaks with memory-saving plans too: their budget, in bytes, or as a share of each peak: "50%".', "--optimized"),
    ] = None,
    beside: Annotated[list[str] | None, unset("Another target to show beside it; once per target.", "--beside")] = None,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Peak memory against the batch size, also with memory-saving plans or of another model; the largest batch that fits a budget."""
    batches, feeds = parse_batches(batch), parse_open_feeds(feed)
    amount = None if budget is None else parse_amount(budget)
    plans = None if optimized is None else parse_amount(optimized)
    targets = [(name, load_target(name)) for name in (target, *(beside or ()))]
    from graphwright.costs.sweep import sweep as sweep_batches

    found = [(name, sweep_batches(loaded, feeds, batches, amount, mode=mode, optimized=plans)) for name, loaded in targets]
    (_, result), *others = found
    for name, other in others:
        result = result.beside(**{other.name if other.name not in result.all else name: other})
    print_result(result, as_json=as_json)
    write_html(result, html, quiet=as_json)


def max_batch(
    target: Target,
    budget: Annotated[str, typer.Option("--budget", help='Bytes, or text such as "8GiB".')],
    feed: BatchFeeds = None,
    mode: ModeOption = "train",
    measure: Annotated[
        bool, typer.Option("--measure", help="Confirm it: run the step with that batch and with one example more, each in a fresh process.")
    ] = False,
    order: OrderOption = "traced",
    as_json: AsJson = False,
) -> None:
    """The largest batch whose peak memory fits a budget; exit code 3 where none does.

    Of a Keras model the batch size is known. Else --feed says where it goes.
    """
    feeds, amount = parse_open_feeds(feed), bytes_in(budget)
    loaded = load_target(target, runs=measure)
    from graphwright.costs.max_batch import max_batch as find_max_batch

    found = find_max_batch(loaded, amount, feeds, mode=mode, measure=measure, order=order)
    print_result(found, as_json=as_json)
    if found.batch == 0:
        raise typer.Exit(EXIT_INFEASIBLE)
