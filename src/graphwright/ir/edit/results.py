"""Edit the results of a function: its calls follow, or the edit is refused. See `ir.edit.arguments` for what a call is.

All branches of an If or Case return the same: what is edited in one is edited in all. The results of the body of a While are its
loop variables, which are added and removed as arguments are.
"""

from collections.abc import Callable, Mapping

from graphwright.errors import GraphError, UnsupportedError
from graphwright.ir.dtypes import Shape, common_shape
from graphwright.ir.edit.arguments import check_value, item_at
from graphwright.ir.edit.call_groups import CallGroup, call_group, listed
from graphwright.ir.graph import Graph, Node, Value

Others = Mapping[str, Value] | Callable[[Graph], Value]


def add_result(graph: Graph, function: str, value: Value, *, others: Others | None = None) -> dict[Node, Value]:
    """Return one more value of the body; the answer has the new output of each call.

    Args:
        graph: the main graph, whose library has the function.
        function: whose body it is.
        value: of the body.
        others: what the other branches of an If or Case return, by function or as a function of the body.

    Raises:
        GraphError: a value is not of its body, or of another dtype than that of another branch; nothing is changed then.
        UnsupportedError: as `add_argument`; and for the functions of a While, where `add_argument` adds a loop variable.
    """
    group = call_group(graph, function)
    _check_no_loop(group, function, "add_argument adds a loop variable")
    with graph.restored_on_error():
        results = _results(group, function, value, others)
        for key, result in results.items():
            body = group.functions[key].body
            body.settle_shapes()
            body.outputs = (*body.outputs, result)
        shape = _shape(results)
        made: dict[Node, Value] = {}
        for site in group.sites:
            made[site.node] = site.node.graph.add_output(site.node, value.dtype, shape)
            site.follow_added()
    return made


def remove_result(graph: Graph, function: str, index: int) -> None:
    """Return one value less.

    Raises:
        GraphError: there is no such result, or a call's output is needed; nothing is changed then.
        UnsupportedError: as `add_argument`; and for the functions of a While, where `remove_argument` removes a loop variable.
    """
    group = call_group(graph, function)
    item_at(group.functions[function].body.outputs, index, "result", function)
    _check_no_loop(group, function, "remove_argument removes a loop variable")
    for site in group.sites:
        site.check_unneeded(index)
    with graph.restored_on_error():
        for found in group.functions.values():
            found.body.outputs = [v for k, v in enumerate(found.body.outputs) if k != index]
        for site in group.sites:
            site.remove_output(index)


def set_result(graph: Graph, function: str, index: int, value: Value, *, others: Others | None = None) -> None:
    """Return another value of the body in the place of a result; the types of the calls' outputs follow.

    In the body of a While, this is what the next round gets; in its condition, whether there is one.

    Args:
        graph: the main graph, whose library has the function.
        function: whose body it is.
        index: of the result.
        value: of the body.
        others: where the dtype changes: what the other branches of an If or Case return from now on; by default what they returned.

    Raises:
        GraphError: there is no such result, a value is not of its body, or its dtype is another one and some node reads the
            output of a call, or another branch returns another; nothing is changed then.
        UnsupportedError: as `add_argument`.
    """
    group = call_group(graph, function)
    body = group.functions[function].body
    old = item_at(body.outputs, index, "result", function)
    if function in group.loop_bodies | group.conditions:
        role = "whether the loop goes on" if function in group.conditions else "what the next round gets"
        check_value(body, value, old.dtype, role, remedy="change_argument changes the dtype of a loop variable")
        with graph.restored_on_error():
            body.outputs = [v if k != index else value for k, v in enumerate(body.outputs)]
        return
    shares = any(function in site.functions and len(site.functions) > 1 for site in group.sites)
    check_value(body, value, value.dtype, "a result")
    if shares and others is None:
        wrong = [key for key, found in group.functions.items() if key != function and found.body.outputs[index].dtype != value.dtype]
        if wrong:
            raise GraphError(
                f"result {index} of {', '.join(map(repr, wrong))} is {old.dtype}, and {value.name} {value.dtype}",
                where=f"the calls {listed([site.node for site in group.sites])}",
                remedy="say in the argument others what the other branches return",
            )
    for site in group.sites:
        site.check_retyped(index, value.dtype)
    with graph.restored_on_error():
        kept = {key: found.body.outputs[index] for key, found in group.functions.items() if key != function}
        results = _results(group, function, value, kept if others is None else others)
        for key, result in results.items():
            inner = group.functions[key].body
            inner.settle_shapes()
            inner.outputs = [v if k != index else result for k, v in enumerate(inner.outputs)]
        for site in group.sites:
            site.node.graph.set_output_type(site.node.outputs[index], value.dtype, _shape(results))
            site.follow_outputs()


def _check_no_loop(group: CallGroup, function: str, remedy: str) -> None:
    if group.loop is not None:
        raise UnsupportedError(
            f"function {function!r} belongs to {group.loop.name!r} = {group.loop.op_type}, whose results are its loop variables",
            where=f"graph {group.loop.graph.name!r}",
            remedy=remedy,
        )


def _results(group: CallGroup, function: str, value: Value, others: Others | None) -> dict[str, Value]:
    """What each function of the group returns."""
    results: dict[str, Value] = {}
    for key, found in group.functions.items():
        if key == function:
            result: Value | None = value
        else:
            result = others(found.body) if callable(others) else (others or {}).get(key)
        if result is None:
            raise GraphError(
                f"nothing is said of what {key!r} returns, which is called with {function!r}",
                where=f"the calls {listed([site.node for site in group.sites])}",
                remedy="say in the argument others what the other branches return",
            )
        check_value(found.body, result, value.dtype, f"the result of {function!r}")
        results[key] = result
    return results


def _shape(results: Mapping[str, Value]) -> Shape:
    shapes = [value.last_shape for value in results.values()]
    shape = shapes[0]
    for other in shapes[1:]:
        shape = common_shape(shape, other)
    return shape
