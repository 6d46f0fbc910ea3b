"""Splits a function that computes results and their gradients into two functions. Values of the first that the second needs, besides
arguments and constants, are the *residuals*: the first returns them after its results, the second takes them first.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphwright.ir.constants import add_constant, shape_query_results
from graphwright.ir.edit.insert import add_placeholder
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.values import CONSTANTS, is_constant, is_identity
from graphwright.ir.walk import backward_reachable, forward_reachable, made_of
from graphwright.source.concrete_function import from_concrete_function
from graphwright.source.rebuild import function_of_values
from graphwright.source.tensorflow_import import import_tensorflow

_SMALL_BYTES = 512


@dataclass(frozen=True)
class Split:
    """Two concrete functions.

    `forward` takes the `inputs` of `split_function`, and returns the results, then the residuals. `backward` takes the residuals, then the
    inputs that it needs (`needed_inputs`, by position), then the incoming gradients, and returns the gradients.
    """

    forward: Any
    backward: Any
    needed_inputs: tuple[int, ...]


def split_function(
    function: Any, *, inputs: Sequence[str], incoming: Sequence[str], result_count: int, early: AbstractSet[str], name: str
) -> Split:
    """Split a concrete function, whose first outputs are the results and the others the gradients, in two.

    Args:
        inputs: names of the tensors that both functions may take: arguments, and captures that are no handles.
        incoming: names of the placeholders of the incoming gradients, which are no arguments of the function.
        early: names of nodes that run with the results though only gradients need them.
    """
    graph, binding = from_concrete_function(function, planned=False)
    _write_out_known_sizes(function, graph)
    inputs_inside = [graph.value(tensor) for tensor in inputs]
    seeds = [graph.value(tensor) for tensor in incoming]
    captures = [
        (external, value)
        for external, value in zip(binding.captures, graph.inputs[binding.argument_count :], strict=True)
        if value not in inputs_inside
    ]
    outputs = [_without_barrier(value) for value in graph.outputs]
    results, gradients = outputs[:result_count], outputs[result_count:]
    sizes = {node for node in made_of(graph, CONSTANTS) if node.inputs}  # the part that needs them makes them
    behind = forward_reachable(value.producer for value in seeds)
    effects = [node for node in graph.control_outputs if node not in behind]
    late_effects = [node for node in graph.control_outputs if node in behind]
    roots = [value.producer for value in results] + effects + [graph[n] for n in early if n in graph and graph[n] not in sizes]
    first = backward_reachable(root for root in roots if root not in behind) - behind
    second = backward_reachable([*(value.producer for value in gradients), *late_effects]) - first
    borders = {value.producer for value in (*inputs_inside, *(value for _, value in captures))}
    crossing = _crossing(graph, first - borders, second | {value.producer for value in gradients}, gradients)
    members = first | borders
    forward = function_of_values(
        graph, inputs_inside, (*results, *crossing), captures, effects, members.__contains__, name=f"{name}_forward"
    )
    residuals, gradients = _cut(graph, first, second, crossing, gradients)
    constants = _constants(graph, second, gradients)
    read = {*gradients, *(value for node in second for value in node.inputs)}
    needed = tuple(k for k, value in enumerate(inputs_inside) if value in read)
    taken = [*residuals, *(inputs_inside[k] for k in needed), *seeds]
    used = [(external, value) for external, value in captures if value in read]
    members = second | constants | {value.producer for value in (*taken, *(value for _, value in used))}
    backward = function_of_values(graph, taken, gradients, used, late_effects, members.__contains__, name=f"{name}_backward")
    return Split(forward, backward, needed)


def _write_out_known_sizes(function: Any, graph: Graph) -> None:
    """Replace small integers that TensorFlow knows, such as shapes, by constants. Passed between the functions they would be unknown to
    XLA, which treats neighboring values as constants then, also seeds, and compiles again for each of them.
    """
    tf = import_tensorflow()
    known: dict[Value, Value] = {}
    for node in list(graph.nodes):
        for value in node.outputs if node.inputs else ():
            if value.dtype.name in ("int32", "int64") and (value.nbytes or _SMALL_BYTES + 1) <= _SMALL_BYTES:
                number = tf.get_static_value(function.graph.get_tensor_by_name(value.name))
                if number is None and (sizes := shape_query_results(node)) is not None:  # TensorFlow does not look at all of them
                    number = sizes[value.index]
                if number is not None:
                    known[value] = add_constant(graph, graph.unique_name(f"{node.name}/known"), np.asarray(number), dtype=value.dtype)
    graph.replace_many_uses(known)


def _without_barrier(value: Value) -> Value:
    """Return the value before the Identity with which TensorFlow makes every result wait for all effects, of both parts."""
    node = value.producer
    return node.inputs[0] if is_identity(node) and node.control_inputs else value


def _crossing(graph: Graph, first: AbstractSet[Node], second: AbstractSet[Node], gradients: Sequence[Value]) -> list[Value]:
    returned = set(gradients)
    return [
        value
        for node in graph.nodes
        if node in first and not is_constant(node)
        for value in node.outputs
        if value in returned or any(use.node in second and use.node not in first for use in value.uses)
    ]


def _cut(
    graph: Graph, first: AbstractSet[Node], second: AbstractSet[Node], crossing: Sequence[Value], gradients: Sequence[Value]
) -> tuple[list[Value], list[Value]]:
    stands_for: dict[Value, Value] = {}
    for k, value in enumerate(crossing):
        stands_for[value] = add_placeholder(graph, f"residual_{k}", value.dtype, value.shape)
    for node in second:
        if any(value in stands_for for value in node.inputs):
            graph.replace_inputs(node, [stands_for.get(value, value) for value in node.inputs])
        for before in node.control_inputs:
            if before in first:
                graph.remove_control_input(node, before)
    return list(stands_for.values()), [stands_for.get(value, value) for value in gradients]


def _constants(graph: Graph, second: AbstractSet[Node], gradients: Sequence[Value]) -> set[Node]:
    read = (*gradients, *(value for node in second for value in node.inputs))
    constants = {value.producer for value in read if is_constant(value.producer)}
    for node in constants:
        for before in node.control_inputs:
            graph.remove_control_input(node, before)
    return constants
