"""A step whose batch size is open, traced for each size that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from graphwright.analyze.cost import TaskMap
from graphwright.analyze.device_models import HERE
from graphwright.costs.peak import step_peak
from graphwright.costs.xla_peak import xla_peak
from graphwright.errors import ArgumentError, ErrorCode, located
from graphwright.ir.dtypes import Shape
from graphwright.memory.planning import map_tasks
from graphwright.report.peak_prediction import BY_UPPER_END, Order
from graphwright.report.progress import tell
from graphwright.run.traced_step import TracedStep
from graphwright.source.tensorflow_import import import_tensorflow
from graphwright.step.executor_peak import inter_op_threads
from graphwright.step.feeds import declared_shape, is_value, leaves_of, map_feeds, resized
from graphwright.step.flatten import FlatStep, flat_step
from graphwright.step.targets import Feed, Mode, both_given, one_batch, read_target, trace

Feeds = Callable[[int], Mapping[str, Feed]] | Mapping[str, Feed] | None


class PeakAt(NamedTuple):
    """The peak at a batch size, the upper end of its range, the part of it that is resident, and how it was obtained."""

    nbytes: int
    high_bytes: int
    resident_bytes: int
    how: str


class SizedStep:
    """A step whose batch size is open; `of_examples` is a note on figures that depend on the example inputs."""

    def __init__(
        self, target: Any, feeds: Feeds, mode: Mode, *, inputs: Any = None, outputs: Any = None, runs: bool = False, device: str = HERE
    ) -> None:
        if feeds is not None and inputs is not None:
            raise both_given()
        self.target = read_target(target, outputs, feeds, runs=runs)
        self.feeds = feeds
        self.inputs = one_batch(self.target, inputs, mode)
        repeated = _holds_composites(self.inputs)
        self.of_examples = "; rows of ragged and sparse inputs are those of the examples, repeated" if repeated else ""
        self.mode: Mode = mode
        self.device = device
        self._traced: dict[int, TracedStep] = {}
        self._last: tuple[int, FlatStep, TaskMap] | None = None
        self._peaks: dict[tuple[int, Order], PeakAt] = {}

    @property
    def first(self) -> TracedStep:
        return next(iter(self._traced.values()))

    @property
    def open_feeds(self) -> dict[str, Shape]:
        """Shape by argument, None for the batch size; known once the step is traced at two sizes."""
        one, other, *_ = (step.feeds for step in self._traced.values())
        return {name: tuple(None if a != b else a for a, b in zip(shape, other[name], strict=True)) for name, shape in one.items()}

    @property
    def how(self) -> str:
        return f"traced at batch sizes {', '.join(map(str, sorted(self._traced)))}{self.of_examples}"

    def traced(self, size: int) -> TracedStep:
        if size not in self._traced:
            tell(f"the step at batch size {size}")
            with at_size(size):
                feeds = feeds_at(self.feeds, size)
                inputs = None if self.inputs is None else specs_at(self.inputs, size)
                traced = trace(self.target, feeds=feeds, inputs=inputs, mode=self.mode, open_batch=size, device=self.device)
            self._traced[size] = traced
            if len(self._traced) > 1 and traced.feeds == self.first.feeds:
                raise _no_open_dimension(traced)
        return self._traced[size]

    def tasks(self, size: int) -> TaskMap:
        return self._flattened(size)[1]

    def _flattened(self, size: int) -> tuple[FlatStep, TaskMap]:
        if self._last is None or self._last[0] != size:
            traced = self.traced(size)
            with at_size(size):
                flat = flat_step(traced)
                self._last = size, flat, map_tasks(flat, traced.device)
        return self._last[1:]

    def peak(self, size: int, order: Order) -> PeakAt:
        """Return the peak at a batch size; raise `UnsupportedError` if XLA, which is to compile the step, cannot."""
        if (size, order) not in self._peaks:
            traced = self.traced(size)
            with at_size(size):
                compiled = traced.is_compiled
                peak = xla_peak(traced, threads=inter_op_threads()) if compiled else step_peak(traced, *self._flattened(size), order)
                how = peak.how["peak"] + f"; {BY_UPPER_END}" * (peak.order == "executor")
                self._peaks[size, order] = PeakAt(peak.peak_bytes, peak.high_bytes, peak.resident_bytes, how)
        return self._peaks[size, order]


def _no_open_dimension(traced: TracedStep) -> ArgumentError:
    shapes = ", ".join(f"{name} {shape}" for name, shape in traced.feeds.items()) or "there are none"
    return ArgumentError(
        f"no dimension of the inputs is the batch size: {shapes}",
        where=f"target {traced.name!r}",
        cause="the signature of the function, or the model's Input(batch_size=...), fixes it",
        remedy='give the open dimension, feeds={"x": (None, ...)}, or a target that leaves it open',
        code=ErrorCode.FIXED_BATCH,
    )


def feeds_at(feeds: Feeds, size: int) -> Mapping[str, Feed] | None:
    """Return feeds with a batch size in place of None; without a None, in place of every first dimension.

    >>> feeds_at({"x": (None, 4), "k": (3,)}, 8), feeds_at({"x": (1, 4), "y": (1,)}, 8)
    ({'x': (8, 4), 'k': (3,)}, {'x': (8, 4), 'y': (8,)})
    """
    if feeds is None or callable(feeds):
        return None if feeds is None else feeds(size)
    shapes = {path: open_shape(path, feed) for path, feed in leaves_of(feeds).items() if not is_value(feed)}
    has_open = any(None in shape for shape in shapes.values())

    def changed(path: str, feed: Feed) -> Feed:
        if path not in shapes:
            return feed
        shape = shapes[path]
        dims = tuple(size if d is None else d for d in shape) if has_open else (size, *shape[1:]) if shape else ()
        return resized(feed, dims)

    return map_feeds(changed, feeds)


def specs_at(inputs: Any, size: int) -> Any:
    """Return specs of example arguments with another batch size, in place of the first tensor's wherever it is a first dimension.

    Specs do not describe ragged and sparse rows, so such arguments are returned as values, with their rows repeated.

    >>> import tensorflow as tf
    >>> x, rate, table = specs_at((tf.zeros((4, 3)), 0.5, tf.zeros((9, 3))), 8)
    >>> x.shape, rate, table.shape
    (TensorShape([8, 3]), 0.5, TensorShape([9, 3]))
    """
    tf = import_tensorflow()

    def shape_of(leaf: Any) -> tuple[Any, ...]:
        return tuple(getattr(leaf, "shape", None) or ())

    def spec(leaf: Any) -> Any:
        first, *rest = shape_of(leaf) or (None,)
        return leaf if first is None else tf.TensorSpec((size if first == batch else first, *rest), leaf.dtype)

    def repeated(leaf: Any) -> Any:
        first, *rest = shape_of(leaf) or (None,)
        if first is None or first != batch:
            return leaf
        if not isinstance(leaf, tf.SparseTensor):
            return tf.gather(leaf, tf.range(size) % batch)
        return tf.sparse.slice(tf.sparse.concat(0, [leaf] * -(-size // first)), [0] * (1 + len(rest)), [size, *rest])

    batch = next((shape[0] for shape in map(shape_of, tf.nest.flatten(inputs)) if shape), None)
    return tf.nest.map_structure(repeated if batch and _holds_composites(inputs) else spec, inputs)


def _holds_composites(inputs: Any) -> bool:
    tf = import_tensorflow()
    return any(isinstance(leaf, tf.RaggedTensor | tf.SparseTensor) for leaf in tf.nest.flatten(inputs))


def open_shape(name: str, feed: Feed) -> tuple[int | None, ...]:
    """Return the shape of a feed, in which one dimension may be the batch size."""
    shape = declared_shape(name, feed)
    if shape is None:
        raise ArgumentError(f"the feed {feed!r} has no number of dimensions", argument="feeds", item=name, remedy="give its shape")
    if shape.count(None) > 1:
        raise ArgumentError(
            f"the feed {shape} leaves {shape.count(None)} dimensions open",
            argument="feeds",
            item=name,
            cause="a formula has one free dimension, the batch size",
            remedy="give example inputs, inputs=(...)" if hasattr(feed, "ragged_rank") else "give a number for all but one of them",
        )
    return shape


def at_size(size: int) -> AbstractContextManager[None]:
    """Add the batch size to errors raised inside."""
    return located(f"at batch size {size}")
