"""Find a small graph, the pattern, in a larger one.

Terms
-----
captured
    The value in a graph that corresponds to an input of the pattern: any value, the same one wherever the pattern reads that input.
root
    The node of a pattern that is searched first; it makes one of the outputs. The others are found from it along edges, in both directions.
loosely
    Ignoring dtypes. A pattern traced for one dtype shows where tracing it for another dtype is worthwhile.

Constants of a pattern match by value, inputs of commutative operations in either order. Two nodes of a pattern may match one node of the
graph, unless both make results. If a pattern fits in several ways at one place, the first one that the caller accepts is taken.
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
_MOST_TERMS = 4
"""Terms of a sum whose orders are all tried, at most 24."""


@dataclass(frozen=True, slots=True)
class Captured:
    """A value that corresponds to an input of a pattern.

    Attributes:
        value: the value itself.
    """

    value: Value

    @property
    def shape(self) -> Shape:
        """None if the rank is unknown; unknown sizes are None."""
        shapes = self.value.producer.graph.shapes  # an edit that replaces a value by an equal one does not change its shape
        is_unasked = shapes is not None and self.value.producer in shapes.unasked
        return self.value.shape if is_unasked else self.value.last_shape

    @property
    def dtype(self) -> str:
        """The name of its dtype, such as `float32`."""
        return self.value.dtype.name

    @property
    def constant(self) -> Array | None:
        """Its value if it is a numeric constant."""
        return constant_array(origin(self.value).producer)


class Match(Mapping[str, Captured]):
    """A place where a pattern fits: captured values by the names of the pattern's inputs, also as attributes (`match.x.shape`).

    `node_of` and `value_of` map the nodes (constants included) and values of the pattern to those of the graph.
    """

    def __init__(self, pattern: Pattern, nodes: Mapping[Node, Node], values: Mapping[Value, Value]) -> None:
        self.pattern, self.node_of, self.value_of = pattern, nodes, values

    @property
    def captured(self) -> tuple[Value, ...]:
        """The values for the inputs of the pattern, in order."""
        return tuple(self.value_of[value] for value in self.pattern.graph.inputs)

    @property
    def replaced(self) -> tuple[Value, ...]:
        """The values for the outputs of the pattern, in order."""
        return tuple(self.value_of[value] for value in self.pattern.graph.outputs)

    def result(self, index: int) -> Captured:
        """Return the value for an output of the pattern."""
        return Captured(self.replaced[index])

    def __getitem__(self, name: str) -> Captured:
        return Captured(self.value_of[self.pattern.graph.inputs[self.pattern.names.index(name)]])

    def __getattr__(self, name: str) -> Captured:
        pattern = self.__dict__.get("pattern")  # missing while the match is copied
        names = () if pattern is None else pattern.names
        if name not in names:
            raise AttributeError(f"the pattern has no input {name!r}; it has {', '.join(names)}")
        return self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.pattern.names)

    def __len__(self) -> int:
        return len(self.pattern.names)


@dataclass(frozen=True, slots=True)
class _State:
    nodes: dict[Node, Node]
    values: dict[Value, Value]


class Pattern:
    """A graph to be found in other graphs.

    Args:
        graph: its inputs are captured, its outputs replaced. All nodes that the outputs need must match, with all attributes except
            those whose names begin with "_".
        names: of the inputs; by default the names of their nodes.
        defaults: returns the attributes of an op type that nodes may omit, with their default values.

    Raises:
        GraphError: it has no output, returns an input or a constant, calls functions, or is not connected.
    """

    def __init__(self, graph: Graph, names: tuple[str, ...] = (), defaults: Defaults = lambda _: {}) -> None:
        self.graph, self._defaults = graph, defaults
        self.names = names or tuple(value.producer.name for value in graph.inputs)
        fed = {value.producer for value in graph.inputs}
        needed = [node for node in order_of(backward_reachable(v.producer for v in graph.outputs)) if node not in fed]
        self.nodes = [node for node in needed if not is_constant(node)]
        self._check(fed)
        self._attributes = {node: self._compared_attributes(node) for node in self.nodes}
        self._order = self._search_order()

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """The dtypes of its inputs."""
        return tuple(value.dtype for value in self.graph.inputs)

    @property
    def root(self) -> Node:
        """The node that is searched first."""
        return self.graph.outputs[0].producer

    def matches_at(self, node: Node, *, loosely: bool = False) -> Iterator[Match]:
        """Yield the matches whose root is this node of a graph."""
        for state in self._matches_of_node(self.root, node, _State({}, {}), loosely):
            for complete in self._completed(1, state, loosely):
                match = Match(self, complete.nodes, complete.values)
                if len(self.graph.outputs) == 1 or len({*match.replaced}) == len({*self.graph.outputs}):
                    yield match

    def _check(self, fed: set[Node]) -> None:
        where = f"pattern {self.graph.name!r}"
        if not self.graph.outputs:
            raise GraphError("a pattern returns nothing", where=where, remedy="return the values to replace")
        for value in self.graph.outputs:
            if value.producer in fed or is_constant(value.producer):
                raise GraphError(
                    f"a pattern returns {value.name}, which it does not compute", where=where, remedy="return the result of an operation"
                )
        for node in self.nodes:
            if called_functions(node) or node.op_type in self.graph.functions:
                raise GraphError(
                    f"a pattern holds {node.name!r}, a {node.op_type}, which calls functions",
                    where=where,
                    remedy="write the body of the function; patterns are also searched inside functions",
                )

    def _compared_attributes(self, node: Node) -> list[tuple[str, Attribute, bool]]:
        attributes = {**self._defaults(node.op_type), **node.attrs}
        return [(name, attribute, _is_dtype(attribute)) for name, attribute in attributes.items() if name[0] != "_"]

    def _search_order(self) -> list[Node]:
        """Return the nodes, root first, each of the others adjacent to an earlier one."""
        order, known = [self.root], {*self.root.inputs, *self.root.outputs}
        rest = [node for node in self.nodes if node is not self.root]
        while rest:
            node = next((n for n in rest if not known.isdisjoint(n.outputs)), None)
            node = node or next((n for n in rest if any(v in known and not is_constant(v.producer) for v in n.inputs)), None)
            if node is None:
                raise GraphError(
                    f"a pattern is in parts: nothing leads from {self.root.name!r} to {rest[0].name!r}",
                    where=f"pattern {self.graph.name!r}",
                    remedy="make a rule of each part",
                )
            rest.remove(node)
            order.append(node)
            known.update((*node.inputs, *node.outputs))
        return order

    def _completed(self, k: int, state: _State, loosely: bool) -> Iterator[_State]:
        if k == len(self._order):
            yield state
            return
        wanted = self._order[k]
        for candidate in _candidates(wanted, state.values):
            for extended in self._matches_of_node(wanted, candidate, state, loosely):
                yield from self._completed(k + 1, extended, loosely)

    def _matches_of_node(self, wanted: Node, node: Node, state: _State, loosely: bool) -> Iterator[_State]:
        """Yield the partial match extended by one node of the pattern, for each order of its inputs that fits."""
        if (
            type_of_today(node) != type_of_today(wanted)
            or len(node.inputs) != len(wanted.inputs)
            or len(node.outputs) < len(wanted.outputs)
            or not self._has_attributes(wanted, node, loosely)
            or any(state.values.get(ours, theirs) is not theirs for ours, theirs in zip(wanted.outputs, node.outputs, strict=False))
        ):
            return
        orders = [node.inputs]
        if commutes(node):
            orders.append(node.inputs[::-1])
        elif node.op_type in COMMUTES and 2 < len(node.inputs) <= _MOST_TERMS:
            orders = list(permutations(node.inputs))
        for inputs in orders:
            extended = self._with_inputs(wanted, inputs, state, loosely)
            if extended is not None:
                extended.nodes[wanted] = node
                extended.values.update(zip(wanted.outputs, node.outputs, strict=False))
                yield extended

    def _has_attributes(self, wanted: Node, node: Node, loosely: bool) -> bool:
        for name, attribute, is_dtype in self._attributes[wanted]:
            if loosely and is_dtype:
                continue
            own = node.attrs.get(name)
            if (self._defaults(node.op_type).get(name) if own is None else own) != attribute:
                return False
        return True

    def _with_inputs(self, wanted: Node, inputs: tuple[Value, ...], state: _State, loosely: bool) -> _State | None:
        """Return the partial match extended by the inputs of a node, or None if they do not fit."""
        nodes, values = dict(state.nodes), dict(state.values)
        for ours, theirs in zip(wanted.inputs, inputs, strict=True):
            producer = ours.producer
            if not loosely and ours.dtype != theirs.dtype:
                return None
            if is_constant(producer):
                if not _is_same_constant(producer, theirs, loosely):
                    return None
                nodes[producer] = theirs.producer
            else:
                is_inner = producer in self._attributes
                if values.get(ours, theirs) is not theirs or (is_inner and type_of_today(producer) != type_of_today(theirs.producer)):
                    return None
            values[ours] = theirs
        return _State(nodes, values)


def _candidates(wanted: Node, values: Mapping[Value, Value]) -> tuple[Node, ...]:
    """Return the nodes of the graph that may match, from a known output, or the shortest list of consumers of a known input."""
    output = next((value for value in wanted.outputs if value in values), None)
    if output is not None:
        return (values[output].producer,)
    consumers = (values[value].consumers for value in wanted.inputs if value in values and not is_constant(value.producer))
    return min(consumers, key=len)


def _is_dtype(attribute: Attribute) -> bool:
    return all(isinstance(item, DType) for item in (attribute if isinstance(attribute, tuple) else (attribute,)))


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
