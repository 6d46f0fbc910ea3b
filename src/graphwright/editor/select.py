"""Selection of nodes and tensors: filters, walks, boundaries, and lists of regular expressions. Results have a deterministic order.

An argument `ops` is a graph, nodes, or a node; another type raises a TypeError. `control_ios` sets `control_inputs` and `control_outputs`.
"""

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
    """Return the tensors that the nodes read, each once."""
    return list(dict.fromkeys(t for op in make_list_of_op(ops) for t in op.inputs))


def get_output_ts(ops: Any) -> list[Tensor]:
    """Return the outputs of the nodes."""
    return [t for op in make_list_of_op(ops) for t in op.outputs]


_get_input_ts, _get_output_ts = get_input_ts, get_output_ts  # the names in contrib.graph_editor


def filter_ts(ops: Any, positive_filter: Callable[[Tensor], Any] | bool) -> list[Tensor]:
    """Return the inputs and outputs of the nodes for which the filter is true, or all if it is `True`."""
    ts = concatenate_unique(get_input_ts(ops), get_output_ts(ops))
    return ts if positive_filter is True or not callable(positive_filter) else [t for t in ts if positive_filter(t)]


def filter_ts_from_regex(ops: Any, regex: Any) -> list[Tensor]:
    """Return the inputs and outputs of the nodes whose name, such as `a/b:0`, contains a match."""
    expression = make_regex(regex)
    return filter_ts(ops, lambda t: expression.search(t.name))


def filter_ops(ops: Any, positive_filter: Callable[[Node], Any] | bool) -> list[Node]:
    """Return the nodes for which the filter is true, or all if it is `True`."""
    nodes = make_list_of_op(ops)
    return nodes if positive_filter is True or not callable(positive_filter) else [op for op in nodes if positive_filter(op)]


def filter_ops_by_optype(ops: Any, op_types: str | Iterable[str]) -> list[Node]:
    """Return the nodes with one of the op types."""
    types = {op_types} if isinstance(op_types, str) else set(op_types)
    return filter_ops(ops, lambda op: op.op_type in types)


def filter_ops_from_regex(ops: Any, regex: Any) -> list[Node]:
    """Return the nodes whose name contains a match."""
    expression = make_regex(regex)
    return filter_ops(ops, lambda op: expression.search(op.name))


def get_name_scope_ops(ops: Any, scope: str) -> list[Node]:
    """Return the node with the name of the scope, and the nodes in it. The scope is a regular expression."""
    return filter_ops_from_regex(ops, f"^{scope.removesuffix('/')}(/.*)?$")


def check_cios(
    control_inputs: bool = False, control_outputs: ControlOutputs | None = None, control_ios: ControlOutputs | None = None
) -> tuple[bool, ControlOutputs | None]:
    """Return whether control inputs are followed, and the table of control outputs or None."""
    for table in (control_outputs, control_ios):
        if table is not None and not isinstance(table, ControlOutputs):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"Expected a gde.ControlOutputs, got: {type(table)}")
    if control_ios is None:
        return control_inputs, control_outputs
    if control_outputs is not None:
        raise ValueError("control_outputs should be None when using control_ios.")
    return True, control_ios


def get_ops_ios(
    ops: Any, control_inputs: bool = False, control_outputs: ControlOutputs | None = None, control_ios: ControlOutputs | None = None
) -> list[Node]:
    """Return the producers of the inputs and the readers of the outputs of nodes, optionally along control edges too."""
    control_inputs, control_outputs = check_cios(control_inputs, control_outputs, control_ios)
    return list(dict.fromkeys(other for op in make_list_of_op(ops) for other in _neighbors(op, control_inputs, control_outputs)))


def _neighbors(op: Node, control_inputs: bool, control_outputs: ControlOutputs | None) -> list[Node]:
    neighbors = [t.op for t in op.inputs]
    neighbors += [consumer for t in op.outputs for consumer in t.consumers()]
    if control_outputs is not None:
        neighbors += control_outputs.get(op)
    if control_inputs:
        neighbors += op.control_inputs
    return neighbors


