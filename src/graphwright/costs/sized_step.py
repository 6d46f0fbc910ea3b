"""A step for any batch size: traced for a few, and bound to others by the formulas of its shapes.

Tracing and shape inference take seconds, what follows from shapes takes tenths of one. Where formulas of the shapes cannot be found
(see `graphwright.costs.shape_binding`), the step is traced for each size that is asked for; `how` says which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from graphwright.analyze.cost import TaskMap
from graphwright.analyze.device_models import HERE
from graphwright.costs.peak import own_peak
from graphwright.costs.shape_binding import BoundGraph, bind_shapes
from graphwright.costs.xla_peak import xla_peak
from graphwright.errors import ArgumentError, ErrorCode, UnknownShapeError, located
from graphwright.ir.dtypes import Shape
from graphwright.memory.planning import map_tasks
from graphwright.plan.model import Schedule
from graphwright.plan.simulate import simulate
from graphwright.report.obtained import Obtained
from graphwright.report.peak_prediction import PeakPrediction
from graphwright.report.progress import tell
from graphwright.run.traced_step import TracedStep
from graphwright.source.tensorflow_import import import_tensorflow
from graphwright.step.executor_peak import inter_op_threads
from graphwright.step.feeds import declared_shape, is_value, leaves_of, map_feeds, resized
from graphwright.step.flatten import FlatStep, flat_step
from graphwright.step.targets import Feed, Mode, both_given, one_batch, read_target, trace

Feeds = Callable[[int], Mapping[str, Feed]] | Mapping[str, Feed] | None
TRACED_FIRST = (3, 5, 8)  # odd and even ones, since steps may halve a batch
_STARTS = 4  # ranges for which formulas are looked for
_PROBES = TRACED_FIRST[:2]


@dataclass(frozen=True, slots=True)
class _Range:
    """Sizes with the same graph; without `bound` each is traced."""

    first: int
    last: int | None
    bound: BoundGraph | None
    how: str


class SizedStep:
    """A step whose batch size is open.

    Args:
        target: as for `graphwright.inspect`.
        feeds: see `feeds_at`.
        inputs: example arguments of one call, instead of feeds; see `specs_at`.
        outputs: of a graph, what is fetched.
        mode: for a Keras model.
        runs: whether it is to be run.
        device: what its peaks are for.

    Attributes:
        traced_sizes: batch sizes for which it was traced.
    """

    def __init__(
        self, target: Any, feeds: Feeds, mode: Mode, *, inputs: Any = None, outputs: Any = None, runs: bool = False, device: str = HERE
    ) -> None:
        if feeds is not None and inputs is not None:
            raise both_given()
        self.target = read_target(target, outputs, feeds, runs=runs)
        self.given = feeds
        self.inputs = one_batch(self.target, inputs, mode)
        self.mode: Mode = mode
        self.device = device
        self._traced: dict[int, TracedStep] = {}
        self._flat: dict[int, FlatStep] = {}
        self._ranges: list[_Range] = [_Range(1, 1, None, "")]
        self._tasks: tuple[int, TaskMap] | None = None
        self._bytes: dict[int, tuple[int, int]] = {}  # peak, resident
        self.traced_sizes: set[int] = set()

    @property
    def name(self) -> str:
        return next(iter(self._traced.values())).name if self._traced else self.traced(_PROBES[0]).name

    def open_feeds(self) -> dict[str, Shape]:
        """Shape by argument; None where the batch size goes.

        Raises:
            ArgumentError: no dimension of the inputs is open.
        """
        one, other = (self.traced(size).feeds for size in _PROBES)
        if one == other:
            raise ArgumentError(
                f"no dimension of the inputs is the batch size: {', '.join(f'{k} {v}' for k, v in one.items()) or 'there are none'}",
                where=f"target {self.name!r}",
                cause="the signature of the function, or the model's Input(batch_size=...), fixes it",
                remedy='give the open dimension, feeds={"x": (None, ...)}, or a target that leaves it open',
                code=ErrorCode.FIXED_BATCH,
            )
        return {name: tuple(None if a != b else a for a, b in zip(shape, other[name], strict=True)) for name, shape in one.items()}

    @property
    def is_compiled(self) -> bool:
        """Whether XLA compiles the step."""
        return self.traced(_PROBES[0]).is_compiled

    def own_peak(self, size: int) -> Obtained[PeakPrediction | None]:
        """The peak at a batch size as TensorFlow or XLA runs the step; or None, and the reason why it is unknown.

        Raises:
            UnsupportedError: XLA is to compile the step and cannot.
        """
        if self.is_compiled:
            with at_size(size):
                prediction = xla_peak(self.traced(size), threads=inter_op_threads())
            return Obtained(prediction, prediction.how["peak"])
        flat = self.flattened(size)
        with at_size(size):
            return own_peak(self.traced(size), flat, map_tasks(flat))

    @property
    def how(self) -> str:
        """At which sizes the step was traced, and how others are bound."""
        told = "; ".join(r.how for r in self._ranges if r.how) or "each size is traced"
        return f"traced at batch sizes {', '.join(map(str, sorted(self.traced_sizes)))}; {told}{self.of_examples}"

    @property
    def of_examples(self) -> str:
        """What is taken from the example inputs, to be put behind how a figure was obtained."""
        return "; rows of ragged and sparse inputs are those of the examples, repeated" if _holds_composites(self.inputs) else ""

    def is_bound(self, size: int) -> bool:
        """Whether a batch size takes no tracing."""
        return self._range_of(size).bound is not None

    def traced(self, size: int) -> TracedStep:
        """The step traced for a batch size.

        Raises:
            GraphwrightError: it cannot be; the message names the size.
        """
        if size not in self._traced:
            with at_size(size):
                feeds = feeds_at(self.given, size)
                inputs = None if self.inputs is None else specs_at(self.inputs, size)
                traced = trace(self.target, feeds=feeds, inputs=inputs, mode=self.mode, open_batch=size, device=self.device)
            self._traced[size] = traced
            self.traced_sizes.add(size)
        return self._traced[size]

    def flat(self, size: int) -> FlatStep:
        """The flat graph at a batch size; the next call may change its shapes."""
        bound = self._range_of(size).bound
        return bound.at(size) if bound is not None else self.flattened(size)

    def tasks(self, size: int) -> TaskMap:
        """The planning model at a batch size; the next call may change the shapes of its graph.

        Raises:
            GraphwrightError: a size is not known; the message names the batch size.
        """
        if self._tasks is None or self._tasks[0] != size:
            with at_size(size):
                self._tasks = (size, map_tasks(self.flat(size)))
        return self._tasks[1]

    def peak_bytes(self, size: int) -> int:
        """The peak at a batch size, when the step runs in the order in which it was traced."""
        return self._bytes_at(size)[0]

    def _bytes_at(self, size: int) -> tuple[int, int]:
        """The peak and the resident bytes at a batch size."""
        if size not in self._bytes:
            tell(f"the step at batch size {size}")
            costs = self.tasks(size).costs
            self._bytes[size] = simulate(costs, Schedule(costs.order)).peak_bytes, costs.resident_bytes
        return self._bytes[size]

    def is_confirmed(self, size: int) -> bool:
        """Trace the step for a size that is bound by formulas; where they give another peak, sizes from here on are traced."""
        found = self._range_of(size)
        if found.bound is None:
            return True
        expected = self._bytes_at(size)
        costs = map_tasks(self.flattened(size)).costs
        peak = simulate(costs, Schedule(costs.order)).peak_bytes
        if (peak, costs.resident_bytes) == expected:
            return True
        checked = max((s for s in self.traced_sizes if found.first <= s < size), default=found.first)
        at = self._ranges.index(found)
        self._ranges[at:] = [
            _Range(found.first, checked, found.bound, found.how),
            _Range(checked + 1, None, None, f"larger sizes are traced, as the formulas are not right at {size}"),
        ]
        self._bytes = {s: known for s, known in self._bytes.items() if s <= checked}
        self._tasks = None
        return False

    def flattened(self, size: int) -> FlatStep:
        """The flat graph of the step as it is traced for a batch size."""
        if size not in self._flat:
            traced = self.traced(size)
            with at_size(size):
                self._flat[size] = flat_step(traced)
        return self._flat[size]

    def _range_of(self, size: int) -> _Range:
        while (end := self._ranges[-1].last) is not None and end < size:
            self._ranges += self._next_ranges(end + 1)
        return next(r for r in self._ranges if r.last is None or size <= r.last)

    def _next_ranges(self, first: int) -> list[_Range]:
        """The ranges behind those that are known: bound where the graphs of three sizes agree."""
        sizes = TRACED_FIRST if first == 2 else (first, first + 2, first + 5)
        if len(self._ranges) > _STARTS:
            return [_Range(first, None, None, f"sizes from {first:,} on are traced")]
        try:
            bound = bind_shapes({size: self.flattened(size) for size in sizes})
        except UnknownShapeError as error:
            end = 4 * first + 8 if len(self._ranges) < _STARTS else None
            span = f"from {first:,} on" if end is None else f"{first:,} to {end:,}"
            return [_Range(first, end, None, f"sizes {span} are traced, as {error.what}")]
        for size in sizes:  # the last one is bound to other sizes from now on
            self._flat.pop(size)
        border = bound.first_border()
        if border is not None and border <= sizes[-1]:
            return [_Range(first, border - 1, None, f"sizes {first:,} to {border - 1:,} are traced")]
        span = f"sizes from {first:,} on" if border is None else f"sizes {first:,} to {border - 1:,}"
        how = f"shapes of {span} by formulas through those at {sizes[0]:,} and {sizes[1]:,}, checked at {sizes[2]:,}"
        return [_Range(first, None if border is None else border - 1, bound, how)]


def feeds_at(feeds: Feeds, size: int) -> Mapping[str, Feed] | None:
    """Feeds with a batch size: where a dimension is None; if none is, in place of every first dimension.

    Raises:
        ArgumentError: a feed is not a shape, or leaves more than one dimension open.

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
    """Specs of example arguments with another batch size: that of the first tensor, wherever it is a first dimension.

    Where one is ragged or sparse, no spec says how much its rows hold: then the arguments themselves, their rows repeated.

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
    """The shape of a feed, in which one dimension may be the batch size.

    Raises:
        ArgumentError: it is not a shape, or leaves more than one dimension open.
    """
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
    """Says of what is raised inside that it happened at a batch size."""
    return located(f"at batch size {size}")
