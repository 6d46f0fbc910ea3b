"""Replace variables by constants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np

from graphwright.errors import ArgumentError
from graphwright.ir.attributes import ShapeAttribute
from graphwright.ir.constants import Array, add_constant
from graphwright.ir.dtypes import DTYPES, DType
from graphwright.ir.edit.reroute import reroute_control
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.jobs import Written, edits_in_place, values_beside
from graphwright.ir.traits.values import MAY_BE_FED, only_orders
from graphwright.ir.traits.variables import READS_OF_VALUES, READS_OF_VARIABLES, SAVES, VARIABLES, is_read, shared_name, written_references
from graphwright.ir.walk import backward_reachable, fetched_values
from graphwright.transform.freeze_functions import cannot_freeze, read_instead
from graphwright.transform.inline_calls import inline_calls
from graphwright.transform.interface import output_values, put_in_order
from graphwright.transform.one_copy import leave_one_copy
from graphwright.transform.strip_training import drop_collections, forget_items, remove_unneeded


@edits_in_place
def freeze_variables(graph: Graph, values: Mapping[str, Any] | None = None, *, partial: bool = False, **written: Unpack[Written]) -> int:
    """Replace the variables that outputs and signatures need by constants; returns how many.

    Nodes that only train, save or restore are removed, as by `strip_training`. In a graph that states no outputs, every value that
    nothing reads is one. Called functions are inlined first; bodies of If, While and Case get the values as arguments. A SavedModel then
    serves its signatures only: other functions of its objects are removed.

    Args:
        values: name of a variable -> its value. The name is its node's, its `shared_name`, or its name in `graph.variables`, with or
            without `:0`. By default the values that the graph was loaded with.
        partial: keep variables that `values` does not name, instead of raising an error.

    Raises:
        ArgumentError: a needed variable has no value, or a value of another shape or dtype.
        UnsupportedError: an output depends on a write to a variable, or on an unknown op that reads it.

    >>> from graphwright.ir.dtypes import DTYPES
    >>> g = Graph()
    >>> v = g.add_node("VarHandleOp", "v", attrs={"dtype": DTYPES["float32"]}, output_types=[(DTYPES["resource"], ())]).outputs
    >>> read = g.add_node("ReadVariableOp", "read", inputs=v, output_types=[(DTYPES["float32"], (2,))]).outputs
    >>> g.outputs = g.add_node("Relu", "y", inputs=read, output_types=[(DTYPES["float32"], (2,))]).outputs
    >>> freeze_variables(g, {"v": np.ones(2, np.float32)}), g.nodes
    (1, (<Node v = Const()>, <Node y = Relu(v:0)>))
    """
    inline_calls(graph)
    states_outputs = bool(fetched_values(graph) or graph.control_outputs)
    if not states_outputs:
        graph.outputs = _ends(graph)
    seeds = [v.producer for v in output_values(graph)] + list(graph.control_outputs)
    needed = backward_reachable(seeds)
    values = values_beside(graph) if values is None else values
    table = {name.removesuffix(":0"): value for name, value in values.items()}
    frozen: list[tuple[Value, Array]] = []
    missing: list[str] = []
    for node in graph.nodes:
        value = _variable_of(graph, node, table) if node in needed else None
        if value is None:
            continue
        content = next((table[name] for name in _names(graph, value) if name in table), None)
        if content is None:
            missing.append(_names(graph, value)[0])
            continue
        frozen.append((value, _array(graph, value, content)))
    if missing and not partial:
        raise ArgumentError(
            f"{len(missing)} variable{'s have' if len(missing) > 1 else ' has'} no value: {', '.join(missing[:5])}",
            argument="values",
            remedy="give a value for each, or freeze only some with partial=True",
        )
    drop_collections(graph, keep_variables=bool(missing))
    forget_items(graph, [value.producer for value, _ in frozen])
    remove_unneeded(graph)  # gradients read variables behind loops
    for value, array in frozen:
        _freeze(graph, value, array, needed)
    remove_unneeded(graph)
    if not missing:
        leave_one_copy(graph)
    put_in_order(graph)
    if not states_outputs:
        graph.outputs = ()
    return len(frozen)


def _ends(graph: Graph) -> list[Value]:
    """Return the results of a graph that states no outputs: what nothing reads, except savers and reads of variables."""
    ends = output_values(graph)
    left_out = {v for v in ends if v.producer.op_type in READS_OF_VARIABLES}
    left_out |= {v for v in ends if any(node.op_type in SAVES for node in backward_reachable([v.producer]))}
    return [v for v in ends if v not in left_out] or list(ends)


def _variable_of(graph: Graph, node: Node, table: Mapping[str, Any]) -> Value | None:
    if node.op_type in VARIABLES:
        return node.outputs[0]
    known = next((v for v in node.outputs if v in graph.variables), None)
    if known is not None or node.op_type not in MAY_BE_FED or node.outputs[0].dtype.name != "resource":
        return known
    # A captured resource is fed. It is a variable if something reads it as one, otherwise a table or an iterator.
    fed = node.outputs[0]
    return fed if node.name in table or any(c.op_type in READS_OF_VARIABLES for c in fed.consumers) else None


def _names(graph: Graph, value: Value) -> list[str]:
    names = [value.producer.name, *filter(None, [shared_name(value.producer)])]
    if value in graph.variables:
        names.append(graph.variables[value].name.removesuffix(":0"))
    return names


def _dtype_of(graph: Graph, value: Value, array: Array) -> DType:
    stated = value.producer.attrs.get("dtype")
    if value in graph.variables:
        return graph.variables[value].dtype
    if value.producer.op_type in MAY_BE_FED:
        read = next((c for c in value.consumers if c.op_type in READS_OF_VALUES), None)
        return DTYPES.get(str(array.dtype), value.dtype) if read is None else read.outputs[0].dtype
    return stated if isinstance(stated, DType) else value.dtype


def _array(graph: Graph, value: Value, content: Any) -> Array:
    name = value.producer.name
    array = np.asarray(content)
    dtype = _dtype_of(graph, value, array)
    if dtype.name == "string":
        array = np.asarray(content, object)
        fits = all(isinstance(text, str | bytes) for text in array.flat)
    else:
        fits = str(array.dtype) == dtype.name or array.dtype.kind == np.dtype("float32" if dtype.name == "bfloat16" else dtype.name).kind
    if not fits:
        raise ArgumentError(f"the value of {name!r} has dtype {np.asarray(content).dtype}, the variable {dtype}", argument="values")
    stated = value.producer.attrs.get("shape")
    shape = stated.shape if isinstance(stated, ShapeAttribute) else None
    if value in graph.variables:
        shape = graph.variables[value].shape
    elif value.producer.op_type in MAY_BE_FED:  # its own shape is that of the handle
        shape = next((c.outputs[0].shape for c in value.consumers if is_read(c)), None)
    if shape is not None and (len(shape) != array.ndim or any(a not in (None, b) for a, b in zip(shape, array.shape, strict=True))):
        raise ArgumentError(f"the value of {name!r} has shape {array.shape}, the variable {shape}", argument="values")
    return array if dtype.name in ("bfloat16", "string") else array.astype(dtype.name)


def _freeze(graph: Graph, value: Value, array: Array, needed: set[Node]) -> None:
    node = value.producer
    constant = add_constant(graph, f"{node.name}/frozen", array, dtype=_dtype_of(graph, value, array), device=node.device)
    if value.dtype.name == "resource":
        read_instead(graph, value, constant, needed)
    else:
        readers = [use.node for use in value.uses if use.node in needed]
        writer = next((reader for reader in readers if value in written_references(reader)), None)
        if writer is not None:
            raise cannot_freeze(value, writer)
        graph.replace_uses(value, constant, keep={use.node for use in value.uses if use.node not in needed})
    if _remove_users(graph, node, needed):
        name = node.name
        graph.inputs = [v for v in graph.inputs if v.producer is not node]
        reroute_control([], node)
        graph.remove_node(node)
        graph.rename(constant.producer, name)


def read_as_tensor(graph: Graph, handle: Value, tensor: Value) -> None:
    """Let everything that reads the variable behind a handle read a tensor instead, in the bodies of If, While and Case too.

    Calls have been inlined (`inline_calls`); the handle stays, unread.

    Raises:
        UnsupportedError: something writes to the variable, or passes it to an op that needs a variable. The graph may have changed.
    """
    read_instead(graph, handle, tensor, set(graph.nodes))


def _remove_users(graph: Graph, node: Node, needed: set[Node]) -> bool:
    """Remove the users of a variable that are not needed: initializers, savers, optimizers. Returns whether no user is left.

    A group that waits for them stays if it waits for other nodes too: the main op of a SavedModel also fills tables.
    """
    doomed: dict[Node, None] = {}
    waiting = [c for v in node.outputs for c in v.consumers] + list(node.control_consumers)
    while waiting:
        user = waiting.pop()
        if user in doomed or user in needed:
            continue
        if only_orders(user) and any(before not in doomed and before is not node for before in user.control_inputs):
            continue  # it is looked at again with each of them
        doomed[user] = None
        waiting += [c for v in user.outputs for c in v.consumers] + list(user.control_consumers)
    if any(graph.is_border(user) for user in doomed):
        return False
    for gone in (node, *doomed):
        for group in gone.control_consumers:
            if only_orders(group) and group not in doomed and group not in needed:
                graph.remove_control_input(group, gone)
    graph.remove_nodes(doomed)
    return not any(v.uses for v in node.outputs)
