"""Find a small graph, the pattern, in a larger one.

Terms
-----
captured
    What stands in a graph for an input of the pattern: any value, and the same one wherever the pattern reads that input.
root
    The node of a pattern that is looked for first, which makes one of its outputs. From it, the others are found along edges, backward
    and forward.
neighborhood
    The kinds of a node, of what makes its inputs, of what makes theirs, and so on, three edges deep. A large graph has few different
    ones, so a pattern is compared with each of them once, and with those nodes alone whose neighborhood fits.
loosely
    Without regard to dtypes: a pattern that was made for one dtype says where it is worth to make it for another one.

Constants of a pattern match by value, inputs of operations that commute in either order. Two nodes of a pattern may be one node of the
graph, unless both make results. Where a pattern fits in several ways at one place, the first one is taken that the caller accepts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from graphwright.errors import GraphError
from graphwright.ir.attributes import Attribute
from graphwright.ir.constants import Array, constant_array
from graphwright.ir.dtypes import DType, Shape
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.arithmetic import COMMUTES, commutes, type_of_today
from graphwright.ir.traits.control_flow import called_functions
from graphwright.ir.traits.values import is_constant, origin
from graphwright.ir.walk import backward_reachable, order_of

Defaults = Callable[[str], Mapping[str, Attribute]]
_DEPTH = 3
_MOST_TERMS = 4
"""Terms of a sum whose orders are all tried: 24 of them."""


class Neighborhoods:
    """Numbers for the neighborhoods of nodes: the same one for equal neighborhoods.

    Attributes:
        parts: by number, the kind of the node, and the numbers of the smaller neighborhoods of what makes its inputs.
    """

    def __init__(self) -> None:
        self.parts: list[tuple[str, tuple[int, ...]]] = []
        self._numbers: dict[tuple[str, tuple[int, ...], int], int] = {}
        self._known: list[dict[Node, int]] = [{} for _ in range(_DEPTH + 1)]

    def of(self, node: Node, depth: int = _DEPTH) -> int:
        """The number of a node's neighborhood, this many edges deep."""
        known = self._known[depth]
        number = known.get(node)
        if number is None:
            inputs = tuple([self.of(value.producer, depth - 1) for value in node.inputs]) if depth else ()
            key = type_of_today(node), inputs, depth
            number = self._numbers.get(key)
            if number is None:
                number = self._numbers[key] = len(self.parts)
                self.parts.append(key[:2])
            known[node] = number
        return number


@dataclass(frozen=True, slots=True)
class Captured:
    """What stands for an input of a pattern.

    Attributes:
        value: the value itself.
    """

    value: Value

    @property
    def shape(self) -> Shape:
        """None where the rank is unknown, with None for unknown sizes."""
        shapes = self.value.producer.graph.shapes  # an edit that replaces a value by an equal one leaves its shape as it was
        is_unasked = shapes is not None and self.value.producer in shapes.unasked
        return self.value.shape if is_unasked else self.value.last_shape

    @property
    def dtype(self) -> str:
        """The name of its dtype, such as `float32`."""
        return self.value.dtype.name

    @property
    def constant(self) -> Array | None:
        """Its value, where it is a constant of numbers."""
        return constant_array(origin(self.value).producer)


class Match(Mapping[str, Captured]):
    """One place where a pattern fits: captured values by the names of the pattern's inputs, also as attributes (`match.x.shape`).

    Attributes:
        pattern: what was found.
        node_of: what each node of the pattern is in the graph, its constants included.
        value_of: what each value of the pattern is there.
    """

    def __init__(self, pattern: Pattern, nodes: Mapping[Node, Node], values: Mapping[Value, Value]) -> None:
        self.pattern, self.node_of, self.value_of = pattern, nodes, values

    @property
    def captured(self) -> tuple[Value, ...]:
        """The values that stand for the inputs of the pattern, in their order."""
        return tuple(self.value_of[value] for value in self.pattern.graph.inputs)

    @property
    def replaced(self) -> tuple[Value, ...]:
        """The values that stand for the outputs of the pattern, in their order."""
        return tuple(self.value_of[value] for value in self.pattern.graph.outputs)

    def result(self, index: int) -> Captured:
        """What stands for an output of the pattern."""
        return Captured(self.replaced[index])

    def __getitem__(self, name: str) -> Captured:
        return Captured(self.value_of[self.pattern.graph.inputs[self.pattern.names.index(name)]])

    def __getattr__(self, name: str) -> Captured:
        if name not in self.__dict__.get("pattern", _NO_PATTERN).names:
            raise AttributeError(f"the pattern has no input {name!r}; it has {', '.join(self.pattern.names)}")
        return self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.pattern.names)

    def __len__(self) -> int:
        return len(self.pattern.names)


