"""`OpMatcher`: whether a node and its surroundings look as described; `TreeExpr`: a tree of op types, matched from a root backward."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable
from typing import Any

from graphwright.editor.node import Node


def can_be_regex(obj: object) -> bool:
    """Whether the object is a string or a compiled regular expression."""
    return isinstance(obj, str | re.Pattern)


def make_regex(obj: Any) -> re.Pattern[str]:
    """The object as a compiled regular expression.

    Raises:
        ValueError: it is neither a string nor an expression.
    """
    if not can_be_regex(obj):
        raise ValueError(f"Expected a string or a regex, got: {type(obj)}")
    return re.compile(obj)


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
        return (
            all(accepts(op) for accepts in self.positive_filters)
            and _all_fit((t.op for t in op.inputs), self.input_op_matches)
            and _all_fit(op.control_inputs, self.control_input_op_matches)
            and (self.output_op_matches is None or len(op.outputs) == len(self.output_op_matches))
            and all(map(_all_fit, (t.consumers() for t in op.outputs), self.output_op_matches or ()))
        )

    def _ask(self, question: str, matches: list[Any]) -> OpMatcher:
        if getattr(self, question) is not None:
            raise ValueError(f"{question} is already set.")
        setattr(self, question, matches)
        return self

    def input_ops(self, *args: Any) -> OpMatcher:
        """Ask for the nodes that make the inputs, one argument each.

        Raises:
            ValueError: this was asked before.
        """
        return self._ask("input_op_matches", [_matcher(a) for a in args])

    def control_input_ops(self, *args: Any) -> OpMatcher:
        """Ask for the control inputs, one argument each.

        Raises:
            ValueError: this was asked before.
        """
        return self._ask("control_input_op_matches", [_matcher(a) for a in args])

    def output_ops(self, *args: Any) -> OpMatcher:
        """Ask for the nodes that read the outputs: per output a list, or a single one, or None where nothing is asked.

        Raises:
            ValueError: this was asked before.
        """
        wanted: list[Any] = [list(a) if isinstance(a, list | tuple) else a if a is None else [a] for a in args]  # pyright: ignore[reportUnknownArgumentType]
        return self._ask("output_op_matches", [a if a is None else [_matcher(one) for one in a] for a in wanted])


def _all_fit(nodes: Iterable[Node], matchers: list[OpMatcher | None] | None) -> bool:
    if matchers is None:
        return True
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


class TreeExpr:
    """A pattern of nodes and of what they read.

    Args:
        alias: the name under which the matched node is returned.
        op: a regular expression for the whole op type; None for any.
        optional: whether the pattern also matches without this node, from its only input on.
        inputs: a pattern per input, from the first on; one that is not given may be anything.

    Raises:
        ValueError: an optional node has more or less than one input.

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
        self._inputs = (inputs,) if isinstance(inputs, TreeExpr) else None if inputs is None else tuple(inputs)
        if optional and (self._inputs is None or len(self._inputs) != 1):
            raise ValueError("'optional' flag only supported with one input")
        self._alias = alias
        self._op = None if op is None else make_regex(op)
        self._optional = optional

    def __repr__(self) -> str:
        parts = [] if self._alias is None else [f"alias='{self._alias}'"]
        parts += [] if self._op is None else [f"op='{self._op.pattern}'"]
        parts += [] if self._optional is None else [f"optional={self._optional}"]
        if self._inputs is not None:
            inner = ",\n".join(textwrap.indent(repr(i), "  ") for i in self._inputs)
            parts.append(f"inputs=(\n{inner})")
        return f"TreeExpr({', '.join(parts)})"

    def eval_from(self, potential_root_node: Node) -> dict[str, Node] | None:
        """The matched nodes by alias, or None.

        Raises:
            ValueError: the node was removed from its graph.
        """
        if potential_root_node.graph is None:
            raise ValueError(f"TreeExpr evaluation hit {potential_root_node}, which has been removed from the graph:\n{self}")
        found = self._match(potential_root_node)
        if found is None and self._optional and self._inputs:
            return self._inputs[0].eval_from(potential_root_node)
        return found

    def _match(self, node: Node) -> dict[str, Node] | None:
        if self._op is not None and self._op.fullmatch(node.type) is None:
            return None
        found: dict[str, Node] = {}
        sources = node.inputs
        if self._inputs is not None and len(self._inputs) > len(sources):
            return None
        for k, expression in enumerate(self._inputs or ()):
            below = expression.eval_from(sources[k].op)
            if below is None:
                return None
            found.update(below)
        if self._alias is not None:
            found[self._alias] = node
        return found
