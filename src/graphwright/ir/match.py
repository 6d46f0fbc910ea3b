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
Rewriting with patterns is in `ir.rewrite`; `OpMatcher` in `ir.op_matcher` looks at neighbors in both directions, one node at a time.
"""

from __future__ import annotations

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
