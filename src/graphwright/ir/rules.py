"""Interfaces of the rules for ops and shapes, which need TensorFlow: `source.registry_rule` and `source.shape_inference`.

A graph without rules takes whatever it is given, such as invented ops in tests and ops of a library that is not loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from graphwright.ir.attributes import Attribute
from graphwright.ir.dtypes import DType, Shape

if TYPE_CHECKING:
    from graphwright.ir.graph import Graph
    from graphwright.ir.node import Node, Value

OutputTypes = Sequence[tuple[DType, Shape]]


class OpRule(Protocol):
    """Checks of ops, which raise `GraphError`. Op types and attributes that the graph holds already are accepted."""

    def check_name(self, graph: Graph, name: str) -> None: ...

    def check_op(self, graph: Graph, op_type: str, name: str) -> None: ...

    def attribute(self, graph: Graph, op_type: str, name: str, key: str, value: Any) -> Attribute: ...

    def completed(
        self, graph: Graph, op_type: str, name: str, inputs: Sequence[Value], attrs: Mapping[str, Any], types: OutputTypes | None
    ) -> tuple[dict[str, Attribute], OutputTypes]:
        """Return the converted attributes, with those that follow from inputs and outputs, and the output types. With `types` None,
        output types are inferred, and the defaults of attributes added.
        """
        ...


class ShapeTracker(Protocol):
    """Keeps shapes up to date with edits; `ir.shapes.Shapes` is the implementation."""

    stale: dict[Node, None]
    """Edited nodes whose shapes are to be inferred before a shape is read."""
    unasked: dict[Node, None]
    """Nodes without a shape, and their readers, which are inferred when their shapes are first read."""
    unasked_edited: bool
    """Whether an edit may have invalidated what is known of the shapes of `unasked`."""

    def infer(self, nodes: Sequence[Node]) -> Sequence[Sequence[Shape]]: ...

    def of(self, value: Value) -> Shape:
        """Return the shape of a value after all edits."""
        ...

    def known(self, value: Value) -> Shape:
        """Return the shape as far as it is known after all edits, without inferring shapes that were never read."""
        ...

    def added(self, node: Node) -> None: ...

    def edited(self, node: Node) -> None: ...

    def removed(self, node: Node) -> None: ...

    def before_assignment(self, value: Value) -> None:
        """Note that a user is about to assign the shape of a value."""
        ...

    def assigned(self, values: Iterable[Value]) -> None:
        """Note that the shapes of all outputs of some nodes were assigned."""
        ...

    def refresh(self, nodes: Iterable[Node]) -> None:
        """Infer the shapes of these nodes again when a shape is next read."""
        ...

    def settle(self) -> None:
        """Bring all shapes up to date; where the rule refuses a node, raise `GraphError` and leave the shapes as they were."""
        ...

    def settle_edits(self) -> None:
        """Bring all shapes up to date but those that were never read."""
        ...

    def results_changed(self) -> None: ...

    def check_calls(self) -> None:
        """Compare all calls with their functions when a shape is next read."""
        ...

    def copied(self, graph: Graph, node_of: Mapping[Node, Node]) -> ShapeTracker: ...

    def copy_state(self, other: ShapeTracker, node_of: Mapping[Node, Node]) -> None:
        """Take over which nodes are stale or unasked, for copies of nodes of another graph."""
        ...
