"""Selecting nodes and tensors: filters, walks, boundaries, and lists of regular expressions. All answers are lists in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from graphwright.editor.base_graph import BaseGraph
from graphwright.editor.match import TreeExpr as TreeExpr
from graphwright.editor.match import can_be_regex as can_be_regex
from graphwright.editor.match import make_regex as make_regex
from graphwright.editor.node import Node
from graphwright.editor.tensor import Tensor
from graphwright.editor.util import ControlOutputs, concatenate_unique, get_consuming_ops, is_iterable, make_list_of_op, make_list_of_t
from graphwright.ir import graph as ir
from graphwright.ir.select import walk_backward, walk_forward
from graphwright.ir.subgraph import boundary
from graphwright.ir.walk import reached


def get_input_ts(ops: Any) -> list[Tensor]:
    """The tensors that the nodes read, each once."""
    return list(dict.fromkeys(t for op in make_list_of_op(ops) for t in op.inputs))


def get_output_ts(ops: Any) -> list[Tensor]:
    """The tensors that the nodes make."""
    return [t for op in make_list_of_op(ops) for t in op.outputs]


_get_input_ts, _get_output_ts = get_input_ts, get_output_ts  # as tests of old call them


def filter_ts(ops: Any, positive_filter: Callable[[Tensor], Any] | bool) -> list[Tensor]:
    """The tensors that the nodes read or make and of which the filter is true.

    Args:
        ops: a graph, nodes, or a node.
        positive_filter: a predicate, or True for all tensors.

    Raises:
        TypeError: `ops` is something else.
    """
    ts = concatenate_unique(get_input_ts(ops), get_output_ts(ops))
    return ts if positive_filter is True or not callable(positive_filter) else [t for t in ts if positive_filter(t)]


def filter_ts_from_regex(ops: Any, regex: Any) -> list[Tensor]:
    """The tensors that the nodes read or make and in whose name, such as `a/b:0`, the expression is found.

    Raises:
        TypeError: `ops` is not a graph and holds something else than nodes.
    """
    expression = make_regex(regex)
    return filter_ts(ops, lambda t: expression.search(t.name))


def filter_ops(ops: Any, positive_filter: Callable[[Node], Any] | bool) -> list[Node]:
    """The nodes of which the filter is true; all of them if it is `True`.

    Raises:
        TypeError: `ops` is not a graph and holds something else than nodes.
    """
    nodes = make_list_of_op(ops)
    return nodes if positive_filter is True or not callable(positive_filter) else [op for op in nodes if positive_filter(op)]


def filter_ops_by_optype(ops: Any, op_types: str | Iterable[str]) -> list[Node]:
    """The nodes with one of the op types.

    Raises:
        TypeError: `ops` is not a graph and holds something else than nodes.
    """
    types = {op_types} if isinstance(op_types, str) else set(op_types)
    return filter_ops(ops, lambda op: op.op_type in types)


def filter_ops_from_regex(ops: Any, regex: Any) -> list[Node]:
    """The nodes in whose name the expression is found.

    Raises:
        TypeError: `ops` is not a graph and holds something else than nodes.
    """
    expression = make_regex(regex)
    return filter_ops(ops, lambda op: expression.search(op.name))


def get_name_scope_ops(ops: Any, scope: str) -> list[Node]:
    """The node with the name of the scope, and those below it. The scope is a regular expression, as it always was.

    Raises:
        TypeError: `ops` is not a graph and holds something else than nodes.
    """
    return filter_ops_from_regex(ops, f"^{scope.removesuffix('/')}(/.*)?$")


def check_cios(
    control_inputs: bool = False, control_outputs: ControlOutputs | None = None, control_ios: ControlOutputs | None = None
) -> tuple[bool, ControlOutputs | None]:
    """Which control edges to follow: `control_ios` stands for both.

    Returns:
        Whether control inputs are followed, and the object that knows the control outputs, or None.

    Raises:
        TypeError: what is given is not a `ControlOutputs`.
        ValueError: `control_outputs` and `control_ios` are given.
    """
    for given in (control_outputs, control_ios):
        if given is not None and not isinstance(given, ControlOutputs):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"Expected a gde.ControlOutputs, got: {type(given)}")
    if control_ios is None:
        return control_inputs, control_outputs
    if control_outputs is not None:
        raise ValueError("control_outputs should be None when using control_ios.")
    return True, control_ios


def get_ops_ios(
    ops: Any, control_inputs: bool = False, control_outputs: ControlOutputs | None = None, control_ios: ControlOutputs | None = None
) -> list[Node]:
    """The nodes next to the given ones: those that they read, and those that read them.

    Args:
        ops: a graph, nodes, or a node.
        control_inputs: whether to count the nodes that they wait for.
        control_outputs: given, the nodes that wait for them count too.
        control_ios: stands for both.

    Raises:
        TypeError: `ops` is something else.
    """
    control_inputs, control_outputs = check_cios(control_inputs, control_outputs, control_ios)
    return list(dict.fromkeys(other for op in make_list_of_op(ops) for other in _neighbors(op, control_inputs, control_outputs)))


def _neighbors(op: Node, control_inputs: bool, control_outputs: ControlOutputs | None) -> list[Node]:
    found = [t.op for t in op.inputs]
    found += [consumer for t in op.outputs for consumer in t.consumers()]
    if control_outputs is not None:
        found += control_outputs.get(op)
    if control_inputs:
        found += op.control_inputs
    return found


def compute_boundary_ts(ops: Any) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """What goes into a set of nodes, what comes out, and what stays inside.

    A tensor that is read inside and outside comes out and is inside too.

    Returns:
        Tensors that are read and made outside; tensors that are made and not only read inside; tensors that are made and read inside.

    Raises:
        TypeError: `ops` is not a graph and holds something else than nodes.
    """
    nodes = make_list_of_op(ops)
    if not nodes:
        return [], [], []
    ends, view = boundary((op.ir for op in nodes), borders=False), nodes[0].home.view_of_value
    return [*map(view, ends.inputs)], [*map(view, ends.outputs)], [*map(view, ends.inside)]


def get_within_boundary_ops(
    ops: Any,
    seed_ops: Any,
    boundary_ops: Any = (),
    inclusive: bool = True,
    control_inputs: bool = False,
    control_outputs: ControlOutputs | None = None,
    control_ios: ControlOutputs | None = None,
) -> list[Node]:
    """The nodes among `ops` that are reached from the seeds, in either direction, without passing the boundary.

    Args:
        ops: a graph, nodes, or a node.
        seed_ops: where to start.
        boundary_ops: where to stop.
        inclusive: whether nodes of the boundary that were reached are part of the answer.
        control_inputs: whether to follow control edges backward.
        control_outputs: given, control edges are followed forward.
        control_ios: stands for both.

    Raises:
        TypeError: something else than nodes is given.
        ValueError: a seed is in the boundary.
    """
    control_inputs, control_outputs = check_cios(control_inputs, control_outputs, control_ios)
    candidates = make_list_of_op(ops)
    seeds = make_list_of_op(seed_ops, allow_graph=False)
    fence = set(make_list_of_op(boundary_ops))
    if not fence.isdisjoint(seeds):
        raise ValueError("Boundary is intersecting with the seeds.")
    found = set(reached(seeds, lambda op: () if op in fence else _neighbors(op, control_inputs, control_outputs)))
    return [op for op in candidates if op in found and (inclusive or op not in fence)]


def get_forward_walk_ops(
    seed_ops: Any,
    inclusive: bool = True,
    within_ops: Any = None,
    within_ops_fn: Callable[[Node], Any] | None = None,
    stop_at_ts: Any = (),
    control_outputs: ControlOutputs | None = None,
) -> list[Node]:
    """The nodes ahead of the seeds.

    Args:
        seed_ops: nodes to start from, or tensors, which stand for the nodes that read them.
        inclusive: whether the seeds are part of the answer.
        within_ops: nodes outside of these are left out, seeds too.
        within_ops_fn: nodes of which this is false are not entered.
        stop_at_ts: tensors that are not followed.
        control_outputs: given, control edges are followed.

    Raises:
        TypeError: something else than nodes or tensors is given.
    """
    _, control_outputs = check_cios(False, control_outputs)
    seeds = _seeds(seed_ops, get_consuming_ops)
    return _walk(walk_forward, seeds, inclusive, within_ops, within_ops_fn, stop_at_ts, control_outputs is not None)


def get_backward_walk_ops(
    seed_ops: Any,
    inclusive: bool = True,
    within_ops: Any = None,
    within_ops_fn: Callable[[Node], Any] | None = None,
    stop_at_ts: Any = (),
    control_inputs: bool = False,
) -> list[Node]:
    """The nodes behind the seeds; tensors stand for the nodes that make them, the other arguments are those of `get_forward_walk_ops`.

    Raises:
        TypeError: something else than nodes or tensors is given.
    """
    seeds = _seeds(seed_ops, lambda ts: [t.node for t in ts])
    return _walk(walk_backward, seeds, inclusive, within_ops, within_ops_fn, stop_at_ts, control_inputs)


def _seeds(seed_ops: Any, of_tensors: Callable[[list[Tensor]], list[Node]]) -> list[Node]:
    seeds: list[Any] = list(seed_ops) if is_iterable(seed_ops) else [seed_ops]
    if seeds and isinstance(seeds[0], Tensor):
        return of_tensors(make_list_of_t(seeds, allow_graph=False))
    return make_list_of_op(seeds, allow_graph=False)


def _walk(
    walk: Callable[..., list[ir.Node]],
    seeds: list[Node],
    inclusive: bool,
    within_ops: Any,
    within_ops_fn: Callable[[Node], Any] | None,
    stop_at_ts: Any,
    control: bool,
) -> list[Node]:
    """A walk of the IR from the seeds that are within, through nodes that are."""
    if not seeds:
        return []
    graph = seeds[0].graph
    if graph is None:
        raise ValueError(f"{seeds[0]} was removed from its graph")
    members = frozenset(op.ir for op in make_list_of_op(within_ops, allow_graph=False)) if within_ops else None

    def inside(node: ir.Node) -> bool:
        return (members is None or node in members) and (within_ops_fn is None or bool(within_ops_fn(graph.view_of(node))))

    starts = [op.ir for op in seeds if members is None or op.ir in members]
    stop = [t.ir for t in make_list_of_t(stop_at_ts)]
    return [graph.view_of(n) for n in walk(starts, inclusive=inclusive, within=inside, stop_at=stop, control=control)]


def get_walks_intersection_ops(
    forward_seed_ops: Any,
    backward_seed_ops: Any,
    forward_inclusive: bool = True,
    backward_inclusive: bool = True,
    within_ops: Any = None,
    within_ops_fn: Callable[[Node], Any] | None = None,
    control_inputs: bool = False,
    control_outputs: ControlOutputs | None = None,
    control_ios: ControlOutputs | None = None,
) -> list[Node]:
    """What is ahead of some nodes and behind others; the arguments are those of the walks.

    Raises:
        TypeError: something else than nodes or tensors is given.
    """
    control_inputs, control_outputs = check_cios(control_inputs, control_outputs, control_ios)
    ahead = get_forward_walk_ops(forward_seed_ops, forward_inclusive, within_ops, within_ops_fn, control_outputs=control_outputs)
    behind = set(get_backward_walk_ops(backward_seed_ops, backward_inclusive, within_ops, within_ops_fn, control_inputs=control_inputs))
    return [op for op in ahead if op in behind]


def get_walks_union_ops(
    forward_seed_ops: Any,
    backward_seed_ops: Any,
    forward_inclusive: bool = True,
    backward_inclusive: bool = True,
    within_ops: Any = None,
    within_ops_fn: Callable[[Node], Any] | None = None,
    control_inputs: bool = False,
    control_outputs: ControlOutputs | None = None,
    control_ios: ControlOutputs | None = None,
) -> list[Node]:
    """What is ahead of some nodes, then what is behind others, each node once; the arguments are those of the walks.

    Raises:
        TypeError: something else than nodes or tensors is given.
    """
    control_inputs, control_outputs = check_cios(control_inputs, control_outputs, control_ios)
    ahead = get_forward_walk_ops(forward_seed_ops, forward_inclusive, within_ops, within_ops_fn, control_outputs=control_outputs)
    behind = get_backward_walk_ops(backward_seed_ops, backward_inclusive, within_ops, within_ops_fn, control_inputs=control_inputs)
    return concatenate_unique(ahead, behind)


def select_ops(*args: Any, **kwargs: Any) -> list[Node]:
    r"""Nodes from regular expressions and lists of nodes; tensors are left out.

    Args:
        args: expressions that are searched for in the names of nodes (those that start with `(?#ts)` are for tensors, and left out),
            nodes, tensors, and iterables of these.
        kwargs: `graph`, which expressions need; `positive_filter`, a predicate; `restrict_ops_regex=True` to take only expressions
            that start with `(?#ops)`.

    Raises:
        TypeError: the graph or another argument is of another type.
        ValueError: an argument is not known, or an expression is given without a graph.

    >>> import tensorflow as tf
    >>> from graphwright.editor.graph import Graph
    >>> with tf.Graph().as_default() as tf_graph:
    ...     _ = tf.identity(tf.constant(1.0, name="a"), name="foo/b")
    >>> select_ops("^foo/", graph=Graph(tf_graph))
    [Node[foo/b]]
    """
    return _selected("ops", "ts", args, kwargs, filter_ops_from_regex, partial(make_list_of_op, ignore_ts=True))


def select_ts(*args: Any, **kwargs: Any) -> list[Tensor]:
    """Tensors from regular expressions and lists of tensors; nodes are left out.

    Args:
        args: expressions that are searched for in the names of tensors (those that start with `(?#ops)` are for nodes, and left out),
            tensors, nodes, and iterables of these.
        kwargs: `graph`, which expressions need; `positive_filter`, a predicate; `restrict_ts_regex=True` to take only expressions
            that start with `(?#ts)`.

    Raises:
        TypeError: the graph or another argument is of another type.
        ValueError: an argument is not known, or an expression is given without a graph.
    """
    return _selected("ts", "ops", args, kwargs, filter_ts_from_regex, partial(make_list_of_t, ignore_ops=True))


def select_ops_and_ts(*args: Any, **kwargs: Any) -> tuple[list[Node], list[Tensor]]:
    """Nodes and tensors; only expressions that start with `(?#ts)` are for tensors. See `select_ops` and `select_ts`.

    Raises:
        TypeError: the graph or another argument is of another type.
        ValueError: an argument is not known, or an expression is given without a graph.
    """
    return select_ops(*args, restrict_ops_regex=False, **kwargs), select_ts(*args, restrict_ts_regex=True, **kwargs)


def _selected(
    kind: str,
    other: str,
    args: Iterable[Any],
    kwargs: dict[str, Any],
    search: Callable[[Any, Any], list[Any]],
    listed: Callable[[Any], list[Any]],
) -> list[Any]:
    unknown = set(kwargs) - {"graph", "positive_filter", "restrict_ops_regex", "restrict_ts_regex"}
    if unknown:
        raise ValueError(f"Wrong keywords argument: {', '.join(sorted(unknown))}.")
    graph, accepts = kwargs.get("graph"), kwargs.get("positive_filter")
    if graph is not None and not isinstance(graph, BaseGraph):
        raise TypeError(f"Expected a gde.Graph, got: {type(graph)}")
    mark = f"(?#{kind})" if kwargs.get(f"restrict_{kind}_regex") else ""
    found: dict[Any, None] = {}
    for arg in args:
        if not can_be_regex(arg):
            things = listed(arg)
        elif graph is None:
            raise ValueError("Use the keyword argument 'graph' to use regex.")
        else:
            pattern = make_regex(arg).pattern
            things = search(graph, arg) if pattern.startswith(mark) and not pattern.startswith(f"(?#{other})") else []
        found.update((thing, None) for thing in things if accepts is None or accepts(thing))
    return list(found)
