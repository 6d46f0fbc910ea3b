"""`OpMatcher`: a predicate about a node and its neighbors. `TreeExpr`: a tree of op types, matched backward from a root."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable
from typing import Any

from graphwright.editor.node import Node


def can_be_regex(obj: object) -> bool:
    """Return whether the object is a string or a compiled regular expression."""
    return isinstance(obj, str | re.Pattern)


def make_regex(obj: Any) -> re.Pattern[str]:
    """Return the object as a compiled regular expression, or raise a ValueError."""
    if not can_be_regex(obj):
        raise ValueError(f"Expected a string or a regex, got: {type(obj)}")
    return re.compile(obj)


def op_type(op_types: str | Iterable[str], op: Node | None = None) -> Any:
    """Return whether a node has one of the op types; without a node, the predicate.

    >>> callable(op_type(("Add", "AddV2")))
    True
    """
    types = (op_types,) if isinstance(op_types, str) else tuple(op_types)

    def has_type(operator: Node) -> bool:
        return operator.type in types

    return has_type if op is None else has_type(op)


class OpMatcher:
    """A predicate about a node, with optional predicates about its neighbors.

    Each predicate is an `OpMatcher`, a regular expression to search in the name, a node, a function of a node, True for any node, or (for
    a neighbor) None.

    Raises:
        ValueError: the filter is none of these.
    """

    def __init__(self, positive_filter: Any) -> None:
        self.positive_filters: list[Callable[[Node], Any]] = [_predicate(positive_filter)]
        self.input_op_matches: list[OpMatcher | None] | None = None
        self.control_input_op_matches: list[OpMatcher | None] | None = None
        self.output_op_matches: list[list[OpMatcher | None] | None] | None = None

    def __call__(self, op: Node) -> bool:
        """Return whether the node matches; anything but a node or a `tf.Operation` raises a TypeError."""
        if not hasattr(op, "control_inputs"):
            raise TypeError(f"Expect gde.Node, got: {type(op)}")
        return (
            all(accepts(op) for accepts in self.positive_filters)
            and _all_match((t.op for t in op.inputs), self.input_op_matches)
            and _all_match(op.control_inputs, self.control_input_op_matches)
            and (self.output_op_matches is None or len(op.outputs) == len(self.output_op_matches))
            and all(map(_all_match, (t.consumers() for t in op.outputs), self.output_op_matches or ()))
        )

    def input_ops(self, *args: Any) -> OpMatcher:
        """Set predicates about the producers of the inputs, one per input."""
        return self._set("input_op_matches", [_matcher(a) for a in args])

    def control_input_ops(self, *args: Any) -> OpMatcher:
        """Set predicates about the control inputs, one per control input."""
        return self._set("control_input_op_matches", [_matcher(a) for a in args])

    def output_ops(self, *args: Any) -> OpMatcher:
        """Set predicates about the consumers of the outputs: per output a list, a single one, or None."""
        lists: list[Any] = [list(a) if isinstance(a, list | tuple) else a if a is None else [a] for a in args]  # pyright: ignore[reportUnknownArgumentType]
        return self._set("output_op_matches", [a if a is None else [_matcher(item) for item in a] for a in lists])

    def _set(self, name: str, matches: list[Any]) -> OpMatcher:
        if getattr(self, name) is not None:
            raise ValueError(f"{name} is already set.")
        setattr(self, name, matches)
        return self


def _all_match(nodes: Iterable[Node], matchers: list[OpMatcher | None] | None) -> bool:
    if matchers is None:
        return True
    nodes = list(nodes)
    return len(nodes) == len(matchers) and all(m is None or m(n) for n, m in zip(nodes, matchers, strict=True))


def _matcher(item: Any) -> OpMatcher | None:
    return item if item is None or isinstance(item, OpMatcher) else OpMatcher(item)


def _predicate(item: Any) -> Callable[[Node], Any]:
    if can_be_regex(item):
        expression = make_regex(item)
        return lambda op: expression.search(op.name) is not None
    if hasattr(item, "control_inputs"):
        return lambda op: op == item
    if callable(item):
        return item
    if item is True:
        return lambda _: True
    raise ValueError(f"Cannot finalize the positive filter: {item}")


class TreeExpr:
    """A pattern of a node and of the producers of its inputs.

    Args:
        alias: the name of the matched node in the result.
        op: a regular expression for the whole op type; None for any.
        optional: whether the pattern also matches without this node, from its only input on.
        inputs: a pattern per input; further inputs may be anything.

    Raises:
        ValueError: an optional node does not have exactly one input.

    >>> TreeExpr(op="Relu|Relu6", alias="activation", inputs=TreeExpr(op="Conv2D"))
    TreeExpr(alias='activation', op='Relu|Relu6', inputs=(
      TreeExpr(op='Conv2D')))
    """

    def __init__(
        self,
        alias: str | None = None,
        op: Any = None,
        optional: bool | None = None,
        inputs: TreeExpr | Iterable[TreeExpr] | None = None,
    ) -> None:
        self._inputs = (inputs,) if isinstance(inputs, TreeExpr) else tuple(inputs or ())
        if optional and len(self._inputs) != 1:
            raise ValueError("'optional' flag only supported with one input")
        self._alias = alias
        self._op = None if op is None else make_regex(op)
        self._optional = optional

    def __repr__(self) -> str:
        parts = [] if self._alias is None else [f"alias='{self._alias}'"]
        parts += [] if self._op is None else [f"op='{self._op.pattern}'"]
        parts += [] if self._optional is None else [f"optional={self._optional}"]
        if self._inputs:
            inner = ",\n".join(textwrap.indent(repr(i), "  ") for i in self._inputs)
            parts.append(f"inputs=(\n{inner})")
        return f"TreeExpr({', '.join(parts)})"

    def eval_from(self, potential_root_node: Node) -> dict[str, Node] | None:
        """Return the matched nodes by alias, or None. A node that was removed from its graph raises a ValueError."""
        node = potential_root_node
        if node.graph is None:
            raise ValueError(f"TreeExpr evaluation hit {node}, which has been removed from the graph:\n{self}")
        if (self._op is None or self._op.fullmatch(node.type)) and len(self._inputs) <= len(node.inputs):
            below = [expression.eval_from(t.op) for expression, t in zip(self._inputs, node.inputs, strict=False)]
            if all(nodes is not None for nodes in below):
                own = {} if self._alias is None else {self._alias: node}
                return {alias: match for nodes in below for alias, match in (nodes or {}).items()} | own
        return self._inputs[0].eval_from(node) if self._optional else None
