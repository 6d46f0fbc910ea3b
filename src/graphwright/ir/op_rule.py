"""What the verbs of a graph ask of the ops it is made of. Who knows them, knows TensorFlow: `source.registry_rule`.

A graph without a rule takes whatever it is given: invented ops in tests, and ops of a library that is not loaded. Say so with
`graph.op_rule = None`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from graphwright.ir.attributes import Attribute
from graphwright.ir.dtypes import DType, Shape

if TYPE_CHECKING:
    from graphwright.ir.graph import Graph
    from graphwright.ir.node import Value

OutputTypes = Sequence[tuple[DType, Shape]]


class OpRule(Protocol):
    """Each question raises `GraphError` where the answer is no. What a graph holds already may be used again, though nobody knows it."""

    def check_name(self, graph: Graph, name: str) -> None:
        """Whether a node can be called so."""
        ...

    def check_op(self, graph: Graph, op_type: str, name: str) -> None:
        """Whether there is such an op."""
        ...

    def attribute(self, graph: Graph, op_type: str, name: str, key: str, given: Any) -> Attribute:
        """An attribute of a node, converted from any usual form."""
        ...

    def completed(
        self, graph: Graph, op_type: str, name: str, inputs: Sequence[Value], attrs: Mapping[str, Any], types: OutputTypes | None
    ) -> tuple[dict[str, Attribute], OutputTypes]:
        """The attributes, converted and with those that follow from inputs and outputs, and the types of the outputs.

        Args:
            types: of the outputs; None to be told them, and the defaults of attributes too.
        """
        ...
