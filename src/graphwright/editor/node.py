"""`Node`, the view of an `ir.Node`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from graphwright.editor.inference import infer_graph, output_dtypes
from graphwright.editor.tensor import Tensor, View
from graphwright.editor.values import to_attr_value, to_python
from graphwright.editor.visualization import visualize
from graphwright.errors import ArgumentError, GraphError, printable
from graphwright.ir import graph as ir
from graphwright.ir.colocation import ATTRIBUTE as COLOCATION
from graphwright.ir.colocation import colocated_with
from graphwright.ir.dtypes import DType, Shape, as_dtype, as_shape
from graphwright.ir.edit.reroute import set_control_inputs
from graphwright.ir.walk import consumers_of
from graphwright.source.attributes import from_attr_value, shape_from_proto, shape_to_proto
from graphwright.source.tensorflow_import import import_tensorflow
from graphwright.source.write_nodes import write_node

SHAPES = "_output_shapes"
SPECIAL_ATTRS = (COLOCATION, SHAPES)
_PREFIX = "loc:@"


class Node(View):
    """One operation. Get it from a `Graph`."""

    __slots__ = ()
    _ir: ir.Node

    @property
    def ir(self) -> ir.Node:
        """The node of the IR."""
        return self._ir

    def __repr__(self) -> str:
        return printable(f"Node[{self.name}]")

    @property
    def name(self) -> str:
        """A unique name; change it with `Graph.rename_node`."""
        return self._graph.name_of(self._ir)

    @property
    def op_type(self) -> str:
        """The op type."""
        return self._ir.op_type

    type = op_type  # the name in `tf.Operation`

    def change_op_type(self, new_op_type: str) -> None:
        """Change the op type. Shapes and dtypes of the outputs stay; `infer_outputs` infers them again."""
        self._graph.increment_version_counter()
        self._ir.graph.set_op_type(self._ir, new_op_type)

    @property
    def graph(self) -> Any:
        """Its `gde.Graph`, or None after its removal."""
        return self._graph if self._graph.holds(self._ir) else None

    @property
    def id_in_graph(self) -> int:
        """A number that orders nodes as the graph does."""
        return self._graph.id_of(self._ir)

    @property
    def device(self) -> str:
        """The requested device; empty for any."""
        return self._ir.device

    @device.setter
    def device(self, value: str) -> None:
        self._graph.increment_version_counter()
        self._ir.device = value or ""

    # Data edges

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The output tensors; empty before `infer_outputs` or `set_outputs_from_pairs`."""
        return tuple(self._graph.view_of_value(v) for v in self._ir.outputs)

    def output(self, index: int) -> Tensor:
        """Return one output tensor."""
        return self._graph.view_of_value(self._ir.outputs[index])

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The input tensors."""
        return tuple(self._graph.view_of_value(v) for v in self._ir.inputs)

    def replace_input(self, index: int, new_input: Tensor) -> None:
        """Replace one input by a tensor of any dtype; the outputs stay as they are."""
        if not 0 <= index < len(self._ir.inputs):
            raise IndexError(f"Received input index {index}, but node {self.name} has {len(self._ir.inputs)} inputs")
        values = list(self._ir.inputs)
        values[index] = new_input.ir
        self._graph.increment_version_counter()
        self._ir.graph.set_inputs(self._ir, values)

    def set_inputs(self, new_inputs: Iterable[Tensor]) -> None:
        """Set all data inputs."""
        new_inputs = list(new_inputs)
        for t in new_inputs:
            if t.graph is not self.graph:
                raise ValueError(f"Tensor {t.name} points to graph {t.graph}, but node {self.name} is in graph {self.graph}")
        self._graph.increment_version_counter()
        self._ir.graph.set_inputs(self._ir, [t.ir for t in new_inputs])

    def set_inputs_from_strings(self, new_inputs: Iterable[str], set_control_inputs: bool = True) -> None:
        """Set all data inputs, and optionally the control inputs, from strings as in a `NodeDef`."""
        new_inputs = list(new_inputs)
        tensors = [self._graph.get_tensor_by_name(text) for text in new_inputs if not text.startswith("^")]
        controls = [self._graph.get_node_by_name(text[1:]) for text in new_inputs if text.startswith("^")]
        if set_control_inputs:
            self._check_controls(controls)
        self.set_inputs(tensors)
        if set_control_inputs:
            self.set_control_inputs(controls)

    def set_outputs_from_pairs(self, new_outputs: Sequence[tuple[Any, Any]]) -> None:
        """Set dtype and shape of each output. They are not stored in a GraphDef; TensorFlow infers them again."""
        if self._ir.outputs and len(new_outputs) != len(self._ir.outputs):
            raise NotImplementedError(
                f"Attempted to change number of output tensors on node {self.name} from {len(self._ir.outputs)} to {len(new_outputs)}"
            )
        types = [(as_dtype(dtype), as_shape(shape)) for dtype, shape in new_outputs]
        self._graph.increment_version_counter()
        set_output_types(self._ir, types)

    def infer_outputs(self) -> None:
        """Let TensorFlow infer number, dtypes and shapes of the outputs from op type, attributes and inputs.

        Raises:
            UnsupportedError: the op type is not known.
            GraphError: TensorFlow refuses the node, or the node would get fewer outputs than it has.
        """
        node = self._ir
        dtypes = output_dtypes(node)
        if len(dtypes) < len(node.outputs):
            raise GraphError(f"{self.name!r} has {len(node.outputs)} outputs, and would now have {len(dtypes)}")
        self._graph.increment_version_counter()
        fresh = [node.graph.add_output(node, dtype, None) for dtype in dtypes[len(node.outputs) :]]
        for value, dtype in zip(node.outputs, dtypes, strict=True):
            value.dtype = dtype
        try:
            infer_graph(node.graph, [node])
        except GraphError:
            for value in reversed(fresh):
                node.graph.remove_output(value)
            raise

    # Control edges

    @property
    def control_inputs(self) -> tuple[Node, ...]:
        """The nodes that must run before it."""
        return tuple(self._graph.view_of(n) for n in self._ir.control_inputs)

    @property
    def control_outputs(self) -> tuple[Node, ...]:
        """The nodes that wait for it."""
        return tuple(self._graph.view_of(n) for n in self._ir.control_consumers)

    def set_control_inputs(self, new_control_inputs: Iterable[Node]) -> None:
        """Set all control inputs."""
        controls = list(new_control_inputs)
        self._check_controls(controls)
        self._graph.increment_version_counter()
        set_control_inputs(self._ir.graph, self._ir, [control.ir for control in controls])

    def _check_controls(self, controls: Iterable[Node]) -> None:
        for control in controls:
            if control.graph is not self.graph or control == self:
                raise ValueError(f"{control.name} cannot be a control input of {self.name}")

    # Attributes

    def get_attr(self, key: str) -> Any:
        """Return an attribute as a Python or TensorFlow value, a tensor as a NumPy array, or raise a ValueError."""
        if key not in self._ir.attrs:
            raise ValueError(f"Node {self} does not have an attribute under key '{key}'")
        return to_python(self._ir.attrs[key])

    def has_attr(self, key: str) -> bool:
        """Return whether there is an attribute with this name."""
        return key in self._ir.attrs

    def get_attr_keys(self) -> tuple[str, ...]:
        """Return the names of all attributes except colocation groups and output shapes."""
        return tuple(key for key in self._ir.attrs if key not in SPECIAL_ATTRS)

    def add_attr(self, key: str, value: Any, validate_colocation_groups: bool = False) -> None:
        """Add a new attribute. `_class` sets the colocation groups, `_output_shapes` the shapes of the outputs."""
        self._graph.increment_version_counter()
        _write_attr(self._ir, key, value, new=True, validate_groups=validate_colocation_groups)

    def replace_attr(self, key: str, value: Any, validate_colocation_groups: bool = False) -> None:
        """Replace an existing attribute."""
        self._graph.increment_version_counter()
        _write_attr(self._ir, key, value, new=False, validate_groups=validate_colocation_groups)

    def clear_attrs(self) -> None:
        """Remove all attributes except colocation groups and output shapes."""
        self._graph.increment_version_counter()
        for key in self.get_attr_keys():
            self._ir.graph.set_attr(self._ir, key, None)

    @property
    def colocation_groups(self) -> tuple[str, ...]:
        """The names of the nodes whose device it must share, without `loc:@`."""
        return colocated_with(self._ir)

    @colocation_groups.setter
    def colocation_groups(self, value: Iterable[str]) -> None:
        value = list(value)
        _check_heads(self._ir, value)
        self._graph.increment_version_counter()
        _set_colocation_groups(self._ir, value)

    def add_colocation_group(self, head_node_name: str, validate: bool = True) -> None:
        """Let it share the device of another node."""
        groups = self.colocation_groups
        if head_node_name in groups:
            raise ValueError(f"Already have colocation group with '{head_node_name}'")
        if validate:
            _check_heads(self._ir, [head_node_name])
        self._graph.increment_version_counter()
        _set_colocation_groups(self._ir, [*groups, head_node_name])

    def to_node_def(self, target: Any = None, add_shapes: bool = True) -> Any:
        """Return a copy of the node as a `NodeDef`, or fill an empty one; `add_shapes` writes the attribute `_output_shapes`."""
        target = import_tensorflow().compat.v1.NodeDef() if target is None else target
        write_node(self._ir, target)
        write_shapes(self._ir, target, add_shapes)
        return target

    @property
    def node_def(self) -> Any:
        """A copy of the node as a `NodeDef`, like `tf.Operation`."""
        return self.to_node_def(add_shapes=False)

    def remove_from_collections(self) -> None:
        """Remove it from all collections."""
        self._graph.remove_item_from_collections(self._ir)

    def visualize(
        self,
        format: str | None = "json",  # noqa: A002 - the name it always had
        depth: int | None = None,
        *,
        depth_before: int = 1,
        depth_after: int = 2,
        **options: Any,
    ) -> bytes:
        """Return the boxes and arrows of the node and its neighbors as JSON; the `options` are those of `visualization.visualize`.

        `depth_before` and `depth_after` are the numbers of edges to follow backward and forward.
        """
        near = {self._ir}
        for forward, count in ((False, depth_before), (True, depth_after)):
            level = {self._ir}
            for _ in range(count):
                level = {n for node in level for n in (consumers_of(node, control=False) if forward else [v.producer for v in node.inputs])}
                near |= level
        return visualize(self._ir.graph, format, depth, nodes=near, **options)


# The two attributes with words of their own, and the protobuf


def _write_attr(node: ir.Node, key: str, value: Any, *, new: bool, validate_groups: bool) -> None:
    if key == SHAPES:
        _set_shapes(node, value)
        return
    if new and key in node.attrs:
        raise ArgumentError(f"Already have an attribute called '{key}'", where=f"node {node.name!r}", remedy="use replace_attr")
    if not new and key not in node.attrs:
        raise ArgumentError(f"Node {node.name} has no attribute called '{key}'", remedy="use add_attr")
    if key != COLOCATION:
        value = from_attr_value(value) if isinstance(value, import_tensorflow().compat.v1.AttrValue) else value
        node.graph.set_attr(node, key, value)
        return
    names = _group_names(value)
    if validate_groups:
        _check_heads(node, names)
    _set_colocation_groups(node, names)


def _set_colocation_groups(node: ir.Node, names: Sequence[str]) -> None:
    node.graph.set_attr(node, COLOCATION, tuple(f"{_PREFIX}{name}".encode() for name in names) or None)


def _check_heads(node: ir.Node, names: Iterable[str]) -> None:
    for name in names:
        if name not in node.graph:
            raise GraphError(f"Graph does not contain a node with name '{name}'", where=f"colocation groups of {node.name!r}")


def _group_names(value: Any) -> list[str]:
    if not isinstance(value, list | tuple):
        value = [item.decode() for item in to_attr_value(value).list.s]
    names: list[str] = []
    for item in value:  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(item, str) or not item.startswith(_PREFIX):
            raise ArgumentError(f"a colocation group starts with '{_PREFIX}', got {item!r}", where=f"attribute {COLOCATION!r}")
        names.append(item.removeprefix(_PREFIX))
    return names


def _set_shapes(node: ir.Node, value: Any) -> None:
    if not isinstance(value, import_tensorflow().compat.v1.AttrValue):
        raise ArgumentError(f"attribute {SHAPES!r} takes an AttrValue, got {type(value).__name__}")
    shapes: list[Shape] = [shape_from_proto(s) for s in to_attr_value(value).list.shape]
    if not node.outputs:
        return  # there are no dtypes yet; `infer_outputs` infers both
    if len(shapes) != len(node.outputs):
        raise ArgumentError(f"{len(shapes)} shapes for {len(node.outputs)} outputs", where=f"node {node.name!r}")
    set_output_types(node, [(v.dtype, s) for v, s in zip(node.outputs, shapes, strict=True)])


def set_output_types(node: ir.Node, types: Sequence[tuple[DType, Shape]]) -> None:
    """Set dtype and shape of the outputs in place, and add missing outputs."""
    for value, (dtype, shape) in zip(node.outputs, types, strict=False):
        value.dtype = dtype
        value.shape = shape
    for dtype, shape in types[len(node.outputs) :]:
        node.graph.add_output(node, dtype, shape)


def write_shapes(node: ir.Node, target: Any, wanted: bool) -> None:
    """Write the shapes of the outputs into a `NodeDef` if one is known, or remove them."""
    target.attr.pop(SHAPES, None)
    shapes = [value.known_shape for value in node.outputs] if wanted else []
    if any(shape is not None for shape in shapes):
        protos = target.attr[SHAPES].list.shape
        for shape in shapes:
            shape_to_proto(shape, protos.add())
