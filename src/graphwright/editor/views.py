"""What every graph offers to look at: its nodes and tensors by name, their views, and a counter of changes."""

from __future__ import annotations

from collections.abc import KeysView
from itertools import takewhile
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakValueDictionary

from graphwright.editor.node import Node
from graphwright.editor.tensor import Tensor
from graphwright.ir import graph as ir

if TYPE_CHECKING:
    from graphwright.editor.base_graph import BaseGraph


class Views:
    """The views of the nodes and values of an `ir.Graph`, each made once and known as long as somebody holds it."""

    def __init__(self, graph: ir.Graph, name: str) -> None:
        self._ir = graph
        self._name = name
        self._version = 0
        self._frozen = False
        self._nodes: WeakValueDictionary[ir.Node, Node] = WeakValueDictionary()
        self._tensors: WeakValueDictionary[ir.Value, Tensor] = WeakValueDictionary()
        self._ids: dict[ir.Node, int] = {}
        self._removed: dict[ir.Node, str] = {}  # removed while something reads them -> the name they had

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
            view = self._nodes[node] = Node(cast("BaseGraph", self), node)
        return view

    def view_of_value(self, value: ir.Value) -> Tensor:
        """The view of a value."""
        view = self._tensors.get(value)
        if view is None:
            view = self._tensors[value] = Tensor(cast("BaseGraph", self), value)
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
            # Nodes that were added stand at the end: only those are looked at, or all where the order was changed.
            fresh = list(takewhile(lambda n: n not in self._ids, reversed(self._ir)))[::-1]
            if node not in fresh:
                fresh = [n for n in self._ir if n not in self._ids]
            start = len(self._ids) + 1
            self._ids.update((n, start + k) for k, n in enumerate(fresh))
        return self._ids[node]

    # Look-up

    def __getitem__(self, name: str) -> Any:
        """The node with this name, or else the tensor.

        Raises:
            TypeError: the name is not a string.
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

    get_operation_by_name = get_node_by_name  # as `tf.Graph` calls it

    def contains_node(self, name: str) -> bool:
        """Whether there is a node with this name.

        Raises:
            ValueError: the name is not a string.
        """
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"Node name argument is not a string, but is of type {type(name)}")
        return name in self._ir

    def contains_tensor(self, tensor_name: str) -> bool:
        """Whether there is a tensor `node:index`; `node` means `node:0`.

        Raises:
            ValueError: what follows the colon is not a number.
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


def _split(tensor_name: str, form: str) -> tuple[str, int]:
    node_name, colon, index = tensor_name.partition(":")
    if colon and not index.isdecimal():
        raise ValueError(form.format(tensor_name, f"Invalid output index string '{index}'."))
    return node_name, int(index or 0)
