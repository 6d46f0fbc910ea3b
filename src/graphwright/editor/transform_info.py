"""What a `Transformer` knows while it works, and what it tells afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from graphwright.editor import collecting
from graphwright.editor.graph import Graph
from graphwright.editor.node import Node
from graphwright.editor.subgraph import SubGraphView
from graphwright.editor.tensor import Tensor
from graphwright.editor.util import ControlOutputs, get_predefined_collection_names, transform_tree
from graphwright.ir.attributes import Attribute
from graphwright.ir.colocation import ATTRIBUTE as COLOCATION
from graphwright.ir.colocation import with_names
from graphwright.ir.function_names import attributes_with_functions
from graphwright.ir.graph import Node as IrNode
from graphwright.ir.graph import Value
from graphwright.ir.select import free_name


class TmpInfo:
    """What handlers are given. Names that end in `_` are of the destination.

    Attributes:
        sgv: the view that is copied.
        graph: its graph.
        scope: what is taken off names.
        graph_: the destination.
        scope_: what is put before names.
        ops: the nodes that are copied.
        transformed_ops: the copy of each node so far.
        transformed_ts: what became of each tensor so far.
        collections: the items of each collection of the source.
    """

    def __init__(self, sgv: SubGraphView, dst_graph: Graph, dst_scope: str, src_scope: str) -> None:
        self.sgv = sgv
        self.graph: Any = sgv.graph
        self.scope = src_scope
        self.graph_ = dst_graph
        self.scope_ = dst_scope
        self.sgv_inputs_set = frozenset(sgv.inputs)
        self.ops = frozenset(sgv.ops)
        self.control_outputs = ControlOutputs(sgv.graph)
        self.transformed_ops: dict[Node, Node] = {}
        self.transformed_ts: dict[Tensor, Tensor] = {}
        self.tmp_cyclic_ts: list[tuple[Tensor, Node]] = []
        self.temporary_nodes: list[Node] = []
        self.changed: dict[IrNode, None] = {}  # copies whose shapes are to be inferred
        self.functions: dict[str, str] = {}  # those that were copied along under another name
        self._frames: dict[str, str] = {}
        self._taken_frames: set[str] = set()
        self.known_collections = frozenset(get_predefined_collection_names())
        self.names_by_item: dict[object, list[str]] = {}
        source = self.graph.ir
        for name in collecting.keys(source):
            for item in source.collections[name].items:
                if isinstance(item, IrNode | Value):
                    self.names_by_item.setdefault(item, []).append(name)

    @property
    def collections(self) -> dict[str, Any]:
        """The items of each collection of the source."""
        return {name: self.graph.get_collection_by_name(name) for name in self.graph.get_all_collection_keys()}

    def collection_names_of(self, elem: Any) -> list[str]:
        """The collections of the source that hold a node or tensor."""
        return self.names_by_item.get(elem.ir, [])

    def new_name(self, name: str) -> str:
        """The name in the destination.

        Raises:
            ValueError: it does not start with the source scope.
        """
        if not name.startswith(self.scope):
            raise ValueError(f"{name} does not belong to source scope: {self.scope}.")
        return self.scope_ + name.removeprefix(self.scope)

    def new_attrs(self, node: IrNode) -> dict[str, Attribute]:
        """The attributes of a copy: loop frames have names of their own, colocation constraints name the copies."""
        attrs = dict(attributes_with_functions(node.attrs, self.functions))
        frame = attrs.get("frame_name")
        if isinstance(frame, bytes):
            attrs["frame_name"] = self.new_frame(frame.decode()).encode()
        constraints = with_names(attrs.pop(COLOCATION, ()), self._new_group)
        return attrs if not constraints else {**attrs, COLOCATION: constraints}

    def _new_group(self, name: str) -> str:
        """The node that a copy shares a device with, where the original did so with `name`: the copy, if there is one."""
        head: Any = self.graph.get_node_by_name(name) if self.graph.contains_node(name) else None
        if head in self.transformed_ops:
            return self.transformed_ops[head].name
        return self.new_name(name) if head in self.ops or self.graph is not self.graph_ else name

    def new_frame(self, name: str) -> str:
        """The name of a copied loop frame: no two loops of a graph may share one."""
        if name not in self._frames:
            if not self._frames:
                frames = (node.attrs.get("frame_name") for node in self.graph_.ir)
                self._taken_frames = {frame.decode() for frame in frames if isinstance(frame, bytes)}
            chosen = free_name(f"{self.scope_}{name}", self._taken_frames) if name in self._taken_frames else name
            self._taken_frames.add(chosen)
            self._frames[name] = chosen
        return self._frames[name]


class TransformerInfo:
    """What became of what."""

    def __init__(self, info: TmpInfo) -> None:
        self._graph = info.graph
        self._graph_ = info.graph_
        self._scope = info.scope
        self._scope_ = info.scope_
        self._transformed_ops = info.transformed_ops
        self._transformed_ts = info.transformed_ts
        self._original_of: dict[Any, Any] = {}
        for mapping in (info.transformed_ops, info.transformed_ts):
            for original, transformed in mapping.items():
                self._original_of.setdefault(transformed, original)

    def transformed(self, original: Any, missing_fn: Callable[[Any], Any] | None = None) -> Any:
        """The copy of a node or tensor, or of each in nested dictionaries and iterables.

        Args:
            original: nodes and tensors of the source.
            missing_fn: gives the answer where there is no copy; by default that is None.

        Raises:
            TypeError: something is neither a node nor a tensor.
        """
        return self._looked_up(original, self._transformed_ops, self._transformed_ts, missing_fn)

    def original(self, transformed: Any, missing_fn: Callable[[Any], Any] | None = None) -> Any:
        """The node or tensor that was copied, the other way round.

        Raises:
            TypeError: something is neither a node nor a tensor.
        """
        return self._looked_up(transformed, self._original_of, self._original_of, missing_fn)

    def _looked_up(self, tree: Any, ops: Mapping[Any, Any], ts: Mapping[Any, Any], missing_fn: Callable[[Any], Any] | None) -> Any:
        def found(top: Any) -> Any:
            if not isinstance(top, Node | Tensor):
                raise TypeError(f"Expected a gde.Tensor or a gde.Node, got a {type(top)}")
            mapping = ops if isinstance(top, Node) else ts
            return mapping[top] if top in mapping else None if missing_fn is None else missing_fn(top)

        return transform_tree(tree, found)

    def __str__(self) -> str:
        lines = ["Transform result info:"]
        if self._graph is self._graph_:
            lines.append(f"  Within graph[{id(self._graph)}]{'' if self._scope_ else ' IN-PLACE'}")
        else:
            lines.append(f"  graph[{id(self._graph)}] => graph[{id(self._graph_)}]")
        lines += [f"  Relative to source scope: {self._scope}"] if self._scope else []
        lines += [f"  Scope destination: {self._scope_}"] if self._scope_ else []
        lines.append("Operations mapping:")
        lines += [f"  {op.name} => {op_.name}" for op, op_ in self._transformed_ops.items()]
        return "\n".join(lines) + "\n"
