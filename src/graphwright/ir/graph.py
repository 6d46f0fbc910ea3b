"""The graph: nodes, values and uses. Def-use is kept on both sides by every edit.

Edits go through verbs (`add_node`, `replace_input`, `add_control_input`, `remove_node`,
`rename`, ...). Each verb checks everything first and leaves the graph as it was when it
raises. Lists such as `node.inputs` are tuples: they cannot be assigned to.

>>> g = Graph()
>>> a = g.add_node("Placeholder", "a", attrs={}, output_types=[(DTYPES["float32"], (2, 3))])
>>> b = g.add_node("Relu", "b", inputs=[a.outputs[0]], output_types=[(DTYPES["float32"], (2, 3))])
>>> [str(use) for use in a.outputs[0].uses]
['b.inputs[0]']
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from graphwright.errors import GraphError
from graphwright.ir.attributes import Attribute
from graphwright.ir.dtypes import DTYPES as DTYPES
from graphwright.ir.dtypes import DType, Shape, byte_count, format_shape


@dataclass(frozen=True, slots=True)
class Use:
    """`node.inputs[index]` reads the value."""

    node: Node
    index: int

    def __str__(self) -> str:
        return f"{self.node.name}.inputs[{self.index}]"


class Value:
    """One output of a node. `uses` costs O(uses), never a scan of the graph."""

    __slots__ = ("_uses", "dtype", "index", "producer", "shape")

    def __init__(self, producer: Node, index: int, dtype: DType, shape: Shape) -> None:
        self.producer = producer
        self.index = index
        self.dtype = dtype
        self.shape = shape
        self._uses: dict[tuple[Node, int], None] = {}

    @property
    def name(self) -> str:
        """`node:index`, as TensorFlow writes it."""
        return f"{self.producer.name}:{self.index}"

    @property
    def uses(self) -> tuple[Use, ...]:
        """Where it is read, in the order in which the uses were made."""
        return tuple(Use(node, index) for node, index in self._uses)

    @property
    def consumers(self) -> tuple[Node, ...]:
        """The nodes that read it, each once."""
        return tuple(dict.fromkeys(node for node, _ in self._uses))

    @property
    def nbytes(self) -> int | None:
        """Bytes of the tensor, or None when the shape is unknown or elements have no fixed size."""
        return byte_count(self.dtype, self.shape)

    def __repr__(self) -> str:
        return f"<Value {self.name} {self.dtype}{format_shape(self.shape)}>"

    def __str__(self) -> str:
        return self.name


class Node:
    """One operation. Change it through the verbs of its `Graph`."""

    __slots__ = ("_control_consumers", "_control_inputs", "_inputs", "_name", "attrs", "device", "extra", "graph", "op_type", "outputs")

    def __init__(
        self, graph: Graph, op_type: str, name: str, inputs: tuple[Value, ...], attrs: dict[str, Attribute], device: str, extra: bytes
    ) -> None:
        self.graph = graph
        self.op_type = op_type
        self._name = name
        self._inputs = inputs
        self._control_inputs: dict[Node, None] = {}
        self._control_consumers: dict[Node, None] = {}
        self.attrs = attrs
        self.device = device
        self.extra = extra  # serialized fields of the NodeDef that the IR does not model, such as debug info
        self.outputs: tuple[Value, ...] = ()

    @property
    def name(self) -> str:
        """Unique in its graph; change it with `Graph.rename`."""
        return self._name

    @property
    def inputs(self) -> tuple[Value, ...]:
        """Data inputs; change them with `Graph.replace_input`."""
        return self._inputs

    @property
    def control_inputs(self) -> tuple[Node, ...]:
        """Nodes that must have run before this one."""
        return tuple(self._control_inputs)

    @property
    def control_consumers(self) -> tuple[Node, ...]:
        """Nodes that have this one as a control input."""
        return tuple(self._control_consumers)

    def __repr__(self) -> str:
        return f"<Node {self.name} = {self.op_type}({', '.join(v.name for v in self._inputs)})>"


@dataclass(slots=True)
class Function:
    """A function of the library: its body as a graph, and what the body graph does not say.

    `body.inputs` are the arguments, `body.outputs` the results. `signature` and `attributes`
    are the serialized `OpDef` and attributes, kept so that an unedited function is written
    back as it was read.
    """

    name: str
    body: Graph
    definition: bytes = b""


@dataclass(frozen=True, slots=True)
class Variable:
    """What a resource input of a graph stands for."""

    name: str
    dtype: DType
    shape: Shape
    trainable: bool

    @property
    def nbytes(self) -> int | None:
        """Bytes of the variable's value."""
        return byte_count(self.dtype, self.shape)


