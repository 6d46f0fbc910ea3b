"""The graph: nodes, values and uses. Def-use is kept on both sides by every edit.

Edits go through verbs of the graph (`add_node`, `replace_input`, `add_control_input`, `remove_node`, `rename`, ...). Each verb checks
everything first and leaves the graph as it was when it raises. Attributes of nodes and values are read-only: `node.inputs` is a tuple,
and assigning to it raises.

No verb looks for cycles, which would cost a walk over the graph for every edge; `ir.verify.verify` does, once for all edits.

>>> g = Graph()
>>> a = g.add_node("Placeholder", "a", attrs={}, output_types=[(DTYPES["float32"], (2, 3))])
>>> b = g.add_node("Relu", "b", inputs=[a.outputs[0]], output_types=[(DTYPES["float32"], (2, 3))])
>>> [str(use) for use in a.outputs[0].uses], g
(['b.inputs[0]'], <Graph: 2 nodes>)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from graphwright.errors import GraphError
from graphwright.ir import colocation
from graphwright.ir.attributes import Attribute, Attributes, ShapeAttribute, as_attribute
from graphwright.ir.colocation import Colocations
from graphwright.ir.dtypes import DTYPES as DTYPES
from graphwright.ir.dtypes import DType, Shape, as_dtype, as_shape
from graphwright.ir.garbage_collection import garbage_collection_paused
from graphwright.ir.names import NameTable
from graphwright.ir.node import Function as Function
from graphwright.ir.node import Library, Links, check_name, write_shape
from graphwright.ir.node import Node as Node
from graphwright.ir.node import Use as Use
from graphwright.ir.node import Value as Value
from graphwright.ir.node import Variable as Variable
from graphwright.ir.rules import OpRule, OutputTypes, ShapeTracker
from graphwright.ir.signature import Collection, Holdings, Signature
from graphwright.ir.transaction import Record
from graphwright.ir.watched import WatchedDict

_LAST_SHOWN = 5


class Graph:
    """Ordered nodes, inputs, outputs, control outputs, and a library of functions.

    Verbs raise `GraphError` for nodes and values of other graphs, missing indices, names that are empty, invalid or taken, and dtypes that
    differ; they raise `ArgumentError` for what is not a dtype, shape or attribute.

    Args:
        functions: the library, by name. A library of another graph is shared, a plain dictionary copied.
        variables: the variables behind resource inputs.
        versions: producer and min_consumer of the `GraphDef` that it was read from; None for a new graph, which is written under the
            version of the running TensorFlow. Some old ops run only under old versions.

    Attributes:
        at_most: for values whose shape is the largest that they can have at run time, the dimensions that are the same in every run,
            which are written to files.
        example: known numbers of one call: an input's value by its name, a loop's trip count by its name.
        inlined: the number of nodes right after all calls were inlined; 0 before. Later removals leave it alone.
        package: the rest of a SavedModel; only the layer that read it looks inside.
        shapes: keeps shapes up to date with edits (`ir.shapes.Shapes`); None leaves shapes as they are.
        op_rule: checks whether new nodes can be written; graphs from files have one, None checks nothing.
        touched: where it is a dictionary, the verbs add the nodes that they add or change.
    """

    __slots__ = (
        "_borders",
        "_by_name",
        "_collections",
        "_colocations",
        "_control_outputs",
        "_functions",
        "_holdings",
        "_inputs",
        "_links",
        "_outputs",
        "_signatures",
        "at_most",
        "example",
        "inlined",
        "name",
        "op_rule",
        "package",
        "shapes",
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
        versions: tuple[int, int] | None = None,
    ) -> None:
        self.name = name
        self.versions = versions
        self.op_rule: OpRule | None = None
        self.shapes: ShapeTracker | None = None
        self.touched: dict[Node, None] | None = None
        self.variables = {} if variables is None else variables  # by resource input
        self.package: object | None = None
        self.at_most: dict[Value, Shape] = {}
        self.inlined = 0
        self.example: dict[str, float] = {}
        self._links: dict[Node, Links] = {}  # in order
        self._by_name: NameTable[Node] = NameTable()
        self._colocations: Colocations | None = None  # made when it is first needed
        self._functions = functions if isinstance(functions, Library) else Library(functions)
        self._inputs: tuple[Value, ...] = ()
        self._outputs: tuple[Value, ...] = ()
        self._control_outputs: tuple[Node, ...] = ()
        self._borders: Counter[Node] = Counter()  # how often a node is an input, output or control output
        self._signatures: dict[str, Signature] = WatchedDict()
        self._collections: dict[str, Collection] = WatchedDict()
        self._holdings = Holdings(self._signatures, self._collections)

    def __repr__(self) -> str:
        counts = {"nodes": self.nodes, "functions": self.functions, "variables": self.variables, "signatures": self.signatures}
        counted = ", ".join(f"{len(items):,} {kind if len(items) != 1 else kind[:-1]}" for kind, items in counts.items() if items)
        return f"<Graph{f' {self.name!r}' if self.name else ''}: {counted or 'empty'}>"

    # Reading

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, in order: a new tuple, in O(nodes)."""
        return tuple(self._links)

    def __iter__(self) -> Iterator[Node]:
        return iter(tuple(self._links))

    def __reversed__(self) -> Iterator[Node]:
        """Iterate over the nodes from the last one back; the graph must not change meanwhile."""
        return reversed(self._links)

    def __len__(self) -> int:
        return len(self._links)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> Node:
        """Return the node with this name, in O(1)."""
        node = self._by_name.get(name)
        if node is not None:
            return node
        close = self._by_name.like(name)
        last = ", ".join([*self._by_name][-_LAST_SHOWN:])
        raise GraphError(
            f"there is no node named {name!r}",
            where=f"graph {self.name!r} with {len(self)} nodes",
            remedy=f"did you mean {', '.join(close)}?" if close else f"the last nodes are {last}; `graphwright show MODEL` lists all",
        )

    def value(self, name: str) -> Value:
        """Return the value with this name, for example `conv:0`; `conv` means `conv:0`."""
        node_name, _, index = name.partition(":")
        node = self[node_name]
        if index and not index.isdecimal():
            raise GraphError(f"{name!r} is not the name of a value", remedy=f"write {node_name + ':0'!r} for the first output")
        position = int(index or 0)
        if position >= len(node.outputs):
            raise GraphError(f"{node_name!r} has {len(node.outputs)} outputs, got index {position}", where=f"value {name!r}")
        return node.outputs[position]

    def owns(self, node: Node) -> bool:
        """Return whether the node is in this graph."""
        return node in self._links

    def check_owned(self, node: Node, where: str) -> None:
        """Refuse a node that was removed or belongs to another graph; the message names the node or place `where`."""
        if node not in self._links:
            raise GraphError(
                f"{node.name!r} does not belong to graph {self.name!r}",
                where=f"{where!r}",
                cause="it was removed, or belongs to another graph",
            )

    def colocated_with(self, node: Node) -> tuple[Node, ...]:
        """Return the nodes that ask to be on the device of this one (`loc:@` in their attribute `_class`)."""
        return self._colocation_index().members(node.name)

    # Names and order

    def unique_name(self, name: str) -> str:
        """Return the name itself when it is free, else with the first free suffix `_1`, `_2`, ..."""
        return self._by_name.unique(name)

    def check_new_name(self, name: str) -> None:
        """Refuse a name that no node of this graph can have, whether it is taken or not."""
        check_name(name, self.name)
        if self.op_rule is not None:
            self.op_rule.check_name(self, name)

    def rename(self, node: Node, name: str) -> None:
        """Give a node another name; its place in the order stays, and colocation constraints follow."""
        self.rename_many({node: name})

    def rename_many(self, name_of: Mapping[Node, str]) -> None:
        """Give nodes other names, all at the same time, so that two can exchange theirs."""
        new_names: dict[str, Node] = {}
        for node, name in name_of.items():
            self.check_owned(node, name)
            if name in new_names:
                raise GraphError(
                    f"{new_names[name].name!r} and {node.name!r} cannot both be renamed to {name!r}", where=f"graph {self.name!r}"
                )
            if self._by_name.get(name) not in name_of:
                self.check_new_name(name)
                self._check_not_taken(name)
            new_names[name] = node
        changed = {node: name for node, name in name_of.items() if name != node.name}
        if not changed:
            return
        self._colocation_index().replace({node.name: name for node, name in changed.items()})
        for node in changed:
            self._by_name.release(node.name)
        for node, name in changed.items():
            self._links[node].name = name
            self._by_name[name] = node

    def sort_nodes(self, order: Sequence[Node]) -> None:
        """Set the order of the nodes; `order` holds each node once."""
        if len(order) != len(self._links) or len(set(order)) != len(order):
            raise GraphError(f"the order holds {len(set(order))} nodes, the graph {len(self._links)}", remedy="list each node once")
        for node in order:
            self.check_owned(node, "order")
        self._links = {node: self._links[node] for node in order}

    # Nodes

    def add_node(
        self,
        op_type: str,
        name: str,
        *,
        inputs: Sequence[Value] = (),
        control_inputs: Iterable[Node] = (),
        attrs: Mapping[str, Any] | None = None,
        output_types: Sequence[tuple[Any, Any]] | None = None,
        device: str = "",
        extra: bytes = b"",
    ) -> Node:
        """Append a node.

        Args:
            attrs: in any usual form: dtypes as `tf.float32`, `np.float32` or `"float32"`, shapes as lists, text, arrays. With a rule for
                ops, attributes that follow from the inputs and outputs may be left out.
            output_types: dtype and shape per output, in any usual form. Unknown shapes are inferred where the graph has `shapes`.
                By default the rule for ops gives them, with the defaults of attributes; without a rule there are no outputs.

        With a rule for ops, a node that no file can hold raises `GraphError`, which names the attribute or input and what may have been
        meant.
        """
        self.check_new_name(name)
        self._check_not_taken(name)
        for value in inputs:
            self.check_owned(value.producer, name)
        attrs, types = self.completed(op_type, name, inputs, attrs or {}, output_types)
        return self.append_node(
            op_type, name, inputs=inputs, control_inputs=control_inputs, attrs=attrs, output_types=types, device=device, extra=extra
        )

    def completed(
        self, op_type: str, name: str, inputs: Sequence[Value], attrs: Mapping[str, Any], output_types: Sequence[tuple[Any, Any]] | None
    ) -> tuple[dict[str, Attribute], OutputTypes]:
        """Convert, complete and check the attributes and output types of a new node; arguments and errors as in `add_node`."""
        types = None if output_types is None else [(as_dtype(dtype), as_shape(shape)) for dtype, shape in output_types]
        if self.op_rule is None:
            return {key: as_attribute(attribute) for key, attribute in attrs.items()}, types or ()
        self.op_rule.check_op(self, op_type, name)
        return self.op_rule.completed(self, op_type, name, inputs, attrs, types)

    def append_node(
        self,
        op_type: str,
        name: str,
        *,
        inputs: Sequence[Value] = (),
        control_inputs: Iterable[Node] = (),
        attrs: Mapping[str, Attribute] | None = None,
        output_types: OutputTypes = (),
        device: str = "",
        extra: bytes = b"",
    ) -> Node:
        """Append a node without asking the rule for ops, for complete nodes and nodes that are completed later."""
        # Most of the time that it takes to read or copy a graph is spent here: no generators, and few calls.
        known = self._links
        check_name(name, self.name)
        self._check_not_taken(name)
        controls = dict.fromkeys(control_inputs)
        for value in inputs:
            if value.producer not in known:
                self.check_owned(value.producer, name)
        for control in controls:
            if control not in known:
                self.check_owned(control, name)
        links = Links(name, tuple(inputs), controls, {}, (), ())
        node = Node(self, op_type, Attributes(attrs) if attrs else Attributes(), device, extra, links)
        if output_types:
            uses: list[dict[tuple[Node, int], None]] = [{} for _ in output_types]
            links.uses = tuple(uses)
            links.outputs = tuple([Value(node, k, *of, uses[k]) for k, of in enumerate(output_types)])
        known[node] = links
        self._by_name[name] = node
        for k, value in enumerate(links.inputs):
            known[value.producer].uses[value.index][node, k] = None
        for control in controls:
            known[control].control_consumers[node] = None
        if self._colocations is not None:
            self._colocations.add(node)
        if self.shapes is not None:
            self.shapes.added(node)
        if self.touched is not None:
            self.touched[node] = None
        return node

    def remove_node(self, node: Node) -> None:
        """Remove a node that nothing reads and that is no border, also from collections; nodes lose colocation constraints on it."""
        self.remove_nodes((node,))

    def remove_nodes(self, nodes: Iterable[Node]) -> None:
        """Remove nodes that only read each other and that are no borders."""
        doomed = dict.fromkeys(nodes)
        for node in doomed:
            self.check_owned(node, node.name)
            links = self._links[node]
            readers = [f"{c.name}.inputs[{k}]" for uses in links.uses for c, k in uses if c not in doomed]
            readers += [f"{c.name} (control)" for c in links.control_consumers if c not in doomed]
            if readers:
                raise GraphError(
                    f"{node.name!r} is still read by {', '.join(readers[:3])}"
                    + (f" and {len(readers) - 3} more" if len(readers) > 3 else ""),
                    where=f"node {node.name!r}",
                    remedy="reroute its uses first (graph.replace_uses)",
                )
            self._check_not_border(node)
        self._unlink_all(doomed)

    def set_op_type(self, node: Node, op_type: str) -> None:
        """Change the op type of a node, with the same inputs and outputs; the caller updates its attributes."""
        self.check_owned(node, node.name)
        if not op_type:
            raise GraphError("an op type cannot be empty", where=f"node {node.name!r}")
        if self.op_rule is not None:
            self.op_rule.check_op(self, op_type, node.name)
        node.op_type = op_type
        self._edited(node)

    def set_attr(self, node: Node, name: str, attribute: Any) -> None:
        """Set an attribute of a node, in any form that `add_node` takes; None removes it. Shapes follow when one is next read."""
        self.check_owned(node, node.name)
        if attribute is not None:
            rule = self.op_rule
            attribute = as_attribute(attribute) if rule is None else rule.attribute(self, node.op_type, node.name, name, attribute)
        constraint = name == colocation.ATTRIBUTE
        if constraint and self._colocations is not None:
            self._colocations.discard(node)
        node.attrs.record(name, attribute)
        if constraint and self._colocations is not None:
            self._colocations.add(node)
        if not constraint:
            self._edited(node)

    # Inputs of nodes

    def replace_input(self, node: Node, index: int, value: Value) -> None:
        """Make `node.inputs[index]` read `value`."""
        self.check_owned(node, node.name)
        if not 0 <= index < len(node.inputs):
            raise GraphError(f"{node.name!r} has {len(node.inputs)} inputs, got index {index}", where=f"node {node.name!r}")
        self._check_fits(node, index, value)
        self._set_inputs(node, {index: value})

    def replace_inputs(self, node: Node, values: Sequence[Value]) -> None:
        """Replace all inputs of a node, one value per input, in time linear in their number."""
        self.check_owned(node, node.name)
        if len(values) != len(node.inputs):
            raise GraphError(f"{node.name!r} has {len(node.inputs)} inputs, got {len(values)} values", where=f"node {node.name!r}")
        changed = {k: new for k, (old, new) in enumerate(zip(node.inputs, values, strict=True)) if old is not new}
        for index, value in changed.items():
            self._check_fits(node, index, value)
        self._set_inputs(node, changed)

    def append_input(self, node: Node, value: Value) -> None:
        """Add a data input at the end, for ops with a variable number of inputs; the caller updates the attributes."""
        self.check_owned(node, node.name)
        self.check_owned(value.producer, node.name)
        links = self._links[node]
        self._uses_of(value)[node, len(links.inputs)] = None
        links.inputs = (*links.inputs, value)
        self._edited(node)

    def set_inputs(self, node: Node, values: Sequence[Value]) -> None:
        """Make the node read exactly these values, however many it read before; the caller updates the attributes."""
        self.check_owned(node, node.name)
        values = self._owned_values(values, node.name)
        links = self._links[node]
        for k, value in enumerate(links.inputs):
            del self._uses_of(value)[node, k]
        links.inputs = values
        for k, value in enumerate(values):
            self._uses_of(value)[node, k] = None
        self._edited(node)

    # Uses of values

    def replace_uses(self, old: Value, new: Value, *, keep: Container[Node] = ()) -> int:
        """Make readers of `old` except `keep` read `new`, also outputs of the graph and of signatures; return the number of changes.

        A node that computes `new` from `old` belongs into `keep`: it would read itself, which raises `GraphError`.
        """
        return self.replace_many_uses({old: new}, keep=keep)

    def replace_many_uses(self, new_of: Mapping[Value, Value], *, keep: Container[Node] = (), borders: bool = True) -> int:
        """Replace the uses of many values at once, in time linear in the inputs of their readers; return the number of changed uses.

        A new value that is also an old one keeps its new readers. `keep` is anything that answers `in`; `borders` tells whether outputs
        of the graph and of its signatures change too.
        """
        readers: dict[Node, dict[int, Value]] = {}
        for old, new in new_of.items():
            self.check_owned(old.producer, old.name)
            self.check_owned(new.producer, old.name)
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
        count = sum(len(changed) for changed in readers.values())
        if borders and any(old.producer in self._borders for old in new_of):
            count += sum(new_of.get(value, value) is not value for value in self._outputs)
            self.outputs = [new_of.get(value, value) for value in self._outputs]
        if borders and self._signatures:
            count += self._holdings.replace_outputs(new_of)
        return count

    # Control edges

    def add_control_input(self, node: Node, control: Node) -> None:
        """Make `node` run after `control`, another node; adding the edge again changes nothing."""
        self.check_owned(node, node.name)
        self.check_owned(control, node.name)
        if control is node:
            raise GraphError(f"{node.name!r} cannot be its own control input", where=f"node {node.name!r}")
        self._links[node].control_inputs[control] = None
        self._links[control].control_consumers[node] = None
        self._touch(node)

    def remove_control_input(self, node: Node, control: Node) -> None:
        """Remove a control edge."""
        self.check_owned(node, node.name)
        if control not in self._links[node].control_inputs:
            raise GraphError(f"{control.name!r} is not a control input of {node.name!r}", where=f"node {node.name!r}")
        del self._links[node].control_inputs[control]
        del self._links[control].control_consumers[node]
        self._touch(node)

    # Outputs of nodes

    def add_output(self, node: Node, dtype: Any, shape: Any) -> Value:
        """Add an output at the end of a node, dtype and shape in any usual form; the caller updates the attributes."""
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
        self._edited(node)
        return value

    def remove_output(self, value: Value) -> None:
        """Remove an output that nothing reads or holds; later ones move up. The caller updates the attributes."""
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
        self._edited(node)

    def set_output_types(self, node: Node, types: Sequence[tuple[Any, Any]]) -> None:
        """Set the dtypes and shapes of all outputs; new outputs are added and surplus ones removed at the end. The caller updates the
        attributes.

        An output that is read keeps its dtype. The shapes are not inferred again.
        """
        types = [(as_dtype(dtype), as_shape(shape)) for dtype, shape in types]
        self.check_owned(node, node.name)
        for value, (dtype, _) in zip(node.outputs, types, strict=False):
            self._check_new_dtype(value, dtype)
        for value in node.outputs[len(types) :]:
            self._check_unneeded(value)
        for value in reversed(node.outputs[len(types) :]):
            self.remove_output(value)
        if self.shapes is not None:
            self.shapes.stale.pop(node, None)  # all shapes are set below: the rule must not be asked half-way
        for value, (dtype, shape) in zip(node.outputs, types, strict=False):
            self.set_output_type(value, dtype, shape)
        for dtype, shape in types[len(node.outputs) :]:
            self.add_output(node, dtype, shape)
        if self.shapes is not None:
            self.shapes.stale.pop(node, None)

    def set_output_type(self, value: Value, dtype: Any, shape: Any) -> None:
        """Set the dtype and shape of an output; the dtype of one that is read cannot change. The caller updates the attributes."""
        dtype, shape = as_dtype(dtype), as_shape(shape)
        self.check_owned(value.producer, value.name)
        self._check_new_dtype(value, dtype)
        value.shape = shape
        value.dtype = dtype
        if dtype.name != "resource":
            self.variables.pop(value, None)
        self._touch(value.producer)

    # Shapes

    def settle_shapes(self) -> None:
        """Bring all shapes up to date. Reading `value.shape` does so for what the shape depends on."""
        if self.shapes is not None:
            self.shapes.settle()

    def refresh_shapes(self, nodes: Iterable[Node] | None = None) -> None:
        """Infer the shapes of nodes, by default of all, again when a shape is next read; without `shapes`, nothing happens."""
        nodes = self.nodes if nodes is None else tuple(nodes)
        for node in nodes:
            self.check_owned(node, node.name)
        if self.shapes is not None:
            self.shapes.refresh(nodes)

    def assign_shapes(self, shapes: Mapping[Value, Shape]) -> None:
        """Set consistent shapes of all outputs of some nodes: only other readers of them are inferred again."""
        for value, shape in shapes.items():
            write_shape(value, as_shape(shape))
        if self.shapes is not None:
            self.shapes.assigned(shapes)
        else:
            self._functions.edits += 1

    def take_rules(self, other: Graph) -> None:
        """Use the rules for shapes and ops of another graph, as bodies of functions and copies do."""
        self.op_rule = other.op_rule
        self.shapes = None if other.shapes is None else other.shapes.copied(self, {})

    # Inputs and outputs

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The fed values, each once. Assigning checks that the graph owns them."""
        return self._inputs

    @inputs.setter
    def inputs(self, values: Iterable[Value]) -> None:
        values = self._owned_values(values, "graph.inputs")
        twice = next((v for v, count in Counter(values).items() if count > 1), None)
        if twice is not None:
            raise GraphError(f"{twice.name} is an input twice", where="graph.inputs", remedy="give every argument its own placeholder")
        self._inputs = values
        self._count_borders()

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The returned values. Assigning checks that the graph owns them."""
        return self._outputs

    @outputs.setter
    def outputs(self, values: Iterable[Value]) -> None:
        values = self._owned_values(values, "graph.outputs")
        self._outputs = values
        self._count_borders()
        if self.shapes is not None:
            self.shapes.results_changed()
        else:
            self._functions.edits += 1

    @property
    def control_outputs(self) -> tuple[Node, ...]:
        """Nodes that must run although no output needs them. Assigning checks that the graph owns them."""
        return self._control_outputs

    @control_outputs.setter
    def control_outputs(self, nodes: Iterable[Node]) -> None:
        nodes = tuple(nodes)
        for node in nodes:
            self.check_owned(node, "graph.control_outputs")
        self._control_outputs = nodes
        self._count_borders()

    def is_border(self, node: Node) -> bool:
        """Return whether the node is a control output, or has an input or output of the graph or of a signature."""
        return node in self._borders or bool(self._holdings.signatures_of(node))

    # Signatures and collections

    @property
    def signatures(self) -> dict[str, Signature]:
        """The named ways to call the graph. Their inputs and outputs are borders: they cannot be removed."""
        return self._signatures

    @signatures.setter
    def signatures(self, signatures: Mapping[str, Signature]) -> None:
        self._signatures = WatchedDict(signatures)
        self._holdings = Holdings(self._signatures, self._collections)

    @property
    def collections(self) -> dict[str, Collection]:
        """Lists of nodes, values and plain items. Removed nodes are dropped from them."""
        return self._collections

    @collections.setter
    def collections(self, collections: Mapping[str, Collection]) -> None:
        self._collections = WatchedDict(collections)
        self._holdings = Holdings(self._signatures, self._collections)

    def collections_of(self, node: Node) -> tuple[str, ...]:
        """Return the names of the collections that hold the node or a value of it, in O(1)."""
        return self._holdings.collections_of(node) if self._collections else ()

    def replace_in_collections(self, old: Node, new: Node) -> None:
        """Replace `old` and its values by `new` and its values in the collections."""
        self.check_owned(old, old.name)
        self.check_owned(new, new.name)
        if self._collections and old is not new:
            self._holdings.replace(old, new)

    def places_of_values(self, node: Node) -> list[tuple[str, list[Node | Value]]]:
        """Return the inputs, outputs, signatures and collections that may hold the node or its values, with their contents."""
        places: list[tuple[str, list[Node | Value]]] = [("graph.inputs", [*self._inputs]), ("graph.outputs", [*self._outputs])]
        for name in self._holdings.signatures_of(node):
            signature = self._signatures[name]
            places.append((f"graph.signatures[{name!r}]", [*signature.inputs.values(), *signature.outputs.values()]))
        places += [
            (f"graph.collections[{name!r}]", [*self._collections[name].references()]) for name in self._holdings.collections_of(node)
        ]
        return places

    # Library

    @property
    def functions(self) -> Library:
        """The library of functions by name, shared with their bodies; `ir.edit` has verbs that check first."""
        return self._functions

    @functions.setter
    def functions(self, functions: dict[str, Function]) -> None:
        self._functions.edits += 1
        self._functions = functions if isinstance(functions, Library) else Library(functions)
        self._functions.edits += 1
        if self.shapes is not None:
            self.shapes.check_calls()

    # Undo

    @contextmanager
    def restored_on_error(self) -> Generator[None]:
        """Undo all edits of the block where it raises; the error is raised again.

        The same objects return to their old state: nodes, values, signatures, collections, the library and all bodies in it. References
        to them stay valid; nodes that the block added belong to no graph any more. Blocks may be nested. A block opened on the body of a
        function restores the library but not the graph that calls it: open the block on that graph, which restores both.

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
                record.note(graph, graph.shapes, *graph._signatures.values())
                record.note(graph.package)  # with its tables where it is a data class
                record.note_collections(graph._collections.values())
                record.note_nodes(graph._links)
        try:
            yield
        except BaseException:
            record.restore()
            for graph in graphs:
                # Indexes are computed again.
                graph._colocations = None
                graph._by_name.forget_suffixes()
                if graph.shapes is not None:
                    graph.shapes.check_calls()
                graph._holdings = Holdings(graph._signatures, graph._collections)
                graph._count_borders()
            raise

    # Helpers

    def _owned_values(self, values: Iterable[Value], where: str) -> tuple[Value, ...]:
        values = tuple(values)
        for value in values:
            self.check_owned(value.producer, where)
        return values

    def _unlink_all(self, doomed: Mapping[Node, object]) -> None:
        self._holdings.drop(doomed)
        colocations = self._colocation_index()
        for node in doomed:
            colocations.discard(node)
        colocations.replace({node.name: None for node in doomed})
        for node in doomed:
            self._unlink(node)
            if self.shapes is not None:
                self.shapes.removed(node)

    def _unlink(self, node: Node) -> None:
        links = self._links.pop(node)
        for k, value in enumerate(links.inputs):
            # The producer may be in the same set, and removed already.
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
        self._by_name.release(links.name)

    def _check_fits(self, node: Node, index: int, value: Value) -> None:
        self.check_owned(value.producer, node.name)
        old = node.inputs[index]
        if old.dtype != value.dtype:
            raise GraphError(
                f"{node.name}.inputs[{index}] has dtype {old.dtype}, got {value.name} of dtype {value.dtype}",
                where=f"node {node.name!r}",
                remedy="insert a Cast between them",
            )

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
        self._edited(node)

    def _edited(self, node: Node) -> None:
        if self.shapes is not None:
            self.shapes.edited(node)
        self._touch(node)

    def _touch(self, node: Node) -> None:
        if self.touched is not None:
            self.touched[node] = None

    def _colocation_index(self) -> Colocations:
        if self._colocations is None:
            self._colocations = Colocations(self._links)
        return self._colocations

    def _check_not_taken(self, name: str) -> None:
        if name in self._by_name:
            raise GraphError(f"a node named {name!r} exists already", where=f"graph {self.name!r}", remedy="use graph.unique_name(name)")

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

    def _count_borders(self) -> None:
        self._borders = Counter((*(v.producer for v in self._inputs), *(v.producer for v in self._outputs), *self._control_outputs))

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
