"""Split the batch: the step runs in parts of its batch, one after another, and updates its weights once.

The nodes that `analyze.splitting` returns are copied once per part. Terms are added up at once, so that a weight's gradient is one sum and
one term at a time. Results are the same up to the order of sums over the batch, dropout masks included: a part of a stateless random
operation continues the counter of the parts before it. Loops are copied with their bodies.

Nodes are ordered by phase (a node that waits for all parts begins a new one), part, and original place. Planning starts from that order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np

from graphwright.analyze.in_parts import SAME, TERM, InParts, part_of_size
from graphwright.analyze.splitting import Splitting, keeps_control_inputs
from graphwright.errors import ArgumentError
from graphwright.ir.attributes import Attribute, FunctionReference, ShapeAttribute
from graphwright.ir.constants import Array, add_constant, constant_array
from graphwright.ir.dtypes import Shape
from graphwright.ir.edit.copying import copy_body
from graphwright.ir.edit.insert import add_op
from graphwright.ir.edit.library import remove_unused_functions, unique_function_name
from graphwright.ir.edit.prune import prune
from graphwright.ir.graph import Function, Graph, Node, Value
from graphwright.ir.traits.control_flow import LOOPS, called_functions
from graphwright.ir.traits.effects import Purity
from graphwright.ir.traits.rounds import is_list
from graphwright.ir.traits.values import PART, PART_OF, is_constant, origin
from graphwright.ir.walk import topological_order

_Place = tuple[int, int, int, int]
"""Phase, part, place in the original, and before (0) or behind (2) the node of that place."""


def part_borders(batch: int, parts: int) -> list[int]:
    """Return where each part begins, and where the last one ends; the first parts are the larger ones.

    >>> part_borders(10, 4)
    [0, 3, 6, 8, 10]
    """
    return list(accumulate((batch // parts + (k < batch % parts) for k in range(parts)), initial=0))


def split_batch(graph: Graph, purity: Purity, splitting: Splitting, parts: int) -> Graph:
    """Rewrite a flat graph in place so that it runs in parts of its batch, and return it.

    Copies are called `<name>/part<k>`. Their attributes are `_graphwright_part_of`, the name of the original, and `_graphwright_part`:
    first example, end, size of the batch, and the kinds of the outputs (`analyze.in_parts.InParts.outputs`). Raises `ArgumentError` if
    fewer than two parts, or more than the batch has examples.
    """
    if not 2 <= parts <= splitting.batch:
        raise ArgumentError(
            f"a batch of {splitting.batch} cannot be split into {parts} parts", argument="parts", remedy=f"give 2 to {splitting.batch}"
        )
    with graph.restored_on_error():
        _Rewriter(graph, purity, splitting, part_borders(splitting.batch, parts)).run()
        remove_unused_functions(graph)
    return graph


@dataclass(frozen=True)
class _Rewriter:
    """Rewrites a graph for all parts, or the body of a loop for one.

    `borders` are where the parts begin, and where the last one ends. For a body, `split` maps the arguments that are split to their
    axes, and `results` are the kinds of its results.
    """

    graph: Graph
    purity: Purity
    splitting: Splitting
    borders: Sequence[int]
    split: Mapping[Value, int] = field(default_factory=dict[Value, int])
    results: Sequence[int] | None = None
    copies: dict[Node, list[Node]] = field(default_factory=dict[Node, list[Node]])
    wholes: dict[Value, Value] = field(default_factory=dict[Value, Value])
    slices: dict[tuple[Value, int, int], Value] = field(default_factory=dict[tuple[Value, int, int], Value])
    places: dict[Node, _Place] = field(default_factory=dict[Node, _Place])
    position: dict[Node, int] = field(default_factory=dict[Node, int])

    def run(self) -> None:
        order = topological_order(self.graph)
        effects = [node for node in order if not self.purity.is_pure(node)]  # some run because what is pure waits for them, which ends here
        self.position.update((node, k) for k, node in enumerate(order))
        bound = {node for node in order if keeps_control_inputs(node, self.purity)}
        readers: dict[Node, tuple[Node, ...]] = {node: _readers(node) for node in order}  # before anything is rerouted
        for node in order:
            if node in self.splitting.nodes:
                self._copy(node, self.splitting.nodes[node], waits=node in bound)
            else:
                self._reroute(node, waits=node in bound)
        graph = self.graph
        kinds, place = self.results or [SAME] * len(graph.outputs), (0, 0, 0, 0)
        graph.outputs = [self._read(v, None if kind < 0 else kind, 0, place) for v, kind in zip(graph.outputs, kinds, strict=True)]
        graph.control_outputs = dict.fromkeys(node for node in (*graph.control_outputs, *effects) if node not in self.copies)
        self._place_whole(order, readers)
        prune(graph)
        last = (max(self.splitting.phases.values()) + 1, 0, 0, 0)
        graph.sort_nodes(sorted(graph.nodes, key=lambda node: self.places.get(node, last)))
        graph.sort_nodes(topological_order(graph))

    # Nodes

    def _reroute(self, node: Node, *, waits: bool) -> None:
        wholes = [self._whole(value) for value in node.inputs]
        if wholes != list(node.inputs):
            self.graph.replace_inputs(node, wholes)
        for before in node.control_inputs:
            copies = self.copies.get(before)
            if copies is None and waits:
                continue
            self.graph.remove_control_input(node, before)
            for copy in copies if copies is not None and waits else ():
                self.graph.add_control_input(node, copy)

    def _copy(self, node: Node, how: InParts, *, waits: bool) -> None:
        copies = self.copies[node] = list[Node]()
        phase, batch = self.splitting.phases[node], self.splitting.batch
        controls = [before for before in node.control_inputs if before not in self.copies] if waits else []
        for part, (start, stop) in enumerate(pairwise(self.borders)):
            place = (phase, part, self.position[node], 1)
            inputs = [self._read(value, axis, part, (*place[:3], 0)) for value, axis in zip(node.inputs, how.inputs, strict=True)]
            for k in dict.fromkeys(k for k, _ in how.sizes):
                inputs[k] = self._sizes(node, how, k, start, stop)
            if how.drawn and start:
                inputs[2] = self._counter(node, how.drawn, part, inputs[2], (*place[:3], 0))
            types = [(value.dtype, self._shape(value, how.kind(value), start, stop)) for value in node.outputs]
            attrs: dict[str, Attribute] = {**node.attrs, PART_OF: node.name.encode(), PART: (start, stop, batch, *how.outputs)}
            if node.op_type in LOOPS:
                attrs |= self._functions(node, how, start, stop)
                attrs["output_shapes"] = tuple(ShapeAttribute(shape) for _, shape in types)
            copy = self.graph.add_node(
                how.op_type,
                self.graph.unique_name(f"{node.name}/part{part}"),
                inputs=inputs,
                attrs=attrs,
                control_inputs=controls,
                output_types=types,
                device=node.device,
                extra=node.extra,
            )
            self.places[copy] = place
            copies.append(copy)
        for value in node.outputs:
            if how.kind(value) == TERM:
                self._add_up(value, how)

    def _functions(self, loop: Node, how: InParts, start: int, stop: int) -> dict[str, Attribute]:
        attrs: dict[str, Attribute] = {}
        for attribute, nodes, results in (("cond", dict[str, InParts](), None), ("body", how.body, how.outputs)):
            [name] = called_functions(loop, attribute)
            function = self.graph.functions[name]
            new = unique_function_name(self.graph, f"{name}_part{start}")
            body = copy_body(function, new, self.graph.functions, {}).graph
            self.graph.functions[new] = Function(new, body)
            kinds = dict(zip(body.inputs, how.outputs, strict=True))
            for value, kind in kinds.items():
                value.shape = self._shape(value, kind, start, stop)
            nodes_inside = {body[name]: inside for name, inside in nodes.items()}
            splitting = Splitting(self.splitting.batch, (), nodes_inside, dict.fromkeys(body.nodes, 0))
            _Rewriter(body, self.purity.of(body), splitting, (start, stop), kinds, results).run()
            attrs[attribute] = FunctionReference(new)
        return attrs

    def _shape(self, value: Value, axis: int, start: int, stop: int) -> Shape:
        shape = value.shape
        if axis < 0 or is_list(value):
            return shape
        assert shape is not None  # or no rule would have cut it
        return (*shape[:axis], (shape[axis] or 0) * (stop - start) // self.splitting.batch, *shape[axis + 1 :])

    def _add_up(self, value: Value, how: InParts) -> None:
        node, copies = value.producer, self.copies[value.producer]
        total, suffix = copies[0].outputs[value.index], f"_{value.index}" if value.index else ""
        for part, copy in enumerate(copies[1:], start=1):
            name = f"{node.name}/added{part}{suffix}"
            total = self._made("AddV2", name, node, [total, copy.outputs[value.index]], value.shape)
            self.places[total.producer] = (*self.places[copy][:3], 2)
        if how.divisor > 1:
            divisor = add_constant(self.graph, f"{node.name}/count", np.array(how.divisor, np.float64), dtype=value.dtype)
            place = (*self.places[copies[-1]][:3], 2)
            self.places[divisor.producer] = place
            total = self._made("RealDiv", f"{node.name}/divided", node, [total, divisor], value.shape)
            self.places[total.producer] = place
        self.wholes[value] = total

    def _made(self, op_type: str, name: str, like: Node, inputs: Sequence[Value], shape: Shape) -> Value:
        dtype = inputs[0].dtype
        return add_op(self.graph, op_type, name, inputs, dtype, shape, T=dtype, device=like.device)

    # Values

    def _whole(self, value: Value) -> Value:
        whole = self.wholes.get(value, value)
        copies = self.copies.get(value.producer)
        if copies is None or whole is not value:
            return whole
        axis = self.splitting.nodes[value.producer].kind(value)
        if axis < 0:  # all parts make the same
            return copies[0].outputs[value.index]
        last = self.places[copies[-1]]
        place = (*last[:3], 2)
        at = add_constant(self.graph, f"{value.producer.name}/axis", np.array(axis, np.int32))
        self.places[at.producer] = place
        name, dtype = f"{value.producer.name}/gathered", value.dtype
        parts = [copy.outputs[value.index] for copy in copies]
        int32 = at.dtype
        joined = add_op(
            self.graph, "ConcatV2", name, [*parts, at], dtype, value.shape, N=len(parts), T=dtype, Tidx=int32, device=value.producer.device
        )
        self.places[joined.producer] = place
        self.wholes[value] = joined
        return joined

    def _read(self, value: Value, axis: int | None, part: int, place: _Place) -> Value:
        """Return what a part reads of a value: all of it, a term, a part, or a slice."""
        how, copies = self.splitting.nodes.get(value.producer), self.copies.get(value.producer)
        if how is not None and copies is not None and axis != TERM and how.kind(value) == (SAME if axis is None else axis):
            return copies[part].outputs[value.index]
        if axis is None or axis < 0 or self.split.get(value) == axis:
            return self._whole(value)
        key = (value, axis, part)
        if key not in self.slices:
            self.slices[key] = self._slice(value, axis, part, place)
        return self.slices[key]

    def _slice(self, value: Value, axis: int, part: int, place: _Place) -> Value:
        start, stop = self.borders[part : part + 2]
        node, shape = value.producer, self._shape(value, axis, start, stop)
        array = constant_array(node) if is_constant(node) else None
        before = (self._shape(value, axis, 0, start) or ())[axis] or 0
        length = (shape or ())[axis] or 0
        if array is not None:
            return self._constant(node.name, array[(slice(None),) * axis + (slice(before, before + length),)], place, value)
        begin = np.zeros(len(shape or ()), np.int32)
        begin[axis] = before
        ends = [self._constant(node.name, ints, place) for ints in (begin, np.array(shape, np.int32))]
        whole = self._whole(value)
        name, dtype, index = f"{node.name}/slice{part}", value.dtype, ends[0].dtype
        piece = add_op(self.graph, "Slice", name, [whole, *ends], dtype, shape, T=dtype, Index=index, device=node.device)
        self.places[piece.producer] = place
        return piece

    def _constant(self, name: str, array: Array, place: _Place, like: Value | None = None) -> Value:
        dtype = None if like is None else like.dtype
        constant = add_constant(self.graph, f"{name}/part", array, dtype=dtype, device="" if like is None else like.producer.device)
        self.places[constant.producer] = place
        return constant

    def _sizes(self, node: Node, how: InParts, index: int, start: int, stop: int) -> Value:
        value = node.inputs[index]
        array = constant_array(origin(value).producer)
        assert array is not None  # or no rule would have read it
        for k, element in how.sizes:
            if k == index:
                array = part_of_size(array, element, start, stop, self.splitting.batch)
        return self._constant(value.producer.name, array, (*self.places.get(node, (0, 0, 0, 0))[:3], 0), value)

    def _counter(self, node: Node, drawn: int, part: int, counter: Value, place: _Place) -> Value:
        elements = int(np.prod([size or 0 for size in node.outputs[0].shape or ()]))
        steps = elements * self.borders[part] // (self.splitting.batch * drawn)
        ahead = self._constant(node.name, np.array([steps, 0], np.uint64), place)
        moved = self._made("AddV2", f"{node.name}/counter{part}", node, [counter, ahead], counter.shape)
        self.places[moved.producer] = place
        return moved

    # Order

    def _place_whole(self, order: Sequence[Node], readers: dict[Node, tuple[Node, ...]]) -> None:
        """Place a node that runs whole: after the last part that it needs, and before its first reader."""
        phases, last = self.splitting.phases, len(self.borders) - 2
        for node in order:
            if node not in self.copies:
                phase = phases[node]
                self.places[node] = (phase - 1, last, self.position[node], 2) if phase else (0, 0, self.position[node], 1)
        for node in reversed(order):
            if node in self.copies or phases[node] or not readers[node]:
                continue
            behind = [(phases[r], 0) if r in self.copies else self.places[r][:2] for r in readers[node]]
            phase, part = min(behind)
            self.places[node] = (phase, part, self.position[node], 1)


def _readers(node: Node) -> tuple[Node, ...]:
    return (*(use.node for value in node.outputs for use in value.uses), *node.control_consumers)
