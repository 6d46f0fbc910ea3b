"""The variables of a graph: names, dtypes, shapes, and whether the object graph or the live function says that they are trained."""

from dataclasses import dataclass
from typing import Any

from graphwright.ir.attributes import ShapeAttribute
from graphwright.ir.dtypes import DTYPES, DType, Shape, dtype_from_number
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.variables import VARIABLES, variable_key
from graphwright.ir.walk import backward_reachable, reached
from graphwright.source.attributes import shape_from_proto
from graphwright.source.object_graph import exported_twins
from graphwright.source.package import Package

_OPTIMIZER = "optimizer"
_OBJECT = "object:"


@dataclass(frozen=True, slots=True)
class StoredVariable:
    """A variable; `key` identifies it in its graph. `trainable` is None where it is unknown; `of_optimizer` tells whether the file states
    that it belongs to an optimizer.
    """

    key: str
    name: str
    dtype: DType
    shape: Shape
    trainable: bool | None
    of_optimizer: bool = False


def stored_variables(graph: Graph) -> tuple[list[StoredVariable], dict[Value, str]]:
    """Return the variables of a graph, each once, and the key of each handle, reference or input of one."""
    variables: dict[str, StoredVariable] = {}
    keys: dict[Value, str] = {}
    package = graph.package if isinstance(graph.package, Package) else None
    for value, variable in graph.variables.items():
        keys[value] = variable_key(value)
        variables[keys[value]] = StoredVariable(keys[value], variable.name, variable.dtype, variable.shape, variable.trainable)
    if package is not None and package.saved_model:
        _add_objects(graph, package, variables, keys)
    # Keras leaves handles without objects, which only their initializers read.
    fetched = (value.producer for signature in graph.signatures.values() for value in signature.outputs.values())
    served = backward_reachable(fetched) if any(key.startswith(_OBJECT) for key in variables) else None
    for node in graph.nodes:
        if node.op_type not in VARIABLES or node.outputs[0] in keys or (served is not None and node not in served):
            continue
        key = keys[node.outputs[0]] = variable_key(node.outputs[0])
        if key not in variables:
            variables[key] = of_node(node)
    return list(variables.values()), keys


def of_node(node: Node) -> StoredVariable:
    dtype, shape = node.attrs.get("dtype"), node.attrs.get("shape")
    key = variable_key(node.outputs[0])
    name = key.split(":", 2)[2]
    known = dtype if isinstance(dtype, DType) else DTYPES["float32"]
    return StoredVariable(key, name, known, shape.shape if isinstance(shape, ShapeAttribute) else None, None)


def _add_objects(graph: Graph, package: Package, variables: dict[str, StoredVariable], keys: dict[Value, str]) -> None:
    meta_graph = package.parsed().meta_graphs[package.meta_graph]
    if not meta_graph.HasField("object_graph_def"):
        return
    objects = meta_graph.object_graph_def.nodes
    numbers = [k for k, held in enumerate(objects) if held.WhichOneof("kind") == "variable"]
    optimizer = _of_optimizer(objects)
    same = exported_twins(meta_graph.object_graph_def)
    for k in numbers:
        if k in same:
            continue
        variable = objects[k].variable
        key = f"{_OBJECT}{k}"
        name = variable.name.removesuffix(":0") or f"variable_{k}"
        dtype = dtype_from_number(variable.dtype)
        variables[key] = StoredVariable(key, name, dtype, shape_from_proto(variable.shape), bool(variable.trainable), k in optimizer)
    known = set(numbers)
    for value, k in package.object_ids.items():
        if k in known and value.dtype.name == "resource" and graph.owns(value.producer):
            keys[value] = f"{_OBJECT}{same.get(k, k)}"


def _of_optimizer(objects: Any) -> set[int]:
    """Return the objects of an optimizer: its slots, and the variables below the child of the root called `optimizer`."""
    slots = {slot.slot_variable_node_id for held in objects for slot in held.slot_variables}
    seeds = [child.node_id for child in objects[0].children if child.local_name == _OPTIMIZER] if len(objects) else []

    def below(k: int) -> list[int]:
        return [child.node_id for child in objects[k].children if not child.local_name.startswith("_trainable_variables")]

    seen = set(reached(seeds, below))
    return slots | {k for k in seen if objects[k].WhichOneof("kind") == "variable" and not objects[k].variable.trainable}
