"""Find what the nodes of a graph read and write, and which writes surely come before and after them.

Terms
-----
place
    Anything that can be written and read again: a variable by its handle, an iterator, a table. One more place, the world, stands for
    effects without a handle, such as the terminal. A handle of unknown origin makes all places one.
surely
    Edges lead from one node to the other, so no executor may exchange them.

Gaps: a path through a `Merge` of TF1 counts as sure, though a `Merge` does not wait for its dead side. An iterator touches only itself,
as in TensorFlow's own rules, whatever the functions of its data set captured.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.arithmetic import ASKS_FOR_SHAPE
from graphwright.ir.traits.control_flow import BRANCHES, LOOPS, SWITCHES, called_functions, function_at, is_call, is_control_flow
from graphwright.ir.traits.effects import Purity, draws_by_counter
from graphwright.ir.traits.values import IDENTITIES, input_behind, only_orders, origin
from graphwright.ir.traits.variables import READS_OF_VARIABLES, opens_variable, variable_key, written_resources
from graphwright.ir.walk import producers_of

Place = str | tuple[str, int]
"""A variable's key, what an operation made, the world, or an input of the graph by its position."""
Touched = dict[Place, bool]
"""Places, and whether they are written."""
Same = tuple[tuple[int, int], ...]
"""Arguments of a function that are one resource by pairs of positions: of one of them, and of the first of them."""

_WORLD = "the world"
_ANYWHERE = "any place"
_HANDED_ON = IDENTITIES | SWITCHES
_HANDLES = ("resource", "variant")
_AT_ONCE = 4096
"""Writes that one sweep over the graph follows; a set of them is one whole number."""


@dataclass(frozen=True, slots=True)
class Order:
    """The writes of one place, as bits of a number, that surely come before a node, and after it."""

    before: int
    behind: int


