"""`profile`: what a run shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from graphwright.commands.inputs import AsJson, Batch, Feeds, ModeOption, Outputs, Target, load_target, names_in, parse_feeds, unset
from graphwright.commands.output import echo, print_result
from graphwright.errors import ArgumentError

_COLUMNS = (
    "time, share, host_time, accelerator_time, bytes, peak_bytes, residual_bytes, output_bytes, parameters, flops, flops_per_s, "
    "intensity, occurrences"
)
View = Literal["scope", "graph", "op", "code"]


def profile(
    target: Target,
    batch: Batch = None,
    feed: Feeds = None,
    outputs: Outputs = None,
    mode: ModeOption = "train",
    steps: Annotated[int, typer.Option(min=1, help="Steps that are recorded; the one of median time is kept.")] = 3,
    threads: Annotated[int | None, unset("Operations that may run at once; those of this machine by default.", min=1)] = None,
    trace: Annotated[Path | None, unset("Write a Chrome trace, which ui.perfetto.dev opens.", metavar="FILE")] = None,
    tensorboard: Annotated[Path | None, unset("Write an event file: graph, times, memory.", metavar="FOLDER")] = None,
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

    It runs on made-up inputs, in a process of its own. Without options of the tree, tables by op type and by layer are shown. REGEX
    is a regular expression that matches a whole name, as often as wanted.
    """
    feeds, fetched = parse_feeds(feed), names_in(outputs)
    words = _tree_words(by, columns, sort, depth, least, show=show, hide=hide, start=start, trim=trim, account=account)
    loaded = load_target(target, runs=True)
    from graphwright.costs.profile import profile as run_profile

    measured = run_profile(loaded, feeds, outputs=fetched, mode=mode, batch=batch, steps=steps, inter_op_threads=threads)
    print_result(measured.tree(**words) if words else measured, as_json=as_json)
    written = {"trace": trace and measured.write_trace(trace), "event file": tensorboard and measured.write_tensorboard(tensorboard)}
    for what, path in written.items():
        if path is not None and not as_json:
            echo(f"{what} written to {path}")


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
    given = {"by": by, "columns": columns and [name.strip() for name in columns.split(",")], "order_by": sort, "depth": depth}
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
                f"{text!r} is not an amount of a column", where="option --min", remedy=f"write COLUMN=NUMBER, with one of {known}"
            )
    TreeOptions(**words)
    return words
