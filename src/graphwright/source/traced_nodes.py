"""Adds the operations of a Python function of tensors, such as opaque gates, to an IR graph: TensorFlow traces it for XLA."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from graphwright.ir.edit.clone import clone
from graphwright.ir.edit.reroute import reroute
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.walk import topological_order
from graphwright.source.concrete_function import drop_shape_attributes
from graphwright.source.graph_def import from_graph_def
from graphwright.source.live_graph import numeric_output
from graphwright.source.opaque_gate import always_true, held, some_bits
from graphwright.source.tensorflow_import import import_tensorflow


def write_gates(graph: Graph, gates: Mapping[Node, bool]) -> None:
    """Replace gates by operations that XLA honors. Each is an Identity that waits for nodes with a `numeric_output`; the value tells
    whether it is solid (see `held`).
    """
    if not gates:
        return
    waits = {gate: tuple(value for value in map(numeric_output, gate.control_inputs) if value is not None) for gate in gates}
    values = list(dict.fromkeys(value for gate in gates for value in (gate.inputs[0], *waits[gate])))
    place = {value: k for k, value in enumerate(values)}

    def build(*tensors: Any) -> list[Any]:
        conditions: dict[tuple[Value, ...], Any] = {}
        results: list[Any] = []
        for gate, solid in gates.items():
            if waits[gate] not in conditions:
                conditions[waits[gate]] = always_true(some_bits([tensors[place[value]] for value in waits[gate]]))
            results.append(held(tensors[place[gate.inputs[0]]], conditions[waits[gate]], solid=solid))
        return results

    reroute(add_traced(graph, build, values, scope="gates"), [gate.outputs[0] for gate in gates])
    graph.remove_nodes(list(gates))
    graph.sort_nodes(topological_order(graph))


def add_traced(graph: Graph, function: Callable[..., Any], values: Sequence[Value], *, scope: str) -> list[Value]:
    """Add the operations of a function at the end of the graph; return its results. The caller sorts the nodes.

    Args:
        function: takes a tensor for each value, and returns a list of other tensors.
        values: of known shapes, each once.
    """
    tf = import_tensorflow()
    specs = [tf.TensorSpec(value.shape, tf.dtypes.as_dtype(value.dtype.name)) for value in values]
    traced = tf.function(function, jit_compile=True, autograph=False).get_concrete_function(*specs)
    part = from_graph_def(traced.graph.as_graph_def(add_shapes=True), name=scope)
    drop_shape_attributes(part)
    value_of = {part.value(tensor.name): value for tensor, value in zip(traced.inputs, values, strict=True)}
    inputs = {value.producer for value in value_of}
    # TensorFlow ends a function in Identities of its results, so that none of them is an input.
    copied = clone([node for node in part.nodes if node not in inputs], into=graph, input_map=value_of, scope=scope)
    return [copied.value_of[part.value(tensor.name)] for tensor in traced.outputs]
