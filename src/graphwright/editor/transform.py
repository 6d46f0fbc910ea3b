"""Copying a part of a graph, with handlers that may change it on the way; copies with other inputs, and `graph_replace`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from graphwright.editor import collecting
from graphwright.editor.graph import Graph
from graphwright.editor.inference import infer_graph, shapes_at_rest
from graphwright.editor.node import Node, set_output_types
from graphwright.editor.select import get_walks_intersection_ops
from graphwright.editor.subgraph import SubGraphView, make_view
from graphwright.editor.tensor import Tensor
from graphwright.editor.util import (
    ControlOutputs,
    flatten_tree,
    get_predefined_collection_names,
    get_unique_graph,
    make_placeholder_from_tensor,
    scope_finalize,
    transform_tree,
)
from graphwright.ir.attributes import Attribute
from graphwright.ir.colocation import ATTRIBUTE as COLOCATION
from graphwright.ir.colocation import with_names
from graphwright.ir.edit.library import import_functions
from graphwright.ir.function_names import attributes_with_functions
from graphwright.ir.garbage_collection import garbage_collection_paused
from graphwright.ir.graph import Node as IrNode
from graphwright.ir.graph import Value
from graphwright.ir.names import free_name
from graphwright.ir.select import unique_scope
from graphwright.ir.walk import forward_reachable, order_of
from graphwright.source.attributes import write_attr_value

# What is known on the way, and afterwards


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
        mappings: tuple[dict[Any, Any], ...] = (info.transformed_ops, info.transformed_ts)
        self._original_of = {new: old for mapping in mappings for old, new in reversed(mapping.items())}  # of several, the first

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


# Handlers


def replace_t_with_placeholder_handler(info: TmpInfo, t: Tensor) -> Tensor:
    """A placeholder in the destination instead of the tensor."""
    return make_placeholder_from_tensor(info.graph_, t, scope=info.scope_).output(0)


def keep_t_if_possible_handler(info: TmpInfo, t: Tensor) -> Tensor:
    """The tensor itself when source and destination are one graph, else a placeholder."""
    return t if info.graph is info.graph_ else replace_t_with_placeholder_handler(info, t)


def assign_renamed_collections_handler(info: TmpInfo, elem: Any, elem_: Any) -> None:
    """Add the copy to the collections of the original. Those that TensorFlow does not know get the scope of the destination."""
    for name in info.collection_names_of(elem):
        elem_.add_to_collection(name if name in info.known_collections else info.new_name(name))


def transform_op_if_inside_handler(info: TmpInfo, op: Node, keep_if_possible: bool = True) -> Node | None:
    """The copy of a node; of one that is not copied, the node itself when source and destination are one graph, else None."""
    if op in info.ops:
        return info.transformed_ops[op]
    return op if keep_if_possible and info.graph is info.graph_ else None


def copy_op_handler(
    info: TmpInfo,
    op: Node,
    new_inputs: Iterable[Tensor],
    copy_shape_and_dtype: bool = False,
    nodedef_fn: Callable[[Any], Any] | None = None,
) -> tuple[Node, tuple[Tensor, ...]]:
    """Copy one node.

    Args:
        info: of the transformation.
        op: the original.
        new_inputs: what the copy reads, in the destination.
        copy_shape_and_dtype: whether the outputs are typed as those of the original, without asking TensorFlow. Where the inputs have the
            same shapes as those of the original, this is done anyway.
        nodedef_fn: may change the `NodeDef` before the copy is made of it, or return another one.

    Returns:
        The copy and its outputs.
    """
    inputs = [t.ir for t in new_inputs]
    source, target = op.ir, info.graph_
    attrs = info.new_attrs(source)
    name = target.unique_name(info.new_name(op.name))
    op_type = info.functions.get(op.op_type, op.op_type)  # it may be a function
    if nodedef_fn is not None:
        node_def = op.to_node_def(add_shapes=False)
        node_def.name, node_def.op = name, op_type
        for key, attribute in attrs.items():
            write_attr_value(attribute, node_def.attr[key])
        copied = target.add_node_from_node_def(nodedef_fn(node_def))
        copied.set_inputs(list(new_inputs))
    else:
        types = [(v.dtype, v.last_shape) for v in source.outputs]
        target.increment_version_counter()
        copied = target.append(
            target.ir.append_node(op_type, name, inputs=inputs, attrs=attrs, output_types=types, device=source.device, extra=source.extra)
        )
    if target.ir.shapes is not None and source.graph.shapes is not None and source in source.graph.shapes.unasked:
        target.ir.shapes.unasked[copied.ir] = None
    if copy_shape_and_dtype:
        set_output_types(copied.ir, [(v.dtype, v.last_shape) for v in source.outputs])
    elif nodedef_fn is not None or [(v.dtype, v.last_shape) for v in inputs] != [(v.dtype, v.last_shape) for v in source.inputs]:
        info.changed[copied.ir] = None
    return copied, copied.outputs


class Transformer:
    """Copies a part of a graph; what happens on the way is decided by handlers, which can be assigned.

    Attributes:
        transform_op_handler: `(info, op, new_inputs) -> (op_, outputs_)`; by default a copy.
        transform_control_input_handler: `(info, op) -> op_ or None`; by default copies wait for copies.
        assign_collections_handler: `(info, elem, elem_)`; by default copies are in the same collections.
        transform_external_input_handler: `(info, t) -> t_` for the inputs of the view; by default placeholders.
        transform_external_hidden_input_handler: `(info, t) -> t_` for what is read from outside without being an input of the view.
        transform_original_op_handler: `(info, op) -> op_ or None` for what a node is the gradient of, which only live graphs know.
    """

    def __init__(self) -> None:
        self.transform_op_handler: Callable[..., Any] = copy_op_handler
        self.transform_control_input_handler: Callable[..., Any] = transform_op_if_inside_handler
        self.assign_collections_handler: Callable[..., Any] = assign_renamed_collections_handler
        self.transform_external_input_handler: Callable[..., Any] = replace_t_with_placeholder_handler
        self.transform_external_hidden_input_handler: Callable[..., Any] = keep_t_if_possible_handler
        self.transform_original_op_handler: Callable[..., Any] = transform_op_if_inside_handler

    @garbage_collection_paused()
    def __call__(
        self, sgv: Any, dst_graph: Graph, dst_scope: str, src_scope: str = "", reuse_dst_scope: bool = False
    ) -> tuple[SubGraphView, TransformerInfo]:
        """Copy.

        Args:
            sgv: a view, or what `make_view` takes.
            dst_graph: where to.
            dst_scope: where to in that graph.
            src_scope: what is taken off the names, which must start with it.
            reuse_dst_scope: whether the scope may exist; by default it then gets a suffix.

        Returns:
            A view of the copy, and what became of what.

        Raises:
            TypeError: `dst_graph` is not a graph.
            ValueError: a name does not start with `src_scope`, or a handler returned the node that it was given.
        """
        view = make_view(sgv)
        if not isinstance(dst_graph, Graph):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"Expected a gde.Graph, got: {type(dst_graph)}")
        src_scope, dst_scope = scope_finalize(src_scope), scope_finalize(dst_scope)
        if dst_scope and not reuse_dst_scope:
            dst_scope = f"{unique_scope(dst_graph.ir, dst_scope[:-1])}/"
        info = TmpInfo(view, dst_graph, dst_scope, src_scope)
        for op in view.ops:
            info.new_name(op.name)  # raises where it does not start with the scope
        if view.graph.ir.shapes is not None:
            view.graph.ir.shapes.settle_edits()
        with shapes_at_rest(dst_graph.ir), dst_graph.ir.restored_on_error():
            info.functions = import_functions(view.graph.ir, dst_graph.ir, [op.ir for op in view.ops])
            self._copy_ops(info)
            self._finalize_cycles(info)
            self._connect_control_inputs(info)
            if info.changed:
                infer_graph(dst_graph.ir, forward_reachable(info.changed, control=False))
            return self._view_of_copy(info, view), TransformerInfo(info)

    def _copy_ops(self, info: TmpInfo) -> None:
        assigns = self.assign_collections_handler is not assign_renamed_collections_handler or bool(info.names_by_item)
        for node in order_of(op.ir for op in info.sgv.ops):
            op = info.graph.view_of(node)
            new_inputs = [self._transformed_t(info, t, op) for t in op.inputs]
            copied, outputs = self.transform_op_handler(info, op, new_inputs)
            if copied is op:
                raise ValueError("In-place transformation not allowed.")
            info.transformed_ops[op] = copied
            pairs = list(zip(op.outputs, outputs, strict=False))
            info.transformed_ts.update(pairs)
            if assigns:
                for elem, elem_ in ((op, copied), *pairs):
                    self.assign_collections_handler(info, elem, elem_)

    def _transformed_t(self, info: TmpInfo, t: Tensor, consumer: Node) -> Tensor:
        if t in info.transformed_ts:
            return info.transformed_ts[t]
        is_input = t in info.sgv_inputs_set
        if is_input:
            found = self.transform_external_input_handler(info, t)
        elif t.node in info.ops:
            # The back edge of a loop: until it is copied, the copy reads something of the same dtype.
            temporary = info.transformed_ts.get(consumer.inputs[0])
            if temporary is None:
                temporary = make_placeholder_from_tensor(info.graph_, t, scope=info.scope_, prefix="geph_tmp").output(0)
                info.temporary_nodes.append(temporary.node)
            info.tmp_cyclic_ts.append((t, consumer))
            return temporary
        else:
            found = self.transform_external_hidden_input_handler(info, t)
        found = found.output(0) if isinstance(found, Node) else found
        if is_input or info.graph_ is not info.graph:
            info.transformed_ts[t] = found  # one placeholder for all that read it
        return found

    def _finalize_cycles(self, info: TmpInfo) -> None:
        for t, consumer in info.tmp_cyclic_ts:
            for place, value in enumerate(consumer.inputs):
                if value == t:
                    info.transformed_ops[consumer].replace_input(place, info.transformed_ts[t])
        for node in info.temporary_nodes:
            info.graph_.remove_node_by_name(node.name)

    def _connect_control_inputs(self, info: TmpInfo) -> None:
        for op in info.sgv.ops:
            if not op.ir.control_inputs and not info.transformed_ops[op].ir.control_inputs:
                continue
            found = [self.transform_control_input_handler(info, control) for control in op.control_inputs]
            info.transformed_ops[op].set_control_inputs(control for control in found if control is not None)
        for op, copied in info.transformed_ops.items():
            original = info.graph.originals.get(op.ir)
            found = None if original is None else self.transform_original_op_handler(info, info.graph.view_of(original))
            if found is not None:
                info.graph_.originals[copied.ir] = found.ir

    def _view_of_copy(self, info: TmpInfo, view: SubGraphView) -> SubGraphView:
        """A view of the copies, with inputs and outputs in the order of the original."""
        copy_view = SubGraphView(list(info.transformed_ops.values()))
        inputs = [info.transformed_ts[t] for t in view.inputs if t in info.transformed_ts]
        outputs = [info.transformed_ts[t] for t in view.outputs if t in info.transformed_ts]
        known_inputs, known_outputs = set(copy_view.inputs), set(copy_view.outputs)
        return copy_view.remap(dict.fromkeys(t for t in inputs if t in known_inputs), [t for t in outputs if t in known_outputs])


# Words


def copy(
    sgv: Any, dst_graph: Graph | None = None, dst_scope: str = "", src_scope: str = "", reuse_dst_scope: bool = False
) -> tuple[SubGraphView, TransformerInfo]:
    """Copy a part of a graph; what it reads from outside becomes placeholders. The arguments are those of `Transformer.__call__`.

    Args:
        dst_graph: by default the graph itself.

    Raises:
        TypeError: `dst_graph` is not a graph.
    """
    view = make_view(sgv)
    return Transformer()(view, view.graph if dst_graph is None else dst_graph, dst_scope, src_scope, reuse_dst_scope=reuse_dst_scope)


def copy_with_input_replacements(
    sgv: Any,
    replacement_ts: Mapping[Tensor, Tensor],
    dst_graph: Graph | None = None,
    dst_scope: str = "",
    src_scope: str = "",
    reuse_dst_scope: bool = False,
) -> tuple[SubGraphView, TransformerInfo]:
    """Copy a part of a graph; inputs of it are replaced, the others are kept where that is possible.

    Args:
        sgv: a view, or what `make_view` takes.
        replacement_ts: what to read instead of an input.

    Raises:
        TypeError: `dst_graph` is not a graph.
    """
    view = make_view(sgv)
    copier = Transformer()

    def replace(info: TmpInfo, t: Tensor) -> Tensor:
        return replacement_ts[t] if t in replacement_ts else keep_t_if_possible_handler(info, t)

    copier.transform_external_input_handler = replace
    return copier(view, view.graph if dst_graph is None else dst_graph, dst_scope, src_scope, reuse_dst_scope=reuse_dst_scope)


@garbage_collection_paused()
def graph_replace(
    target_ts: Any, replacement_ts: Mapping[Tensor, Tensor], dst_scope: str = "", src_scope: str = "", reuse_dst_scope: bool = False
) -> Any:
    """Compute the targets from other tensors: what lies between is copied.

    Loops of TF1 and nodes that must share a device are copied as a whole.

    Args:
        target_ts: a tensor, or nested dictionaries and iterables of tensors.
        replacement_ts: what to read instead of what.

    Returns:
        The tensors that are computed now, in the structure of `target_ts`; a target that depends on nothing replaced stays as it is.

    Raises:
        ValueError: no target depends on what is replaced.
    """
    targets = flatten_tree(target_ts)
    graph = get_unique_graph(targets, check_types=(Tensor,))
    ops = get_walks_intersection_ops(list(replacement_ts), targets, control_ios=ControlOutputs(graph))
    if not ops:
        raise ValueError("Targets and replacements are not connected!")
    _, info = copy_with_input_replacements(_completed(ops, graph), replacement_ts, None, dst_scope, src_scope, reuse_dst_scope)
    return info.transformed(target_ts, lambda original: original)


def _completed(ops: list[Node], graph: Graph) -> list[Node]:
    """The nodes, with the rest of the loops they are in and the nodes that share a device with them."""
    found = dict.fromkeys(ops)
    for frame in dict.fromkeys(name for op in ops for name in graph.node_to_frame_names(op)):
        found.update(dict.fromkeys(graph.frame_name_to_nodes(frame)))
    groups = [group for group in graph.colocation_groups.values() if len(group) > 1]
    size = 0
    while size != len(found):  # groups may overlap
        size = len(found)
        for group in groups:
            if not group.isdisjoint(found):
                found.update(dict.fromkeys(group))
    return list(found)
