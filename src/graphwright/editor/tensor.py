"""`Tensor`, the view of an `ir.Value`, and the base class of views."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

from graphwright.editor.values import to_tf_dtype, to_tf_shape
from graphwright.errors import printable
from graphwright.ir import graph as ir
from graphwright.ir.dtypes import as_dtype

if TYPE_CHECKING:
    from graphwright.editor.base_graph import BaseGraph
    from graphwright.editor.node import Node


class View:
    """The base class of nodes and tensors. A graph makes one view per item; two views of an item are equal."""

    __slots__ = ("__weakref__", "_graph", "_ir")
    _ir: Any

    def __init__(self, graph: BaseGraph, item: Any) -> None:
        self._graph = graph
        self._ir = item

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, View) and other._ir is self._ir)

    def __hash__(self) -> int:
        return hash(self._ir)

    @property
    def home(self) -> BaseGraph:
        """The graph that made the view, also after a removal."""
        return self._graph

    @property
    def collection_names(self) -> AbstractSet[str]:
        """The names of the collections that contain it."""
        return self._graph.collection_names_of(self._ir)

    def add_to_collection(self, collection_name: str) -> None:
        """Add it to a collection, at most once."""
        self._graph.add_item_to_collection(collection_name, self._ir)


class Tensor(View):
    """One output of a node. Get it from a `Node` or a `Graph`."""

    __slots__ = ()
    _ir: ir.Value

    @property
    def ir(self) -> ir.Value:
        """The value of the IR."""
        return self._ir

    def __str__(self) -> str:
        return printable(f"Tensor '{self.name}' (dtype {self.dtype}, shape {self.shape})")

    __repr__ = __str__

    @property
    def node(self) -> Node:
        """The node that produces it."""
        return self._graph.view_of(self._ir.producer)

    op = node  # the name in `tf.Tensor`

    @property
    def graph(self) -> BaseGraph | None:
        """The graph of its node, or None after the node was removed."""
        return self.node.graph

    @property
    def value_index(self) -> int:
        """Its place among the outputs of its node."""
        return self._ir.index

    @property
    def name(self) -> str:
        """`node:index`."""
        return f"{self.node.name}:{self._ir.index}"

    @property
    def device(self) -> str:
        """The device of its node."""
        return self._ir.producer.device

    @property
    def dtype(self) -> Any:
        """The `tf.DType`; of a reference type, its base."""
        return to_tf_dtype(self._ir.dtype)

    @dtype.setter
    def dtype(self, dtype: Any) -> None:
        self._graph.increment_version_counter()
        self._ir.dtype = as_dtype(dtype)

    @property
    def shape(self) -> Any:
        """The `tf.TensorShape`."""
        return to_tf_shape(self._ir.shape)

    @shape.setter
    def shape(self, shape: Any) -> None:
        self._graph.increment_version_counter()
        self._ir.shape = shape

    def get_shape(self) -> Any:
        """Return `shape`, like `tf.Tensor`."""
        return self.shape

    def consumers(self) -> list[Node]:
        """Return the nodes that read it, each once, in time linear in their number."""
        return [self._graph.view_of(node) for node in self._ir.consumers]
