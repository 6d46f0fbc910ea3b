"""Copies of a part of a graph, with handlers that may change it; copies with other inputs, and `graph_replace`."""

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


class TmpInfo:
    """The argument of handlers. Names that end in `_` refer to the destination.

    Attributes:
        sgv: the view that is copied, of `graph`, to `graph_`.
        scope, scope_: removed from names, and added to them.
        ops: the nodes that are copied.
        transformed_ops, transformed_ts: the copies so far, by node and by tensor.
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
        self.changed: dict[IrNode, None] = {}  # copies whose shapes must be inferred
        self.functions: dict[str, str] = {}  # copied functions with another name
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
        return {name: self.graph.get_collection_by_name(name) for name in self.graph.get_all_collection_keys()}

    def collection_names_of(self, elem: Any) -> list[str]:
        return self.names_by_item.get(elem.ir, [])

    def new_name(self, name: str) -> str:
        if not name.startswith(self.scope):
            raise ValueError(f"{name} does not belong to source scope: {self.scope}.")
        return self.scope_ + name.removeprefix(self.scope)

    def new_attrs(self, node: IrNode) -> dict[str, Attribute]:
        """Return the attributes of a copy, with its own loop frames and colocation constraints."""
        attrs = dict(attributes_with_functions(node.attrs, self.functions))
        frame = attrs.get("frame_name")
        if isinstance(frame, bytes):
            attrs["frame_name"] = self._new_frame(frame.decode()).encode()
        constraints = with_names(attrs.pop(COLOCATION, ()), self._new_group)
        return attrs if not constraints else {**attrs, COLOCATION: constraints}

    def _new_group(self, name: str) -> str:
        head: Any = self.graph.get_node_by_name(name) if self.graph.contains_node(name) else None
        if head in self.transformed_ops:
            return self.transformed_ops[head].name
        return self.new_name(name) if head in self.ops or self.graph is not self.graph_ else name

    def _new_frame(self, name: str) -> str:
        """Return the name of a copied loop frame; loops of a graph must not share one."""
        if name not in self._frames:
            if not self._frames:
                frames = (node.attrs.get("frame_name") for node in self.graph_.ir)
                self._taken_frames = {frame.decode() for frame in frames if isinstance(frame, bytes)}
            fresh = free_name(f"{self.scope_}{name}", self._taken_frames) if name in self._taken_frames else name
            self._taken_frames.add(fresh)
            self._frames[name] = fresh
        return self._frames[name]


class TransformerInfo:
    """The correspondence of originals and copies."""

    def __init__(self, info: TmpInfo) -> None:
        self._graph = info.graph
        self._graph_ = info.graph_
        self._scope = info.scope
        self._scope_ = info.scope_
        self._transformed_ops = info.transformed_ops
        self._transformed_ts = info.transformed_ts
        self._copy_of: dict[Any, Any] = {**info.transformed_ops, **info.transformed_ts}
        self._original_of = {copied: original for original, copied in reversed(self._copy_of.items())}  # of several, the first

    def transformed(self, original: Any, missing_fn: Callable[[Any], Any] | None = None) -> Any:
        """Return the copy of a node or tensor, or of each in nested dictionaries and iterables.

        Without a copy, the result is that of `missing_fn`, or None.
        """
        return _looked_up(original, self._copy_of, missing_fn)

    def original(self, transformed: Any, missing_fn: Callable[[Any], Any] | None = None) -> Any:
        """Return the original of a copy; otherwise like `transformed`."""
        return _looked_up(transformed, self._original_of, missing_fn)

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


def _looked_up(tree: Any, table: Mapping[Any, Any], missing_fn: Callable[[Any], Any] | None) -> Any:
    def partner(top: Any) -> Any:
        if not isinstance(top, Node | Tensor):
            raise TypeError(f"Expected a gde.Tensor or a gde.Node, got a {type(top)}")
        return table[top] if top in table else None if missing_fn is None else missing_fn(top)

    return transform_tree(tree, partner)


# Handlers


def replace_t_with_placeholder_handler(info: TmpInfo, t: Tensor) -> Tensor:
    """Return a placeholder in the destination."""
    return make_placeholder_from_tensor(info.graph_, t, scope=info.scope_).output(0)


def keep_t_if_possible_handler(info: TmpInfo, t: Tensor) -> Tensor:
    """Return the tensor if source and destination are one graph, else a placeholder."""
    return t if info.graph is info.graph_ else replace_t_with_placeholder_handler(info, t)


def assign_renamed_collections_handler(info: TmpInfo, elem: Any, elem_: Any) -> None:
    """Add the copy to the collections of the original. Collections that TensorFlow does not know get the scope of the destination."""
    for name in info.collection_names_of(elem):
        elem_.add_to_collection(name if name in info.known_collections else info.new_name(name))


def transform_op_if_inside_handler(info: TmpInfo, op: Node, keep_if_possible: bool = True) -> Node | None:
    """Return the copy of a node; if it is not copied, the node if source and destination are one graph, else None."""
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
    """Copy one node, with inputs in the destination; return the copy and its outputs.

    Args:
        copy_shape_and_dtype: whether to copy the types of the outputs without asking TensorFlow. This is always done if the inputs have
            the same types.
        nodedef_fn: may change the `NodeDef` of the copy, or return another one.
    """
    new_inputs = list(new_inputs)
    source, target = op.ir, info.graph_
    attrs = info.new_attrs(source)
    name = target.unique_name(info.new_name(op.name))
    op_type = info.functions.get(op.op_type, op.op_type)  # it may be a function
    types = [(v.dtype, v.last_shape) for v in source.outputs]
    inputs = [t.ir for t in new_inputs]
    if nodedef_fn is not None:
        node_def = op.to_node_def(add_shapes=False)
        node_def.name, node_def.op = name, op_type
        for key, attribute in attrs.items():
            write_attr_value(attribute, node_def.attr[key])
        copied = target.add_node_from_node_def(nodedef_fn(node_def))
        copied.set_inputs(new_inputs)
    else:
        target.increment_version_counter()
        copied = target.append(
            target.ir.append_node(op_type, name, inputs=inputs, attrs=attrs, output_types=types, device=source.device, extra=source.extra)
        )
    if target.ir.shapes is not None and source.graph.shapes is not None and source in source.graph.shapes.unasked:
        target.ir.shapes.unasked[copied.ir] = None
    if copy_shape_and_dtype:
        set_output_types(copied.ir, types)
    elif nodedef_fn is not None or [(v.dtype, v.last_shape) for v in inputs] != [(v.dtype, v.last_shape) for v in source.inputs]:
        info.changed[copied.ir] = None
    return copied, copied.outputs


class Transformer:
    """Copies a part of a graph, with handlers that can be assigned.

    Attributes:
        transform_op_handler: `(info, op, new_inputs) -> (op_, outputs_)`; by default a copy.
        transform_control_input_handler: `(info, op) -> op_ or None`; by default copies wait for copies.
        assign_collections_handler: `(info, elem, elem_)`; by default copies are in the same collections.
        transform_external_input_handler: `(info, t) -> t_` for the inputs of the view; by default placeholders.
        transform_external_hidden_input_handler: `(info, t) -> t_` for other tensors from outside that the nodes read.
        transform_original_op_handler: `(info, op) -> op_ or None` for the node that a node is the gradient of, known in live graphs only.
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
        """Copy a view (or an argument of `make_view`), and return a view of the copy and the correspondence.

        The names must start with `src_scope`, which `dst_scope` replaces; it gets a suffix if it exists, unless `reuse_dst_scope`.

        Raises:
            TypeError: `dst_graph` is not a graph.
            ValueError: a name does not start with `src_scope`, or a handler returned its argument.
        """
        view = make_view(sgv)
        if not isinstance(dst_graph, Graph):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"Expected a gde.Graph, got: {type(dst_graph)}")
        src_scope, dst_scope = scope_finalize(src_scope), scope_finalize(dst_scope)
        if dst_scope and not reuse_dst_scope:
            dst_scope = f"{unique_scope(dst_graph.ir, dst_scope[:-1])}/"
        info = TmpInfo(view, dst_graph, dst_scope, src_scope)
        for op in view.ops:
            info.new_name(op.name)  # raises for a name outside the scope
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
            new_inputs: list[Tensor] = []
            for t in op.inputs:
                if t.node in info.ops and t not in info.transformed_ts and t not in info.sgv_inputs_set:
                    # The back edge of a loop: until its source is copied, the copy reads the value that enters the loop.
                    info.tmp_cyclic_ts.append((t, op))
                    new_inputs += new_inputs[:1]
                else:
                    new_inputs.append(self._transformed_t(info, t))
            copied, outputs = self.transform_op_handler(info, op, new_inputs)
            if copied is op:
                raise ValueError("In-place transformation not allowed.")
            info.transformed_ops[op] = copied
            pairs = list(zip(op.outputs, outputs, strict=False))
            info.transformed_ts.update(pairs)
            if assigns:
                for elem, elem_ in ((op, copied), *pairs):
                    self.assign_collections_handler(info, elem, elem_)

    def _transformed_t(self, info: TmpInfo, t: Tensor) -> Tensor:
        if t in info.transformed_ts:
            return info.transformed_ts[t]
        is_input = t in info.sgv_inputs_set
        handler = self.transform_external_input_handler if is_input else self.transform_external_hidden_input_handler
        copied = handler(info, t)
        copied = copied.output(0) if isinstance(copied, Node) else copied
        if is_input or info.graph_ is not info.graph:
            info.transformed_ts[t] = copied  # one placeholder for all readers
        return copied

    def _finalize_cycles(self, info: TmpInfo) -> None:
        for t, consumer in info.tmp_cyclic_ts:
            for place, value in enumerate(consumer.inputs):
                if value == t:
                    info.transformed_ops[consumer].replace_input(place, info.transformed_ts[t])

    def _connect_control_inputs(self, info: TmpInfo) -> None:
        for op, copied in info.transformed_ops.items():
            if op.ir.control_inputs or copied.ir.control_inputs:
                controls = [self.transform_control_input_handler(info, control) for control in op.control_inputs]
                copied.set_control_inputs(control for control in controls if control is not None)
            original = info.graph.originals.get(op.ir)
            original_ = None if original is None else self.transform_original_op_handler(info, info.graph.view_of(original))
            if original_ is not None:
                info.graph_.originals[copied.ir] = original_.ir

    def _view_of_copy(self, info: TmpInfo, view: SubGraphView) -> SubGraphView:
        copy_view = SubGraphView(list(info.transformed_ops.values()))
        inputs = [info.transformed_ts[t] for t in view.inputs if t in info.transformed_ts]
        outputs = [info.transformed_ts[t] for t in view.outputs if t in info.transformed_ts]
        known_inputs, known_outputs = set(copy_view.inputs), set(copy_view.outputs)
        return copy_view.remap(dict.fromkeys(t for t in inputs if t in known_inputs), [t for t in outputs if t in known_outputs])


