"""A traced function as a function of tensors only: the values of the variables that it reads become arguments.

Whether a kept result is still valid then depends on the arguments only, and a write during the computation cannot mix two values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from graphwright.errors import UnsupportedError
from graphwright.ir.dtypes import DType
from graphwright.ir.edit.insert import add_placeholder
from graphwright.ir.edit.library import bodies
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.control_flow import LOOPS, called_functions
from graphwright.ir.traits.effects import CALLS_PYTHON, CHECKS, Purity, draws_by_counter, takes_from_stream
from graphwright.ir.traits.values import COMPUTES_NOTHING, is_identity, makes_optional, only_orders
from graphwright.ir.traits.variables import resource_of, written_resources
from graphwright.source.concrete_function import compiled_calls, from_concrete_function
from graphwright.source.rebuild import variable_behind
from graphwright.step.flatten import stateful_op_types
from graphwright.transform.freeze_variables import read_as_tensor
from graphwright.transform.inline_calls import inline_calls


@dataclass(frozen=True, slots=True)
class PureFunction:
    """The graph of a function of tensors: its inputs are the given tensors, then the values of the variables with these handles."""

    graph: Graph
    handles: tuple[Any, ...]


def pure_function(function: Any, given: Sequence[str], *, where: str) -> PureFunction:
    """Return the graph of a `ConcreteFunction` with the variables that it reads as inputs.

    Args:
        given: names of the tensors in its graph that are arguments or captured tensors.
    """
    graph, binding = from_concrete_function(function, planned=False)
    compiled = compiled_calls(graph)
    if compiled:
        raise UnsupportedError(
            "a function that XLA compiles (jit_compile=True) is inside",
            where=f"{where}, operation {compiled[0].name!r}",
            cause="the variables that it reads are not visible from outside",
            remedy="use jit_compile=False inside the cached function",
        )
    inline_calls(graph)
    for body in bodies(graph):
        for value in (v for node in body.nodes if node.op_type in LOOPS for v in node.outputs):
            if value.dtype.name == "resource":  # a loop forwards its handles, and the gradient reads them from its outputs
                body.replace_uses(value, resource_of(value))
    types = stateful_op_types(graph)
    _refuse(graph, Purity(graph, types, also=CHECKS), where)
    inputs = [graph.value(name) for name in given]
    known = set(inputs)
    handles: list[Any] = []
    for external, value in zip(binding.captures, graph.inputs[binding.argument_count :], strict=True):
        if value in known:
            continue
        variable = None if callable(external) else variable_behind(external)
        if variable is None:
            raise UnsupportedError(
                f"{value.name!r} is captured, which is neither a tensor nor a variable",
                where=where,
                cause="a table, an iterator, or a value that is computed at each call",
                remedy="compute what depends on it outside, and give the result as an argument",
            )
        shape, dtype = variable
        tensor = add_placeholder(graph, f"value_{len(handles)}", dtype, shape)
        read_as_tensor(graph, value, tensor)
        handles.append(external)
        inputs.append(tensor)
    graph.inputs = inputs
    graph.control_outputs = impure_nodes(graph, Purity(graph, types))
    return PureFunction(graph, tuple(handles))


def _refuse(graph: Graph, purity: Purity, where: str) -> None:
    for node in impure_nodes(graph, purity):
        culprit = culprit_in(graph, node, purity)
        raise UnsupportedError(
            f"calls may differ or have effects: {culprit.op_type} {effect_of(culprit)}",
            where=f"{where}, operation {culprit.name!r}" + (f" inside {node.name!r}" if culprit is not node else ""),
            cause="a kept result would skip this from the second call on",
            remedy="do this outside, and give its result as an argument (layers: training=False)",
        )


def impure_nodes(graph: Graph, purity: Purity) -> list[Node]:
    """Return the operations whose calls differ or have effects."""
    fed = {value.producer for value in graph.inputs}
    return [node for node in graph.nodes if _computes(node) and node not in fed and not purity.is_pure(node)]


def _computes(node: Node) -> bool:
    forwards_handle = is_identity(node) and node.inputs[0].dtype.name == "resource"
    return node.op_type not in COMPUTES_NOTHING and not only_orders(node) and not forwards_handle


def culprit_in(graph: Graph, node: Node, purity: Purity) -> Node:
    """Return the innermost impure node inside the functions that a node calls, or the node itself."""
    functions = (graph.functions[name] for name in called_functions(node) if name in graph.functions)
    inner = next((inner for function in functions for inner in impure_nodes(function.body, purity)), None)
    return node if inner is None else culprit_in(graph, inner, purity)


def effect_of(node: Node) -> str:
    """Return the reason why the result of an operation cannot be kept, as the predicate of a sentence."""
    if written_resources(node):
        return "writes to a variable"
    if node.op_type in CALLS_PYTHON:
        return "calls Python"
    if takes_from_stream(node):
        return "takes from a data set, a queue or a reader"
    if draws_by_counter(node) or "Random" in node.op_type or "Rng" in node.op_type:
        return "draws random numbers"
    return "has effects, or reads something other than a variable"


def variant_content(graph: Graph, value: Value) -> tuple[str, DType] | None:
    """Return the kind ("list" or "optional") and dtype of the content of a variant residual, or None if unknown."""
    node = value.producer
    dtype = node.attrs.get("element_dtype")
    if isinstance(dtype, DType):
        return None if dtype.name == "variant" else ("list", dtype)
    if makes_optional(node):
        return None if len(node.inputs) != 1 or node.inputs[0].dtype.name == "variant" else ("optional", node.inputs[0].dtype)
    if is_identity(node):
        return variant_content(graph, node.inputs[0])
    if node.op_type in LOOPS:
        return variant_content(graph, node.inputs[value.index])
    for name in called_functions(node):
        outputs = graph.functions[name].body.outputs if name in graph.functions else ()
        content = variant_content(graph, outputs[value.index]) if value.index < len(outputs) else None
        if content is not None:
            return content
    return None
