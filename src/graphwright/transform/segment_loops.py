"""Run a loop and its gradient loop in segments: keep the borders, run each segment again for its gradient.

    forward   while cond(v): push intermediates; v = body(v)
    gradient  while j < n: pop intermediates; g = back(g)

becomes, with segments of `length` iterations,

    forward   while cond(v): push v onto borders; for `length` rounds, while cond(v): v = body(v)
    gradient  while j < n: pop v from borders; for `length` rounds, while cond(v): push intermediates; v = body(v);
                           as many rounds: pop intermediates; g = back(g)

At any time the borders of all segments and the intermediates of one are live. If memory is left, only the first iterations run in segments:

    forward   while cond(v) and rounds < `first`: ...a segment, as above;  while cond(v): push intermediates; v = body(v)
    gradient  for the rounds of the last loop: pop intermediates; g = back(g);  while j < n: ...the segments, as above

The trip count need not be known, and the bodies are those of the loop. All operations and sums keep their order, so results are bit for bit
the same. It costs one more forward pass of the iterations in segments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphwright.analyze.loop_pairs import LoopPair, loop_functions
from graphwright.ir.attributes import Attribute, FunctionReference, ShapeAttribute
from graphwright.ir.constants import add_constant
from graphwright.ir.dtypes import DTYPES, DType, Shape
from graphwright.ir.edit.clone import clone
from graphwright.ir.edit.library import remove_unused_functions, unique_function_name
from graphwright.ir.edit.reroute import replace_node
from graphwright.ir.graph import Function, Graph, Node, Value
from graphwright.ir.traits.rounds import reads_variables
from graphwright.ir.traits.values import returned_arguments
from graphwright.ir.walk import backward_reachable, topological_order

_INT32, _BOOL, _VARIANT = DTYPES["int32"], DTYPES["bool"], DTYPES["variant"]


@dataclass(frozen=True, slots=True)
class Segments:
    """How a loop runs.

    Attributes:
        length: iterations per segment.
        first: number of first iterations that run in segments; None for all.
    """

    length: int
    first: int | None = None


def segment_loops(graph: Graph, segments: Mapping[LoopPair, Segments]) -> None:
    """Rewrite pairs of loops in place; their nodes keep their names."""
    for pair, asked in segments.items():
        _Nested(graph, pair, asked).rewrite()
    remove_unused_functions(graph)
    graph.sort_nodes(topological_order(graph))


class _Nested:
    def __init__(self, graph: Graph, pair: LoopPair, asked: Segments) -> None:
        self.graph, self.pair, self.length, self.first = graph, pair, asked.length, asked.first
        self.condition, self.body = loop_functions(graph, pair.forward)
        self.back_condition, self.back = loop_functions(graph, pair.gradient)
        self.lists = [k for k, _ in pair.lists]
        self.popped = {p: k for k, p in pair.lists}
        self.fixed = [k for k in pair.needed if k not in pair.borders]
        name = pair.forward.name
        shape = add_constant(graph, f"{name}/border/shape", np.asarray(-1, np.int32))
        most = add_constant(graph, f"{name}/border/most", np.asarray(-1, np.int32))
        self.empty: list[Value] = []
        for k in pair.borders:
            attrs = {"element_dtype": self.body.inputs[k].dtype, "shape_type": _INT32}
            node = graph.add_node(
                "EmptyTensorList", graph.unique_name(f"{name}/border"), inputs=[shape, most], attrs=attrs, output_types=[(_VARIANT, ())]
            )
            self.empty.append(node.outputs[0])

    def rewrite(self) -> None:
        forward, gradient = self.pair.forward, self.pair.gradient
        fixed_inputs = [forward.inputs[k] for k in self.fixed]
        lists = {p: forward.inputs[k] for p, k in self.popped.items()}
        controls = forward.control_inputs
        outer = self._loop(self.graph, forward, [*forward.inputs, *self.empty], self._forward_condition(), self._forward_body(), forward)
        count = len(forward.inputs)
        last, inputs = (outer, gradient.inputs) if self.first is None else self._last_rounds(outer)
        inputs = [lists.get(p, value) for p, value in enumerate(inputs)]
        back = self._loop(
            self.graph,
            forward if reads_variables(forward) else gradient,
            [*inputs, *fixed_inputs, *outer.outputs[count:]],
            self._gradient_condition(),
            self._gradient_body(),
            gradient,
        )
        for control in controls:
            self.graph.add_control_input(outer, control)
        replace_node(gradient, back)
        replace_node(forward, last)

    def _last_rounds(self, outer: Node) -> tuple[Node, Sequence[Value]]:
        """Add the loop after the segments, and return the inputs that its gradient loop leaves for theirs."""
        graph, forward, gradient, (rounds, limit) = self.graph, self.pair.forward, self.pair.gradient, self.pair.rounds
        last = clone([forward], scope="last").node_of[forward]
        same = returned_arguments(self.body)
        stays = [k in self.lists or same[k] == k for k in range(len(forward.inputs))]
        graph.replace_inputs(last, [value if stays[k] else outer.outputs[k] for k, value in enumerate(forward.inputs)])
        numbers, name = (last.outputs[rounds], outer.outputs[rounds]), graph.unique_name(f"{gradient.name}/last_rounds")
        left = graph.add_node("Sub", name, inputs=numbers, attrs={"T": numbers[0].dtype}, output_types=[(numbers[0].dtype, ())])
        rest = clone([gradient], scope="last").node_of[gradient]
        graph.replace_input(rest, limit, left.outputs[0])
        for k, p in self.pair.lists:
            graph.replace_input(rest, p, last.outputs[k])
        same = returned_arguments(self.back)
        return last, [value if same[p] == p else rest.outputs[p] for p, value in enumerate(gradient.inputs)]

    # The loop

    def _forward_condition(self) -> str:
        condition = _Body(self.graph, f"{self.condition.name}_segments")
        arguments = condition.arguments([*self.body.inputs, *self.empty])
        (goes_on,) = condition.inline(self.condition, arguments, self.condition.outputs)
        if self.first is not None:
            rounds = arguments[self.pair.rounds[0]]
            first = add_constant(condition.body, "first", np.asarray(self.first, rounds.dtype.name))
            is_first = condition.add("Less", "in_segments", [rounds, first], {"T": rounds.dtype}, _BOOL)
            goes_on = condition.add("LogicalAnd", "both", [is_first, goes_on], {}, _BOOL)
        return condition.finish([goes_on])

    def _forward_body(self) -> str:
        segment = _Body(self.graph, f"{self.body.name}_segments")
        arguments = segment.arguments([*self.body.inputs, *self.empty])
        values, borders = arguments[: len(self.body.inputs)], arguments[len(self.body.inputs) :]
        pushed = [segment.push(of, values[k]) for of, k in zip(borders, self.pair.borders, strict=True)]
        passed = [k for k in range(len(values)) if k not in self.lists]
        inner = self._segment(segment, passed, [values[k] for k in passed])
        after = dict(zip(passed, inner.outputs[1:], strict=True))
        unchanged = returned_arguments(self.body)
        results = [value if unchanged[k] == k else after.get(k, value) for k, value in enumerate(values)]
        return segment.finish([*results, *pushed])

    def _segment(self, outer: _Body, places: Sequence[int], values: Sequence[Value]) -> Node:
        """Add a loop over the iterations of one segment, with a counter of its own."""
        types = [_of(self.body.inputs[k]) for k in places]
        condition = _Body(self.graph, f"{self.condition.name}_segment")
        counter, *arguments = condition.arguments([(_INT32, ()), *types])
        input_map = dict(zip((self.condition.inputs[k] for k in places), arguments, strict=True))
        (goes_on,) = condition.inline_from(self.condition, input_map, self.condition.outputs)
        limit = add_constant(condition.body, "length", np.asarray(self.length, np.int32))
        inside = condition.add("Less", "in_segment", [counter, limit], {"T": _INT32}, _BOOL)
        body = _Body(self.graph, f"{self.body.name}_segment")
        counter, *arguments = body.arguments([(_INT32, ()), *types])
        following = body.add("AddV2", "round", [counter, add_constant(body.body, "one", np.asarray(1, np.int32))], {"T": _INT32}, _INT32)
        input_map = dict(zip((self.body.inputs[k] for k in places), arguments, strict=True))
        results = body.inline_from(self.body, input_map, [self.body.outputs[k] for k in places])
        start = add_constant(outer.body, "first_round", np.asarray(0, np.int32))
        names = condition.finish([condition.add("LogicalAnd", "both", [inside, goes_on], {}, _BOOL)]), body.finish([following, *results])
        return self._loop(outer.body, self.pair.forward, [start, *values], *names, self.pair.forward)

    # The gradient loop

    def _gradient_arguments(self) -> list[tuple[DType, Shape]]:
        fixed = [_of(self.body.inputs[k]) for k in self.fixed]
        return [*(_of(v) for v in self.back.inputs), *fixed, *(_of(v) for v in self.empty)]

    def _gradient_condition(self) -> str:
        condition = _Body(self.graph, f"{self.back_condition.name}_segments")
        arguments = condition.arguments(self._gradient_arguments())
        return condition.finish(condition.inline(self.back_condition, arguments, self.back_condition.outputs))

    def _gradient_body(self) -> str:
        segment = _Body(self.graph, f"{self.back.name}_segments")
        arguments = segment.arguments(self._gradient_arguments())
        count = len(self.back.inputs)
        values, fixed, borders = arguments[:count], arguments[count : count + len(self.fixed)], arguments[count + len(self.fixed) :]
        popped = [segment.pop(of, self.body.inputs[k]) for of, k in zip(borders, self.pair.borders, strict=True)]
        known = dict(zip(self.fixed, fixed, strict=True)) | dict(zip(self.pair.borders, (v for _, v in popped), strict=True))
        known |= {k: values[p] for p, k in self.popped.items()}
        places = sorted(known)
        again = self._segment(segment, places, [known[k] for k in places])
        filled = dict(zip(places, again.outputs[1:], strict=True))
        start = add_constant(segment.body, "first_gradient", np.asarray(0, np.int32))
        inputs = [filled[self.popped[p]] if p in self.popped else value for p, value in enumerate(values)]
        names = self._round_condition(), self._round_body()
        inner = self._loop(segment.body, self.pair.gradient, [start, again.outputs[0], *inputs], *names, self.pair.gradient)
        unchanged = returned_arguments(self.back)
        results = [v if p in self.popped or unchanged[p] == p else inner.outputs[2 + p] for p, v in enumerate(values)]
        return segment.finish([*results, *fixed, *(rest for rest, _ in popped)])

    def _round_types(self) -> list[tuple[DType, Shape]]:
        return [(_INT32, ()), (_INT32, ()), *(_of(v) for v in self.back.inputs)]

    def _round_condition(self) -> str:
        condition = _Body(self.graph, f"{self.back_condition.name}_segment")
        counter, limit, *_ = condition.arguments(self._round_types())
        return condition.finish([condition.add("Less", "in_segment", [counter, limit], {"T": _INT32}, _BOOL)])

    def _round_body(self) -> str:
        iteration = _Body(self.graph, f"{self.back.name}_segment")
        counter, limit, *arguments = iteration.arguments(self._round_types())
        following = iteration.add(
            "AddV2", "round", [counter, add_constant(iteration.body, "one", np.asarray(1, np.int32))], {"T": _INT32}, _INT32
        )
        return iteration.finish([following, limit, *iteration.inline(self.back, arguments, self.back.outputs)])

    def _loop(self, graph: Graph, like: Node, inputs: Sequence[Value], condition: str, body: str, named: Node) -> Node:
        types = [_of(v) for v in self.graph.functions[body].body.inputs]
        attrs: dict[str, Attribute] = {
            "T": tuple(dtype for dtype, _ in types),
            "output_shapes": tuple(ShapeAttribute(shape) for _, shape in types),
            "cond": FunctionReference(condition),
            "body": FunctionReference(body),
            "parallel_iterations": 1,
            "_lower_using_switch_merge": True,
        }
        name = graph.unique_name(f"{named.name}/segments" if graph is self.graph else named.name.rsplit("/", 1)[-1])
        return graph.add_node(like.op_type, name, inputs=inputs, attrs=attrs, output_types=types, device=named.device)


class _Body:
    def __init__(self, graph: Graph, name: str) -> None:
        self.graph = graph
        self.body = Graph(unique_function_name(graph, name), functions=graph.functions, versions=graph.versions)
        graph.functions[self.body.name] = Function(self.body.name, self.body)  # takes the name

    def arguments(self, types: Iterable[Value | tuple[DType, Shape]]) -> list[Value]:
        for k, item in enumerate(types):
            dtype, shape = _of(item) if isinstance(item, Value) else item
            node = self.body.add_node("_Arg", f"argument_{k}", attrs={"T": dtype, "index": k}, output_types=[(dtype, shape)])
            self.body.inputs = [*self.body.inputs, node.outputs[0]]
        return list(self.body.inputs)

    def add(self, op_type: str, name: str, inputs: Sequence[Value], attrs: Mapping[str, Attribute], dtype: DType) -> Value:
        return self.body.add_node(op_type, self.body.unique_name(name), inputs=inputs, attrs=attrs, output_types=[(dtype, ())]).outputs[0]

    def push(self, onto: Value, value: Value) -> Value:
        return self.add("TensorListPushBack", "push", [onto, value], {"element_dtype": value.dtype}, _VARIANT)

    def pop(self, source: Value, like: Value) -> tuple[Value, Value]:
        known = like.shape is not None
        sizes = np.asarray([-1 if size is None else size for size in like.shape or ()] if known else -1, np.int32)
        shape = add_constant(self.body, "shape", sizes)
        types = [(_VARIANT, ()), (like.dtype, like.shape)]
        node = self.body.add_node(
            "TensorListPopBack",
            self.body.unique_name("pop"),
            inputs=[source, shape],
            attrs={"element_dtype": like.dtype},
            output_types=types,
        )
        return node.outputs[0], node.outputs[1]

    def inline(self, source: Graph, arguments: Sequence[Value], wanted: Sequence[Value]) -> list[Value]:
        """Inline a function; there may be more arguments than it takes."""
        return self.inline_from(source, dict(zip(source.inputs, arguments, strict=False)), wanted)

    def inline_from(self, source: Graph, input_map: Mapping[Value, Value], wanted: Sequence[Value]) -> list[Value]:
        arguments = {v.producer for v in source.inputs}
        nodes = backward_reachable(v.producer for v in wanted) - arguments
        ordered = [node for node in source.nodes if node in nodes]
        value_of = clone(ordered, into=self.body, input_map=input_map).value_of if ordered else {}
        return [input_map[v] if v in input_map else value_of[v] for v in wanted]

    def finish(self, outputs: Sequence[Value]) -> str:
        self.body.outputs = outputs
        return self.body.name


def _of(value: Value) -> tuple[DType, Shape]:
    return value.dtype, value.shape