def copy(
    sgv: Any, dst_graph: Graph | None = None, dst_scope: str = "", src_scope: str = "", reuse_dst_scope: bool = False
) -> tuple[SubGraphView, TransformerInfo]:
    """Copy a part of a graph, by default into the same graph; its inputs become placeholders. See `Transformer.__call__`."""
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
    """Copy a part of a graph, whose copy reads the tensors that `replacement_ts` maps its inputs to. Other inputs are kept if the
    destination is the same graph.
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
    """Compute targets from other tensors, by copying the nodes between; TF1 loops and colocated nodes are copied completely.

    Return the new tensors in the structure of `target_ts`; a target that depends on no replaced tensor stays as it is.

    Raises:
        ValueError: no target depends on a replaced tensor.
    """
    targets = flatten_tree(target_ts)
    graph = get_unique_graph(targets, check_types=(Tensor,))
    ops = get_walks_intersection_ops(list(replacement_ts), targets, control_ios=ControlOutputs(graph))
    if not ops:
        raise ValueError("Targets and replacements are not connected!")
    _, info = copy_with_input_replacements(_completed(ops, graph), replacement_ts, None, dst_scope, src_scope, reuse_dst_scope)
    return info.transformed(target_ts, lambda original: original)


def _completed(ops: list[Node], graph: Graph) -> list[Node]:
    """Return the nodes with all nodes of their loops, and the nodes colocated with them."""
    completed = dict.fromkeys(ops)
    for frame in dict.fromkeys(name for op in ops for name in graph.node_to_frame_names(op)):
        completed.update(dict.fromkeys(graph.frame_name_to_nodes(frame)))
    groups = [group for group in graph.colocation_groups.values() if len(group) > 1]
    size = 0
    while size != len(completed):  # groups may overlap
        size = len(completed)
        for group in groups:
            if not group.isdisjoint(completed):
                completed.update(dict.fromkeys(group))
    return list(completed)
