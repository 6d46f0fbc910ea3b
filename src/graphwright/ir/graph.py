"""The graph: nodes, values and uses. Def-use is kept on both sides by every edit.

Edits go through verbs of the graph (`add_node`, `replace_input`, `add_control_input`,
`remove_node`, `rename`, ...). Each verb checks everything first and leaves the graph as it
was when it raises. What a node or value shows is read-only: `node.inputs` is a tuple, and
assigning to it raises.

No verb looks for cycles, which would cost a walk over the graph for every edge;
`ir.verify.verify` does, once for all edits.

>>> g = Graph()
>>> a = g.add_node("Placeholder", "a", attrs={}, output_types=[(DTYPES["float32"], (2, 3))])
>>> b = g.add_node("Relu", "b", inputs=[a.outputs[0]], output_types=[(DTYPES["float32"], (2, 3))])
>>> [str(use) for use in a.outputs[0].uses]
['b.inputs[0]']
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Container, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from graphwright.errors import GraphError
from graphwright.ir import colocation
from graphwright.ir.attributes import Attribute, ShapeAttribute
from graphwright.ir.colocation import Colocations
from graphwright.ir.dtypes import DTYPES as DTYPES
from graphwright.ir.dtypes import DType, Shape
from graphwright.ir.garbage_collection import garbage_collection_paused
from graphwright.ir.node import Function as Function
from graphwright.ir.node import Links, check_name
from graphwright.ir.node import Node as Node
from graphwright.ir.node import Use as Use
from graphwright.ir.node import Value as Value
from graphwright.ir.node import Variable as Variable
from graphwright.ir.settle import ShapeRule, settle
from graphwright.ir.signature import Collection, Holdings, Signature
from graphwright.ir.transaction import Record
from graphwright.ir.watched import WatchedDict


class Graph:
    """Ordered nodes, inputs, outputs, control outputs, and a library of functions.

    Args:
        name: for messages, and of the function made of it.
        functions: the library, by name.
        variables: what stands behind a resource input.
        versions: producer and min_consumer, as in a `GraphDef`.

    Attributes:
        package: what else a SavedModel holds; only the layer that read it looks inside.
        shape_rule: the output shapes of nodes that are given in topological order, where inputs from
            outside the list count as known. With a rule, shapes follow edits; without one they are left as they are.
        stale: the nodes whose shapes are to be settled before anyone reads a shape.
        touched: where it is a dictionary, the verbs note there which nodes they add or change.
    """

    __slots__ = (
        "_borders",
        "_by_name",
        "_collections",
        "_colocations",
        "_control_outputs",
        "_holdings",
        "_inputs",
        "_links",
        "_outputs",
        "_signatures",
        "_suffixes",
        "functions",
        "name",
        "package",
        "shape_rule",
        "stale",
        "touched",
        "variables",
        "versions",
    )

    def __init__(
        self,
        name: str = "",
        *,
        functions: dict[str, Function] | None = None,
        variables: dict[Value, Variable] | None = None,
        versions: tuple[int, int] = (0, 0),
    ) -> None:
        self.name = name
        self.functions: dict[str, Function] = {} if functions is None else functions
        self.variables: dict[Value, Variable] = {} if variables is None else variables  # by the resource input that stands for it
        self.versions = versions
        self.package: object | None = None
        self.shape_rule: ShapeRule | None = None
        self.stale: dict[Node, None] = {}
        self.touched: dict[Node, None] | None = None
        self._signatures: dict[str, Signature] = WatchedDict()
        self._collections: dict[str, Collection] = WatchedDict()
        self._holdings = Holdings(self._signatures, self._collections)
        self._colocations: Colocations | None = None  # made when it is first needed
        self._links: dict[Node, Links] = {}  # in order
        self._by_name: dict[str, Node] = {}
        self._inputs: tuple[Value, ...] = ()
        self._outputs: tuple[Value, ...] = ()
        self._control_outputs: tuple[Node, ...] = ()
        self._borders: Counter[Node] = Counter()  # how often a node is an input, output or control output
        self._suffixes: dict[str, int] = {}  # name -> every suffix below this is taken; forgotten when a name becomes free

    # Reading

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, in order."""
        return tuple(self._links)

    def __iter__(self) -> Iterator[Node]:
        return iter(tuple(self._links))

    def __len__(self) -> int:
        return len(self._links)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> Node:
        """The node with this name, in O(1).

        Raises:
            GraphError: there is none.
        """
        try:
            return self._by_name[name]
        except KeyError:
            close = [n for n in self._by_name if n.rsplit("/", 1)[-1] == name.rsplit("/", 1)[-1]][:3]
            raise GraphError(
                f"there is no node named {name!r}",
                where=f"graph {self.name!r} with {len(self)} nodes",
                remedy=f"did you mean {', '.join(close)}?" if close else "look at [n.name for n in graph]",
            ) from None

    def value(self, name: str) -> Value:
        """The value with this name, for example `conv:0`; `conv` means `conv:0`.

        Raises:
            GraphError: there is no such node, or it has no such output.
        """
        node_name, _, index = name.partition(":")
        node = self[node_name]
        if index and not index.isdecimal():
            raise GraphError(f"{name!r} is not the name of a value", remedy=f"write {node_name + ':0'!r} for the first output")
        position = int(index or 0)
        if position >= len(node.outputs):
            raise GraphError(f"{node_name!r} has {len(node.outputs)} outputs, got index {position}", where=f"value {name!r}")
        return node.outputs[position]

    def owns(self, node: Node) -> bool:
        """Whether the node is in this graph."""
        return node in self._links

    def unique_name(self, name: str) -> str:
        """The name itself when it is free, else with the first free suffix `_1`, `_2`, ..."""
        if name not in self._by_name:
            return name
        k = self._suffixes.get(name, 1)
        while f"{name}_{k}" in self._by_name:
            k += 1
        self._suffixes[name] = k
        return f"{name}_{k}"

    # Inputs and outputs

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values that are fed, each one once. Assigning checks that the graph owns them."""
        return self._inputs

    @inputs.setter
    def inputs(self, values: Iterable[Value]) -> None:
        values = tuple(values)
        for value in values:
            self._check_owned(value.producer, "graph.inputs")
        twice = next((v for v, count in Counter(values).items() if count > 1), None)
        if twice is not None:
            raise GraphError(f"{twice.name} is an input twice", where="graph.inputs", remedy="give every argument its own placeholder")
        self._inputs = values
        self._count_borders()

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The values that are returned. Assigning checks that the graph owns them."""
        return self._outputs

    @outputs.setter
    def outputs(self, values: Iterable[Value]) -> None:
        values = tuple(values)
        for value in values:
            self._check_owned(value.producer, "graph.outputs")
        self._outputs = values
        self._count_borders()

    @property
    def control_outputs(self) -> tuple[Node, ...]:
        """The nodes that run though no output needs them. Assigning checks that the graph owns them."""
        return self._control_outputs

    @control_outputs.setter
    def control_outputs(self, nodes: Iterable[Node]) -> None:
        nodes = tuple(nodes)
        for node in nodes:
            self._check_owned(node, "graph.control_outputs")
        self._control_outputs = nodes
        self._count_borders()

    def is_border(self, node: Node) -> bool:
        """Whether the node is a control output, or one of its values is an input or output of the graph or of a signature."""
        return node in self._borders or bool(self._holdings.signatures_of(node))

    @property
    def signatures(self) -> dict[str, Signature]:
        """The named ways to call it. What they feed and fetch counts as a border: it cannot be removed."""
        return self._signatures

    @signatures.setter
    def signatures(self, signatures: Mapping[str, Signature]) -> None:
        self._signatures = WatchedDict(signatures)
        self._holdings = Holdings(self._signatures, self._collections)

    @property
    def collections(self) -> dict[str, Collection]:
        """Lists of nodes, values and plain items. A removed node leaves them."""
        return self._collections

    @collections.setter
    def collections(self, collections: Mapping[str, Collection]) -> None:
        self._collections = WatchedDict(collections)
        self._holdings = Holdings(self._signatures, self._collections)

    def collections_of(self, node: Node) -> tuple[str, ...]:
        """The names of the collections that hold the node or a value of it, in O(1)."""
        return self._holdings.collections_of(node) if self._collections else ()

    def replace_in_collections(self, old: Node, new: Node) -> None:
        """Let the collections hold `new`, and its values, where they hold `old` and its values.

        Raises:
            GraphError: a node belongs to another graph.
        """
        self._check_owned(old, old.name)
        self._check_owned(new, new.name)
        if self._collections and old is not new:
            self._holdings.replace(old, new)

    def places_of_values(self, node: Node) -> list[tuple[str, list[Node | Value]]]:
        """Where values of a node, or the node, stand without being read: inputs, outputs, signatures and collections."""
        places: list[tuple[str, list[Node | Value]]] = [("graph.inputs", [*self._inputs]), ("graph.outputs", [*self._outputs])]
        for name in self._holdings.signatures_of(node):
            signature = self._signatures[name]
            places.append((f"graph.signatures[{name!r}]", [*signature.inputs.values(), *signature.outputs.values()]))
        places += [
            (f"graph.collections[{name!r}]", [*self._collections[name].references()]) for name in self._holdings.collections_of(node)
        ]
        return places

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
            self._check_owned(node, node.name)
        if self.shape_rule is not None:
            self.stale.update(dict.fromkeys(nodes))

    def settle_shapes(self) -> None:
        """Bring the shapes up to date. Reading `value.shape` does it by itself.

        Raises:
            GraphError: the rule refuses a node, which the message names; the shapes are as before then.
        """
        if self.shape_rule is None:
            self.stale = {}
        elif self.stale:
            settle(self, self.shape_rule)

    def note_shape(self, value: Value) -> None:
        """Note that a shape is about to be assigned: what reads it follows."""
        if value.producer in self.stale:  # or the assigned shape would be overwritten
            self.settle_shapes()
        self.stale.update(dict.fromkeys(value.consumers))

    # Undo

    @contextmanager
    def restored_on_error(self) -> Generator[None]:
        """Where the block raises, everything is put back as it was before it, and the error goes on.

        Back are the same objects in their old state: nodes, values, signatures, collections, the library of functions and all
        bodies in it. So what was held before the block stays valid; what the block added belongs to no graph any more. Blocks may
        be nested. A block that edits the body of a function restores the library, but not the graph that the body was
        reached from: open the block on that graph, which restores both.

        Takes time linear in the graph and its functions, also where nothing is raised; constants are not copied.

        >>> g = Graph()
        >>> a = g.add_node("Const", "a", output_types=[(DTYPES["float32"], ())])
        >>> with g.restored_on_error():
        ...     g.rename(a, "b")
        ...     g.rename(a, "not:allowed")
        Traceback (most recent call last):
            ...
        graphwright.errors.GraphError: 'not:allowed' cannot be the name of a node
          where: graph ''
          likely cause: `^` and `:` mark edges
        >>> a.name, g["a"] is a
        ('a', True)
        """
        graphs = dict.fromkeys((self, *(function.body for function in self.functions.values())))
        with garbage_collection_paused():
            record = Record()
            record.note(self.functions, *self.functions.values())
            for graph in graphs:
                record.note(graph, *graph._signatures.values())
                record.note(graph.package)  # with its tables where it is a data class
                record.note_collections(graph._collections.values())
                record.note_nodes(graph._links)
        try:
            yield
        except BaseException:
            record.restore()
            for graph in graphs:
                # What is computed from the rest is computed anew.
                graph._colocations = None
                graph._suffixes = {}
                graph._holdings = Holdings(graph._signatures, graph._collections)
                graph._count_borders()
            raise

    # What leaves the IR. It knows neither files nor pictures: the package's public words do the work.

    def write(self, path: Any, *, overwrite: bool = False) -> None:
        """Write the graph: `graphwright.write`, which see. The suffix says the format; without one it is a SavedModel.

        Raises:
            GraphwrightError: see `graphwright.write`.
        """
        _public_words().write(self, path, overwrite=overwrite)

    def draw(self, path: Any = None, **options: Any) -> Any:
        """Draw the graph into an .svg or .html file: `graphwright.draw`, which see. Returns the file's path."""
        return _public_words().draw(self, path, **options)

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
            output_types: dtype and shape per output. Where a shape is unknown and the graph has a rule for shapes, the rule is asked.

        Raises:
            GraphError: the name is empty or taken, or an input belongs to another graph.
        """
        self._check_free(name)
        controls = dict.fromkeys(control_inputs)
        for value in inputs:
            self._check_owned(value.producer, name)
        for control in controls:
            self._check_owned(control, name)
        uses: tuple[dict[tuple[Node, int], None], ...] = tuple({} for _ in output_types)
        links = Links(name, tuple(inputs), controls, {}, (), uses)
        node = Node(self, op_type, dict(attrs or {}), device, extra, links)
        links.outputs = tuple(Value(node, k, dtype, shape, uses[k]) for k, (dtype, shape) in enumerate(output_types))
        self._links[node] = links
        self._by_name[name] = node
        for k, value in enumerate(links.inputs):
            self._uses_of(value)[node, k] = None
        for control in controls:
            self._links[control].control_consumers[node] = None
        if self._colocations is not None:
            self._colocations.add(node)
        if self.touched is not None:
            self.touched[node] = None
        if self.shape_rule is not None and any(shape is None for _, shape in output_types):
            self.stale[node] = None
        return node

    def replace_input(self, node: Node, index: int, value: Value) -> None:
        """Let `node.inputs[index]` read `value`.

        Raises:
            GraphError: the index is out of range, the dtypes differ, or the node or the value belongs to another graph.
        """
        self._check_owned(node, node.name)
        if not 0 <= index < len(node.inputs):
            raise GraphError(f"{node.name!r} has {len(node.inputs)} inputs, got index {index}", where=f"node {node.name!r}")
        self._check_fits(node, index, value)
        self._set_inputs(node, {index: value})

    def replace_inputs(self, node: Node, values: Sequence[Value]) -> None:
        """Let the node read these values instead of its inputs: one per input, in time linear in their number.

        Raises:
            GraphError: there are more or fewer values than inputs, dtypes differ, or something belongs to another graph.
        """
        self._check_owned(node, node.name)
        if len(values) != len(node.inputs):
            raise GraphError(f"{node.name!r} has {len(node.inputs)} inputs, got {len(values)} values", where=f"node {node.name!r}")
        changed = {k: new for k, (old, new) in enumerate(zip(node.inputs, values, strict=True)) if old is not new}
        for index, value in changed.items():
            self._check_fits(node, index, value)
        self._set_inputs(node, changed)

    def append_input(self, node: Node, value: Value) -> None:
        """Add one more data input at the end (for ops with a variable number of inputs; their attributes are the caller's).

        Raises:
            GraphError: the node or the value belongs to another graph.
        """
        self._check_owned(node, node.name)
        self._check_owned(value.producer, node.name)
        links = self._links[node]
        self._uses_of(value)[node, len(links.inputs)] = None
        links.inputs = (*links.inputs, value)
        self._note(node)

    def set_inputs(self, node: Node, values: Sequence[Value]) -> None:
        """Let the node read exactly these values, however many it read before; its attributes are the caller's.

        Raises:
            GraphError: the node or a value belongs to another graph.
        """
        values = tuple(values)
        self._check_owned(node, node.name)
        for value in values:
            self._check_owned(value.producer, node.name)
        links = self._links[node]
        for k, value in enumerate(links.inputs):
            del self._uses_of(value)[node, k]
        links.inputs = values
        for k, value in enumerate(values):
            self._uses_of(value)[node, k] = None
        self._note(node)

    def add_output(self, node: Node, dtype: DType, shape: Shape) -> Value:
        """Give the node one more output at the end; its attributes are the caller's.

        Raises:
            GraphError: the node belongs to another graph.
        """
        self._check_owned(node, node.name)
        links = self._links[node]
        uses: dict[tuple[Node, int], None] = {}
        value = Value(node, len(links.outputs), dtype, shape, uses)
        links.outputs = (*links.outputs, value)
        links.uses = (*links.uses, uses)
        recorded = node.attrs.get("_output_shapes")
        if isinstance(recorded, tuple):
            node.attrs["_output_shapes"] = (*recorded, ShapeAttribute(shape))
        self._note(node)
        return value

    def remove_output(self, value: Value) -> None:
        """Remove an output of a node; those after it move up. The attributes of the node are the caller's.

        Raises:
            GraphError: something reads it, it is an input or output of the graph or of a signature, a
                collection holds it, or it belongs to another graph.
        """
        node, index = value.producer, value.index
        self._check_owned(node, node.name)
        links = self._links[node]
        if index >= len(links.outputs) or links.outputs[index] is not value:
            raise GraphError(f"{value.name} is no output of {node.name!r} any more", where=f"node {node.name!r}")
        self._check_unneeded(value)
        for later in links.outputs[index + 1 :]:
            later.index -= 1
        links.outputs = links.outputs[:index] + links.outputs[index + 1 :]
        links.uses = links.uses[:index] + links.uses[index + 1 :]
        self.variables.pop(value, None)
        recorded = node.attrs.get("_output_shapes")
        if isinstance(recorded, tuple):
            node.attrs["_output_shapes"] = recorded[:index] + recorded[index + 1 :]
        self._note(node)

    def set_output_types(self, node: Node, types: Sequence[tuple[DType, Shape]]) -> None:
        """Set the dtypes and shapes of all outputs; the values stay, new ones are added and surplus ones removed at the end.

        The attributes of the node are the caller's. The shapes count as settled.

        Raises:
            GraphError: an output that is read changes its dtype, one that is needed would go, or the node belongs to another
                graph; nothing is changed then.
        """
        self._check_owned(node, node.name)
        for value, (dtype, _) in zip(node.outputs, types, strict=False):
            self._check_new_dtype(value, dtype)
        for value in node.outputs[len(types) :]:
            self._check_unneeded(value)
        for value in reversed(node.outputs[len(types) :]):
            self.remove_output(value)
        for value, (dtype, shape) in zip(node.outputs, types, strict=False):
            self.set_output_type(value, dtype, shape)
        for dtype, shape in types[len(node.outputs) :]:
            self.add_output(node, dtype, shape)
        self.stale.pop(node, None)

    def set_output_type(self, value: Value, dtype: DType, shape: Shape) -> None:
        """Set the dtype and shape of an output; the attributes of its node are the caller's.

        Raises:
            GraphError: the dtype changes while something reads the value, or it belongs to another graph.
        """
        self._check_owned(value.producer, value.name)
        self._check_new_dtype(value, dtype)
        value.shape = shape
        value.dtype = dtype
        if dtype.name != "resource":
            self.variables.pop(value, None)
        if self.touched is not None:
            self.touched[value.producer] = None

    def set_op_type(self, node: Node, op_type: str) -> None:
        """Let the node be another operation, with the same inputs and outputs; its attributes are the caller's.

        Raises:
            GraphError: the op type is empty, or the node belongs to another graph.
        """
        self._check_owned(node, node.name)
        if not op_type:
            raise GraphError("an op type cannot be empty", where=f"node {node.name!r}")
        node.op_type = op_type
        self._note(node)

    def replace_uses(self, old: Value, new: Value, *, keep: Container[Node] = ()) -> int:
        """Let every reader of `old`, outputs of the graph and of signatures included, read `new`; returns how many changed.

        Args:
            keep: nodes that go on reading `old`, for example the one that makes `new` of it.

        Raises:
            GraphError: the dtypes differ, a value belongs to another graph, or the node of `new` would read itself.
        """
        return self.replace_many_uses({old: new}, keep=keep)

    def replace_many_uses(self, new_of: Mapping[Value, Value], *, keep: Container[Node] = (), borders: bool = True) -> int:
        """`replace_uses` of many values at once, in time linear in the inputs of their readers; returns how many uses changed.

        All are replaced at the same time: where a new value is to be replaced itself, its new readers go on reading it.

        Args:
            keep: nodes that go on reading the old values; anything that answers `in`.
            borders: whether outputs of the graph and of its signatures change too.

        Raises:
            GraphError: as `replace_uses`; nothing is changed then.
        """
        readers: dict[Node, dict[int, Value]] = {}
        for old, new in new_of.items():
            self._check_owned(old.producer, old.name)
            self._check_owned(new.producer, old.name)
            if old.dtype != new.dtype:
                raise GraphError(
                    f"{old.name} has dtype {old.dtype}, got {new.name} of dtype {new.dtype}", remedy="insert a Cast between them"
                )
            for node, index in self._uses_of(old) if old is not new else ():
                if node in keep:
                    continue
                if node is new.producer and node is not old.producer:
                    raise GraphError(
                        f"{node.name!r} reads {old.name}, and would then read itself",
                        where=f"node {node.name!r}",
                        remedy="name it in the argument keep",
                    )
                readers.setdefault(node, {})[index] = new
        for node, changed in readers.items():
            self._set_inputs(node, changed)
        in_outputs = 0
        if not borders:
            return sum(len(changed) for changed in readers.values())
        if any(old.producer in self._borders for old in new_of):
            in_outputs = sum(new_of.get(value, value) is not value for value in self._outputs)
            self.outputs = [new_of.get(value, value) for value in self._outputs]
        if self._signatures:
            in_outputs += self._holdings.replace_outputs(new_of)
        return sum(len(changed) for changed in readers.values()) + in_outputs

    def add_control_input(self, node: Node, control: Node) -> None:
        """Let `node` run after `control`; adding it again changes nothing.

        Raises:
            GraphError: a node belongs to another graph, or both are the same.
        """
        self._check_owned(node, node.name)
        self._check_owned(control, node.name)
        if control is node:
            raise GraphError(f"{node.name!r} cannot be its own control input", where=f"node {node.name!r}")
        self._links[node].control_inputs[control] = None
        self._links[control].control_consumers[node] = None

    def remove_control_input(self, node: Node, control: Node) -> None:
        """Remove a control edge.

        Raises:
            GraphError: there is no such edge.
        """
        self._check_owned(node, node.name)
        if control not in self._links[node].control_inputs:
            raise GraphError(f"{control.name!r} is no control input of {node.name!r}", where=f"node {node.name!r}")
        del self._links[node].control_inputs[control]
        del self._links[control].control_consumers[node]

    def remove_node(self, node: Node) -> None:
        """Remove a node that nothing reads. It leaves the collections; who was colocated with it, no longer is.

        Raises:
            GraphError: something still reads it, or it is an input or output of the graph or of a signature.
        """
        self._check_owned(node, node.name)
        readers = [str(use) for value in node.outputs for use in value.uses] + [f"{n.name} (control)" for n in node.control_consumers]
        if readers:
            raise GraphError(
                f"{node.name!r} is still read by {', '.join(readers[:3])}" + (f" and {len(readers) - 3} more" if len(readers) > 3 else ""),
                where=f"node {node.name!r}",
                remedy="reroute its uses first (graph.replace_uses)",
            )
        self._check_not_border(node)
        self._unlink_all({node: None})

    def remove_nodes(self, nodes: Iterable[Node]) -> None:
        """Remove a set of nodes that only read each other.

        Raises:
            GraphError: a node outside the set reads one inside, or one inside is an input or output of the graph;
                nothing is removed then.
        """
        doomed = dict.fromkeys(nodes)
        for node in doomed:
            self._check_owned(node, node.name)
            links = self._links[node]
            outside = next((c for uses in links.uses for c, _ in uses if c not in doomed), None)
            outside = outside or next((c for c in links.control_consumers if c not in doomed), None)
            if outside is not None:
                raise GraphError(f"{node.name!r} is still read by {outside.name!r}", where=f"node {node.name!r}")
            self._check_not_border(node)
        self._unlink_all(doomed)

    def rename(self, node: Node, name: str) -> None:
        """Give a node another name; its place in the order stays, and colocation constraints follow.

        Raises:
            GraphError: the name is empty or taken, or the node belongs to another graph.
        """
        self.rename_many({node: name})

    def rename_many(self, name_of: Mapping[Node, str]) -> None:
        """Give nodes other names, all at the same time, so that two can exchange theirs.

        Raises:
            GraphError: a name is empty, given twice or taken by a node that keeps it, or a node belongs to another graph.
        """
        given: dict[str, Node] = {}
        for node, name in name_of.items():
            self._check_owned(node, name)
            if name in given:
                raise GraphError(f"{given[name].name!r} and {node.name!r} cannot both be renamed to {name!r}", where=f"graph {self.name!r}")
            if self._by_name.get(name) not in name_of:
                self._check_free(name)
            given[name] = node
        changed = {node: name for node, name in name_of.items() if name != node.name}
        if not changed:
            return
        if self._colocations is None:
            self._colocations = Colocations(self._links)
        self._colocations.replace({node.name: name for node, name in changed.items()})
        for node in changed:
            self._free_name(node.name)
        for node, name in changed.items():
            self._links[node].name = name
            self._by_name[name] = node

    def colocated_with(self, node: Node) -> tuple[Node, ...]:
        """The nodes that ask to be on the device of this one (`loc:@` in their attribute `_class`)."""
        if self._colocations is None:
            self._colocations = Colocations(self._links)
        return self._colocations.members(node.name)

    def set_attr(self, node: Node, name: str, attribute: Attribute | None) -> None:
        """Set an attribute of a node; None removes it. Its shapes are settled anew when one is next read.

        Raises:
            GraphError: the node belongs to another graph.
        """
        self._check_owned(node, node.name)
        constraint = name == colocation.ATTRIBUTE
        if constraint and self._colocations is not None:
            self._colocations.discard(node)
        if attribute is None:
            node.attrs.pop(name, None)
        else:
            node.attrs[name] = attribute
        if constraint and self._colocations is not None:
            self._colocations.add(node)
        if not constraint:
            self._note(node)

    def sort_nodes(self, order: Sequence[Node]) -> None:
        """Set the order of the nodes.

        Raises:
            GraphError: `order` does not hold each node once.
        """
        if len(order) != len(self._links) or len(set(order)) != len(order):
            raise GraphError(f"the order holds {len(set(order))} nodes, the graph {len(self._links)}", remedy="list each node once")
        for node in order:
            self._check_owned(node, "order")
        self._links = {node: self._links[node] for node in order}

    # Checks, which change nothing

    def _check_free(self, name: str) -> None:
        check_name(name, self.name)
        if name in self._by_name:
            raise GraphError(f"a node named {name!r} exists already", where=f"graph {self.name!r}", remedy="use graph.unique_name(name)")

    def _check_owned(self, node: Node, by: str) -> None:
        if node not in self._links:
            raise GraphError(
                f"{node.name!r} does not belong to this graph", where=f"{by!r}", cause="it was removed, or belongs to another graph"
            )

    def _check_fits(self, node: Node, index: int, value: Value) -> None:
        self._check_owned(value.producer, node.name)
        old = node.inputs[index]
        if old.dtype != value.dtype:
            raise GraphError(
                f"{node.name}.inputs[{index}] has dtype {old.dtype}, got {value.name} of dtype {value.dtype}",
                where=f"node {node.name!r}",
                remedy="insert a Cast between them",
            )

    def _check_not_border(self, node: Node) -> None:
        if node in self._borders:
            raise GraphError(f"{node.name!r} is an input or output of the graph", where=f"node {node.name!r}")
        names = self._holdings.signatures_of(node) if self._signatures else ()
        if names:
            raise GraphError(
                f"{node.name!r} is an input or output of signature {names[0]!r}",
                where=f"node {node.name!r}",
                remedy="change graph.signatures first",
            )

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

    # Changes, which check nothing

    def _uses_of(self, value: Value) -> dict[tuple[Node, int], None]:
        return self._links[value.producer].uses[value.index]

    def _set_inputs(self, node: Node, changed: Mapping[int, Value]) -> None:
        links = self._links[node]
        inputs = list(links.inputs)
        for index, value in changed.items():
            del self._uses_of(inputs[index])[node, index]
            inputs[index] = value
            self._uses_of(value)[node, index] = None
        links.inputs = tuple(inputs)
        self._note(node)

    def _note(self, node: Node) -> None:
        if self.shape_rule is not None:
            self.stale[node] = None
        if self.touched is not None:
            self.touched[node] = None

    def _unlink_all(self, doomed: Mapping[Node, object]) -> None:
        self._holdings.drop(doomed)
        if self._colocations is None:
            self._colocations = Colocations(self._links)
        for node in doomed:
            self._colocations.discard(node)
        self._colocations.replace({node.name: None for node in doomed})
        for node in doomed:
            self._unlink(node)
            self.stale.pop(node, None)

    def _unlink(self, node: Node) -> None:
        links = self._links.pop(node)
        for k, value in enumerate(links.inputs):
            # What it read may have been removed before it, in the same set.
            before = self._links.get(value.producer)
            if before is not None:
                del before.uses[value.index][node, k]
        for control in links.control_inputs:
            if control in self._links:
                del self._links[control].control_consumers[node]
        for consumer in links.control_consumers:
            if consumer in self._links:
                del self._links[consumer].control_inputs[node]
        for value in links.outputs:
            self.variables.pop(value, None)
        self._free_name(links.name)

    def _free_name(self, name: str) -> None:
        del self._by_name[name]
        if self._suffixes:
            self._suffixes = {}

    def _count_borders(self) -> None:
        self._borders = Counter((*(v.producer for v in self._inputs), *(v.producer for v in self._outputs), *self._control_outputs))


def _public_words() -> Any:
    """The package, which loads a word when it is first used; a module of this package is only ever loaded after it."""
    return sys.modules["graphwright"]
