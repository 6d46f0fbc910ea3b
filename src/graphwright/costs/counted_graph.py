"""What users hand in to be counted, as a flat graph with static shapes: anything that can be traced, and graphs as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from graphwright.costs.fetches import check_takes_outputs, fetch, output_names
from graphwright.costs.sized_step import TRACED_FIRST, open_shape
from graphwright.errors import ArgumentError, GraphwrightError, UnknownShapeError
from graphwright.ir.dtypes import Shape, format_shape
from graphwright.ir.edit.library import bodies
from graphwright.ir.graph import Graph, Node, Variable
from graphwright.ir.traits.values import ARGUMENTS, INPUTS, MAY_BE_FED, is_constant
from graphwright.ir.traits.variables import is_read
from graphwright.ir.walk import backward_reachable
from graphwright.source.concrete_function import Binding
from graphwright.source.graph_def import from_graph_def, to_graph_def
from graphwright.source.load import load, made_by
from graphwright.source.tensorflow_import import import_tensorflow
from graphwright.step.feeds import check_known, declared_shape, is_value, leaves_of, open_input
from graphwright.step.flatten import counted_graph, flatten_graph
from graphwright.step.targets import Feed, Mode, check_batch_is_taken, read_target, trace


@dataclass(frozen=True, slots=True)
class CountedGraph:
    """A flat graph, with what is needed to run it.

    Attributes:
        name: what to call it.
        graph: without calls, with static shapes.
        feeds: shape by input.
        binding: captures of the function that it was traced from, or None for a graph.
        arguments: example values of the inputs, where they were given.
    """

    name: str
    graph: Graph
    feeds: Mapping[str, tuple[int, ...]]
    binding: Binding | None = None
    arguments: tuple[Any, ...] | None = None


@dataclass(frozen=True, slots=True)
class Countable:
    """A target that can be flattened, for one batch size after the other where it is open.

    Attributes:
        target, given, inputs, outputs, mode, batch: the arguments of the question; outputs are names, tensors or operations.
        is_open: whether a dimension of some input is the batch size, which is open.
        feeds: shape by input; None is the open dimension.
        read: what was read already, by batch size.
    """

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
        """The flat graph, read again, with this size where the batch is open.

        Raises:
            UnknownShapeError: a dimension is not known.
        """
        if batch is not None and batch in self.read:
            return self.read[batch]
        if self.outputs is not None or is_graph(self.target):
            counted = _from_graph(self.target, self.given or {}, self.outputs, self.batch if batch is None else batch)
            if self.batch is not None:
                check_batch_is_taken(self.batch, counted.feeds, counted.name)
            return counted
        traced = trace(self.target, feeds=self.given, inputs=self.inputs, mode=self.mode, batch=self.batch, open_batch=batch)
        flat, binding = counted_graph(traced)
        return CountedGraph(traced.name, flat, traced.feeds, binding, traced.arguments if traced.is_runnable else None)


def countable(asked: Countable) -> tuple[Countable, CountedGraph]:
    """Read a target, and flatten it once: with an open batch at size 1.

    Raises:
        UnknownShapeError: a dimension other than the first is not known.
        ArgumentError: the target is nothing that can be read, or the outputs are missing.
    """
    asked = replace(asked, target=made_by(asked.target))
    target = asked.target
    fetched = None if asked.outputs is None else output_names(asked.outputs)
    if fetched is not None and asked.inputs is not None:
        raise ArgumentError("both inputs and outputs were given", argument="outputs", remedy="for a graph, give feeds and outputs")
    if fetched is not None:
        check_takes_outputs(target, is_graph=is_graph(target))
    closed = replace(asked, target=target if fetched is not None else read_target(target), outputs=fetched)
    try:
        return closed, closed.at()
    except (UnknownShapeError, ArgumentError) as error:
        for path, feed in leaves_of(asked.given or {}).items():
            if not is_value(feed):
                open_shape(path, feed)
        other = TRACED_FIRST[0]
        try:
            one, second = closed.at(1), closed.at(other)
        except GraphwrightError:
            raise error from None
        pairs = {name: zip(shape, second.feeds[name], strict=True) for name, shape in one.feeds.items()}
        opened = {name: tuple(None if a != b else a for a, b in pair) for name, pair in pairs.items()}
        return replace(closed, is_open=True, feeds=opened, read={1: one, other: second}), one


def is_graph(target: Any) -> bool:
    """Whether it is a graph as it is, which says its outputs itself or is told them; not something that can be traced."""
    tf = import_tensorflow()
    return isinstance(target, Graph | tf.Graph | tf.compat.v1.GraphDef | tf.compat.v1.MetaGraphDef)


def _from_graph(target: Any, feeds: Mapping[str, Feed], outputs: Sequence[str] | None, batch: int | None) -> CountedGraph:
    """A graph, read anew: functions get other shapes for each batch size."""
    tf = import_tensorflow()
    given = load(target) if not isinstance(target, tf.Graph | tf.compat.v1.GraphDef) else None
    graph_def = target.as_graph_def(add_shapes=True) if isinstance(target, tf.Graph) else target if given is None else to_graph_def(given)
    name = given.name if given is not None and given.name else Path(target).stem if isinstance(target, str | Path) else "graph"
    graph = from_graph_def(graph_def, name=name)
    for body in bodies(graph):
        for node in body.nodes:
            if node.op_type not in ARGUMENTS:
                body.set_attr(node, "_output_shapes", None)
    graph.outputs, graph.control_outputs = fetch(graph, outputs if outputs is not None else _own_outputs(given, graph))
    _set_inputs(graph, given, {key.removesuffix(":0") for key in feeds})
    shapes: dict[int, Shape] = {}
    bound: dict[str, tuple[int, ...]] = {}
    known = {value.producer.name: k for k, value in enumerate(graph.inputs) if value.dtype.itemsize is not None}
    check_known(feeds, known, "what is fetched needs")
    for key, feed in feeds.items():
        shapes[known[key.removesuffix(":0")]] = declared_shape(key, feed)
    for key, k in known.items():
        shape = shapes.get(k, graph.inputs[k].shape)
        if shape and batch is not None:  # of a feed any dimension may be open, of a placeholder the first
            shape = tuple(batch if d is None and (k in shapes or axis == 0) else d for axis, d in enumerate(shape))
        if shape is None or None in shape:
            cause = "the graph leaves dimensions open, and FLOPs depend on them"
            raise open_input(f"input {key!r} has the shape {format_shape(shape)}", key, shape, where=f"node {key!r}", cause=cause)
        shapes[k] = shape
        bound[key] = tuple(d for d in shape if d is not None)
    flat, _ = flatten_graph(graph, {k: s for k, s in shapes.items() if s is not None}, infer=True, fold_floats=False)
    return CountedGraph(name, flat, bound)


def _own_outputs(given: Graph | None, graph: Graph) -> Sequence[str]:
    """Outputs that the graph names itself; those of its default signature, else."""
    if given is not None:
        if given.outputs or given.control_outputs:
            return [*(v.name for v in given.outputs), *(n.name for n in given.control_outputs)]
        signatures = given.signatures
        chosen = signatures.get("serving_default") or (next(iter(signatures.values())) if len(signatures) == 1 else None)
        if chosen is not None:
            return [v.name for v in chosen.outputs.values()]
    last = [n.name for n in graph.nodes if not any(v.uses for v in n.outputs) and not n.control_consumers and not is_constant(n)]
    raise ArgumentError(
        "a graph was given, and nothing says what is fetched from it",
        argument="outputs",
        cause="only what the fetches need is counted",
        remedy=f"give outputs=[...]; nothing reads {', '.join(last[:5])}",
    )


def _is_input(node: Node, fed: AbstractSet[str]) -> bool:
    """Whether its value comes from outside. The default of a placeholder does not count where its shape is not that of the placeholder."""
    return node.op_type in INPUTS or (node.op_type in MAY_BE_FED and (node.name in fed or node.outputs[0].nbytes is None))


def _set_inputs(graph: Graph, given: Graph | None, fed: AbstractSet[str]) -> None:
    """The placeholders that are needed; a variable behind one is told by what reads it."""
    needed = backward_reachable([*(v.producer for v in graph.outputs), *graph.control_outputs])
    graph.inputs = [node.outputs[0] for node in graph.nodes if node in needed and _is_input(node, fed)]
    for value in graph.inputs:
        if value.dtype.name != "resource":
            continue
        before = given.value(value.name) if given is not None and value.producer.name in given else None
        variable = None if given is None or before is None else given.variables.get(before)
        reads = [n.outputs[0] for n in (before or value).consumers if is_read(n)]
        if variable is None and reads:
            variable = Variable(value.producer.name, reads[0].dtype, reads[0].shape, True)
        if variable is not None:
            graph.variables[value] = variable
