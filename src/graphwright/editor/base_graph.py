"""`BaseGraph`, the base class of `Graph` and `FunctionGraph`: views by name, edits of nodes, frames, collections, variables."""

from __future__ import annotations

from collections.abc import Iterable, KeysView
from contextlib import suppress
from itertools import takewhile
from typing import Any
from weakref import WeakValueDictionary

from graphwright.analyze.frames import frame_names
from graphwright.editor import collecting
from graphwright.editor.inference import output_dtypes
from graphwright.editor.node import SHAPES, Node, set_output_types
from graphwright.editor.tensor import Tensor
from graphwright.editor.variable import Variable
from graphwright.editor.visualization import visualize
from graphwright.errors import GraphError, UnsupportedError
from graphwright.ir import graph as ir
from graphwright.ir.edit.reroute import reroute_control, set_control_inputs
from graphwright.ir.signature import Collection, CollectionKind
from graphwright.source.read_nodes import extra_of
from graphwright.source.tensorflow_import import import_tensorflow

_NAME_ERROR = "Invalid tensor name '{}': {}"


class BaseGraph:
    """A view of an `ir.Graph` in the words of graph_def_editor. Edits of either are visible in the other."""

    def __init__(self, graph: ir.Graph, name: str) -> None:
        self._ir = graph
        self._name = name
        self._version = 0
        self._frozen = False
        self._nodes: WeakValueDictionary[ir.Node, Node] = WeakValueDictionary()
        self._tensors: WeakValueDictionary[ir.Value, Tensor] = WeakValueDictionary()
        self._ids: dict[ir.Node, int] = {}
        self._removed: dict[ir.Node, str] = {}  # removed nodes that are still read, with their names
        self._variables: list[Variable] = []
        self._frames: tuple[int, dict[ir.Node, tuple[str, ...]]] = (-1, {})
        self._lowered: dict[str, str] = {}  # names by their lower case
        self._lowered_count = 0
        self._suffixes: dict[str, int] = {}  # per name, a suffix below which none is free

    @property
    def ir(self) -> ir.Graph:
        """The graph of the IR."""
        return self._ir

    @property
    def name(self) -> str:
        """A name for humans."""
        return self._name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r} with {len(self)} nodes>"

    # Views

    def view_of(self, node: ir.Node) -> Node:
        """Return the view of a node."""
        view = self._nodes.get(node)
        if view is None:
            view = self._nodes[node] = Node(self, node)
        return view

    def view_of_value(self, value: ir.Value) -> Tensor:
        """Return the view of a value."""
        view = self._tensors.get(value)
        if view is None:
            view = self._tensors[value] = Tensor(self, value)
        return view

    def holds(self, node: ir.Node) -> bool:
        """Return whether the node is in the graph."""
        return self._ir.owns(node) and node not in self._removed

    def name_of(self, node: ir.Node) -> str:
        """Return the name of a node, also after its removal."""
        return self._removed.get(node, node.name) if self._removed else node.name

    def id_of(self, node: ir.Node) -> int:
        """Return a number that orders nodes as the graph does."""
        if node not in self._ids:
            # Added nodes are at the end, unless the order was changed.
            fresh = list(takewhile(lambda n: n not in self._ids, reversed(self._ir)))[::-1]
            if node not in fresh:
                fresh = [n for n in self._ir if n not in self._ids]
            start = len(self._ids) + 1
            self._ids.update((n, start + k) for k, n in enumerate(fresh))
        return self._ids[node]

    # Lookup

    def __getitem__(self, name: str) -> Any:
        """Return the node, or else the tensor, with this name, or raise a ValueError."""
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"name must be a string; got type {type(name)}")
        if name in self._ir:
            return self.view_of(self._ir[name])
        if self.contains_tensor(name):
            return self.get_tensor_by_name(name)
        raise ValueError(f"No node or tensor '{name}' found in graph")

    def __contains__(self, name: object) -> bool:
        return name in self._ir

    def __len__(self) -> int:
        return len(self._ir) - len(self._removed)

    def __bool__(self) -> bool:
        return True

    def get_node_by_name(self, name: str) -> Node:
        """Return the node with this name, or raise a ValueError."""
        if name not in self._ir:
            raise ValueError(f"No node '{name}' found in graph")
        return self.view_of(self._ir[name])

    get_operation_by_name = get_node_by_name  # the name in `tf.Graph`

    def contains_node(self, name: str) -> bool:
        """Return whether there is a node with this name."""
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"Node name argument is not a string, but is of type {type(name)}")
        return name in self._ir

    def contains_tensor(self, tensor_name: str) -> bool:
        """Return whether there is a tensor `node:index`; `node` means `node:0`."""
        node_name, index = _split(tensor_name, _NAME_ERROR)
        return node_name in self._ir and index < len(self._ir[node_name].outputs)

    def get_tensor_by_name(self, tensor_name: str, error_msg: str | None = None) -> Tensor:
        """Return the tensor `node:index` (`node` means `node:0`), or raise a ValueError.

        `error_msg` is a format for the error, with places for the name and the reason.
        """
        form = error_msg or _NAME_ERROR
        node_name, index = _split(tensor_name, form)
        if node_name not in self._ir:
            raise ValueError(form.format(tensor_name, f"Node name '{node_name}' not found in graph."))
        outputs = self._ir[node_name].outputs
        if index >= len(outputs):
            raise ValueError(form.format(tensor_name, f"Requested output {index}, but node '{node_name}' has {len(outputs)} outputs."))
        return self.view_of_value(outputs[index])

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, in order."""
        return tuple(self.view_of(n) for n in self._ir if n not in self._removed)

    def get_operations(self) -> list[Node]:
        """Return the nodes as a list, like `tf.Graph`."""
        return list(self.nodes)

    @property
    def node_names(self) -> KeysView[str]:
        """The names of all nodes, in order."""
        return dict.fromkeys(n.name for n in self._ir if n not in self._removed).keys()

    @property
    def tensors(self) -> list[Tensor]:
        """The outputs of all nodes."""
        return [tensor for node in self.nodes for tensor in node.outputs]

    # Versions

    @property
    def version(self) -> int:
        """A counter of changes made in these words."""
        return self._version

    @property
    def frozen(self) -> bool:
        """Whether changes made in these words raise."""
        return self._frozen

    @frozen.setter
    def frozen(self, value: bool) -> None:
        self._frozen = value

    def increment_version_counter(self) -> None:
        """Count a change, or raise a RuntimeError if the graph is frozen."""
        if self._frozen:
            raise RuntimeError("Detected a change to a frozen graph")
        self._version += 1

    def visualize(
        self,
        format: str | None = "json",  # noqa: A002 - the name it always had
        depth: int | None = 1,
        name_regex: str = "",
        negative_name_regex: str = "",
    ) -> bytes:
        """Return the boxes and arrows of a picture as JSON: `visualization.visualize`."""
        return visualize(self._ir, format, depth, name_regex, negative_name_regex)

    # Edits of nodes

    def unique_name(self, name: str) -> str:
        """Return the name, or the name with the first suffix `_1`, `_2`, ... that no node has, ignoring case."""
        if not self._name_in_use(name):
            return name
        k = self._suffixes.get(name, 1)
        while self._name_in_use(f"{name}_{k}"):
            k += 1
        self._suffixes[name] = k
        return f"{name}_{k}"

    def _name_in_use(self, name: str) -> bool:
        if name in self._ir:
            return True
        if self._lowered_count != len(self._ir):  # the IR was edited directly
            self._lowered = {n.name.lower(): n.name for n in self._ir}
            self._lowered_count = len(self._ir)
        return self._lowered.get(name.lower(), "") in self._ir

    def append(self, node: ir.Node) -> Node:
        """Register a node that was just added to the IR."""
        self._lowered[node.name.lower()] = node.name
        self._lowered_count += 1
        return self.view_of(node)

    def add_node(self, name: str, op_name: str, uniquify_name: bool = False, debug_info: Any = None) -> Node:
        """Add a node without inputs, attributes and outputs; `debug_info` is copied to the `NodeDef`.

        A taken name gets a suffix with `uniquify_name`, and raises a ValueError without.
        """
        if uniquify_name:
            name = self.unique_name(name)
        elif self._name_in_use(name):
            raise ValueError(f"Graph already contains a node with name '{name}' (Note that this check is case-insensitive).")
        if self._ir.op_rule is not None:
            self._ir.op_rule.check_op(self._ir, op_name, name)
        self._ir.check_new_name(name)
        self.increment_version_counter()
        extra = import_tensorflow().compat.v1.NodeDef(experimental_debug_info=debug_info).SerializeToString(deterministic=True)
        return self.append(self._ir.append_node(op_name, name, extra=extra))

    def add_node_from_node_def(self, node_def: Any, set_inputs: bool = False, set_control_inputs: bool = False) -> Node:
        """Add a node with the name, op type, device and attributes of a `NodeDef`, and optionally its inputs, which must exist.

        The outputs get the dtypes that follow from the attributes; `infer_outputs` infers the shapes.
        """
        if set_control_inputs and not set_inputs:
            raise ValueError("set_inputs must be True if set_control_inputs is True")
        result = self.add_node(node_def.name, node_def.op)
        try:
            self._fill(result, node_def)
            if set_inputs:
                result.set_inputs_from_strings(node_def.input, set_control_inputs=set_control_inputs)
        except Exception:
            self.remove_node_by_name(node_def.name)
            raise
        return result

    def _fill(self, result: Node, node_def: Any) -> None:
        node = result.ir
        node.extra = extra_of(node_def)
        node.device = node_def.device
        for key in sorted(node_def.attr):
            if key != SHAPES:
                result.add_attr(key, node_def.attr[key])
        # If the op is unknown, or an attribute is missing, the caller sets the outputs.
        with suppress(GraphError, UnsupportedError):
            set_output_types(node, [(dtype, None) for dtype in output_dtypes(node)])
        if SHAPES in node_def.attr and len(node_def.attr[SHAPES].list.shape) == len(node.outputs):
            result.add_attr(SHAPES, node_def.attr[SHAPES])

    def rename_node(self, old_name: str, new_name: str) -> None:
        """Rename a node, also in colocation groups, signatures, collections and variables."""
        if new_name in self._ir:
            raise ValueError(f"Graph already has a node under name '{new_name}'")
        node = self.get_node_by_name(old_name).ir
        self.increment_version_counter()
        self._ir.rename(node, new_name)
        self._lowered[new_name.lower()] = new_name
        self._suffixes = {}

    def remove_node_by_name(self, name: str, check_for_refs: bool = True) -> None:
        """Remove a node, also from collections and from the control inputs of others.

        With `check_for_refs=False`, its readers must be removed or rerouted before the graph is written.

        Raises:
            ValueError: there is no such node, another one reads it, or a signature names it.
        """
        node = self.get_node_by_name(name).ir
        readers = [consumer.name for value in node.outputs for consumer in value.consumers]
        if check_for_refs and readers:
            raise ValueError(f"Removing node '{name}' would leave dangling references from nodes {readers}")
        if self._ir.is_border(node):
            raise GraphError(f"{name!r} is an input or output of the graph or of a signature", remedy="change graph.ir.signatures first")
        self.increment_version_counter()
        reroute_control((), node)
        set_control_inputs(self._ir, node, ())
        sources = {value.producer for value in node.inputs}
        self._suffixes = {}
        if readers:
            self._ir.set_inputs(node, [])
            self.remove_item_from_collections(node)
            self._removed[node] = name
            self._ir.rename(node, self._ir.unique_name(f"{name}/removed"))
        else:
            self._ir.remove_node(node)
            self._lowered_count -= 1
        self._sweep(source for source in sources if source in self._removed)

    def _sweep(self, candidates: Iterable[ir.Node]) -> None:
        for node in list(candidates):
            if not any(value.use_count for value in node.outputs):
                del self._removed[node]
                self._ir.remove_node(node)
                self._lowered_count -= 1

    def settle_removals(self) -> None:
        """Raise a ValueError if a node reads a removed one."""
        self._sweep(self._removed)
        for node, name in self._removed.items():
            reader = next(consumer.name for value in node.outputs for consumer in value.consumers)
            raise GraphError(f"node {reader!r} still reads {name!r}, which was removed", remedy="reroute or remove the reader")

    # Frames and colocation

    def node_to_frame_names(self, n: Node) -> tuple[str, ...]:
        """Return the names of the loop frames around a node, the outermost first; empty outside of TF1 loops."""
        return self._frame_table()[n.ir]

    def frame_name_to_nodes(self, frame_name: str) -> tuple[Node, ...]:
        """Return the nodes in a frame, including inner frames, or raise a KeyError."""
        nodes = tuple(self.view_of(n) for n, frames in self._frame_table().items() if frame_name in frames)
        if not nodes:
            raise KeyError(frame_name)
        return nodes

    def get_frame_names(self) -> tuple[str, ...]:
        """Return the names of all frames."""
        return tuple(dict.fromkeys(name for frames in self._frame_table().values() for name in frames))

    def _frame_table(self) -> dict[ir.Node, tuple[str, ...]]:
        version, table = self._frames
        if version != self.version or len(table) != len(self._ir):
            table = frame_names(self._ir)
            self._frames = (self.version, table)
        return table

    @property
    def colocation_groups(self) -> dict[str, frozenset[Node]]:
        """The nodes that must share the device of a node, by the name of the latter."""
        groups: dict[str, set[Node]] = {}
        for node in self.nodes:
            for head in node.colocation_groups:
                groups.setdefault(head, set()).add(node)
        return {head: frozenset(nodes) for head, nodes in groups.items()}

    # Collections

    def collection_names_of(self, item: object) -> frozenset[str]:
        """Return the collections that contain an item of the IR."""
        collections = self._ir.collections
        return frozenset(name for name in collecting.keys(self._ir) if any(other is item for other in collections[name].items))

    def add_item_to_collection(self, name: str, item: object) -> None:
        """Add an item of the IR to a new or existing collection, at most once."""
        if name in self.collection_names_of(item):
            return
        self.increment_version_counter()
        kind: CollectionKind = "nodes" if isinstance(item, ir.Node | ir.Value) else "bytes"
        collection = self._ir.collections.setdefault(name, Collection(kind))
        if collection.kind != kind:
            raise GraphError(f"Collection name '{name}' maps to multiple collection types: {collection.kind}, {kind}")
        collection.items.append(item)

    def remove_item_from_collections(self, item: object) -> None:
        """Remove an item of the IR from all collections, and collections that become empty."""
        self.increment_version_counter()
        for name in self.collection_names_of(item):
            items = self._ir.collections[name].items
            items[:] = [other for other in items if other is not item]
            if not items:
                del self._ir.collections[name]

    def view_item(self, item: object) -> Any:
        """Return the view of an item of a collection, or the item if it has none."""
        if isinstance(item, ir.Node):
            return self.view_of(item)
        if isinstance(item, ir.Value):
            return self.view_of_value(item)
        return next((v for v in self._variables if v.item is item), item)

    # Variables

    @property
    def has_passthrough_saver(self) -> bool:
        """Whether the values of variables come from a checkpoint that is copied unchanged."""
        return False

    @property
    def variables(self) -> dict[str, Variable]:
        """The variables by name."""
        return {v.name: v for v in self._variables}

    @property
    def variable_names(self) -> KeysView[str]:
        """The names of the variables."""
        return self.variables.keys()

    def get_variable_by_name(self, name: str) -> Variable:
        """Return the variable with this name, for example `w:0`, or raise a KeyError."""
        return self.variables[name]

    def add_variable(self, name: str) -> Variable:
        """Add a variable with a name only, or raise a ValueError."""
        if name in self.variable_names:
            raise ValueError(f"Variable name '{name}' already in use")
        variable = Variable(self)
        self.increment_version_counter()
        variable.name = name
        self._variables.append(variable)
        return variable

    def add_variable_from_variable_def(self, variable_def: Any, skip_if_present: bool = False) -> Variable:
        """Add the variable of a `VariableDef`, serialized or not; `skip_if_present` returns an equal variable that exists already."""
        variable = Variable(self)
        variable.from_proto(variable_def, allow_duplicates=skip_if_present)
        known = self.variables.get(variable.name)
        if known is not None:
            return known
        self.increment_version_counter()
        self._variables.append(variable)
        return variable

    def adopt_variables(self) -> None:
        """Make views of the variables in the collections of the IR, one per name."""
        known = self.variables
        for collection in self._ir.collections.values():
            for k, item in enumerate(collection.items):
                if collecting.is_variable(item):
                    view = Variable.of_item(self, item)
                    collection.items[k] = known.setdefault(view.name, view).item
        self._variables = list(known.values())


def _split(tensor_name: str, form: str) -> tuple[str, int]:
    node_name, colon, index = tensor_name.partition(":")
    if colon and not index.isdecimal():
        raise ValueError(form.format(tensor_name, f"Invalid output index string '{index}'."))
    return node_name, int(index or 0)