@dataclass(slots=True)
class Graph:
    """Ordered nodes, inputs, outputs, control outputs, and a library of functions."""

    name: str = ""
    inputs: list[Value] = field(default_factory=list[Value])
    outputs: list[Value] = field(default_factory=list[Value])
    control_outputs: list[Node] = field(default_factory=list["Node"])
    functions: dict[str, Function] = field(default_factory=dict[str, Function])
    variables: dict[Value, Variable] = field(default_factory=dict[Value, Variable])  # by the resource input that stands for it
    versions: tuple[int, int] = (0, 0)  # producer, min_consumer
    _nodes: dict[str, Node] = field(default_factory=dict[str, "Node"])

    # Reading

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, in order."""
        return tuple(self._nodes.values())

    def __iter__(self) -> Iterator[Node]:
        return iter(tuple(self._nodes.values()))

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, name: object) -> bool:
        return name in self._nodes

    def __getitem__(self, name: str) -> Node:
        """The node with this name, in O(1).

        Raises:
            GraphError: there is none.
        """
        try:
            return self._nodes[name]
        except KeyError:
            close = [n for n in self._nodes if n.rsplit("/", 1)[-1] == name.rsplit("/", 1)[-1]][:3]
            raise GraphError(
                f"there is no node named {name!r}",
                where=f"graph {self.name!r} with {len(self)} nodes",
                remedy=f"did you mean {', '.join(close)}?" if close else "look at [n.name for n in graph]",
            ) from None

    def value(self, name: str) -> Value:
        """The value with this name, for example `conv:0`; `conv` means `conv:0`."""
        node_name, _, index = name.partition(":")
        node = self[node_name]
        position = int(index or 0)
        if position >= len(node.outputs):
            raise GraphError(f"{node_name!r} has {len(node.outputs)} outputs, got index {position}", where=f"value {name!r}")
        return node.outputs[position]

    def unique_name(self, name: str) -> str:
        """The name itself when it is free, else with the first free suffix `_1`, `_2`, ..."""
        if name not in self._nodes:
            return name
        k = 1
        while f"{name}_{k}" in self._nodes:
            k += 1
        return f"{name}_{k}"

    # Verbs

    def add_node(
        self,
        op_type: str,
        name: str,
        *,
        inputs: Sequence[Value] = (),
        control_inputs: Iterable[Node] = (),
        attrs: Mapping[str, Attribute] | None = None,
        output_types: Sequence[tuple[DType, Shape]] = (),
        device: str = "",
        extra: bytes = b"",
    ) -> Node:
        """Append a node.

        Args:
            output_types: dtype and shape per output.

        Raises:
            GraphError: the name is taken, or an input belongs to another graph.
        """
        if name in self._nodes:
            raise GraphError(f"a node named {name!r} exists already", where=f"graph {self.name!r}", remedy="use graph.unique_name(name)")
        controls = tuple(control_inputs)
        for value in inputs:
            self._check_owned(value.producer, name)
        for control in controls:
            self._check_owned(control, name)
        node = Node(self, op_type, name, tuple(inputs), dict(attrs or {}), device, extra)
        node.outputs = tuple(Value(node, k, dtype, shape) for k, (dtype, shape) in enumerate(output_types))
        self._nodes[name] = node
        for k, value in enumerate(node._inputs):  # pyright: ignore[reportPrivateUsage]
            value._uses[node, k] = None  # pyright: ignore[reportPrivateUsage]
        for control in controls:
            self._link_control(node, control)
        return node

    def replace_input(self, node: Node, index: int, value: Value) -> None:
        """Let `node.inputs[index]` read `value`.

        Raises:
            GraphError: the index is out of range, the dtypes differ, or the value belongs to another graph.
        """
        if not 0 <= index < len(node.inputs):
            raise GraphError(f"{node.name!r} has {len(node.inputs)} inputs, got index {index}", where=f"node {node.name!r}")
        self._check_owned(value.producer, node.name)
        old = node.inputs[index]
        if old.dtype != value.dtype:
            raise GraphError(
                f"{node.name}.inputs[{index}] has dtype {old.dtype}, got {value.name} of dtype {value.dtype}",
                where=f"node {node.name!r}",
                remedy="insert a Cast between them",
            )
        self._set_input(node, index, value)

    def append_input(self, node: Node, value: Value) -> None:
        """Add one more data input at the end (for ops with a variable number of inputs)."""
        self._check_owned(value.producer, node.name)
        node._inputs = (*node.inputs, value)  # pyright: ignore[reportPrivateUsage]
        value._uses[node, len(node.inputs) - 1] = None  # pyright: ignore[reportPrivateUsage]

    def replace_uses(self, old: Value, new: Value) -> int:
        """Let every reader of `old`, graph outputs included, read `new`; returns how many changed."""
        if old.dtype != new.dtype:
            raise GraphError(f"{old.name} has dtype {old.dtype}, got {new.name} of dtype {new.dtype}", remedy="insert a Cast between them")
        self._check_owned(new.producer, old.name)
        uses = old.uses
        for use in uses:
            self._set_input(use.node, use.index, new)
        changed = len(uses)
        for k, value in enumerate(self.outputs):
            if value is old:
                self.outputs[k] = new
                changed += 1
        return changed

    def add_control_input(self, node: Node, control: Node) -> None:
        """Let `node` run after `control`; adding it again changes nothing."""
        self._check_owned(control, node.name)
        if control is node:
            raise GraphError(f"{node.name!r} cannot be its own control input", where=f"node {node.name!r}")
        self._link_control(node, control)

    def remove_control_input(self, node: Node, control: Node) -> None:
        """Remove a control edge.

        Raises:
            GraphError: there is no such edge.
        """
        if control not in node._control_inputs:  # pyright: ignore[reportPrivateUsage]
            raise GraphError(f"{control.name!r} is no control input of {node.name!r}", where=f"node {node.name!r}")
        del node._control_inputs[control]  # pyright: ignore[reportPrivateUsage]
        del control._control_consumers[node]  # pyright: ignore[reportPrivateUsage]

    def remove_node(self, node: Node) -> None:
        """Remove a node that nothing reads.

        Raises:
            GraphError: something still reads it, or it is an input or output of the graph.
        """
        self._check_owned(node, node.name)
        readers = [str(use) for value in node.outputs for use in value.uses] + [f"^{n.name}" for n in node.control_consumers]
        if readers:
            raise GraphError(
                f"{node.name!r} is still read by {', '.join(readers[:3])}" + (f" and {len(readers) - 3} more" if len(readers) > 3 else ""),
                where=f"node {node.name!r}",
                remedy="reroute its uses first (graph.replace_uses)",
            )
        if any(value.producer is node for value in self.outputs + self.inputs) or node in self.control_outputs:
            raise GraphError(f"{node.name!r} is an input or output of the graph", where=f"node {node.name!r}")
        self._unlink(node)

    def remove_nodes(self, nodes: Iterable[Node]) -> None:
        """Remove a set of nodes that only read each other.

        Raises:
            GraphError: a node outside the set reads one inside; nothing is removed then.
        """
        doomed = dict.fromkeys(nodes)
        borders = {value.producer for value in self.outputs + self.inputs} | set(self.control_outputs)
        for node in doomed:
            self._check_owned(node, node.name)
            outside = next(
                (c for value in node.outputs for c, _ in value._uses if c not in doomed),  # pyright: ignore[reportPrivateUsage]
                None,
            ) or next((c for c in node._control_consumers if c not in doomed), None)  # pyright: ignore[reportPrivateUsage]
            if outside is not None:
                raise GraphError(f"{node.name!r} is still read by {outside.name!r}", where=f"node {node.name!r}")
            if node in borders:
                raise GraphError(f"{node.name!r} is an input or output of the graph", where=f"node {node.name!r}")
        for node in doomed:
            self._unlink(node)

    def rename(self, node: Node, name: str) -> None:
        """Give a node another name; its place in the order stays.

        Raises:
            GraphError: the name is taken.
        """
        if name == node.name:
            return
        if name in self._nodes:
            raise GraphError(f"a node named {name!r} exists already", where=f"node {node.name!r}", remedy="use graph.unique_name(name)")
        self._check_owned(node, node.name)
        self._nodes = {(name if n is node else key): n for key, n in self._nodes.items()}
        node._name = name  # pyright: ignore[reportPrivateUsage]

    def sort_nodes(self, order: Sequence[Node]) -> None:
        """Set the order of the nodes.

        Raises:
            GraphError: `order` does not hold each node once.
        """
        if len(order) != len(self._nodes) or len({n.name for n in order}) != len(order):
            raise GraphError(f"the order holds {len(order)} nodes, the graph {len(self._nodes)}", remedy="list each node once")
        for node in order:
            self._check_owned(node, node.name)
        self._nodes = {node.name: node for node in order}

    # Private

    def _check_owned(self, node: Node, by: str) -> None:
        if self._nodes.get(node.name) is not node:
            raise GraphError(
                f"{node.name!r} does not belong to this graph", where=f"node {by!r}", cause="it was removed, or belongs to another graph"
            )

    def _link_control(self, node: Node, control: Node) -> None:
        node._control_inputs[control] = None  # pyright: ignore[reportPrivateUsage]
        control._control_consumers[node] = None  # pyright: ignore[reportPrivateUsage]

    def _set_input(self, node: Node, index: int, value: Value) -> None:
        old = node.inputs[index]
        del old._uses[node, index]  # pyright: ignore[reportPrivateUsage]
        node._inputs = (*node.inputs[:index], value, *node.inputs[index + 1 :])  # pyright: ignore[reportPrivateUsage]
        value._uses[node, index] = None  # pyright: ignore[reportPrivateUsage]

    def _unlink(self, node: Node) -> None:
        for k, value in enumerate(node.inputs):
            value._uses.pop((node, k), None)  # pyright: ignore[reportPrivateUsage]
        for control in node._control_inputs:  # pyright: ignore[reportPrivateUsage]
            control._control_consumers.pop(node, None)  # pyright: ignore[reportPrivateUsage]
        for consumer in node._control_consumers:  # pyright: ignore[reportPrivateUsage]
            consumer._control_inputs.pop(node, None)  # pyright: ignore[reportPrivateUsage]
        del self._nodes[node.name]
