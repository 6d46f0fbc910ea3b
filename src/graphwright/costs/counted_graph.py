"""Targets to be counted, as flat graphs with static shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from graphwright.costs.sized_step import open_shape
from graphwright.errors import ArgumentError, GraphwrightError, UnknownShapeError
from graphwright.ir.graph import Graph
from graphwright.source.concrete_function import Binding
from graphwright.step.feeds import is_value, leaves_of
from graphwright.step.flatten import counted_graph
from graphwright.step.targets import Feed, Mode, read_target, trace

_SECOND = 3  # the batch size at which an open dimension shows


@dataclass(frozen=True, slots=True)
class CountedGraph:
    """A flat graph without calls, and what is needed to run it: captures, and example values of the inputs if known."""

    name: str
    graph: Graph
    feeds: Mapping[str, tuple[int, ...]]
    binding: Binding | None = None
    arguments: tuple[Any, ...] | None = None


@dataclass(frozen=True, slots=True)
class Countable:
    """A target that can be flattened, at any batch size if the inputs leave it open; `feeds` has None for the batch size then."""

    target: Any
    given: Mapping[str, Feed] | None
    inputs: Any
    outputs: Any
    mode: Mode
    batch: int | None
    is_open: bool = False
    feeds: Mapping[str, tuple[int | None, ...]] | None = None
    read: Mapping[int, CountedGraph] = field(default_factory=dict[int, CountedGraph])

    def at(self, batch: int | None = None) -> CountedGraph:
        """Return the flat graph, with this batch size if it is open."""
        if batch is not None and batch in self.read:
            return self.read[batch]
        traced = trace(self.target, feeds=self.given, inputs=self.inputs, mode=self.mode, batch=self.batch, open_batch=batch)
        flat, binding = counted_graph(traced)
        return CountedGraph(traced.name, flat, traced.feeds, binding, traced.arguments if traced.is_runnable else None)


def countable(asked: Countable) -> tuple[Countable, CountedGraph]:
    """Read a target, and flatten it once; at batch size 1 if that is open."""
    closed = replace(asked, target=read_target(asked.target, asked.outputs, asked.given), outputs=None)
    try:
        return closed, closed.at()
    except (UnknownShapeError, ArgumentError) as error:
        for path, feed in leaves_of(asked.given or {}).items():
            if not is_value(feed):
                open_shape(path, feed)
        try:
            one, second = closed.at(1), closed.at(_SECOND)
        except GraphwrightError:
            raise error from None
        pairs = {name: zip(shape, second.feeds[name], strict=True) for name, shape in one.feeds.items()}
        opened = {name: tuple(None if a != b else a for a, b in pair) for name, pair in pairs.items()}
        return replace(closed, is_open=True, feeds=opened, read={1: one, _SECOND: second}), one
