"""Edit the arguments of a function: its calls follow, or the edit is refused.

A body itself is a graph like any other, `graph.functions[name].body`. What follows here is what a body
has in common with its calls: `PartitionedCall`, `StatefulPartitionedCall`, nodes whose op type is the function, and
If, Case and While with all functions that they name (`ir.edit.call_groups`):

- All branches of an If or Case get, lose or change the same argument.
- An argument of the condition or the body of a While is a loop variable: condition and body have it as an argument,
  the body returns it for the next round, the node takes it as input and gives it as output.
- Data sets and gradients of TF1 fix the signatures of their functions: an edit of such a function is refused.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from graphwright.errors import GraphError, UnsupportedError
from graphwright.ir.dtypes import DType, Shape, as_dtype, as_shape
from graphwright.ir.edit.call_groups import CallGroup, call_group, listed
from graphwright.ir.edit.reroute import reroute_control
from graphwright.ir.graph import Function, Graph, Node, Value
from graphwright.ir.traits.effects import has_known_effects
from graphwright.ir.walk import backward_reachable, forward_reachable

Values = Mapping[Node, Value] | Callable[[Node], Value]


def add_argument(
    graph: Graph,
    function: str,
    name: str,
    dtype: Any,
    shape: Any,
    values: Values,
    *,
    index: int | None = None,
    next_value: Callable[[Value], Value] | None = None,
) -> Value:
    """Add an argument; returns its value in the body.

    Args:
        graph: the main graph, whose library has the function.
        dtype, shape: of the argument, in any usual form.
        name: of the argument; in other functions of the group a suffix is added where it is taken.
        values: what each call, If, Case or While passes, by node or as a function of the node.
        index: before which argument; by default at the end, which is where a loop variable must be.
        next_value: for a While: given the argument in the body of the loop, adds nodes there and returns what it is in the next round.
            Without it, all rounds have the same.

    Raises:
        GraphError: there is no such function, a node of its body has the name, or a value has another dtype; nothing is changed then.
        UnsupportedError: the function is called by something else than a call, If, Case or While.

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
    dtype, shape = as_dtype(dtype), as_shape(shape)
    group = call_group(graph, function)
    count = len(graph.functions[function].body.inputs)
    place = count if index is None else index
    if not 0 <= place <= count:
        raise GraphError(f"function {function!r} has {count} arguments, got index {place}", argument="index")
    if group.loop is not None and place != count:
        raise UnsupportedError(f"the functions of loop {group.loop.name!r} get new arguments at the end", argument="index")
    if next_value is not None and not group.loop_bodies:
        raise GraphError(f"function {function!r} is not part of a loop, so nothing has a next round", argument="next_value")
    passed = passed_values(group, values, dtype)
    with graph.restored_on_error():
        made: dict[str, Value] = {}
        for key, found in group.functions.items():
            body = found.body
            label = name if key == function else body.unique_name(name)
            made[key] = body.add_node("_Arg", label, attrs={"T": dtype, "index": place}, output_types=[(dtype, shape)]).outputs[0]
            _set_arguments(body, [*body.inputs[:place], made[key], *body.inputs[place:]])
        for key in group.loop_bodies:
            body = group.functions[key].body
            returned = made[key] if next_value is None else next_value(made[key])
            check_value(body, returned, dtype, f"the next round's {name!r}")
            body.outputs = (*body.outputs, returned)
        for site in group.sites:
            arguments = site.arguments
            site.set_arguments([*arguments[:place], passed[site.node], *arguments[place:]])
            if group.carries(site):
                site.node.graph.add_output(site.node, dtype, shape)
                site.follow_added()
    return made[function]


def remove_argument(graph: Graph, function: str, index: int) -> None:
    """Remove an argument that no body of the group needs; the calls no longer pass it.

    A loop variable goes when nothing reads the output of the loop, the condition does not read it, and the body computes nothing of
    it but its own next value.

    Raises:
        GraphError: there is no such argument, or something needs it; nothing is changed then.
        UnsupportedError: as `add_argument`.
    """
    group = call_group(graph, function)
    doomed = {key: _unneeded(found, index, is_loop_body=key in group.loop_bodies) for key, found in group.functions.items()}
    for site in group.sites:
        if group.carries(site):
            site.check_unneeded(index)
    with graph.restored_on_error():
        for key, found in group.functions.items():
            body = found.body
            arguments = list(body.inputs)
            removed = arguments.pop(index)
            body.inputs = ()
            if key in group.loop_bodies:
                body.outputs = [v for k, v in enumerate(body.outputs) if k != index]
            body.remove_nodes([*doomed[key], removed.producer])
            _set_arguments(body, arguments)
        for site in group.sites:
            carries = group.carries(site)
            site.remove_argument(index)
            if carries:
                site.remove_output(index)


