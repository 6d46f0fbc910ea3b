"""Edit the arguments and results of a function: its calls follow, or the edit is refused.

A body itself is a graph like any other, `graph.functions[name].body`. What follows here is what a body
has in common with its calls. Calls are `PartitionedCall`, `StatefulPartitionedCall` and nodes whose op type is
the function. While, If, Case and data set ops fix the signatures of their functions, so an edit of
such a function is refused: outline or copy the function first, or build a new loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from graphwright.errors import GraphError, UnsupportedError
from graphwright.ir.attributes import Attribute, FunctionReference, SerializedAttribute
from graphwright.ir.dtypes import DType, Shape
from graphwright.ir.edit.library import call_sites
from graphwright.ir.graph import Function, Graph, Node, Value
from graphwright.ir.traits import CALL_TYPES

_EMPTY_LIST = SerializedAttribute(b"\x0a\x00")

Values = Mapping[Node, Value] | Callable[[Node], Value]


def add_argument(graph: Graph, function: str, name: str, dtype: DType, shape: Shape, values: Values) -> Value:
    """Add an argument at the end; returns its value in the body.

    Args:
        graph: whose library has the function.
        values: what each call passes, by call or as a function of the call.

    Raises:
        GraphError: there is no such function, a node of its body has the name, or a value has another dtype; nothing is changed then.
        UnsupportedError: the function is called by something else than a plain call.

    >>> from graphwright.ir.graph import DTYPES
    >>> from graphwright.ir.text import from_text
    >>> g = from_text('''
    ... graph "g"
    ... %x = Placeholder() : float32[2]
    ... %call = PartitionedCall() {f = @f}
    ... function "f"
    ... ''')
    >>> _ = add_argument(g, "f", "scale", DTYPES["float32"], (2,), lambda call: g.value("x"))
    >>> g["call"].inputs[0].name, [v.name for v in g.functions["f"].body.inputs]
    ('x:0', ['scale:0'])
    """
    found, sites = _function(graph, function), _plain_calls(graph, function)
    passed = _passed(sites, values, dtype)
    body = found.body
    index = len(body.inputs)
    argument = body.add_node("_Arg", name, attrs={"T": dtype, "index": index}, output_types=[(dtype, shape)]).outputs[0]
    body.inputs = (*body.inputs, argument)
    for site in sites:
        _set_call_inputs(site, [*site.inputs, passed[site]])
    return argument


def remove_argument(graph: Graph, function: str, index: int) -> None:
    """Remove an argument that the body does not read; the calls no longer pass it.

    Raises:
        GraphError: there is no such argument, or the body reads or returns it; nothing is changed then.
        UnsupportedError: as `add_argument`.
    """
    found, sites = _function(graph, function), _plain_calls(graph, function)
    body = found.body
    value = argument_of(found, index)
    node = value.producer
    if value.uses or value in body.outputs or node.control_consumers or node in body.control_outputs:
        raise GraphError(
            f"argument {node.name!r} of function {function!r} is read or returned",
            where=f"function {function!r}",
            remedy="reroute its uses in the body first",
        )
    body.inputs = [v for v in body.inputs if v is not value]
    body.remove_node(node)
    for k, argument in enumerate(body.inputs):
        if "index" in argument.producer.attrs:
            body.set_attr(argument.producer, "index", k)
    for site in sites:
        _set_call_inputs(site, [*site.inputs[:index], *site.inputs[index + 1 :]])


def change_argument(
    graph: Graph,
    function: str,
    index: int,
    dtype: DType,
    shape: Shape,
    *,
    convert: Callable[[Value], Value] | None = None,
    values: Values | None = None,
) -> Value:
    """Give an argument another dtype or shape; returns its value in the body.

    Args:
        convert: given the argument as it is from now on, adds nodes to the body and returns what the former readers
            read in its place, such as the output of a Cast. Without it they read the argument itself, which asks for the same dtype.
        values: what each call passes from now on. Without it they pass what they passed, which asks for the same dtype.

    Raises:
        GraphError: there is no such argument, or dtypes do not fit; nothing is changed then.
        UnsupportedError: as `add_argument`.
    """
    found, sites = _function(graph, function), _plain_calls(graph, function)
    body = found.body
    old = argument_of(found, index)
    if values is None:
        wrong = next((site for site in sites if site.inputs[index].dtype != dtype), None)
        if wrong is not None:
            raise GraphError(
                f"{wrong.name!r} passes {wrong.inputs[index].name} of dtype {wrong.inputs[index].dtype}, the argument would be {dtype}",
                where=f"node {wrong.name!r}",
                remedy="say in the argument values what the calls pass",
            )
    passed = {site: site.inputs[index] for site in sites} if values is None else _passed(sites, values, dtype)
    count = len(body)
    node = body.add_node("_Arg", body.unique_name(f"{old.producer.name}_changed"), output_types=[(dtype, shape)])
    new = node.outputs[0]
    try:
        read = new if convert is None else convert(new)
        if not body.owns(read.producer) or read.dtype != old.dtype:
            raise GraphError(
                f"{read.name} of dtype {read.dtype} cannot take the place of argument {old.producer.name!r} of dtype {old.dtype}",
                where=f"function {function!r}",
                remedy="give an argument convert that returns a value of the body with the old dtype",
            )
    except Exception:  # convert is the caller's, and may raise anything; what it added must go
        for value in body.nodes[:count]:
            _unread(body, value, set(body.nodes[count:]))
        body.remove_nodes(body.nodes[count:])
        raise
    attrs = {**old.producer.attrs, "T": dtype}
    attrs.pop("_output_shapes", None)
    for key, attribute in attrs.items():
        body.set_attr(node, key, attribute)
    place = [v if v is not old else new for v in body.inputs]
    name, first = old.producer.name, old.producer
    order = [node if n is first else n for n in body if n is not node]
    body.inputs = place
    body.replace_many_uses({old: read})
    for control in first.control_consumers:
        body.remove_control_input(control, first)
        body.add_control_input(control, node)
    if old in body.variables:
        body.variables[new] = body.variables.pop(old)
    body.remove_node(first)
    body.rename(node, name)
    body.sort_nodes(order)
    for site in sites:
        _set_call_inputs(site, [*site.inputs[:index], passed[site], *site.inputs[index + 1 :]])
    return new


def add_result(graph: Graph, function: str, value: Value) -> dict[Node, Value]:
    """Return one more value of the body; the answer has the new output of each call.

    Raises:
        GraphError: the value is not of the body; nothing is changed then.
        UnsupportedError: as `add_argument`.
    """
    found, sites = _function(graph, function), _plain_calls(graph, function)
    _check_of_body(found, value)
    found.body.settle_shapes()
    found.body.outputs = (*found.body.outputs, value)
    made: dict[Node, Value] = {}
    for site in sites:
        made[site] = site.graph.add_output(site, value.dtype, value.last_shape)
        _write_types(site, "Tout", site.outputs)
    return made


def remove_result(graph: Graph, function: str, index: int) -> None:
    """Return one value less.

    Raises:
        GraphError: there is no such result, or a call's output is needed; nothing is changed then.
        UnsupportedError: as `add_argument`.
    """
    found, sites = _function(graph, function), _plain_calls(graph, function)
    _item(found.body.outputs, index, "result", function)
    for site in sites:
        output = site.outputs[index]
        held = any(output in values for _, values in site.graph.places_of_values(site))
        if output.uses or held:
            raise GraphError(
                f"{output.name} is {f'read by {output.uses[0]}' if output.uses else 'an output of the graph, or held by it'}",
                where=f"node {site.name!r}",
                remedy="reroute its uses first",
            )
    found.body.outputs = [v for k, v in enumerate(found.body.outputs) if k != index]
    for site in sites:
        site.graph.remove_output(site.outputs[index])
        _write_types(site, "Tout", site.outputs)


def set_result(graph: Graph, function: str, index: int, value: Value) -> None:
    """Return another value of the body in the place of a result; the types of the calls' outputs follow.

    Raises:
        GraphError: there is no such result, the value is not of the body, or its dtype is another one
            and some node reads the output of a call; nothing is changed then.
        UnsupportedError: as `add_argument`.
    """
    found, sites = _function(graph, function), _plain_calls(graph, function)
    _item(found.body.outputs, index, "result", function)
    _check_of_body(found, value)
    found.body.settle_shapes()
    for site in sites:
        output = site.outputs[index]
        if output.dtype != value.dtype and output.uses:
            raise GraphError(
                f"{output.name} of dtype {output.dtype} is read by {output.uses[0]}, and would become {value.dtype}",
                where=f"node {site.name!r}",
                remedy="reroute its uses first",
            )
    found.body.outputs = [v if k != index else value for k, v in enumerate(found.body.outputs)]
    for site in sites:
        site.graph.set_output_type(site.outputs[index], value.dtype, value.last_shape)
        _write_types(site, "Tout", site.outputs)


def argument_of(function: Function, index: int) -> Value:
    """The value of an argument in the body.

    Raises:
        GraphError: there is no such argument, its node does something else too, or a signature of the body feeds it.
    """
    value = _item(function.body.inputs, index, "argument", function.name)
    node = value.producer
    if node.inputs or node.control_inputs or len(node.outputs) != 1:
        raise GraphError(
            f"argument {index} of function {function.name!r} is {value.name}, whose node is more than an argument",
            where=f"node {node.name!r}",
            remedy="let it be the only output of a node without inputs, such as _Arg",
        )
    if any(value in (*s.inputs.values(), *s.outputs.values()) for s in function.body.signatures.values()):
        raise GraphError(f"{value.name} is in a signature of the body", where=f"function {function.name!r}")
    return value


def types_attribute(values: Sequence[Value]) -> Attribute:
    """The dtypes of values as an attribute such as `Tin`."""
    return tuple(v.dtype for v in values) if values else _EMPTY_LIST


def _write_types(site: Node, key: str, values: Sequence[Value]) -> None:
    if site.op_type in CALL_TYPES or key in site.attrs:
        site.graph.set_attr(site, key, types_attribute(values))


def _set_call_inputs(site: Node, values: Sequence[Value]) -> None:
    site.graph.set_inputs(site, values)
    _write_types(site, "Tin", values)


def _passed(sites: Sequence[Node], values: Values, dtype: DType) -> dict[Node, Value]:
    passed: dict[Node, Value] = {}
    for site in sites:
        value = values(site) if callable(values) else values.get(site)
        if value is None:
            raise GraphError(f"nothing is passed by {site.name!r}", where="argument 'values'", remedy="name a value for each call")
        if not site.graph.owns(value.producer):
            raise GraphError(f"{value.name} is not in the graph of call {site.name!r}", where="argument 'values'")
        if value.dtype != dtype:
            raise GraphError(f"{value.name} has dtype {value.dtype}, the argument {dtype}", where=f"node {site.name!r}")
        passed[site] = value
    return passed


def _plain_calls(graph: Graph, name: str) -> tuple[Node, ...]:
    sites, body = call_sites(graph, name), graph.functions[name].body
    for site in sites:
        reference = site.attrs.get("f")
        called = isinstance(reference, FunctionReference) and reference.name == name and site.op_type in CALL_TYPES
        if site.op_type != name and not called:
            raise UnsupportedError(
                f"function {name!r} belongs to {site.name!r} = {site.op_type}, which fixes its arguments and results",
                where=f"graph {site.graph.name!r}",
                remedy="give that node a copy of the function first, or edit the body only",
            )
        if (len(site.inputs), len(site.outputs)) != (len(body.inputs), len(body.outputs)):
            raise GraphError(
                f"{site.name!r} has {len(site.inputs)} inputs and {len(site.outputs)} outputs, "
                f"function {name!r} {len(body.inputs)} and {len(body.outputs)}",
                where=f"node {site.name!r}",
                cause="the call was edited by itself",
            )
    return sites


def _function(graph: Graph, name: str) -> Function:
    if name not in graph.functions:
        raise GraphError(f"function {name!r} is not in the library", where=f"graph {graph.name!r}", remedy="look at list(graph.functions)")
    return graph.functions[name]


def _item(values: Sequence[Value], index: int, role: str, function: str) -> Value:
    if not 0 <= index < len(values):
        raise GraphError(f"function {function!r} has {len(values)} {role}s, got index {index}", where=f"function {function!r}")
    return values[index]


def _check_of_body(function: Function, value: Value) -> None:
    if not function.body.owns(value.producer):
        raise GraphError(f"{value.name} is not in the body of function {function.name!r}", where=f"function {function.name!r}")


def _unread(body: Graph, node: Node, made: set[Node]) -> None:
    """Take back what a converter that failed let an old node wait for."""
    for control in node.control_inputs:
        if control in made:
            body.remove_control_input(node, control)
