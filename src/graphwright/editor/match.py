"""`OpMatcher`: whether a node and its surroundings look as described."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from graphwright.editor.node import Node
from graphwright.editor.tree_expr import can_be_regex, make_regex


def op_type(op_types: str | Iterable[str], op: Node | None = None) -> Any:
    """Whether a node has one of the op types; without a node, the predicate that says so.

    >>> callable(op_type(("Add", "AddV2")))
    True
    """
    types = (op_types,) if isinstance(op_types, str) else tuple(op_types)

    def is_such(operator: Node) -> bool:
        return operator.type in types

    return is_such if op is None else is_such(op)


class OpMatcher:
    """A predicate about a node, to which predicates about its neighbors can be added.

    Wherever one is expected, these stand for it: a regular expression that is searched for in the name, a node (which only itself
    fits), a predicate, True for any node, or None where nothing is asked.

    Raises:
        ValueError: the filter is none of these.
    """

    def __init__(self, positive_filter: Any) -> None:
        self.positive_filters: list[Callable[[Node], Any]] = [_predicate(positive_filter)]
        self.input_op_matches: list[OpMatcher | None] | None = None
        self.control_input_op_matches: list[OpMatcher | None] | None = None
        self.output_op_matches: list[list[OpMatcher | None] | None] | None = None

    def __call__(self, op: Node) -> bool:
        """Whether the node fits.

        Raises:
            TypeError: it is neither a node nor a `tf.Operation`.
        """
        if not hasattr(op, "control_inputs"):
            raise TypeError(f"Expect gde.Node, got: {type(op)}")
        if not all(accepts(op) for accepts in self.positive_filters):
            return False
        if self.input_op_matches is not None and not _all_fit([t.op for t in op.inputs], self.input_op_matches):
            return False
        if self.control_input_op_matches is not None and not _all_fit(op.control_inputs, self.control_input_op_matches):
            return False
        if self.output_op_matches is None:
            return True
        if len(op.outputs) != len(self.output_op_matches):
            return False
        pairs = zip(op.outputs, self.output_op_matches, strict=True)
        return all(matchers is None or _all_fit(t.consumers(), matchers) for t, matchers in pairs)

    def input_ops(self, *args: Any) -> OpMatcher:
        """Ask for the nodes that make the inputs, one argument each.

        Raises:
            ValueError: this was asked before.
        """
        if self.input_op_matches is not None:
            raise ValueError("input_op_matches is already set.")
        self.input_op_matches = [_matcher(a) for a in args]
        return self

    def control_input_ops(self, *args: Any) -> OpMatcher:
        """Ask for the control inputs, one argument each.

        Raises:
            ValueError: this was asked before.
        """
        if self.control_input_op_matches is not None:
            raise ValueError("control_input_op_matches is already set.")
        self.control_input_op_matches = [_matcher(a) for a in args]
        return self

    def output_ops(self, *args: Any) -> OpMatcher:
        """Ask for the nodes that read the outputs: per output a list, or a single one, or None where nothing is asked.

        Raises:
            ValueError: this was asked before.
        """
        if self.output_op_matches is not None:
            raise ValueError("output_op_matches is already set.")
        self.output_op_matches = [
            None if a is None else [_matcher(one) for one in (a if isinstance(a, list | tuple) else [a])]  # pyright: ignore[reportUnknownVariableType]
            for a in args
        ]
        return self


def _all_fit(nodes: Iterable[Node], matchers: list[OpMatcher | None]) -> bool:
    nodes = list(nodes)
    return len(nodes) == len(matchers) and all(m is None or m(n) for n, m in zip(nodes, matchers, strict=True))


def _matcher(wanted: Any) -> OpMatcher | None:
    return wanted if wanted is None or isinstance(wanted, OpMatcher) else OpMatcher(wanted)


def _predicate(wanted: Any) -> Callable[[Node], Any]:
    if can_be_regex(wanted):
        expression = make_regex(wanted)
        return lambda op: expression.search(op.name) is not None
    if hasattr(wanted, "control_inputs"):
        return lambda op: op == wanted
    if callable(wanted):
        return wanted
    if wanted is True:
        return lambda _: True
    raise ValueError(f"Cannot finalize the positive filter: {wanted}")
