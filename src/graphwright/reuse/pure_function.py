"""A traced function becomes one of tensors alone: the values of the variables that it reads are arguments.

Whether a kept result is still right is then a question of its arguments, and the result cannot be that of another value than the one
it is kept for, whoever writes to a variable while it is computed.
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
from graphwright.ir.traits.values import STANDS_FOR_SOMETHING, is_identity, makes_optional, only_orders
from graphwright.ir.traits.variables import resource_of, written_resources
from graphwright.source.concrete_function import compiled_calls, from_concrete_function
from graphwright.source.rebuild import variable_behind
from graphwright.step.flatten import stateful_op_types
from graphwright.transform.freeze_variables import read_as_tensor
from graphwright.transform.inline_calls import inline_calls


@dataclass(frozen=True, slots=True)
class PureFunction:
    """The graph of a function of tensors.

    Attributes:
        graph: its inputs are what was given, then the values of the variables.
        handles: of the variables whose values are the last inputs.
    """

    graph: Graph
    handles: tuple[Any, ...]


def pure_function(function: Any, given: Sequence[str], *, where: str) -> PureFunction:
    """The graph of a concrete function with the variables that it reads as inputs.

    Args:
        function: a `ConcreteFunction`.
        given: names of the tensors of its graph that stand for arguments and for captured tensors.
        where: what an error calls it.

    Raises:
        UnsupportedError: it is not the same whenever it is called: it draws random numbers, writes to a variable, reads a table or a data
            set, or calls Python; or XLA compiles a function inside.
    """
    graph, binding = from_concrete_function(function, planned=False)
    compiled = compiled_calls(graph)
    if compiled:
        raise UnsupportedError(
            "a function that XLA compiles (jit_compile=True) is inside",
            where=f"{where}, operation {compiled[0].name!r}",
            cause="what it reads cannot be seen from outside",
            remedy="use jit_compile=False inside of what is kept",
        )
    inline_calls(graph)
    for body in bodies(graph):
        for value in (v for node in body.nodes if node.op_type in LOOPS for v in node.outputs):
            if value.dtype.name == "resource":  # a loop hands on what it was given, and its gradient takes it from there
                body.replace_uses(value, resource_of(value))
    types = stateful_op_types(graph)
    _refuse(graph, Purity(graph, types, also=CHECKS), where)
    inputs = [graph.value(name) for name in given]
    taken = set(inputs)
    captured = graph.inputs[binding.argument_count :]
    handles: list[Any] = []
    for external, value in zip(binding.captures, captured, strict=True):
        if value in taken:
            continue
        behind = None if callable(external) else variable_behind(external)
        if behind is None:
            raise UnsupportedError(
                f"{value.name!r} is captured, which is neither a tensor nor a variable",
                where=where,
                cause="a table, an iterator, or a value that each call asks for",
                remedy="compute what depends on it outside, and give the result as an argument",
            )
        shape, dtype = behind
        tensor = add_placeholder(graph, f"value_{len(handles)}", dtype.name, shape.as_list() if shape.rank is not None else None)
        read_as_tensor(graph, value, tensor)
        handles.append(external)
        inputs.append(tensor)
    graph.inputs = inputs
    checks = Purity(graph, types)
    standing = {value.producer for value in inputs}
    graph.control_outputs = [node for node in graph.nodes if _computes(node, standing) and not checks.is_pure(node)]
    return PureFunction(graph, tuple(handles))


def _computes(node: Node, standing: set[Node]) -> bool:
    hands_on_handle = is_identity(node) and node.inputs[0].dtype.name == "resource"
    return node not in standing and node.op_type not in STANDS_FOR_SOMETHING and not only_orders(node) and not hands_on_handle


def _refuse(graph: Graph, purity: Purity, where: str) -> None:
    for node in impure_nodes(graph, purity):
        culprit = culprit_in(graph, node, purity)
        raise UnsupportedError(
            f"the result may be another one at each call, or something else changes: {culprit.op_type} {does(culprit)}",
            where=f"{where}, operation {culprit.name!r}" + (f" inside {node.name!r}" if culprit is not node else ""),
            cause="a result that is kept would leave that out from the second call on",
            remedy="do that outside, and give what it makes as an argument (layers: training=False)",
        )


def impure_nodes(graph: Graph, purity: Purity) -> list[Node]:
    """The operations that are not the same at each call, or change something."""
    standing = {value.producer for value in graph.inputs}
    return [node for node in graph.nodes if _computes(node, standing) and not purity.is_pure(node)]


def culprit_in(graph: Graph, node: Node, purity: Purity) -> Node:
    """The innermost node to blame; the node itself where none of its functions holds one."""
    for name in called_functions(node):
        function = graph.functions.get(name)
        if function is None:
            continue
        standing = {value.producer for value in function.body.inputs}
        for inner in function.body.nodes:
            if _computes(inner, standing) and not purity.is_pure(inner):
                return culprit_in(graph, inner, purity)
    return node


def does(node: Node) -> str:
    """In words, why an operation cannot be kept."""
    if written_resources(node):
        return "writes to a variable"
    if node.op_type in CALLS_PYTHON:
        return "calls Python"
    if takes_from_stream(node):
        return "takes from a data set, a queue or a reader"
    if draws_by_counter(node) or "Random" in node.op_type or "Rng" in node.op_type:
        return "draws random numbers"
    return "has effects, or reads what is no variable"


def held_in(graph: Graph, value: Value) -> tuple[str, DType] | None:
    """What a variant that control flow hands from the forward to the backward pass holds.

    Returns:
        "list" or "optional", and the dtype of the elements, or of the one value; None where that is not known.
    """
    node = value.producer
    dtype = node.attrs.get("element_dtype")
    if isinstance(dtype, DType):
        return None if dtype.name == "variant" else ("list", dtype)
    if makes_optional(node):
        return None if len(node.inputs) != 1 or node.inputs[0].dtype.name == "variant" else ("optional", node.inputs[0].dtype)
    if is_identity(node):
        return held_in(graph, node.inputs[0])
    if node.op_type in LOOPS:
        return held_in(graph, node.inputs[value.index])
    for name in called_functions(node):
        outputs = graph.functions[name].body.outputs if name in graph.functions else ()
        found = held_in(graph, outputs[value.index]) if value.index < len(outputs) else None
        if found is not None:
            return found
    return None
