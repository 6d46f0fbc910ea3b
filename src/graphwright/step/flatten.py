"""From a `ConcreteFunction` to the flat graph with static shapes from which analysis and planning start."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from graphwright.analyze.loops import LoopCosts, loop_costs, stacked_shapes
from graphwright.analyze.unknown_shapes import blame_unknown_shapes, is_counted_in_data
from graphwright.analyze.variable_access import find_accesses
from graphwright.ir.dtypes import Known, Shape
from graphwright.ir.edit.library import bodies
from graphwright.ir.edit.prune import prune
from graphwright.ir.garbage_collection import garbage_collection_paused
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.control_flow import COMPILED, NEXT_ITERATIONS, is_control_flow
from graphwright.ir.traits.effects import Purity
from graphwright.ops.machine import onednn_enabled
from graphwright.report.progress import tell
from graphwright.run.measure_loops import measure_shapes, measure_trip_counts
from graphwright.run.traced_step import TracedStep, number_of_tensor
from graphwright.source.attributes import constant_array
from graphwright.source.concrete_function import Binding, convolution_calls, evaluate_constants, from_concrete_function, sparse_sizes
from graphwright.source.import_graph import infer_body_shapes
from graphwright.source.never_run import only_computes
from graphwright.source.op_types import is_stateful
from graphwright.source.rebuild import value_of_variable
from graphwright.step.compiled_calls import compiled_call_bytes
from graphwright.step.infer_shapes import infer_flat_shapes
from graphwright.transform.fold_constants import fold_constants, fold_shapes
from graphwright.transform.inline_calls import inline_functions
from graphwright.transform.known_branches import unroll_loops
from graphwright.transform.loop_invariants import forward_loop_invariants
from graphwright.transform.loop_order import run_iterations_in_order
from graphwright.transform.loop_shapes import bind_loop_shapes, bind_stacked_shapes, calls, fold_body_shapes, relaxed_dimensions
from graphwright.transform.order_updates import order_updates
from graphwright.transform.split_identities import split_identities
from graphwright.transform.unread_lists import drop_unread_lists, drop_unread_results

Sizes = Mapping[str, Sequence[Shape]]
Measure = Callable[[Iterable[Node]], Sizes]
_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class FlatStep:
    """A step as one joint graph, with its binding to call it again.

    A shape that depends on data is the largest possible one (`Graph.at_most`); nothing is folded by it, and it is not written.

    Attributes:
        uncompiled: how many calls that XLA compiles in the given step run by TensorFlow's kernels here, which round differently.
    """

    graph: Graph
    binding: Binding
    purity: Purity
    loops: LoopCosts
    uncompiled: int = 0

    @property
    def how(self) -> dict[str, str]:
        said = f"of {self.uncompiled} that the step has XLA compile by themselves, those of TensorFlow's own kernels"
        return {**self.loops.how, **({"convolutions": said} if self.uncompiled else {})}

    def located(self, arguments: Sequence[Any] | None = None) -> dict[Value, str]:
        """Return the devices of captured inputs, and of the arguments of an example call."""
        tensors = (*(arguments or ()), *([None] * (self.binding.argument_count - len(arguments or ()))), *self.binding.captures)
        devices = {value: str(getattr(tensor, "device", "")) for value, tensor in zip(self.graph.inputs, tensors, strict=True)}
        return {value: device for value, device in devices.items() if device}


@garbage_collection_paused()
def flat_step(traced: TracedStep, *, uncompiled: bool = False) -> FlatStep:
    """Return the flat graph of a traced step; of a step that XLA compiles, the graph that XLA gets."""
    shapes = dict(enumerate(traced.shapes))
    example = traced.arguments if traced.is_runnable else ()
    flat = flatten(traced.function, shapes, compiled=traced.is_compiled, uncompiled=uncompiled, example=example, numbers=traced.numbers)
    unknown = [node.name for node, trip in flat.loops.trip_counts.items() if trip.kind == "unknown"]
    if not unknown or not traced.is_runnable:
        return flat
    tell("counting the rounds of loops")
    flat.graph.example.update(measure_trip_counts(flat.graph, flat.binding, traced.arguments, unknown, constant_array))
    costs = find_loop_costs(flat.graph)
    notes = tuple(dict.fromkeys((*flat.loops.notes, *costs.notes)))
    return replace(flat, loops=replace(costs, notes=notes, bounded=flat.loops.bounded, measured=flat.loops.measured))


def counted_graph(traced: TracedStep) -> tuple[Graph, Binding]:
    """Return the flat graph for counting: it keeps arithmetic on float constants, and operations that cannot be planned."""
    graph, binding = from_concrete_function(traced.function, planned=False)
    flat, purity = flatten_graph(graph, dict(enumerate(traced.shapes)), infer=True, fold_floats=False)
    flat.example.update(_known_numbers(flat, binding, traced.numbers))
    runs = traced.is_runnable and not traced.is_compiled
    bind_sizes(flat, measure=partial(measure_shapes, flat, binding, traced.arguments, purity) if runs else None)
    return flat, binding


def _known_numbers(graph: Graph, binding: Binding, numbers: Mapping[int, float]) -> dict[str, float]:
    """Return the number of each scalar argument and unchanged variable, by input name."""
    if not any(is_control_flow(node) for node in graph.nodes):
        return {}
    captured = dict(zip(graph.inputs[binding.argument_count :], binding.captures, strict=True))
    written = {access.key for access in find_accesses(graph, {v: v.name for v in graph.variables}) if access.writes}
    tensors = {v: t if v.dtype.name != "resource" else value_of_variable(t) for v, t in captured.items() if v.name not in written}
    numbers_of_captures = {v.producer.name: number for v, t in tensors.items() if (number := number_of_tensor(t)) is not None}
    return numbers_of_captures | {graph.inputs[k].producer.name: number for k, number in numbers.items()}


def flatten(
    function: Any,
    feeds: Mapping[int, tuple[int | None, ...]] | None = None,
    *,
    compiled: bool = False,
    uncompiled: bool = False,
    example: Sequence[Any] = (),
    numbers: Mapping[int, float] | None = None,
) -> FlatStep:
    """Read a function, inline calls, bind shapes, and fold shape computations.

    Raises `UnsupportedError` if the step holds an operation that cannot be handled with proof, `UnknownShapeError` if the feeds do not fit
    the step.

    Args:
        function: a `ConcreteFunction`.
        feeds: shapes of flat arguments by position, if they are not static.
        compiled: whether it is planned for XLA.
        uncompiled: whether convolutions that XLA compiles inside the step may run by oneDNN's kernels.
        example: tensors for the flat arguments; sizes that depend on data are taken from this call.
        numbers: known scalars among the flat arguments, by position.
    """
    tell("reading the graph")
    graph, binding = from_concrete_function(function, compiled=compiled)
    calls = convolution_calls(graph) if uncompiled and onednn_enabled() else []
    for call in calls:
        call.graph.set_attr(call, COMPILED, None)
    graph, purity = flatten_graph(graph, feeds, compiled=compiled)
    graph.example.update(_known_numbers(graph, binding, numbers or {}))
    if not compiled:  # XLA has an order of its own
        order_updates(graph, purity)
    measure = partial(measure_shapes, graph, binding, example, purity) if example and not compiled else None
    return FlatStep(graph, binding, purity, find_loop_costs(graph, Known(numbers=sparse_sizes(function)[1]), measure), len(calls))


def find_loop_costs(graph: Graph, known: Known | None = None, measure: Measure | None = None) -> LoopCosts:
    """Return the costs of loops and lists; sizes that depend on data are bounded first (`bind_sizes`)."""
    counting, measured = bind_sizes(graph, known, measure)
    costs = loop_costs(graph, constant_array, infer_body=infer_body_shapes, compiled_bytes=compiled_call_bytes)
    inside = (value.producer for function in graph.functions.values() for value in function.body.at_most)
    bounded = [*counting, *(node.name for node in inside if is_counted_in_data(node))]
    return replace(costs, bounded=tuple(name for name in dict.fromkeys(bounded) if name not in measured), measured=tuple(measured))


def bind_sizes(graph: Graph, known: Known | None = None, measure: Measure | None = None) -> tuple[list[str], Sizes]:
    """Set sizes that depend on data: as measured, or the largest possible ones.

    Args:
        known: facts about the graph.
        measure: returns the output shapes of nodes, by name, in one call.

    Returns:
        The names of the nodes whose number of rows depends on data, and the measured shapes.
    """
    counting: list[str] = []
    measured: dict[str, Sequence[Shape]] = {}
    known, more = known or Known(), _has_unknown_sizes(graph)
    depend = [*(node for node in graph.nodes if is_control_flow(node)), *(blame_unknown_shapes(graph).values() if more else ())]
    while more or depend:
        before = len(measured)
        if measure is not None:
            measured.update(measure(node for node in depend if node.name not in measured))
        grew = len(measured) > before
        if more or grew:
            counting = infer_flat_shapes(graph, bounded=replace(known, sizes={**known.sizes, **measured}))
        more, depend = False, [*map(graph.__getitem__, counting), *blame_unknown_shapes(graph).values()] if grew else []
    return counting, measured


def flatten_graph(
    graph: Graph,
    feeds: Mapping[int, tuple[int | None, ...]] | None = None,
    *,
    infer: bool = False,
    fold_floats: bool = True,
    compiled: bool = True,
) -> tuple[Graph, Purity]:
    """Return a new graph without calls and unneeded nodes, with the shapes that follow from the feeds; and its purity.

    Raises `UnknownShapeError` if the feeds do not fit the graph.

    Args:
        feeds: shapes of inputs by position, if they are not static.
        infer: whether to infer unknown sizes even if the feeds bind nothing new.
        fold_floats: whether arithmetic on float constants is folded.
        compiled: whether to inline calls that XLA compiles too.
    """
    graph = inline_functions(graph, Purity(graph, stateful_op_types(graph)), compiled=compiled)
    split_identities(graph)
    prune(graph)
    purity = Purity(graph, stateful_op_types(graph))
    foldable = Purity(graph, {op_type: not only_computes(op_type) for op_type in stateful_op_types(graph)})
    has_loops = any(is_control_flow(node) for node in graph.nodes)
    relaxed = relaxed_dimensions(graph) if has_loops else frozenset[Any]()
    if has_loops:
        drop_unread_results(graph, purity)
        drop_unread_lists(graph, purity)
        forward_loop_invariants(graph, purity)
        run_iterations_in_order(graph)
        prune(graph)
    # Inference imports the graph, which is the slow part: tracing with static shapes has inferred nearly all already.
    has_rounds = any(node.op_type in NEXT_ITERATIONS for node in graph.nodes)
    open_sizes = infer and _has_unknown_sizes(graph)
    if has_rounds or open_sizes or has_loops or any(shape != graph.inputs[k].shape for k, shape in (feeds or {}).items()):
        infer_flat_shapes(graph, feeds)
    for _ in range(_ROUNDS):  # folding makes shapes known, which makes more foldable
        folded = bind_loop_shapes(graph, relaxed) if has_loops else 0
        folded += fold_shapes(graph) + fold_constants(graph, foldable, evaluate_constants(graph), floats=fold_floats)
        prune(graph)
        if has_loops and _has_sizes_of_one_call(graph):
            folded += bind_stacked_shapes(stacked_shapes(graph, constant_array, infer_body_shapes)) + fold_body_shapes(graph)
        elif has_loops:  # that makes no more shapes known, but what depends on the batch alone can be split
            fold_body_shapes(graph)
        for function in graph.functions.values() if has_loops else ():
            fold_constants(function.body, foldable.of(function.body), evaluate_constants(function.body), floats=False)
        if not folded or not (has_loops or _has_unknown_sizes(graph)):
            break
        infer_flat_shapes(graph, feeds)
    if has_loops and unroll_loops(graph, purity):
        return flatten_graph(graph, feeds, infer=True, fold_floats=fold_floats, compiled=compiled)
    return graph, purity


def _has_unknown_sizes(graph: Graph) -> bool:
    return any(v.dtype.itemsize is not None and v.nbytes is None for node in graph.nodes for v in node.outputs)


def _has_sizes_of_one_call(graph: Graph) -> bool:
    """Whether sizes are unknown, and functions with unknown sizes are called from one place only."""
    unknown = [name for name, function in graph.functions.items() if _has_unknown_sizes(function.body)]
    called = calls(graph)
    return (bool(unknown) or _has_unknown_sizes(graph)) and all(called[name] <= 1 for name in unknown)


def stateful_op_types(graph: Graph) -> dict[str, bool]:
    """Return whether each op type is stateful; an unknown one is."""
    types = {node.op_type for body in bodies(graph) for node in body.nodes}
    return {op_type: is_stateful(op_type) is not False for op_type in types}