def change_argument(
    graph: Graph,
    function: str,
    index: int,
    dtype: Any,
    shape: Any,
    *,
    convert: Callable[[Value], Value] | None = None,
    values: Values | None = None,
    convert_result: Callable[[Value], Value] | None = None,
) -> Value:
    """Give an argument another dtype or shape, in all functions of the group; returns its value in the body.

    Args:
        dtype, shape: in any usual form.
        convert: given the argument as it is from now on (in each body), adds nodes to that body and returns what the former readers
            read in its place, such as the output of a Cast. Without it they read the argument itself, which asks for the same dtype.
            It may also leave no former readers.
        values: what each call passes from now on. Without it they pass what they passed, which asks for the same dtype.
        convert_result: for a While: given what the body returned for the next round, adds nodes there and returns what it returns from
            now on. Without it, it returns the same, which asks for the same dtype.

    Raises:
        GraphError: there is no such argument, dtypes do not fit, or the output of a loop is read that would have another dtype;
            nothing is changed then, whatever `convert` did.
        UnsupportedError: as `add_argument`.
    """
    dtype, shape = as_dtype(dtype), as_shape(shape)
    group = call_group(graph, function)
    olds = {key: argument_of(found, index) for key, found in group.functions.items()}
    if values is None:
        wrong = [site.node for site in group.sites if site.arguments[index].dtype != dtype]
        if wrong:
            passed = wrong[0].inputs[index + next(site.first for site in group.sites if site.node is wrong[0])]
            raise GraphError(
                f"{wrong[0].name!r} passes {passed.name} of dtype {passed.dtype}, the argument would be {dtype}",
                where=f"the calls {listed(wrong)}",
                remedy="say in the argument values what the calls pass",
            )
    given = {site.node: site.arguments[index] for site in group.sites} if values is None else passed_values(group, values, dtype)
    for site in group.sites:
        if group.carries(site):
            site.check_retyped(index, dtype)
    with graph.restored_on_error():
        made: dict[str, Value] = {}
        for key, old in olds.items():
            carried = index if key in group.loop_bodies else None
            made[key] = _exchange(group.functions[key], old, dtype, shape, convert, carried=carried)
        for key in group.loop_bodies:
            body = group.functions[key].body
            returned = body.outputs[index]
            if returned is not made[key]:
                returned = returned if convert_result is None else convert_result(returned)
            check_value(body, returned, dtype, f"the next round's {made[key].producer.name!r}", remedy="give an argument convert_result")
            body.outputs = [returned if k == index else v for k, v in enumerate(body.outputs)]
        for key, old in olds.items():
            _finish(group.functions[key].body, old.producer, made[key].producer)
        for site in group.sites:
            arguments = site.arguments
            site.set_arguments([*arguments[:index], given[site.node], *arguments[index + 1 :]])
            if group.carries(site):
                site.node.graph.set_output_type(site.node.outputs[index], dtype, shape)
                site.follow_outputs()
    return made[function]


def argument_of(function: Function, index: int) -> Value:
    """The value of an argument in the body.

    Raises:
        GraphError: there is no such argument, its node does something else too, or a signature of the body feeds it.
    """
    value = item_at(function.body.inputs, index, "argument", function.name)
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


def item_at(values: Sequence[Value], index: int, role: str, function: str) -> Value:
    """An argument or result by its number."""
    if not 0 <= index < len(values):
        raise GraphError(f"function {function!r} has {len(values)} {role}s, got index {index}", where=f"function {function!r}")
    return values[index]


