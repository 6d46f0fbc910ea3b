"""What `Graph` and `FunctionGraph` share: views by name, nodes added, renamed and removed, collections and variables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, KeysView
from contextlib import suppress
from typing import Any
from weakref import WeakValueDictionary

from graphwright.editor import collecting, node_protocol
from graphwright.editor.holdings import HoldsCollections
from graphwright.editor.inference import output_dtypes
from graphwright.editor.node import Node
from graphwright.editor.tensor import Tensor
from graphwright.editor.visualization import visualize
from graphwright.errors import GraphError, UnsupportedError
from graphwright.ir import graph as ir
from graphwright.source.tensorflow_import import import_tensorflow


class BaseGraph(HoldsCollections):
    """A view of an `ir.Graph` in the words of graph_def_editor. The IR's graph is the graph; edits on either side are seen on both."""

    def __init__(self, graph: ir.Graph, name: str) -> None:
        self._ir = graph
        self._name = name
        self._version = 0
        self._frozen = False
        self._nodes: WeakValueDictionary[ir.Node, Node] = WeakValueDictionary()
        self._tensors: WeakValueDictionary[ir.Value, Tensor] = WeakValueDictionary()
        self._ids: dict[ir.Node, int] = {}
        self._lowered: dict[str, str] = {}  # name in lower case -> the name
        self._lowered_count = 0
        self._suffixes: dict[str, int] = {}  # name -> where to look for a free suffix
        self._removed: dict[ir.Node, str] = {}  # removed while something reads them -> the name they had
        self._variables = []

    @property
    def ir(self) -> ir.Graph:
        """The graph of the IR that this is a view of."""
        return self._ir

    @property
    def name(self) -> str:
        """A name for humans."""
        return self._name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r} with {len(self._ir) - len(self._removed)} nodes>"

    # Views. The other classes of the package use these

    def view_of(self, node: ir.Node) -> Node:
        """The view of a node."""
        view = self._nodes.get(node)
        if view is None:
            view = self._nodes[node] = Node(self, node)
        return view

    def view_of_value(self, value: ir.Value) -> Tensor:
        """The view of a value."""
        view = self._tensors.get(value)
        if view is None:
            view = self._tensors[value] = Tensor(self, value)
        return view

    def holds(self, node: ir.Node) -> bool:
        """Whether the node is in the graph."""
        return self._ir.owns(node) and node not in self._removed

    def name_of(self, node: ir.Node) -> str:
        """The name of a node, removed ones included."""
        return self._removed.get(node, node.name) if self._removed else node.name

    def id_of(self, node: ir.Node) -> int:
        """A number by which nodes can be sorted in the order of the graph."""
        if node not in self._ids:
            start = len(self._ids) + 1
            fresh = [n for n in self._ir if n not in self._ids]
            self._ids.update((n, start + k) for k, n in enumerate(fresh))
        return self._ids[node]

    # Look-up

    def __getitem__(self, name: str) -> Any:
        """The node with this name, or else the tensor.

        Raises:
            TypeError: the name is no string.
            ValueError: there is neither.
        """
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
        """The node with this name.

        Raises:
            ValueError: there is none.
        """
        if name not in self._ir:
            raise ValueError(f"No node '{name}' found in graph")
        return self.view_of(self._ir[name])

    def get_operation_by_name(self, name: str) -> Node:
        """The same as `get_node_by_name`, for code that was written for `tf.Graph`."""
        return self.get_node_by_name(name)

    def contains_node(self, name: str) -> bool:
        """Whether there is a node with this name.

        Raises:
            ValueError: the name is no string.
        """
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"Node name argument is not a string, but is of type {type(name)}")
        return name in self._ir

    def contains_tensor(self, tensor_name: str) -> bool:
        """Whether there is a tensor `node:index`; `node` means `node:0`.

        Raises:
            ValueError: what follows the colon is no number.
        """
        node_name, index = _split(tensor_name, "Invalid tensor name '{}': {}")
        return node_name in self._ir and index < len(self._ir[node_name].outputs)

    def get_tensor_by_name(self, tensor_name: str, error_msg: str | None = None) -> Tensor:
        """The tensor `node:index`; `node` means `node:0`.

        Args:
            error_msg: a format for messages, with a place for the name and one for the reason.

        Raises:
            ValueError: there is none.
        """
        form = error_msg or "Invalid tensor name '{}': {}"
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
        """The nodes as a list, for code that was written for `tf.Graph`."""
        return list(self.nodes)

    @property
    def node_names(self) -> KeysView[str]:
        """The names of all nodes, in order."""
        return dict.fromkeys(n.name for n in self._ir if n not in self._removed).keys()

    @property
    def tensors(self) -> list[Tensor]:
        """The outputs of all nodes."""
        return [self.view_of_value(v) for n in self._ir if n not in self._removed for v in n.outputs]

    # Versions

    @property
    def version(self) -> int:
        """A counter that grows with every change made in these words."""
        return self._version

    @property
    def frozen(self) -> bool:
        """Whether changes made in these words raise."""
        return self._frozen

    @frozen.setter
    def frozen(self, value: bool) -> None:
        self._frozen = value

    def increment_version_counter(self) -> None:
        """Note a change.

        Raises:
            RuntimeError: the graph is frozen.
        """
        if self._frozen:
            raise RuntimeError("Detected a change to a frozen graph")
        self._version += 1

    def visualize(
        self,
        format: str | None = None,  # noqa: A002 - the name it always had
        depth: int = 1,
        style: bool = True,
        name_regex: str = "",
        negative_name_regex: str = "",
        add_digraph_func: Callable[..., Any] | None = None,
        add_digraph_node_func: Callable[..., Any] | None = None,
        add_digraph_edge_func: Callable[..., Any] | None = None,
    ) -> Any:
        """A picture of the graph; the arguments are those of `visualization.visualize`."""
        functions = add_digraph_func, add_digraph_node_func, add_digraph_edge_func
        return visualize(self, format, depth, self._name, style, name_regex, negative_name_regex, *functions)

    # Nodes added, renamed and removed

    def unique_name(self, name: str) -> str:
        """The name itself, or with a suffix `_1`, `_2`, ... under which no other node is known, in whatever case."""
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
        if self._lowered_count != len(self._ir):  # nodes came or went on the side of the IR
            self._lowered = {n.name.lower(): n.name for n in self._ir}
            self._lowered_count = len(self._ir)
        return self._lowered.get(name.lower(), "") in self._ir

    def append(self, node: ir.Node) -> Node:
        """Take note of a node that was just added to the graph of the IR."""
        self._lowered[node.name.lower()] = node.name
        self._lowered_count += 1
        return self.view_of(node)

    def add_node(self, name: str, op_name: str, uniquify_name: bool = False, debug_info: Any = None) -> Node:
        """Add a node without inputs, attributes and outputs; its own words add these.

        Args:
            uniquify_name: whether to add a suffix when the name is taken.
            debug_info: passed through to the `NodeDef`.

        Raises:
            ValueError: the name is taken.
        """
        if uniquify_name:
            name = self.unique_name(name)
        elif self._name_in_use(name):
            raise ValueError(f"Graph already contains a node with name '{name}' (Note that this check is case-insensitive).")
        self.increment_version_counter()
        extra = b""
        if debug_info is not None:
            holder = import_tensorflow().compat.v1.NodeDef()
            holder.experimental_debug_info.CopyFrom(debug_info)
            extra = holder.SerializeToString(deterministic=True)
        return self.append(self._ir.add_node(op_name, name, extra=extra))

    def add_node_from_node_def(self, node_def: Any, set_inputs: bool = False, set_control_inputs: bool = False) -> Node:
        """Add a node with the name, op type, device and attributes of a `NodeDef`.

        The outputs get the dtypes that follow from the attributes, where they do; `infer_outputs` finds the shapes.

        Args:
            set_inputs: whether to set its data inputs as well; they must be in the graph.
            set_control_inputs: whether to set its control inputs too.

        Raises:
            ValueError: the name is taken, or an input does not exist.
        """
        if set_control_inputs and not set_inputs:
            raise ValueError("set_inputs must be True if set_control_inputs is True")
        if self._name_in_use(node_def.name):
            raise ValueError(f"Graph already contains a node with name '{node_def.name}' (Note that this check is case-insensitive).")
        if set_inputs:
            for text in node_def.input:
                if text.startswith("^"):
                    self.get_node_by_name(text[1:])
                else:
                    self.get_tensor_by_name(text)
        result = self.add_node(node_def.name, node_def.op)
        node = result.ir
        node.extra = node_protocol.extra_of(node_def)
        node.device = node_def.device
        for key in sorted(node_def.attr):
            if key != node_protocol.SHAPES:
                result.add_attr(key, node_def.attr[key])
        # Without a definition, or while an attribute is missing, the outputs are the caller's to set.
        with suppress(GraphError, UnsupportedError):
            node_protocol.set_output_types(node, [(dtype, None) for dtype in output_dtypes(node)])
        if node_protocol.SHAPES in node_def.attr and len(node_def.attr[node_protocol.SHAPES].list.shape) == len(node.outputs):
            result.add_attr(node_protocol.SHAPES, node_def.attr[node_protocol.SHAPES])
        if set_inputs:
            result.set_inputs_from_strings(node_def.input, set_control_inputs=set_control_inputs)
        return result

    def rename_node(self, old_name: str, new_name: str) -> None:
        """Give a node another name. Colocation groups, signatures, collections and variables follow.

        Raises:
            ValueError: there is no such node, or the new name is taken.
        """
        if new_name in self._ir:
            raise ValueError(f"Graph already has a node under name '{new_name}'")
        node = self.get_node_by_name(old_name).ir
        self.increment_version_counter()
        self._ir.rename(node, new_name)
        self._lowered[new_name.lower()] = new_name
        self._suffixes = {}

    def remove_node_by_name(self, name: str, check_for_refs: bool = True) -> None:
        """Remove a node, also from collections. Nodes that had it as a control input no longer do.

        Args:
            check_for_refs: whether to raise when something reads it. If not, what reads it must be removed or
                rerouted before the graph is written.

        Raises:
            ValueError: there is no such node, something reads it, or a signature names it.
        """
        node = self.get_node_by_name(name).ir
        readers = [consumer.name for value in node.outputs for consumer in value.consumers]
        if check_for_refs and readers:
            raise ValueError(f"Removing node '{name}' would leave dangling references from nodes {readers}")
        if self._ir.is_border(node):
            raise GraphError(f"{name!r} is an input or output of the graph or of a signature", remedy="change graph.ir.signatures first")
        self.increment_version_counter()
        for consumer in node.control_consumers:
            self._ir.remove_control_input(consumer, node)
        for control in node.control_inputs:
            self._ir.remove_control_input(node, control)
        sources = {value.producer for value in node.inputs}
        self._suffixes = {}
        if not readers:
            self._ir.remove_node(node)
            self._lowered_count -= 1
        else:
            self._ir.set_inputs(node, [])
            collecting.remove_item(self._ir, node)
            self._removed[node] = name
            self._ir.rename(node, self._ir.unique_name(f"{name}/removed"))
        self._sweep(source for source in sources if source in self._removed)

    def _sweep(self, candidates: Iterable[ir.Node]) -> None:
        """Let go of removed nodes that nothing reads any longer."""
        for node in list(candidates):
            if not any(value.uses for value in node.outputs):
                del self._removed[node]
                self._ir.remove_node(node)
                self._lowered_count -= 1

    def settle_removals(self) -> None:
        """Raise if something still reads a node that was removed.

        Raises:
            ValueError: it does.
        """
        self._sweep(self._removed)
        for node, name in self._removed.items():
            reader = next(consumer.name for value in node.outputs for consumer in value.consumers)
            raise GraphError(f"node {reader!r} still reads {name!r}, which was removed", remedy="reroute or remove the reader")


def _split(tensor_name: str, form: str) -> tuple[str, int]:
    node_name, colon, index = tensor_name.partition(":")
    if colon and not index.isdecimal():
        raise ValueError(form.format(tensor_name, f"Invalid output index string '{index}'."))
    return node_name, int(index or 0)
