"""What nodes make: their outputs, with dtypes and shapes that follow edits. A layer of `Graph`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from graphwright.errors import GraphError
from graphwright.ir.attributes import ShapeAttribute
from graphwright.ir.calls import Calls
from graphwright.ir.dtypes import DType, Shape, as_dtype, as_shape
from graphwright.ir.node import Function, Library, Node, Value, Variable, write_shape
from graphwright.ir.settle import settle
from graphwright.ir.walk import forward_reachable, reached
from graphwright.ir.watched import SHAPE_CLOCK
from graphwright.ir.wiring import Wiring


class Outputs(Wiring):
    """The verbs that change what nodes make, and the shapes."""

    __slots__ = ("_asked", "_functions", "_others", "settled_at", "variables")

    def __init__(self, name: str, functions: dict[str, Function], variables: dict[Value, Variable]) -> None:
        super().__init__(name)
        self._functions = _library(functions)
        self.variables = variables  # by the resource input that stands for it
        self._asked = 1  # how many nodes the rule for shapes was asked about because somebody read a shape
        self.settled_at = SHAPE_CLOCK.time
        self._others = SHAPE_CLOCK.time  # how far the other graphs had moved the clock when the calls were last looked at

    @property
    def functions(self) -> dict[str, Function]:
        """The library of functions by name, which the graph shares with their bodies; `ir.edit` has verbs that check first.

        A plain dictionary that is assigned is copied.
        """
        return self._functions

    @functions.setter
    def functions(self, functions: dict[str, Function]) -> None:
        self._functions = _library(functions)
        SHAPE_CLOCK.time += 1

    # Outputs of nodes

    def add_output(self, node: Node, dtype: Any, shape: Any) -> Value:
        """Give the node one more output at the end, dtype and shape in any usual form; its attributes are the caller's.

        Raises:
            GraphError: the node belongs to another graph.
            ArgumentError: it is not a dtype or shape.
        """
        dtype, shape = as_dtype(dtype), as_shape(shape)
        self.check_owned(node, node.name)
        links = self._links[node]
        uses: dict[tuple[Node, int], None] = {}
        value = Value(node, len(links.outputs), dtype, shape, uses)
        links.outputs = (*links.outputs, value)
        links.uses = (*links.uses, uses)
        recorded = node.attrs.get("_output_shapes")
        if isinstance(recorded, tuple):
            node.attrs.record("_output_shapes", (*recorded, ShapeAttribute(shape)))
        self._note(node)
        return value

    def remove_output(self, value: Value) -> None:
        """Remove an output of a node; those after it move up. The attributes of the node are the caller's.

        Raises:
            GraphError: something reads it, it is an input or output of the graph or of a signature, a
                collection holds it, or it belongs to another graph.
        """
        node, index = value.producer, value.index
        self.check_owned(node, node.name)
        links = self._links[node]
        if index >= len(links.outputs) or links.outputs[index] is not value:
            raise GraphError(f"{value.name} is not an output of {node.name!r} any more", where=f"node {node.name!r}")
        self._check_unneeded(value)
        for later in links.outputs[index + 1 :]:
            later.index -= 1
        links.outputs = links.outputs[:index] + links.outputs[index + 1 :]
        links.uses = links.uses[:index] + links.uses[index + 1 :]
        self.variables.pop(value, None)
        recorded = node.attrs.get("_output_shapes")
        if isinstance(recorded, tuple):
            node.attrs.record("_output_shapes", recorded[:index] + recorded[index + 1 :])
        self._note(node)

    def set_output_types(self, node: Node, types: Sequence[tuple[Any, Any]]) -> None:
        """Set the dtypes and shapes of all outputs; the values stay, new ones are added and surplus ones removed at the end.

        The attributes of the node are the caller's. The shapes count as settled.

        Raises:
            GraphError: an output that is read changes its dtype, one that is needed would go, or the node belongs to another
                graph; nothing is changed then.
            ArgumentError: something is not a dtype or shape.
        """
        types = [(as_dtype(dtype), as_shape(shape)) for dtype, shape in types]
        self.check_owned(node, node.name)
        for value, (dtype, _) in zip(node.outputs, types, strict=False):
            self._check_new_dtype(value, dtype)
        for value in node.outputs[len(types) :]:
            self._check_unneeded(value)
        for value in reversed(node.outputs[len(types) :]):
            self.remove_output(value)
        self.stale.pop(node, None)  # all of it is said below: the rule must not be asked half-way
        for value, (dtype, shape) in zip(node.outputs, types, strict=False):
            self.set_output_type(value, dtype, shape)
        for dtype, shape in types[len(node.outputs) :]:
            self.add_output(node, dtype, shape)
        self.stale.pop(node, None)

    def set_output_type(self, value: Value, dtype: Any, shape: Any) -> None:
        """Set the dtype and shape of an output, in any usual form; the attributes of its node are the caller's.

        Raises:
            GraphError: the dtype changes while something reads the value, or it belongs to another graph.
            ArgumentError: it is not a dtype or shape.
        """
        dtype, shape = as_dtype(dtype), as_shape(shape)
        self.check_owned(value.producer, value.name)
        self._check_new_dtype(value, dtype)
        value.shape = shape
        value.dtype = dtype
        if dtype.name != "resource":
            self.variables.pop(value, None)
        if self.touched is not None:
            self.touched[value.producer] = None

    # Shapes

    def refresh_shapes(self, nodes: Iterable[Node] | None = None) -> None:
        """Let the rule for shapes answer again for these nodes when a shape is next read; without a rule, nothing happens.

        Args:
            nodes: by default all, which costs next to nothing until a shape is read.

        Raises:
            GraphError: a node belongs to another graph.
        """
        nodes = self._links if nodes is None else tuple(nodes)
        for node in () if nodes is self._links else nodes:
            self.check_owned(node, node.name)
        if self.shape_rule is not None:
            self.stale.update(dict.fromkeys(nodes))

    def ask_later(self) -> None:
        """Let the rule for shapes answer for what has no shape when a shape is read that depends on it; till then, what is known counts."""
        if self.shape_rule is None:
            return
        self.unasked.update((node, None) for node in self._links if any(value.last_shape is None for value in node.outputs))
        readers = [n for n in self._links if n not in self.unasked and any(value.producer in self.unasked for value in n.inputs)]
        self.unasked.update(dict.fromkeys(forward_reachable(readers, control=False)))

    def ask(self, node: Node) -> None:
        """Ask the rule about a node and what it depends on, as far as nobody has asked yet.

        Raises:
            GraphError: the rule refuses a node, which the message names.
        """
        needed = self._unasked_behind([node])
        if self.shape_rule is None or not needed:
            return
        # And as many more as were asked about before: so reading all shapes, one after the other, takes few questions.
        more = self._unasked_behind([node, *islice(self.unasked, self._asked)])
        self._asked += len(more)
        if len(more) > len(needed):
            with suppress(GraphError):
                self._ask(more)
                return
        self._ask(needed)

    def settle_shapes(self) -> None:
        """Bring all shapes up to date. Reading `value.shape` does it by itself, for what the shape depends on.

        Raises:
            GraphError: the rule refuses a node, which the message names; the shapes are as before then.
        """
        self.settle_edits()
        if self.unasked and self.shape_rule is not None:
            self._ask(list(self.unasked))

    def settle_edits(self) -> None:
        """Bring the shapes up to date that somebody has asked about.

        Raises:
            GraphError: as `settle_shapes`.
        """
        before = self.settled_at, self._others
        self.settled_at = SHAPE_CLOCK.time  # at once: the rule reads shapes
        if self.shape_rule is None:
            self.stale, self.unasked = {}, {}
            return
        try:
            self._follow_bodies()
            if self.unasked:
                asked = {node: None for node in self.stale if node not in self.unasked}
                self.unasked_edited |= len(asked) < len(self.stale)
                self.stale = asked
                if behind := self._unasked_behind([value.producer for node in self.stale for value in node.inputs]):
                    self._ask(behind)
            if self.stale:
                settle(self, self.shape_rule)
        except BaseException:
            self.settled_at, self._others = before
            raise

    def note_shape(self, value: Value) -> None:
        """Note that a shape is about to be assigned: what reads it follows."""
        if self.shape_rule is not None:
            if value.producer in self.stale:  # or the assigned shape would be overwritten
                self.settle_edits()
            if value.producer in self.unasked and len(value.producer.outputs) > 1:
                self.ask(value.producer)
            self.unasked.pop(value.producer, None)
            self.stale.update(dict.fromkeys(value.consumers))
        self._move_clock()

    def assign_shapes(self, shapes: Mapping[Value, Shape]) -> None:
        """Say the shapes of all outputs of some nodes, which follow from each other: only other nodes that read them are asked again."""
        said = {value.producer for value in shapes}
        for node in said:
            self.unasked.pop(node, None)
            self.stale.pop(node, None)
        for value, shape in shapes.items():
            write_shape(value, as_shape(shape))
        if self.shape_rule is not None:
            self.stale.update((reader, None) for value in shapes for reader in value.consumers if reader not in said)
        self._move_clock()

    def _ask(self, nodes: Sequence[Node]) -> None:
        """Settle nodes that were never asked about, and what reads them."""
        stale, self.stale = self.stale, dict.fromkeys(nodes)
        for node in nodes:
            del self.unasked[node]
        try:
            if self.shape_rule is not None:
                settle(self, self.shape_rule)
        except BaseException:
            self.unasked.update(dict.fromkeys(nodes))
            raise
        else:
            self.unasked_edited &= bool(self.unasked)
        finally:
            self.stale = stale

    def _unasked_behind(self, nodes: Iterable[Node]) -> list[Node]:
        """Those of the nodes, and of what they depend on, that were never asked about."""
        seeds = (node for node in nodes if node in self.unasked)
        return list(reached(seeds, lambda node: (v.producer for v in node.inputs if v.producer in self.unasked)))

    def _follow_bodies(self) -> None:
        """Calls are stale when the functions that they call give other shapes."""
        others = SHAPE_CLOCK.time - self._edits
        if others == self._others:
            return
        self._others = others  # at once: a function may call itself
        if self.functions:
            if self._calls is None:
                self._calls = Calls(self._links)
            self.stale.update(dict.fromkeys(self._calls.outdated(self)))

    # Checks, which change nothing

    def _check_new_dtype(self, value: Value, dtype: DType) -> None:
        if dtype != value.dtype and value.use_count:
            raise GraphError(
                f"{value.name} of dtype {value.dtype} is read by {value.uses[0]}, and cannot become {dtype}",
                where=f"node {value.producer.name!r}",
                remedy="reroute its uses first",
            )

    def _check_unneeded(self, value: Value) -> None:
        where = f"node {value.producer.name!r}"
        if value.use_count:
            raise GraphError(f"{value.name} is still read by {value.uses[0]}", where=where, remedy="reroute its uses first")
        for place, values in self.places_of_values(value.producer):
            if value in values:
                raise GraphError(f"{value.name} is in {place}", where=where, remedy=f"change {place} first")


def _library(functions: dict[str, Function]) -> Library:
    return functions if isinstance(functions, Library) else Library(functions)