class Pattern:
    """What is looked for.

    Args:
        graph: its inputs are what is captured, its outputs what is replaced. All nodes that the outputs need are looked for, with all of
            their attributes but those whose names begin with "_".
        names: of the inputs; by default those of their nodes.
        defaults: the attributes of an op type that nodes may leave out, with the values that they have then.

    Raises:
        GraphError: it has no output, hands on an input or a constant, calls functions, or its nodes do not hang together.

    >>> from graphwright.ir.text import from_text
    >>> shape = "{T = float32} : float32[*]"
    >>> pattern = Pattern(from_text(f'''graph "p"
    ... inputs %x:0, %y:0
    ... outputs %sum:0
    ... %x = Placeholder() {{dtype = float32}} : float32[*]
    ... %y = Placeholder() {{dtype = float32}} : float32[*]
    ... %minus = Neg(%y:0) {shape}
    ... %sum = AddV2(%x:0, %minus:0) {shape}'''))
    >>> g = from_text(f'''graph "g"
    ... %a = Placeholder() {{dtype = float32}} : float32[2]
    ... %b = Neg(%a:0) {shape}
    ... %c = AddV2(%b:0, %a:0) {shape}''')
    >>> [{name: found.value.name for name, found in match.items()} for match in pattern.matches_at(g["c"])]
    [{'x': 'a:0', 'y': 'a:0'}]
    """

    def __init__(self, graph: Graph, names: tuple[str, ...] = (), defaults: Defaults = lambda _: {}) -> None:
        self.graph, self._defaults = graph, defaults
        self.names = names or tuple(value.producer.name for value in graph.inputs)
        fed = {value.producer for value in graph.inputs}
        needed = [node for node in order_of(backward_reachable(v.producer for v in graph.outputs)) if node not in fed]
        self.nodes = [node for node in needed if not is_constant(node)]
        self._check(fed)
        self._attributes = {node: self._compared(node) for node in self.nodes}
        self._plan = self._planned(self.root)
        self._fits: dict[tuple[Node, int], bool] = {}
        self._neighborhoods: Neighborhoods | None = None

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """The dtypes that it was made for."""
        return tuple(value.dtype for value in self.graph.inputs)

    @property
    def root(self) -> Node:
        """The node that is looked for first."""
        return self.graph.outputs[0].producer

    def may_match(self, neighborhoods: Neighborhoods, number: int) -> bool:
        """Whether the root may be a node of this neighborhood."""
        if self._neighborhoods is not neighborhoods:
            self._neighborhoods, self._fits = neighborhoods, {}
        return self._may_be(self.root, neighborhoods.parts, number)

    def _may_be(self, wanted: Node, parts: list[tuple[str, tuple[int, ...]]], number: int) -> bool:
        known = self._fits.get((wanted, number))
        if known is None:
            kind, inputs = parts[number]
            known = kind == type_of_today(wanted) and (not inputs or len(inputs) == len(wanted.inputs))
            if known and inputs and wanted.op_type not in COMMUTES:
                known = self._may_read(wanted.inputs, parts, inputs)
            elif known and len(inputs) == 2:
                known = self._may_read(wanted.inputs, parts, inputs) or self._may_read(wanted.inputs, parts, inputs[::-1])
            self._fits[wanted, number] = known
        return known

    def _may_read(self, wanted: tuple[Value, ...], parts: list[tuple[str, tuple[int, ...]]], inputs: tuple[int, ...]) -> bool:
        for value, number in zip(wanted, inputs, strict=True):
            producer = value.producer
            if is_constant(producer):
                if parts[number][0] != producer.op_type:
                    return False
            elif producer in self._attributes and not self._may_be(producer, parts, number):
                return False
        return True

    def matches_at(self, node: Node, *, loosely: bool = False) -> Iterator[Match]:
        """The ways in which it fits where a node of a graph is its root."""
        plan = self._plan
        for nodes, values in self._node(plan[0], node, {}, {}, loosely):
            for found in self._rest(plan, 1, nodes, values, loosely):
                match = Match(self, *found)
                if len(self.graph.outputs) == 1 or len({*match.replaced}) == len({*self.graph.outputs}):
                    yield match

    def _check(self, fed: set[Node]) -> None:
        where = f"pattern {self.graph.name!r}"
        if not self.graph.outputs:
            raise GraphError("a pattern returns nothing", where=where, remedy="return what is to be replaced")
        for value in self.graph.outputs:
            if value.producer in fed or is_constant(value.producer):
                raise GraphError(
                    f"a pattern returns {value.name}, which it computes not", where=where, remedy="return the result of an operation"
                )
        for node in self.nodes:
            if called_functions(node) or node.op_type in self.graph.functions:
                raise GraphError(
                    f"a pattern holds {node.name!r}, a {node.op_type}, which calls functions",
                    where=where,
                    remedy="write what the function does; a pattern matches inside of functions by itself",
                )

    def _compared(self, node: Node) -> list[tuple[str, Attribute, bool]]:
        """Name, value, and whether it is a dtype, of the attributes that count."""
        attributes = {**self._defaults(node.op_type), **node.attrs}
        found: list[tuple[str, Attribute, bool]] = []
        for name, attribute in attributes.items():
            items = attribute if isinstance(attribute, tuple) else (attribute,)
            if name[0] != "_":
                found.append((name, attribute, all(isinstance(item, DType) for item in items)))
        return found

    def _planned(self, root: Node) -> list[Node]:
        """The nodes in an order in which each one but the first is next to one before it."""
        plan, known = [root], {*root.inputs, *root.outputs}
        rest = [node for node in self.nodes if node is not root]
        while rest:
            node = next((n for n in rest if not known.isdisjoint(n.outputs)), None)
            node = node or next((n for n in rest if any(v in known and not is_constant(v.producer) for v in n.inputs)), None)
            if node is None:
                raise GraphError(
                    f"a pattern is in parts: nothing leads from {root.name!r} to {rest[0].name!r}",
                    where=f"pattern {self.graph.name!r}",
                    remedy="make a rule of each part",
                )
            rest.remove(node)
            plan.append(node)
            known.update((*node.inputs, *node.outputs))
        return plan

    def _rest(
        self, plan: list[Node], k: int, nodes: dict[Node, Node], values: dict[Value, Value], loosely: bool
    ) -> Iterator[tuple[dict[Node, Node], dict[Value, Value]]]:
        if k == len(plan):
            yield nodes, values
            return
        for candidate in self._candidates(plan[k], values):
            for found in self._node(plan[k], candidate, nodes, values, loosely):
                yield from self._rest(plan, k + 1, *found, loosely)

    def _candidates(self, wanted: Node, values: Mapping[Value, Value]) -> tuple[Node, ...]:
        made = next((value for value in wanted.outputs if value in values), None)
        if made is not None:
            return (values[made].producer,)
        readers = (values[value].consumers for value in wanted.inputs if value in values and not is_constant(value.producer))
        return min(readers, key=len)

    def _node(
        self, wanted: Node, node: Node, nodes: dict[Node, Node], values: dict[Value, Value], loosely: bool
    ) -> Iterator[tuple[dict[Node, Node], dict[Value, Value]]]:
        """The ways in which one node can stand for one of the pattern, as what is known then."""
        if (
            type_of_today(node) != type_of_today(wanted)
            or len(node.inputs) != len(wanted.inputs)
            or len(node.outputs) < len(wanted.outputs)
        ):
            return
        given: Mapping[str, Attribute] | None = None
        for name, attribute, is_dtype in self._attributes[wanted]:
            if loosely and is_dtype:
                continue
            found = node.attrs.get(name)
            if found is None:
                given = given or self._defaults(node.op_type)
                found = given.get(name)
            if found != attribute:
                return
        if any(values.get(ours, theirs) is not theirs for ours, theirs in zip(wanted.outputs, node.outputs, strict=False)):
            return
        orders = [node.inputs]
        if commutes(node):
            orders.append(node.inputs[::-1])
        elif node.op_type in COMMUTES and 2 < len(node.inputs) <= _MOST_TERMS:
            orders = list(permutations(node.inputs))
        for inputs in orders:
            bound = self._bind(wanted, inputs, values, loosely)
            if bound is not None:
                constants, known = bound
                known.update(zip(wanted.outputs, node.outputs, strict=False))
                yield {**nodes, **constants, wanted: node}, known

    def _bind(
        self, wanted: Node, inputs: tuple[Value, ...], values: dict[Value, Value], loosely: bool
    ) -> tuple[dict[Node, Node], dict[Value, Value]] | None:
        added: dict[Value, Value] = {}
        constants: dict[Node, Node] = {}
        for ours, theirs in zip(wanted.inputs, inputs, strict=True):
            producer = ours.producer
            if is_constant(producer):
                if not _is_same_constant(producer, theirs, loosely):
                    return None
                constants[producer] = theirs.producer
            elif producer in self._attributes and type_of_today(producer) != type_of_today(theirs.producer):
                return None
            if (values.get(ours) or added.get(ours) or theirs) is not theirs and not is_constant(producer):
                return None
            if not loosely and ours.dtype != theirs.dtype:
                return None
            added[ours] = theirs
        return constants, {**values, **added}


def _is_same_constant(wanted: Node, value: Value, loosely: bool) -> bool:
    node = value.producer
    if not is_constant(node):
        return False
    if wanted.outputs[0].dtype != value.dtype:
        return loosely
    if wanted.attrs.get("value") == node.attrs.get("value"):
        return True
    ours, theirs = constant_array(wanted), constant_array(node)
    return ours is not None and theirs is not None and np.array_equal(ours, theirs)


class _NoPattern:
    names: tuple[str, ...] = ()


_NO_PATTERN = _NoPattern()
"""Of a match that is being copied, and holds nothing yet."""
