"""Nodes and tensors of which a predicate is true, whose name fits an expression, or that have an op type."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from graphwright.editor.node import Node
from graphwright.editor.tensor import Tensor
from graphwright.editor.tree_expr import make_regex
from graphwright.editor.util import concatenate_unique, make_list_of_op


def get_input_ts(ops: Any) -> list[Tensor]:
    """The tensors that the nodes read, each once."""
    return list(dict.fromkeys(t for op in make_list_of_op(ops) for t in op.inputs))


def get_output_ts(ops: Any) -> list[Tensor]:
    """The tensors that the nodes make."""
    return [t for op in make_list_of_op(ops) for t in op.outputs]


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
