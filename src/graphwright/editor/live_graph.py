"""`LiveGraph`: a view of a `tf.Graph`. Its edits are transferred to the `tf.Graph`."""

from __future__ import annotations

from typing import Any

from graphwright.editor.graph import Graph
from graphwright.editor.node import SHAPES
from graphwright.ir.attributes import Attribute, FunctionReference
from graphwright.ir.dtypes import DType, Shape, as_dtype, as_shape
from graphwright.ir.edit.reroute import set_control_inputs
from graphwright.ir.graph import Node, Value
from graphwright.ir.signature import Collection
from graphwright.ir.walk import order_of
from graphwright.source import private_tensorflow as private
from graphwright.source.attributes import from_attr_value
from graphwright.source.graph_def import from_graph_def, to_graph_def
from graphwright.source.live_graph import follow, outside_scopes
from graphwright.source.read_nodes import extra_of
from graphwright.source.tensorflow_import import import_tensorflow
from graphwright.source.write_nodes import write_node

_VIEW_ATTRIBUTE = "_graphwright_view"


class LiveGraph(Graph):
    """The view of a `tf.Graph`. Nodes correspond to operations by name.

    New nodes become operations, and operations get the inputs and control inputs of their nodes. Operations are never removed, and
    their attributes do not change. Shapes are those of the tensors.
    """

    def __init__(self, live: Any) -> None:
        super().__init__(None, name=getattr(live, "name", "") or "live graph", collections={})
        self.live = live
        self.ir.shapes = self.ir.op_rule = None  # TensorFlow checks operations when they are made
        self.ir.touched = {}
        self._operations: dict[Node, Any] = {}
        self._seen = 0

    @classmethod
    def of(cls, live: Any) -> LiveGraph:
        """Return the only view of a `tf.Graph`, up to date."""
        view = getattr(live, _VIEW_ATTRIBUTE, None)
        if view is None:
            view = cls(live)
            setattr(live, _VIEW_ATTRIBUTE, view)
        view.read()
        return view

    def read(self, *, revert: bool = False) -> None:
        """Add new operations of the live graph.

        Args:
            revert: whether to undo edits that were not transferred.
        """
        graph = self.ir
        touched, graph.touched = graph.touched, None
        operations = self.live.get_operations()
        fresh = [o for o in operations[self._seen :] if o.name not in graph or graph[o.name] not in self._operations]
        self._seen = len(operations)
        for operation in fresh:
            self._add(operation)
        for operation in operations if revert else fresh:
            node = graph[operation.name]
            graph.set_inputs(node, [self.value_of(tensor) for tensor in operation.inputs])
            set_control_inputs(graph, node, [graph[before.name] for before in operation.control_inputs])
            original = private.original_operation(operation)
            if original is not None and original.name in graph:
                self.originals[node] = graph[original.name]
        if revert:
            graph.remove_nodes(node for node in graph.nodes if node not in self._operations)
        self._read_collections()
        graph.touched = {} if revert else touched

    def operation_of(self, node: Node) -> Any:
        return self._operations[node]

    def value_of(self, tensor: Any) -> Value:
        return self.ir[tensor.op.name].outputs[int(tensor.value_index)]

    def write(self) -> None:
        """Transfer edits to the live graph. If TensorFlow refuses one, it raises a ValueError."""
        touched = [node for node in self.ir.touched or () if self.ir.owns(node)]
        fresh = [node for node in touched if node not in self._operations]
        with outside_scopes(self.live):
            self._write_functions(fresh)
            for node in order_of(fresh):
                self._create(node)
        for node in touched:
            follow(self._operations[node], [self._tensor(v) for v in node.inputs], [self._operations[n] for n in node.control_inputs])
        for node, original in self.originals.items():
            if node in self._operations:
                private.set_original_operation(self._operations[node], self._operations[original])
        if touched:
            self._write_collections()
        self.ir.touched = {}

    def _add(self, operation: Any) -> None:
        node_def = operation.node_def
        attrs: dict[str, Attribute] = {key: from_attr_value(node_def.attr[key]) for key in sorted(node_def.attr)}
        called = {a.name for a in attrs.values() if isinstance(a, FunctionReference)}
        if called - self.ir.functions.keys():
            library: Any = import_tensorflow().compat.v1.GraphDef(library=self.live.as_graph_def().library)
            self.ir.functions.update({k: f for k, f in from_graph_def(library).functions.items() if k not in self.ir.functions})
        rest, types = extra_of(node_def), _types(operation)
        node = self.ir.append_node(node_def.op, node_def.name, attrs=attrs, output_types=types, device=node_def.device, extra=rest)
        self._operations[node] = operation

    def _create(self, node: Node) -> None:
        node_def: Any = import_tensorflow().compat.v1.NodeDef()
        write_node(node, node_def)
        attributes = {key: value for key, value in node_def.attr.items() if key != SHAPES}
        waits = [self._operations[before] for before in node.control_inputs if before in self._operations]
        # The back edge of a loop does not exist yet; the value that enters the loop replaces it until `follow` sets the inputs.
        inputs = [value if value.producer in self._operations else node.inputs[0] for value in node.inputs]
        with self.live.device(node.device), self.live.control_dependencies(waits):
            operation = self.live.create_op(node.op_type, [self._tensor(value) for value in inputs], name=node.name, attrs=attributes)
        self._operations[node] = operation
        if operation.name != node.name:
            self.ir.rename(node, operation.name)
        for value, (dtype, shape) in zip(node.outputs, _types(operation), strict=True):
            value.dtype, value.last_shape = dtype, shape

    def _tensor(self, value: Value) -> Any:
        return self._operations[value.producer].outputs[value.index]

    def _write_functions(self, fresh: list[Node]) -> None:
        if not any(isinstance(a, FunctionReference) for node in fresh for a in node.attrs.values()):
            return
        present = {function.signature.name for function in self.live.as_graph_def().library.function}
        graph_def = to_graph_def(self.ir, keep=lambda _: False)
        missing = [function for function in graph_def.library.function if function.signature.name not in present]
        if missing:
            tf = import_tensorflow()
            library: Any = tf.compat.v1.GraphDef(versions=graph_def.versions)
            library.library.function.extend(missing)
            with self.live.as_default():
                tf.graph_util.import_graph_def(library, name="")

    def _read_collections(self) -> None:
        tf = import_tensorflow()
        collections: dict[str, Collection] = {}
        for name in self.live.get_all_collection_keys():
            if isinstance(name, str):
                items = [
                    self.ir[item.name] if isinstance(item, tf.Operation) else self.value_of(item)
                    for item in self.live.get_collection_ref(name)
                    if isinstance(item, tf.Operation) or (tf.is_symbolic_tensor(item) and item.graph is self.live)
                ]
                if items:
                    collections[name] = Collection("nodes", items)
        self.ir.collections = collections

    def _write_collections(self) -> None:
        for name, collection in self.ir.collections.items():
            items = self.live.get_collection_ref(name)
            for item in collection.items:
                own = self._tensor(item) if isinstance(item, Value) else self._operations[item]
                if all(own is not other for other in items):
                    items.append(own)


def _types(operation: Any) -> list[tuple[DType, Shape]]:
    return [(as_dtype(tensor.dtype), as_shape(tensor.shape)) for tensor in operation.outputs]
