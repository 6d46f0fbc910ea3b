"""Nodes and values, as a `Graph` shows them. They change through its verbs only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from graphwright.errors import GraphError, printable
from graphwright.ir.attributes import Attribute, Attributes, ShapeAttribute
from graphwright.ir.dtypes import DType, Shape, as_shape, byte_count, format_shape
from graphwright.ir.traits.functional import FUNCTION_ATTRIBUTES
from graphwright.ir.watched import WatchedDict

if TYPE_CHECKING:
    from graphwright.ir.graph import Graph


@dataclass(frozen=True, slots=True)
class Use:
    """`node.inputs[index]` reads the value."""

    node: Node
    index: int

    def __str__(self) -> str:
        return f"{self.node.name}.inputs[{self.index}]"


class Value:
    """One output of a node. `uses` costs O(uses), never a scan of the graph."""

    __slots__ = ("_uses", "dtype", "index", "last_shape", "producer")

    def __init__(self, producer: Node, index: int, dtype: DType, shape: Shape, uses: Mapping[tuple[Node, int], None]) -> None:
        self.producer = producer
        self.index = index
        self.dtype = dtype
        self.last_shape = shape  # without the edits since a shape was last read
        self._uses = uses  # shared with the graph, whose verbs change it

    @property
    def name(self) -> str:
        """`node:index`, as TensorFlow writes it."""
        return f"{self.producer.name}:{self.index}"

    @property
    def shape(self) -> Shape:
        """The shape after all edits; without `Graph.shapes`, edits leave shapes alone. Reading raises `GraphError` where TensorFlow
        refuses an edited node. Assigning a shape, in any usual form, overrides it; the shapes of readers follow.
        """
        shapes = self.producer.graph.shapes
        return self.last_shape if shapes is None else shapes.of(self)

    @shape.setter
    def shape(self, shape: Any) -> None:
        shape = as_shape(shape)
        graph = self.producer.graph
        if graph.shapes is not None:
            graph.shapes.before_assignment(self)
        else:
            graph.functions.edits += 1
        write_shape(self, shape)

    @property
    def known_shape(self) -> Shape:
        """The shape as far as it is known after all edits, without inferring shapes that were never read."""
        shapes = self.producer.graph.shapes
        return self.last_shape if shapes is None else shapes.known(self)

    @property
    def uses(self) -> tuple[Use, ...]:
        """The inputs that read it, oldest first."""
        return tuple([Use(node, index) for node, index in self._uses])

    @property
    def use_count(self) -> int:
        """The number of uses, in O(1)."""
        return len(self._uses)

    @property
    def consumers(self) -> tuple[Node, ...]:
        """The nodes that read it, each once."""
        return tuple({node: None for node, _ in self._uses})

    @property
    def nbytes(self) -> int | None:
        """Bytes of the tensor, or None when the shape is unknown or elements have no fixed size."""
        return byte_count(self.dtype, self.shape)

    def __repr__(self) -> str:
        return printable(f"<Value {self.name} {self.dtype}{format_shape(self.last_shape)}>")

    def __str__(self) -> str:
        return self.name


def check_name(name: str, graph_name: str) -> None:
    if not name or name[0] == "^" or ":" in name:
        raise GraphError(f"{name!r} cannot be the name of a node", where=f"graph {graph_name!r}", cause="`^` and `:` mark edges")


def write_shape(value: Value, shape: Shape) -> None:
    """Set a shape, also in attributes that repeat it: TensorFlow refuses a file in which they differ, or believes the attribute."""
    value.last_shape = shape
    node = value.producer
    for name, recorded in recorded_shapes(node).items():
        if len(recorded) == len(node.outputs):
            node.attrs.record(name, (*recorded[: value.index], ShapeAttribute(shape), *recorded[value.index + 1 :]))


def recorded_shapes(node: Node) -> dict[str, tuple[Attribute, ...]]:
    """Return the attributes that repeat the shapes of the outputs: `_output_shapes`, and `output_shapes` of If, Case and While."""
    recorded: dict[str, tuple[Attribute, ...]] = {}
    for name in ("_output_shapes", "output_shapes"):
        attribute = node.attrs.get(name)
        if isinstance(attribute, tuple) and (name[0] == "_" or node.op_type in FUNCTION_ATTRIBUTES):
            recorded[name] = attribute
    return recorded


@dataclass(slots=True, eq=False)
class Links:
    """The name, inputs and outputs of a node, which the node shows and only its graph changes."""

    name: str
    inputs: tuple[Value, ...]
    control_inputs: dict[Node, None]
    control_consumers: dict[Node, None]
    outputs: tuple[Value, ...]
    uses: tuple[dict[tuple[Node, int], None], ...]  # per output


class Node:
    """One operation. Made by `Graph.add_node`; change it through the verbs of its `Graph`."""

    __slots__ = ("_links", "attrs", "device", "extra", "graph", "op_type")

    def __init__(self, graph: Graph, op_type: str, attrs: Attributes, device: str, extra: bytes, links: Links) -> None:
        self.graph = graph
        self.op_type = op_type
        self.attrs = attrs  # change them with `Graph.set_attr`
        self.device = device
        self.extra = extra  # serialized fields of the NodeDef that the IR does not model, such as debug info
        self._links = links

    @property
    def name(self) -> str:
        """Unique in its graph; change it with `Graph.rename`."""
        return self._links.name

    @property
    def inputs(self) -> tuple[Value, ...]:
        """Data inputs; change them with `Graph.replace_input`."""
        return self._links.inputs

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The values it makes."""
        return self._links.outputs

    @property
    def control_inputs(self) -> tuple[Node, ...]:
        """Nodes that must have run before this one."""
        return tuple(self._links.control_inputs)

    @property
    def control_consumers(self) -> tuple[Node, ...]:
        """Nodes that have this one as a control input."""
        return tuple(self._links.control_consumers)

    def __repr__(self) -> str:
        return printable(f"<Node {self.name} = {self.op_type}({', '.join(v.name for v in self.inputs)})>")


@dataclass(slots=True)
class Function:
    """A function of the library.

    `body.inputs` are the arguments, `body.outputs` the results. `definition` is the serialized `FunctionDef` without its nodes.
    """

    name: str
    body: Graph
    definition: bytes = b""

    def __setattr__(self, name: str, value: Any) -> None:
        old: Graph | None = getattr(self, "body", None) if name == "body" else None
        if old is not None:
            old.functions.edits += 1
        object.__setattr__(self, name, value)


class Library(WatchedDict[str, Function]):
    """The functions that a graph and their bodies share, by name; `edits` counts the edits that may have changed a shape in any of them."""

    __slots__ = ("edits",)

    def __init__(self, functions: Mapping[str, Function] | None = None) -> None:
        super().__init__(functions or {})
        self.edits = 0

    def changed(self) -> None:
        self.edits += 1


@dataclass(frozen=True, slots=True)
class Variable:
    """The variable behind a resource input of a graph."""

    name: str
    dtype: DType
    shape: Shape
    trainable: bool

    @property
    def nbytes(self) -> int | None:
        """Bytes of the variable's value."""
        return byte_count(self.dtype, self.shape)
