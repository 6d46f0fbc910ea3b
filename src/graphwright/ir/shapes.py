"""Shapes that follow edits. The rule for shapes is asked when a shape is read, about what the shape depends on.

Most edits change few shapes. So the rule is first asked about the edited nodes, then for a few rounds about the readers of what changed.
Where an effect goes further, one question covers everything behind it in topological order: a rule with a high cost per call is called
only a few times. Small integer tensors may hold dimensions, so their readers are asked again even if the tensor keeps its shape.

The shapes of a call's results follow the body of its function, which is a separate graph. `Library.edits` counts edits of
all graphs that share a library; when other graphs were edited, the calls are compared with the results of their functions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice

from graphwright.errors import GraphError
from graphwright.ir.attributes import Attribute
from graphwright.ir.dtypes import Shape, common_shape
from graphwright.ir.graph import Graph
from graphwright.ir.node import Node, Value, recorded_shapes, write_shape
from graphwright.ir.rules import ShapeTracker
from graphwright.ir.traits.control_flow import is_back_edge, result_functions
from graphwright.ir.walk import forward_reachable, order_of, reached

ShapeRule = Callable[[Sequence[Node]], Sequence[Sequence[Shape]]]
"""Returns the output shapes of nodes that are given in topological order; the shapes of inputs from outside the list are known."""

_ROUNDS_OF_READERS = 4
_ROUNDS_BEFORE_WIDENING = 12
_Results = tuple[tuple[Shape, ...], ...]


class Shapes:
    """The shapes of a graph whose nodes a rule knows; it becomes `Graph.shapes`. The methods are described in `rules.ShapeTracker`.

    Args:
        infer_unknown: whether nodes without a shape are inferred when their shapes are first read.
    """

    __slots__ = ("_calls", "_count", "_graph", "_new", "_seen", "rule", "stale", "unasked", "unasked_edited")

    def __init__(self, graph: Graph, rule: ShapeRule, *, infer_unknown: bool = False) -> None:
        self._graph = graph
        self.rule: ShapeRule = rule
        self.stale: dict[Node, None] = {}
        self.unasked: dict[Node, None] = {}
        self.unasked_edited = False
        self._count = 1  # nodes that the rule was asked about because a shape was read
        self._seen = graph.functions.edits
        self._calls: dict[Node, _Results] | None = None  # the results of the called functions when they were last compared
        self._new: dict[Node, None] = {}  # added or edited since: they may call another function now
        if infer_unknown:
            self.unasked = {node: None for node in graph.nodes if any(value.last_shape is None for value in node.outputs)}
            readers = [n for n in graph.nodes if n not in self.unasked and any(value.producer in self.unasked for value in n.inputs)]
            self.unasked.update(dict.fromkeys(forward_reachable(readers, control=False)))

    # Reading

    def of(self, value: Value) -> Shape:
        if self.stale or self._seen != self._graph.functions.edits:
            self.settle_edits()
        if value.producer in self.unasked:
            self._infer_unasked(value.producer)
        return value.last_shape

    def known(self, value: Value) -> Shape:
        self.settle_edits()
        return None if self.unasked_edited and value.producer in self.unasked else value.last_shape

    def infer(self, nodes: Sequence[Node]) -> Sequence[Sequence[Shape]]:
        return self.rule(nodes)

    def settle(self) -> None:
        self.settle_edits()
        if self.unasked:
            self._ask(list(self.unasked))

    def settle_edits(self) -> None:
        edits, seen = self._graph.functions.edits, self._seen
        if not self.stale and edits == seen:
            return
        self._seen = edits  # at once: the rule reads shapes, and a function may call itself
        try:
            if edits != seen and self._graph.functions:
                self.stale.update(dict.fromkeys(self._outdated_calls()))
            if self.unasked:
                asked = {node: None for node in self.stale if node not in self.unasked}
                self.unasked_edited |= len(asked) < len(self.stale)
                self.stale = asked
                if behind := self._unasked_behind([value.producer for node in self.stale for value in node.inputs]):
                    self._ask(behind)
            pending, self.stale = self.stale, {}  # the rule reads shapes
            try:
                _settle(self.rule, pending, self.unasked)
            except BaseException:
                self.stale = pending
                raise
        except BaseException:
            self._seen = seen
            raise

    # Edits

    def added(self, node: Node) -> None:
        self._new[node] = None
        unasked = self.unasked
        if any(v.last_shape is None for v in node.outputs) or (unasked and any(v.producer in unasked for v in node.inputs)):
            unasked[node] = None

    def edited(self, node: Node) -> None:
        self._new[node] = None
        self.stale[node] = None
        self.results_changed()

    def removed(self, node: Node) -> None:
        for table in (self.stale, self.unasked, self._new, self._calls or {}):
            table.pop(node, None)

    def before_assignment(self, value: Value) -> None:
        node = value.producer
        if node in self.stale:  # or the assigned shape would be overwritten
            self.settle_edits()
        if node in self.unasked and len(node.outputs) > 1:
            self._infer_unasked(node)
        self.unasked.pop(node, None)
        self.stale.update(dict.fromkeys(value.consumers))
        self.results_changed()

    def assigned(self, values: Iterable[Value]) -> None:
        values = list(values)
        nodes = {value.producer for value in values}
        for node in nodes:
            self.unasked.pop(node, None)
            self.stale.pop(node, None)
        self.stale.update((reader, None) for value in values for reader in value.consumers if reader not in nodes)
        self.results_changed()

    def refresh(self, nodes: Iterable[Node]) -> None:
        self.stale.update(dict.fromkeys(nodes))

    def results_changed(self) -> None:
        self._graph.functions.edits += 1
        self._seen += 1

    def check_calls(self) -> None:
        self._calls, self._new, self._seen = None, {}, -1

    def copied(self, graph: Graph, node_of: Mapping[Node, Node]) -> Shapes:
        copy = Shapes(graph, self.rule)
        copy.copy_state(self, node_of)
        return copy

    def copy_state(self, other: ShapeTracker, node_of: Mapping[Node, Node]) -> None:
        self.stale.update((copy, None) for node, copy in node_of.items() if node in other.stale)
        self.unasked.update((copy, None) for node, copy in node_of.items() if node in other.unasked)
        self.unasked_edited |= other.unasked_edited

    # Questions

    def _infer_unasked(self, node: Node) -> None:
        needed = self._unasked_behind([node])
        # And as many more as were asked about before, so that reading all shapes one by one takes few questions.
        more = self._unasked_behind([node, *islice(self.unasked, self._count)])
        self._count += len(more)
        if len(more) > len(needed):
            with suppress(GraphError):
                self._ask(more)
                return
        self._ask(needed)

    def _ask(self, nodes: Sequence[Node]) -> None:
        stale, self.stale = self.stale, {}
        for node in nodes:
            del self.unasked[node]
        try:
            _settle(self.rule, nodes, self.unasked)
        except BaseException:
            self.unasked.update(dict.fromkeys(nodes))
            raise
        finally:
            self.stale = stale
        self.unasked_edited &= bool(self.unasked)

    def _unasked_behind(self, nodes: Iterable[Node]) -> list[Node]:
        seeds = (node for node in nodes if node in self.unasked)
        return list(reached(seeds, lambda node: (v.producer for v in node.inputs if v.producer in self.unasked)))

    def _outdated_calls(self) -> list[Node]:
        """Return the calls whose functions have other results than before; of a new call, other results than it has itself."""
        if self._calls is None:
            self._calls, self._new = {}, dict.fromkeys(self._graph.nodes)
        functions = self._graph.functions
        shapes_of: dict[str, tuple[Shape, ...]] = {}

        def results(node: Node) -> _Results:
            for name in result_functions(node):
                if name in functions and name not in shapes_of:
                    shapes_of[name] = tuple(value.shape for value in functions[name].body.outputs)
            return tuple(shapes_of[name] for name in result_functions(node) if name in shapes_of)

        now = {node: results(node) for node in self._calls if node not in self._new}
        outdated = [node for node, shapes in now.items() if shapes != self._calls[node]]
        later = {node: None for node in self._new if node in self.unasked}
        for node in [node for node in self._new if node not in later]:
            if shapes := results(node):
                now[node] = shapes
                own = tuple(value.last_shape for value in node.outputs)
                outdated += [] if all(each == own for each in shapes) else [node]
        self._calls, self._new = now, later
        return outdated


def _settle(rule: ShapeRule, pending: Iterable[Node], unasked: Mapping[Node, None]) -> None:
    """Infer the shapes of nodes and of all that depends on the changes; where the rule raises, the shapes stay as they were."""
    before: dict[Value, tuple[Shape, Mapping[str, Attribute]]] = {}
    wave = order_of(pending)
    rounds = 0
    try:
        while wave:
            rounds += 1
            readers = _settle_wave(rule, wave, before, widens=rounds > _ROUNDS_BEFORE_WIDENING)
            behind = readers if rounds < _ROUNDS_OF_READERS else forward_reachable(readers, control=False)
            wave = order_of(node for node in behind if node not in unasked)
    except BaseException:
        for value, (shape, recorded) in before.items():
            value.last_shape = shape
            for name, attribute in recorded.items():
                value.producer.attrs.record(name, attribute)
        raise


def _settle_wave(
    rule: ShapeRule, wave: Sequence[Node], before: dict[Value, tuple[Shape, Mapping[str, Attribute]]], *, widens: bool
) -> dict[Node, None]:
    place = {node: k for k, node in enumerate(wave)}
    readers: dict[Node, None] = {}
    for node, shapes in zip(wave, _answers(rule, wave), strict=True):
        for value, shape in zip(node.outputs, shapes, strict=True):
            old = value.last_shape
            if widens:  # a loop, whose shapes grow
                shape = common_shape(old, shape)
            if shape == old and not _may_hold_dimensions(value):
                continue
            # Readers behind the node in this wave were asked with the new shape.
            after = [reader for reader in value.consumers if place.get(reader, -1) <= place[node]]
            if shape == old:
                after = [reader for reader in after if not is_back_edge(value, reader)]
            else:
                before.setdefault(value, (old, recorded_shapes(node)))
                write_shape(value, shape)
            readers.update(dict.fromkeys(after))
    return readers


def _may_hold_dimensions(value: Value) -> bool:
    """Return whether the elements may be a shape, such as the second input of Reshape."""
    return value.dtype.name in ("int32", "int64") and (value.last_shape is None or len(value.last_shape) <= 1)


def _answers(rule: ShapeRule, wave: Sequence[Node]) -> Sequence[Sequence[Shape]]:
    try:
        answers = rule(wave)
    except Exception as error:  # a rule is the user's or TensorFlow's, and may raise anything
        node = _first_refused(rule, wave)
        raise GraphError(
            f"the shapes of {node.name!r} = {node.op_type} do not fit: {error}",
            where=f"node {node.name!r}, inputs {', '.join(f'{v.name} {v.last_shape}' for v in node.inputs)}",
            cause="an edit gave it inputs or attributes that it cannot have",
            remedy="change its inputs or attributes, or remove it",
        ) from error
    counts = [len(node.outputs) for node in wave]
    if [len(shapes) for shapes in answers] != counts:
        raise GraphError(f"the rule gave other numbers of shapes than the {len(wave)} nodes have outputs", where="graph.shapes.rule")
    return answers


def _first_refused(rule: ShapeRule, wave: Sequence[Node]) -> Node:
    def refuses(count: int) -> bool:
        try:
            rule(wave[:count])
        except Exception:  # noqa: BLE001 - the error itself was kept
            return True
        return False

    return wave[bisect_left(range(1, len(wave)), True, key=refuses)]
