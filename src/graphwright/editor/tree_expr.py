"""`TreeExpr`: a tree of op types that is matched from a root backward, with names for what it finds."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
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