def check_value(body: Graph, value: Value, dtype: DType, role: str, *, remedy: str = "") -> None:
    """Refuse a value of another graph or dtype."""
    if not body.owns(value.producer):
        raise GraphError(f"{value.name} is not in the body of function {body.name!r}", where=f"function {body.name!r}")
    if value.dtype != dtype:
        raise GraphError(
            f"{value.name} of dtype {value.dtype} cannot be {role} of dtype {dtype}", where=f"function {body.name!r}", remedy=remedy
        )


def passed_values(group: CallGroup, values: Values, dtype: DType) -> dict[Node, Value]:
    """What each call passes.

    Raises:
        GraphError: nothing is said for a call, or a value is of another graph or dtype.
    """
    passed: dict[Node, Value] = {}
    for node in (site.node for site in group.sites):
        value = values(node) if callable(values) else values.get(node)
        if value is None:
            raise GraphError(f"nothing is passed by {node.name!r}", argument="values", remedy="name a value for each call")
        if not node.graph.owns(value.producer):
            raise GraphError(f"{value.name} is not in the graph of call {node.name!r}", argument="values")
        if value.dtype != dtype:
            raise GraphError(f"{value.name} has dtype {value.dtype}, the argument {dtype}", where=f"node {node.name!r}")
        passed[node] = value
    return passed


def _set_arguments(body: Graph, arguments: Sequence[Value]) -> None:
    body.inputs = arguments
    for k, argument in enumerate(arguments):
        if "index" in argument.producer.attrs:
            body.set_attr(argument.producer, "index", k)


def _unneeded(function: Function, index: int, *, is_loop_body: bool) -> list[Node]:
    """The nodes of a body that go with an argument: those that only make its next value."""
    body = function.body
    value = argument_of(function, index)
    node = value.producer
    returned = [v for k, v in enumerate(body.outputs) if k != index or not is_loop_body]
    needed = backward_reachable([*(v.producer for v in returned), *body.control_outputs])
    readers = forward_reachable([node]) - {node} if is_loop_body else set[Node]()
    effects = next((n for n in readers if n in needed or has_known_effects(n)), None)
    if node in needed or effects is not None or (not is_loop_body and (value.uses or node.control_consumers)):
        raise GraphError(
            f"argument {node.name!r} of function {function.name!r} is read or returned",
            where=f"function {function.name!r}",
            remedy="reroute its uses in the body first",
        )
    return [n for n in body if n in readers]


def _exchange(
    function: Function, old: Value, dtype: DType, shape: Shape, convert: Callable[[Value], Value] | None, *, carried: int | None
) -> Value:
    """Put a new argument into the place of an old one, which stays without readers for the time being.

    Args:
        carried: which result is handed to the argument in the next round of a loop; where it is the argument, it goes on being it.
    """
    body, first = function.body, old.producer
    node = body.append_node("_Arg", body.unique_name(f"{first.name}_changed"), output_types=[(dtype, shape)])
    new = node.outputs[0]
    read = new if convert is None else convert(new)
    if old.uses and (not body.owns(read.producer) or read.dtype != old.dtype):
        raise GraphError(
            f"{read.name} of dtype {read.dtype} cannot take the place of argument {first.name!r} of dtype {old.dtype}",
            where=f"function {function.name!r}",
            remedy="give an argument convert that returns a value of the body with the old dtype",
        )
    body.inputs = [new if v is old else v for v in body.inputs]
    if carried is not None and body.outputs[carried] is old:
        body.outputs = [new if k == carried else v for k, v in enumerate(body.outputs)]
    if old.uses:
        body.replace_many_uses({old: read})
    return new


def _finish(body: Graph, old: Node, new: Node) -> None:
    """Remove what the old argument was; the new one gets its name, attributes, control edges and place."""
    attrs = {**old.attrs, "T": new.outputs[0].dtype}
    attrs.pop("_output_shapes", None)
    for key, attribute in attrs.items():
        body.set_attr(new, key, attribute)
    if old in new.control_inputs:
        body.remove_control_input(new, old)
    reroute_control(new, old)
    if old.outputs[0] in body.variables and new.outputs[0].dtype == old.outputs[0].dtype:
        body.variables[new.outputs[0]] = body.variables.pop(old.outputs[0])
    order = [new if node is old else node for node in body if node is not new]
    name = old.name
    body.remove_node(old)
    body.rename(new, name)
    body.sort_nodes(order)
