"""`OpMatcher`: a predicate about a node and its neighbors in both directions. Patterns with captures are in `ir.match`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from graphwright.ir.graph import Node

NodeFilter = str | re.Pattern[str] | Node | Callable[[Node], bool] | bool


class OpMatcher:
    """Asks about a node and its neighbors in both directions, in the manner of `contrib.graph_editor`.

    Args:
        node: what the node must be: a regular expression searched for in its name, a node, a predicate, or True for any.

    >>> from graphwright.ir.text import from_text
    >>> g = from_text('''
    ... graph "g"
    ... %x = Placeholder() : float32[2]
    ... %a = Relu(%x:0) : float32[2]
    ... ''')
    >>> matches = OpMatcher(op_type("Relu")).input_ops(OpMatcher("x$"))
    >>> [node.name for node in g if matches(node)]
    ['a']
    """

    def __init__(self, node: NodeFilter) -> None:
        self._node = _filter(node)
        self._inputs: tuple[Callable[[Node], bool] | None, ...] | None = None
        self._controls: tuple[Callable[[Node], bool] | None, ...] | None = None
        self._outputs: tuple[tuple[Callable[[Node], bool] | None, ...] | None, ...] | None = None

    def input_ops(self, *filters: NodeFilter | OpMatcher | None) -> OpMatcher:
        """Ask for exactly these makers of the inputs, in order; None accepts any."""
        self._inputs = tuple(_optional(item) for item in filters)
        return self

    def control_input_ops(self, *filters: NodeFilter | OpMatcher | None) -> OpMatcher:
        """Ask for exactly these control inputs, in order; None accepts any."""
        self._controls = tuple(_optional(item) for item in filters)
        return self

    def output_ops(self, *filters: NodeFilter | OpMatcher | Iterable[NodeFilter | OpMatcher | None] | None) -> OpMatcher:
        """Ask, per output, for exactly these readers, in order: one, or a list of them; None accepts any."""
        per_output: list[tuple[Callable[[Node], bool] | None, ...] | None] = []
        for item in filters:
            if item is None:
                per_output.append(None)
            elif isinstance(item, str | re.Pattern | Node) or callable(item) or item is True or item is False:
                per_output.append((_optional(item),))
            else:
                per_output.append(tuple(_optional(one) for one in item))
        self._outputs = tuple(per_output)
        return self

    def __call__(self, node: Node) -> bool:
        """Whether the node and its neighbors are what was asked for."""
        return (
            self._node(node)
            and (self._inputs is None or _all_fit(self._inputs, [v.producer for v in node.inputs]))
            and (self._controls is None or _all_fit(self._controls, node.control_inputs))
            and (self._outputs is None or self._outputs_fit(self._outputs, node))
        )

    def _outputs_fit(self, filters: tuple[tuple[Callable[[Node], bool] | None, ...] | None, ...], node: Node) -> bool:
        if len(filters) != len(node.outputs):
            return False
        return all(item is None or _all_fit(item, v.consumers) for item, v in zip(filters, node.outputs, strict=True))


def op_type(types: str | Iterable[str]) -> Callable[[Node], bool]:
    """A predicate: whether a node has one of these op types."""
    wanted = frozenset([types] if isinstance(types, str) else types)
    return lambda node: node.op_type in wanted


def _all_fit(filters: tuple[Callable[[Node], bool] | None, ...], nodes: Iterable[Node]) -> bool:
    found = list(nodes)
    return len(found) == len(filters) and all(item is None or item(node) for item, node in zip(filters, found, strict=True))


def _optional(item: NodeFilter | OpMatcher | None) -> Callable[[Node], bool] | None:
    return None if item is None else _filter(item)


def _filter(item: NodeFilter | OpMatcher) -> Callable[[Node], bool]:
    if isinstance(item, bool):
        return lambda _: item
    if isinstance(item, Node):
        return lambda node: node is item
    if isinstance(item, str):
        item = re.compile(item)
    if isinstance(item, re.Pattern):
        return lambda node, pattern=item: pattern.search(node.name) is not None
    return item
