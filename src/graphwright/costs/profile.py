"""`profile`: the time and the memory of a step, measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from graphwright.analyze.profile_tree import TreeOptions, grow_tree
from graphwright.analyze.step_profile import ProfileRow, StepProfile, by_layer, by_op_type, whole
from graphwright.costs.measured_step import join_records
from graphwright.errors import ArgumentError
from graphwright.plain import fields_json, number, plain
from graphwright.report.chrome_trace import write_chrome_trace
from graphwright.report.page import OnPage
from graphwright.report.profile_report import ProfileTree, profile_sheet, profile_verdict
from graphwright.report.sheet import Sheet
from graphwright.run.record_step import RecordedStep, record_step
from graphwright.run.step_session import executed_graph_def
from graphwright.run.step_stats import rename_as_written
from graphwright.run.traced_step import TracedStep
from graphwright.source.event_file import write_event_file
from graphwright.step.example_inputs import MADE_UP, runnable
from graphwright.step.targets import Feed, Mode, about_a_step, trace

_HOW = {
    "op runs": "TensorFlow's StepStats of one step: kernel times without the executor's waiting, a kernel of an accelerator beside the "
    "host's part",
    "time": "sum over op runs of parallel threads, so it may exceed the time of the step",
    "bytes": "all requests of an op to the allocator, without oneDNN's own memory",
    "memory": "the allocator's records of each allocation and release, above what it had given out before",
    "FLOPs": "by the rules of count_flops from the shapes of the first run of a node; operations without a rule are left out",
    "directions": "by dataflow: backward is what depends on the gradient of the loss, optimizer what comes after finished gradients",
    "layers": "by name scope, loops and calls as the flat graph names them",
}


@dataclass(frozen=True)
class Profile(OnPage):
    """One step, measured. Returned by `graphwright.profile`. `records` are TensorFlow's own, which `write_tensorboard` writes."""

    name: str
    feeds: Mapping[str, tuple[int, ...]]
    step: StepProfile
    how: Mapping[str, str]
    records: RecordedStep = field(repr=False, compare=False)

    @cached_property
    def by_op_type(self) -> Mapping[str, ProfileRow]:
        """A row per op type, the most time first."""
        return by_op_type(self.step)

    @cached_property
    def by_layer(self) -> Mapping[str, ProfileRow]:
        """A row per layer, the most time first."""
        return by_layer(self.step)

    @cached_property
    def total(self) -> ProfileRow:
        """The figures of all op runs."""
        return whole(self.step)

    @property
    def verdict(self) -> str:
        """One sentence: the time of the step, and what took most of it."""
        return profile_verdict(self.step)

    def tree(self, **options: Any) -> ProfileTree:
        """Return the step as a tree: by name scope, by dataflow, by op type, or by line of code.

        Args:
            options: the fields of `graphwright.analyze.profile_tree.TreeOptions`.

        Raises:
            ArgumentError: an option has an invalid value, or nothing matches `start`.
        """
        try:
            chosen = TreeOptions(**options)
        except TypeError as error:
            raise ArgumentError(str(error), where="Profile.tree", remedy=f"options are {', '.join(TreeOptions.__annotations__)}") from error
        return ProfileTree(grow_tree(self.step, chosen), chosen)

    def _sheet(self) -> Sheet:
        return profile_sheet(self.step, self.feeds, self.how)

    def write_trace(self, path: str | Path, *, flows: bool = False) -> Path:
        """Write a Chrome trace for Perfetto (ui.perfetto.dev) and chrome://tracing, with `flows` as arrows from producers to readers."""
        return write_chrome_trace(self.step, path, flows=flows)

    def write_tensorboard(self, folder: str | Path) -> Path:
        """Write an event file for `tensorboard --logdir FOLDER`, tab "Graphs": the graph, its times and memory; return its path."""
        graph_def, metadata = rename_as_written(executed_graph_def(self.records.metadata.partition_graphs), self.records.metadata)
        return write_event_file(folder, graph_def, metadata, tag=self.name)

    def to_json(self) -> dict[str, object]:
        """Return plain numbers and text, as docs/json.md lists them."""
        return {
            **fields_json(self, "step", "records"),
            "step_time_s": number(self.step.step_time_s),
            "recorded_step_times_s": plain(self.step.step_times_s),
            "plain_step_time_s": number(self.step.plain_time_s),
            "total": plain(self.total),
            "memory": [{**fields_json(t, "times_ns", "bytes_in_use"), "peak_bytes": t.peak_bytes} for t in self.step.memory],
            "by_op_type": plain(self.by_op_type),
            "by_layer": plain(self.by_layer),
        }


@about_a_step
def profile(
    target: Any,
    feeds: Mapping[str, Feed] | None = None,
    inputs: Any = None,
    outputs: Iterable[Any] | Any = None,
    *,
    mode: Mode = "auto",
    batch: int | None = None,
    steps: int = 3,
    warmup: int = 1,
    isolated: bool = True,
    inter_op_threads: int | None = None,
    grappler: bool = True,
    timeout_s: float | None = None,
) -> Profile:
    """Run a step, and measure where its time and its memory go.

    The step runs in a session with copies of its variables, in a fresh process unless `isolated` is off. The caller's variables stay
    as they are. Without example inputs it runs on made-up ones: numbers between 0 and 1, and zeros for integers.

    Args:
        target: as of `inspect`; a graph must have no variables.
        steps: the number of recorded steps; the one of median time is kept.
        inter_op_threads: the number of nodes that may run at once; None for the setting of this process.
        timeout_s: the time after which to give up, in a fresh process.

    Raises:
        MeasurementError: the process died, or ran out of time.
        UnsupportedError: the step is compiled by XLA, calls Python, or holds a table or an iterator.
        UnknownShapeError: a dimension is unknown; the message names the argument to bind.
        ArgumentError, FileFormatError: the target cannot be traced or read.

    >>> import tensorflow as tf
    >>> measured = profile(tf.function(lambda a, b: a @ b), feeds={"a": (64, 64), "b": (64, 64)}, isolated=False)
    >>> measured.by_op_type["MatMul"].occurrences, measured.by_op_type["MatMul"].flops
    (1, 524288.0)
    """
    traced = trace(target, feeds=feeds, inputs=inputs, outputs=outputs, mode=mode, batch=batch, runs=True)
    return profile_traced(
        traced, steps=steps, warmup=warmup, isolated=isolated, inter_op_threads=inter_op_threads, grappler=grappler, timeout_s=timeout_s
    )


def profile_traced(traced: TracedStep, **options: Any) -> Profile:
    """Profile a traced step; the options are those of `record_step`."""
    recorded = record_step(runnable(traced), **options)
    made_up = {} if traced.is_runnable else {"inputs": MADE_UP}
    return Profile(traced.name, traced.feeds, join_records(traced, recorded), {"run": recorded.how} | _HOW | made_up, recorded)
