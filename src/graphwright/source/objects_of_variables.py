"""Objects for the variables of a TF1 graph, so that it can be part of a TF2 SavedModel."""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Any

from graphwright.errors import UnsupportedError
from graphwright.ir.attributes import ShapeAttribute
from graphwright.ir.dtypes import DType
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.signature import node_of, references_of
from graphwright.ir.traits.variables import REFERENCE_VARIABLES, opens_variable, shared_name
from graphwright.ir.walk import backward_reachable
from graphwright.source.attributes import shape_to_proto
from graphwright.source.meta_graph import items_of
from graphwright.source.object_graph import make_user_object
from graphwright.source.private_tensorflow import message_class


def add_objects(graph: Graph, objects: Any, keys: AbstractSet[str]) -> tuple[Any, dict[Value, int]]:
    """Add the resource variables of a TF1 graph to an empty object graph, below a child of the root called `variables`.

    Return the `TrackableObjectGraph` for a checkpoint in which each value has its `object_key`, and the object of each variable. Refuse
    variables and tables in signatures that cannot be such an object.
    """
    check_no_session_state(graph, backward_reachable(v.producer for s in graph.signatures.values() for v in s.outputs.values()))
    stored: Any = message_class("protobuf.trackable_object_graph", "TrackableObjectGraph")()
    for _ in ("root", "variables"):
        make_user_object(objects.nodes.add())
        stored.nodes.add()
    for nodes in (objects.nodes, stored.nodes):
        nodes[0].children.add(node_id=1, local_name="variables")
    trained = {node_of(ref) for c in items_of(graph, "trainable_variables") for ref in references_of(c)}
    numbers: dict[str, int] = {}
    object_ids: dict[Value, int] = {}
    for node in graph.nodes:
        if not opens_variable(node):
            continue
        name = shared_name(node) or node.name
        if name not in keys:
            continue
        if name not in numbers:
            numbers[name] = len(objects.nodes)
            _add_variable(objects.nodes.add(), node, name, trainable=node in trained)
            stored.nodes.add().attributes.add(name="VARIABLE_VALUE", full_name=name, checkpoint_key=object_key(name))
            for nodes in (objects.nodes, stored.nodes):
                nodes[1].children.add(node_id=numbers[name], local_name=name)
        object_ids[node.outputs[0]] = numbers[name]
    return stored, object_ids


def object_key(name: str) -> str:
    """Return the key of a variable's value in the form that TensorFlow expects of objects (`checkpoint/trackable_view.py`)."""
    return f"variables/{name.replace('.', '..').replace('/', '.S')}/.ATTRIBUTES/VARIABLE_VALUE"


def _add_variable(saved: Any, node: Node, name: str, *, trainable: bool) -> None:
    dtype, shape = node.attrs.get("dtype"), node.attrs.get("shape")
    saved.variable.dtype = dtype.number if isinstance(dtype, DType) else 0
    shape_to_proto(shape.shape if isinstance(shape, ShapeAttribute) else None, saved.variable.shape)
    saved.variable.trainable = trainable
    saved.variable.name = name


def check_no_session_state(graph: Graph, nodes: Iterable[Node]) -> None:
    """Refuse tables and reference variables, whose content only a session knows."""
    for node in nodes:
        is_table = "Table" in node.op_type and not node.inputs
        if node.op_type in REFERENCE_VARIABLES or is_table:
            raise UnsupportedError(
                f"{node.name!r} is a {'table' if is_table else 'reference variable'} of TF1, which a TF2 SavedModel cannot hold",
                where=f"graph {graph.name!r}",
                cause="the other model is a TF2 SavedModel, and one file must hold both",
                remedy="make it in a tf.Module (or a Keras layer) and save that with TensorFlow 2"
                if is_table
                else "make the variables constants first: freeze_variables(graph, variable_values(graph))",
            )
