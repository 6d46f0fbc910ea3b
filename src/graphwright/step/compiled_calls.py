"""The memory of calls that XLA compiles inside a step; nothing runs."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from graphwright.errors import UnsupportedError, located
from graphwright.ir.edit.clone import clone
from graphwright.ir.edit.reroute import reroute_control
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.control_flow import callee
from graphwright.ir.traits.values import is_constant, is_few_integers
from graphwright.ir.traits.variables import is_read, reads_resource, resource_of
from graphwright.ir.walk import backward_reachable
from graphwright.run.xla_memory import xla_memory
from graphwright.source.concrete_function import plain_name
from graphwright.source.graph_def import to_graph_def
from graphwright.source.rebuild import rebuild_concrete_function
from graphwright.source.tensorflow_import import import_tensorflow
from graphwright.transform.inline_calls import inline_calls


def compiled_call_bytes(node: Node) -> int:
    """Return the bytes that a call compiled by XLA needs beyond its inputs and outputs.

    Raises `UnsupportedError` if XLA cannot compile it, or it does more with a variable than reading all of it.
    """
    graph = Graph("call", versions=node.graph.versions)
    arguments = {value: _argument(graph, k, value) for k, value in enumerate(node.inputs)}
    graph.outputs = list(clone([node], into=graph, input_map=arguments, rename=lambda _: "call").node_of[node].outputs)
    inline_calls(graph, strict=False)
    variables: dict[Value, Value] = {}
    for read in [read for read in graph.nodes if is_read(read)]:
        resource = resource_of(read.inputs[0])
        if resource not in variables:
            variables[resource] = _placeholder(graph, f"variable_{len(variables)}", read.outputs[0])
        graph.replace_uses(read.outputs[0], variables[resource])
        reroute_control((), read)
        graph.remove_node(read)
    inputs = [v for v in (*arguments.values(), *variables.values()) if not is_constant(v.producer) and v.dtype.name != "resource"]
    needed = {v.producer for v in inputs} | backward_reachable(v.producer for v in graph.outputs)
    where = f"node {node.name!r} of {node.graph.name!r}"
    if any(map(reads_resource, graph.nodes)):
        raise UnsupportedError(
            "a function inside the step is compiled by XLA (jit_compile=True), and changes a variable",
            where=where,
            cause="the memory of the update depends on the whole program",
            remedy="use jit_compile=False for it, or True for the whole step; or let it return the new value, and assign it outside",
        )
    serialized = to_graph_def(graph, keep=needed.__contains__).SerializeToString(deterministic=True)
    shapes = tuple((value.name, value.shape) for value in inputs)
    with located(where):
        return _program_bytes(serialized, shapes, tuple(value.name for value in graph.outputs), plain_name(callee(node)))


def _argument(graph: Graph, index: int, value: Value) -> Value:
    if is_constant(value.producer) and is_few_integers(value):
        return clone([value.producer], into=graph).value_of[value]
    return _placeholder(graph, f"argument_{index}", value)


def _placeholder(graph: Graph, name: str, value: Value) -> Value:
    return graph.add_node("Placeholder", name, attrs={"dtype": value.dtype}, output_types=[(value.dtype, value.shape)]).outputs[0]


@lru_cache(500)
def _program_bytes(serialized: bytes, inputs: Sequence[tuple[str, Any]], outputs: Sequence[str], name: str) -> int:
    tf = import_tensorflow()
    graph_def = tf.compat.v1.GraphDef.FromString(serialized)
    with tf.init_scope():  # the step may be asked about while another is traced
        function = rebuild_concrete_function(graph_def, inputs=[value for value, _ in inputs], outputs=outputs, name=name)
        memory = xla_memory(function, [shape for _, shape in inputs])
    return memory.temporary_bytes + memory.constant_bytes + memory.library_bytes