class EffectOrder:
    """The places that nodes touch, and the writes around them.

    Args:
        nodes: the nodes that run, each after what it needs.
        inside: returns the places that a function touches, arguments by position, given its name and its equal arguments; None if unknown.
        bit: returns the bit of a write, by the name of its node.
        function: the name of the function whose body the graph is, or "".
        same: inputs that are one resource.
    """

    def __init__(
        self,
        graph: Graph,
        nodes: Sequence[Node],
        purity: Purity,
        inside: Callable[[str, Same], Mapping[Place, bool] | None],
        bit: Callable[[str], int],
        function: str = "",
        same: Same = (),
    ) -> None:
        first = dict(same)
        self._inputs = {value: first.get(k, k) for k, value in enumerate(graph.inputs)}
        self._graph, self._purity, self._inside, self._function = graph, purity, inside, function
        touched: dict[Node, Touched] = {node: places for node in nodes if (places := self._touched(node))}
        if any(_ANYWHERE in places for places in touched.values()):
            touched = {node: {_ANYWHERE: any(places.values())} for node, places in touched.items()}
        self._of = touched
        bits = {node: bit(node.name) for node, places in touched.items() if any(places.values())}
        self._writes: dict[Place, int] = {}
        for node, places in touched.items():
            for place, writes in places.items():
                if writes:
                    self._writes[place] = self._writes.get(place, 0) | 1 << bits[node]
        after: dict[Node, list[Node]] = {}
        for node in nodes if bits else ():
            for before in producers_of(node):
                after.setdefault(before, []).append(node)
        self._before = self._sweep(nodes, bits, producers_of)
        self._behind = self._sweep(nodes[::-1], bits, lambda node: after.get(node, ()))

    @property
    def touched(self) -> Touched:
        return _united(self._of.values())

    def orders(self, node: Node) -> dict[Place, Order]:
        """Return the writes around a node, by the places that it touches."""
        return {place: self._order(node, place) for place in self._of.get(node, ())}

    def orders_of_effect(self, node: Node) -> dict[Place, Order]:
        """Return `orders` of a node with effects, with the world: a failed assertion prevents later writes."""
        return self.orders(node) | {_WORLD: self._order(node, _WORLD)}

    def _order(self, node: Node, place: Place) -> Order:
        return Order(self._before.get((node, place), 0), self._behind.get((node, place), 0))

    def is_fixed(self, node: Node) -> bool:
        """Return whether each write of the touched places surely comes before or after the node."""
        return all(order.before | order.behind == self._writes.get(place, 0) for place, order in self.orders(node).items())

    def same_arguments(self, node: Node) -> Same:
        """Return the arguments of called functions that are, or may be, one resource."""
        offset = 1 if node.op_type in BRANCHES else 0
        places = {k - offset: self._place(value) for k, value in enumerate(node.inputs) if value.dtype.name == "resource"}
        if _ANYWHERE in places.values():
            places = dict.fromkeys(places, _ANYWHERE)
        first: dict[Place, int] = {}
        pairs = [(k, first.setdefault(place, k)) for k, place in places.items()]
        return tuple((k, one) for k, one in pairs if k != one)

    def _touched(self, node: Node) -> Touched:
        if self._purity.is_unseen(node):
            return {}
        handles = {k: self._place(value) for k, value in enumerate(node.inputs) if value.dtype.name == "resource"}
        is_argument = bool(node.outputs) and node.outputs[0] in self._inputs
        if is_argument or only_orders(node) or opens_variable(node) or node.op_type in _HANDED_ON | ASKS_FOR_SHAPE:
            return {}
        if node.op_type in READS_OF_VARIABLES:
            return dict.fromkeys(handles.values(), False)
        inside = self._touched_inside(node, handles)
        if is_control_flow(node) or is_call(node, self._graph):
            return inside
        if self._purity.is_pure(node):
            return _united((dict.fromkeys(handles.values(), False), inside))
        if draws_by_counter(node) and not handles:  # of a function that is called twice, both calls draw from one counter
            return {f"the counter of {node.name!r} in {self._function!r}": True} if self._function else {}
        if any(value.dtype.name == "variant" for value in node.inputs):  # a data set may read and write what its functions captured
            return {_ANYWHERE: True}
        written = dict.fromkeys(handles.values(), True)
        return written if written_resources(node) or (handles and not inside) else _united((inside, written, {_WORLD: True}))

    def _touched_inside(self, node: Node, handles: Mapping[int, Place]) -> Touched:
        """Return the places that the functions of a node touch; an unknown function may touch all its arguments, and the world."""
        offset = 1 if node.op_type in BRANCHES else 0
        places: list[Touched] = []
        same = self.same_arguments(node)
        for name in (*called_functions(node), *([node.op_type] if node.op_type in self._graph.functions else ())):
            inside = self._inside(name, same)
            if inside is None:
                places.append(dict.fromkeys([*handles.values(), _WORLD], True))
                continue
            for place, writes in inside.items():
                places.append({handles.get(place[1] + offset, _ANYWHERE) if isinstance(place, tuple) else place: writes})
        if node.op_type in LOOPS and not all(self._stays(node, k) for k, value in enumerate(node.inputs) if value.dtype.name == "resource"):
            places.append({_ANYWHERE: True})  # what the body's argument is changes from round to round
        return _united(places)

    def _place(self, value: Value) -> Place:
        node = value.producer
        while node.op_type in _HANDED_ON or (node.op_type in LOOPS and self._stays(node, value.index)):
            value = input_behind(value)
            node = value.producer
        if value in self._inputs:
            return ("input", self._inputs[value])
        if opens_variable(node):
            return variable_key(value)
        shared = node.attrs.get("shared_name")
        if shared:  # two nodes may make one table
            return f"{node.op_type}:{node.attrs.get('container')!r}:{shared!r}"
        is_made_of_handles = any(v.dtype.name in _HANDLES for v in node.inputs) or called_functions(node) or is_call(node, self._graph)
        return _ANYWHERE if is_made_of_handles or self._purity.is_pure(node) else f"what {value.name} is"

    def _stays(self, loop: Node, k: int) -> bool:
        """Return whether the body of a loop returns an argument unchanged."""
        function = function_at(loop, "body", self._graph)
        return function is not None and origin(function.body.outputs[k]) is function.body.inputs[k]

    def _sweep(
        self, order: Sequence[Node], bits: Mapping[Node, int], neighbors: Callable[[Node], Iterable[Node]]
    ) -> dict[tuple[Node, Place], int]:
        """Return, by node and place that it touches, the writes of the place from which edges lead to the node."""
        groups: dict[int, dict[Node, int]] = {}
        for node, bit in bits.items():
            groups.setdefault(bit // _AT_ONCE, {})[node] = bit % _AT_ONCE
        writes_before: dict[tuple[Node, Place], int] = {}
        for group, own in groups.items():
            offset, window = group * _AT_ONCE, (1 << _AT_ONCE) - 1
            reached: dict[Node, int] = {}
            for node in order:
                seen = 0
                for other in neighbors(node):
                    seen |= reached.get(other, 0)
                for place in {*self._of[node], _WORLD} if seen and node in self._of else ():
                    writes = seen & (self._writes.get(place, 0) >> offset & window)
                    if writes:
                        writes_before[node, place] = writes_before.get((node, place), 0) | writes << offset
                if node in own:
                    seen |= 1 << own[node]
                if seen:
                    reached[node] = seen
        return writes_before


def _united(parts: Iterable[Mapping[Place, bool]]) -> Touched:
    united: Touched = {}
    for part in parts:
        for place, writes in part.items():
            united[place] = united.get(place, False) or writes
    return united