def compute_boundary_ts(ops: Any) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Return inputs, outputs and inner tensors of a set of nodes.

    Returns:
        Tensors read inside and made outside; tensors made inside and read outside or not at all; tensors made and read inside. A tensor
        that is read inside and outside is in the second and the third list.
    """
    nodes = make_list_of_op(ops)
    if not nodes:
        return [], [], []
    ends, view = boundary(op.ir for op in nodes), nodes[0].home.view_of_value
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
    """Return the nodes among `ops` that are reachable from the seeds, in either direction, without passing the boundary.

    `inclusive` tells whether reached nodes of the boundary are included.
    """
    control_inputs, control_outputs = check_cios(control_inputs, control_outputs, control_ios)
    candidates = make_list_of_op(ops)
    seeds = make_list_of_op(seed_ops, allow_graph=False)
    fence = set(make_list_of_op(boundary_ops))
    if not fence.isdisjoint(seeds):
        raise ValueError("Boundary is intersecting with the seeds.")
    reachable = set(reached(seeds, lambda op: () if op in fence else _neighbors(op, control_inputs, control_outputs)))
    return [op for op in candidates if op in reachable and (inclusive or op not in fence)]


def get_forward_walk_ops(
    seed_ops: Any,
    inclusive: bool = True,
    within_ops: Any = None,
    within_ops_fn: Callable[[Node], Any] | None = None,
    stop_at_ts: Any = (),
    control_outputs: ControlOutputs | None = None,
) -> list[Node]:
    """Return the nodes that depend on the seeds: nodes, or tensors, which mean their readers.

    Args:
        inclusive: whether to include the seeds.
        within_ops: other nodes are excluded, also as seeds.
        within_ops_fn: nodes for which it is false are not entered.
        stop_at_ts: tensors that are not followed.
        control_outputs: if given, control edges are followed.
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
    """Return the nodes that the seeds depend on; tensors mean their producers. Otherwise like `get_forward_walk_ops`."""
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
    """Return the nodes of a forward walk that are also in a backward walk. See `get_forward_walk_ops`."""
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
    """Return the nodes of a forward walk, then those of a backward walk, each once. See `get_forward_walk_ops`."""
    control_inputs, control_outputs = check_cios(control_inputs, control_outputs, control_ios)
    ahead = get_forward_walk_ops(forward_seed_ops, forward_inclusive, within_ops, within_ops_fn, control_outputs=control_outputs)
    behind = get_backward_walk_ops(backward_seed_ops, backward_inclusive, within_ops, within_ops_fn, control_inputs=control_inputs)
    return concatenate_unique(ahead, behind)


def select_ops(*args: Any, **kwargs: Any) -> list[Node]:
    r"""Return nodes from regular expressions and lists of nodes; tensors are ignored.

    Args:
        args: regular expressions to search in the names of nodes (those that start with `(?#ts)` are for tensors, and ignored), nodes,
            tensors, and iterables of these.
        kwargs: `graph`, required for regular expressions; `positive_filter`, a predicate; `restrict_ops_regex=True` to use only
            expressions that start with `(?#ops)`.

    >>> import tensorflow as tf
    >>> from graphwright.editor.graph import Graph
    >>> with tf.Graph().as_default() as tf_graph:
    ...     _ = tf.identity(tf.constant(1.0, name="a"), name="foo/b")
    >>> select_ops("^foo/", graph=Graph(tf_graph))
    [Node[foo/b]]
    """
    return _selected("ops", "ts", args, kwargs, filter_ops_from_regex, partial(make_list_of_op, ignore_ts=True))


def select_ts(*args: Any, **kwargs: Any) -> list[Tensor]:
    """Return tensors from regular expressions and lists of tensors; nodes are ignored.

    See `select_ops`; `(?#ts)` and `(?#ops)` are exchanged, and the option is called `restrict_ts_regex`.
    """
    return _selected("ts", "ops", args, kwargs, filter_ts_from_regex, partial(make_list_of_t, ignore_ops=True))


def select_ops_and_ts(*args: Any, **kwargs: Any) -> tuple[list[Node], list[Tensor]]:
    """Return the results of `select_ops` and `select_ts`; only expressions that start with `(?#ts)` are for tensors."""
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
    selected: dict[Any, None] = {}
    for arg in args:
        if not can_be_regex(arg):
            things = listed(arg)
        elif graph is None:
            raise ValueError("Use the keyword argument 'graph' to use regex.")
        else:
            pattern = make_regex(arg).pattern
            things = search(graph, arg) if pattern.startswith(mark) and not pattern.startswith(f"(?#{other})") else []
        selected.update((thing, None) for thing in things if accepts is None or accepts(thing))
    return list(selected)
