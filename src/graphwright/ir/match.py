"""Structural patterns: describe a small part of a graph, and find every place that looks like it.

A pattern is read from its root, the node whose result counts, back along the inputs:

>>> from graphwright.ir.text import from_text
>>> g = from_text('''
... graph "g"
... %x = Placeholder() : float32[2]
... %w = Placeholder() : float32[2]
... %product = Mul(%w:0, %x:0) : float32[2]
... %sum = Add(%x:0, %product:0) : float32[2]
... ''')
>>> pattern = op("Add", op("Mul", value("x"), value("w"), commutative=True), value("x"), name="sum", commutative=True)
>>> [(m.root.name, m.value("w").name) for m in find(g, pattern)]
[('sum', 'w:0')]

A name that stands twice must stand for the same value both times. `...` as the last input means any further inputs.
Rewriting with patterns is in `ir.rewrite`; `OpMatcher` looks at neighbors in both directions, one node at a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import EllipsisType

from graphwright.errors import ArgumentError
from graphwright.ir.attributes import Attribute
from graphwright.ir.graph import Graph, Node, Value


@dataclass(frozen=True)
class AnyValue:
    """A pattern for any value; `where` may ask for more."""

    name: str = ""
    where: Callable[[Value], bool] | None = None


@dataclass(frozen=True)
class OpPattern:
    """A pattern for a node; made by `op`."""

    op_types: frozenset[str] | None
    inputs: tuple[Pattern, ...] | None
    more_inputs: bool
    name: str
    commutative: bool
    where: Callable[[Node], bool] | None
    attrs: Mapping[str, Attribute]
    output: int | None
    only_use: bool
    control_inputs: tuple[OpPattern, ...]


@dataclass(frozen=True)
class OneOf:
    """A pattern that fits where one of several does; the first one counts."""

    choices: tuple[Pattern, ...]


Pattern = AnyValue | OpPattern | OneOf


def value(name: str = "", where: Callable[[Value], bool] | None = None) -> AnyValue:
    """A pattern for any value.

    Args:
        name: under which the match shows it.
        where: what it must fulfill besides.
    """
    return AnyValue(name, where)


def op(
    op_type: str | Iterable[str] | None,
    *inputs: Pattern | EllipsisType,
    name: str = "",
    commutative: bool = False,
    where: Callable[[Node], bool] | None = None,
    attrs: Mapping[str, Attribute] | None = None,
    output: int | None = None,
    only_use: bool = False,
    control_inputs: Iterable[OpPattern] = (),
) -> OpPattern:
    """A pattern for a node.

    Args:
        op_type: one or several; None means any.
        inputs: a pattern for each input; none at all means any inputs, `...` at the end any further ones.
        name: under which the match shows the node.
        commutative: whether the inputs may stand in any order.
        where: what the node must fulfill besides.
        attrs: attributes that it must have.
        output: which of its outputs is read by the node around it; None means any.
        only_use: whether nothing but the nodes of the match may read it.
        control_inputs: what it must wait for, among other things.

    Raises:
        ArgumentError: `...` stands before another input.
    """
    if any(item is ... for item in inputs[:-1]):
        raise ArgumentError("`...` must be the last input of a pattern", where=f"op({op_type!r}, ...)")
    more = bool(inputs) and inputs[-1] is ...
    patterns = tuple(item for item in inputs if not isinstance(item, EllipsisType))
    types = None if op_type is None else frozenset([op_type] if isinstance(op_type, str) else op_type)
    return OpPattern(
        types,
        patterns if inputs else None,
        more,
        name,
        commutative,
        where,
        dict(attrs or {}),
        output,
        only_use,
        tuple(control_inputs),
    )


def one_of(*choices: Pattern) -> OneOf:
    """A pattern that fits where one of these does."""
    return OneOf(choices)


@dataclass(frozen=True)
class Match:
    """A place that looks like the pattern."""

    root: Node
    values: dict[str, Value] = field(default_factory=dict[str, Value])
    """Captured values, by name."""
    captured: dict[str, Node] = field(default_factory=dict[str, Node])
    """Captured nodes, by name."""
    nodes: tuple[Node, ...] = ()
    """The nodes that `op` patterns stand for, the root first."""

    def value(self, name: str) -> Value:
        """A captured value; of a captured node, its first output.

        Raises:
            KeyError: the pattern has no such name.
        """
        return self.values[name] if name in self.values else self.captured[name].outputs[0]

    def node(self, name: str) -> Node:
        """A captured node; of a captured value, the node that makes it.

        Raises:
            KeyError: the pattern has no such name.
        """
        return self.captured[name] if name in self.captured else self.values[name].producer


def find(graph: Graph, pattern: OpPattern | OneOf, nodes: Iterable[Node] | None = None) -> Iterator[Match]:
    """Every match, at most one per root, in the order of the graph.

    Args:
        nodes: the roots to look at; by default all.
    """
    for node in graph if nodes is None else nodes:
        match = match_at(pattern, node)
        if match is not None:
            yield match


def match_at(pattern: OpPattern | OneOf, node: Node) -> Match | None:
    """The match whose root is this node, or None."""
    choices = pattern.choices if isinstance(pattern, OneOf) else (pattern,)
    for choice in choices:
        if isinstance(choice, AnyValue):
            continue
        found = match_at(choice, node) if isinstance(choice, OneOf) else _first(choice, node)
        if found is not None:
            return found
    return None


def depth(pattern: Pattern) -> int:
    """How many edges lie between the root and the node farthest from it that a pattern looks at."""
    if isinstance(pattern, OneOf):
        return max((depth(choice) for choice in pattern.choices), default=0)
    if isinstance(pattern, AnyValue):
        return 0
    inner = (*(pattern.inputs or ()), *pattern.control_inputs)
    return 1 + max((depth(item) for item in inner), default=0)


def _first(pattern: OpPattern, node: Node) -> Match | None:
    for match in _match_node(pattern, node, Match(node)):
        if _is_private(pattern, match):
            return replace(match, captured={name: found for name, found in match.captured.items() if name[0] != "\0"})
    return None


def _is_private(pattern: OpPattern, match: Match) -> bool:
    """Whether nodes that must be read by the match only are: asked at the end, when all nodes of the match are known."""
    members = set(match.nodes)
    for node, inner in _pairs(pattern, match.root, match):
        if inner.only_use and node is not match.root:
            readers = {c for v in node.outputs for c in v.consumers} | set(node.control_consumers)
            if node.graph.is_border(node) or not readers <= members:
                return False
    return True


def _pairs(pattern: OpPattern, root: Node, match: Match) -> Iterator[tuple[Node, OpPattern]]:
    """Which node stands for which `only_use` pattern: those are captured under a name of their own."""
    yield root, pattern
    stack: list[Pattern] = [*(pattern.inputs or ()), *pattern.control_inputs]
    while stack:
        inner = stack.pop()
        if isinstance(inner, OneOf):
            stack += inner.choices
        elif isinstance(inner, OpPattern):
            if inner.only_use and _key(inner) in match.captured:
                yield match.captured[_key(inner)], inner
            stack += [*(inner.inputs or ()), *inner.control_inputs]


def _key(pattern: OpPattern) -> str:
    """The name under which a node is captured; one that must be private is captured even without a name."""
    return pattern.name or (f"\0{id(pattern)}" if pattern.only_use else "")


def _match_value(pattern: Pattern, found: Value, match: Match) -> Iterator[Match]:
    if isinstance(pattern, OneOf):
        for choice in pattern.choices:
            yield from _match_value(choice, found, match)
    elif isinstance(pattern, AnyValue):
        if pattern.where is not None and not pattern.where(found):
            return
        if not pattern.name:
            yield match
        elif match.values.get(pattern.name, found) is found:
            yield replace(match, values={**match.values, pattern.name: found})
    elif pattern.output is None or pattern.output == found.index:
        yield from _match_node(pattern, found.producer, match)


def _match_node(pattern: OpPattern, node: Node, match: Match) -> Iterator[Match]:
    if pattern.op_types is not None and node.op_type not in pattern.op_types:
        return
    key = _key(pattern)
    if key and match.captured.get(key, node) is not node:
        return
    if any(node.attrs.get(name) != attribute for name, attribute in pattern.attrs.items()):
        return
    if pattern.inputs is not None:
        wanted, got = len(pattern.inputs), len(node.inputs)
        if got < wanted or (got > wanted and not pattern.more_inputs):
            return
    if pattern.where is not None and not pattern.where(node):
        return
    captured = {**match.captured, key: node} if key else match.captured
    nodes = match.nodes if node in match.nodes else (*match.nodes, node)
    here = replace(match, captured=captured, nodes=nodes)
    for inner in _match_inputs(pattern.inputs or (), node, here, commutative=pattern.commutative):
        yield from _match_controls(pattern.control_inputs, node, inner)


def _match_inputs(patterns: tuple[Pattern, ...], node: Node, match: Match, *, commutative: bool) -> Iterator[Match]:
    if not commutative:
        yield from _in_order(patterns, node.inputs, match)
        return
    yield from _in_any_order(patterns, frozenset(range(len(node.inputs))), node, match)


def _in_order(patterns: tuple[Pattern, ...], values: tuple[Value, ...], match: Match) -> Iterator[Match]:
    if not patterns:
        yield match
        return
    for inner in _match_value(patterns[0], values[0], match):
        yield from _in_order(patterns[1:], values[1:], inner)


def _in_any_order(patterns: tuple[Pattern, ...], free: frozenset[int], node: Node, match: Match) -> Iterator[Match]:
    if not patterns:
        yield match
        return
    for k in sorted(free):
        for inner in _match_value(patterns[0], node.inputs[k], match):
            yield from _in_any_order(patterns[1:], free - {k}, node, inner)


def _match_controls(patterns: tuple[OpPattern, ...], node: Node, match: Match) -> Iterator[Match]:
    if not patterns:
        yield match
        return
    for control in node.control_inputs:
        for inner in _match_node(patterns[0], control, match):
            yield from _match_controls(patterns[1:], node, inner)


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
