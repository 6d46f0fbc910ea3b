"""Reads a part of a live graph (a `tf.Graph` of TF1, or the graph of a `tf.function` while it is traced), and adds to it. The IR's nodes
have the names of their operations.
"""

from collections.abc import Generator, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import Any

from graphwright.ir.graph import Graph, Node, Value, Variable
from graphwright.ir.traits.values import INPUTS, NEVER_FOLDED
from graphwright.ir.traits.variables import READS_OF_VARIABLES, VARIABLES
from graphwright.ir.walk import reached
from graphwright.source import private_tensorflow as private
from graphwright.source.concrete_function import drop_shape_attributes, types_of
from graphwright.source.graph_def import from_graph_def, nodes_of
from graphwright.source.opaque_gate import always_true, held, some_bits
from graphwright.source.rebuild import variable_behind
from graphwright.source.tensorflow_import import import_tensorflow

_GIVEN = INPUTS | VARIABLES
_NUMERIC = ("float", "bfloat", "complex", "bool", "int", "uint")
_PLACES = frozenset({"_class", "_output_shapes"})  # valid only for the original


def needed_operations(operations: Iterable[Any]) -> dict[Any, None]:
    return dict.fromkeys(reached(operations, lambda operation: (*(t.op for t in operation.inputs), *operation.control_inputs)))


def read_live_graph(live: Any, operations: Iterable[Any], outputs: Sequence[Any]) -> Graph:
    """Read the part of a live graph that these operations and outputs need, in the order in which it was built. Its inputs are its
    placeholders (also captures of a `tf.function`) and variables of TF1; the operations become control outputs.
    """
    tf = import_tensorflow()
    operations = list(operations)
    needed = needed_operations([*operations, *(tensor.op for tensor in outputs)])
    names = {operation.name for operation in needed}
    whole = live.as_graph_def(add_shapes=True)
    part: Any = tf.compat.v1.GraphDef()
    part.versions.CopyFrom(whole.versions)
    part.library.CopyFrom(whole.library)
    part.node.extend(node for node in whole.node if node.name in names)
    for node in nodes_of(part):
        node.attr.pop("_class", None)  # may name what is not in this part
    graph = from_graph_def(part, name=getattr(live, "name", "") or "graph", file_order=False)
    drop_shape_attributes(graph)
    place = {operation.name: k for k, operation in enumerate(live.get_operations())}
    graph.sort_nodes(sorted(graph.nodes, key=lambda node: place[node.name]))
    graph.inputs = [value for node in graph.nodes if node.op_type in _GIVEN for value in node.outputs]
    graph.outputs = [graph.value(tensor.name) for tensor in {tensor.name: tensor for tensor in outputs}.values()]
    for operation in needed:
        for tensor in operation.outputs if not operation.inputs else ():
            behind = variable_behind(tensor)
            if behind is not None:
                graph.variables[graph.value(tensor.name)] = Variable(operation.name, *types_of(*behind), False)
    return graph


def handles_touched_elsewhere(live: Any, known: Graph) -> set[str]:
    """Return the names of operations whose handles may be written outside the part of a `tf.function` that was read. In a graph of TF1
    the caller of the session decides what runs.
    """
    if not live.building_function:
        return set()
    tf = import_tensorflow()
    return {
        tensor.op.name
        for operation in live.get_operations()
        if operation.type not in READS_OF_VARIABLES and operation.name not in known
        for tensor in operation.inputs
        if tensor.dtype == tf.resource
    }


def is_numeric(value: Value) -> bool:
    """Return whether an opaque gate can hold the tensor back, or wait for it."""
    return value.dtype.name.startswith(_NUMERIC) and value.shape is not None


def numeric_output(node: Node) -> Value | None:
    return next((value for value in node.outputs if is_numeric(value)), None)


def write_live_graph(
    live: Any, graph: Graph, originals: Mapping[str, str], *, fixed: AbstractSet[str], opaque: Mapping[Node, bool] = MappingProxyType({})
) -> dict[Value, Any]:
    """Add the new nodes of the IR to the graph that it was read from, and reroute operations; return the tensor of every value.

    Args:
        graph: in topological order. originals: name of a new node -> the operation whose attributes it copies. fixed: names of operations
        that must stay as they are. opaque: gates (an Identity that waits for nodes with a `numeric_output`) that must hold under XLA, and
        whether they are solid (see `held`). A gate that waits for nothing protects a constant from constant folding instead.
    """
    tensors: dict[Value, Any] = {}
    operations: dict[Node, Any] = {}
    conditions: dict[tuple[Node, ...], Any] = {}
    known = {node for node in graph.nodes if node.name not in originals}
    for node in known:
        operation = operations[node] = live.get_operation_by_name(node.name)
        tensors.update(zip(node.outputs, operation.outputs, strict=True))
    with outside_scopes(live):
        for node in graph.nodes:
            if node in opaque:
                tensors[node.outputs[0]] = _hold(live, node, opaque[node], tensors, conditions)
                operations[node] = tensors[node.outputs[0]].op
            elif node not in known:
                operations[node] = _create(live, node, live.get_operation_by_name(originals[node.name]), tensors, operations)
                tensors.update(zip(node.outputs, operations[node].outputs, strict=True))
    for node in graph.nodes:
        if node in known and node.name not in fixed:
            follow(operations[node], [tensors[value] for value in node.inputs], [operations[before] for before in node.control_inputs])
    return tensors


@contextmanager
def outside_scopes(live: Any) -> Generator[None]:
    with ExitStack() as stack:
        stack.enter_context(live.control_dependencies(None))
        stack.enter_context(live.device(None))
        stack.enter_context(live.colocate_with(None, ignore_existing=True))
        stack.enter_context(live.name_scope(None))
        yield


def _create(live: Any, node: Node, template: Any, tensors: Mapping[Value, Any], operations: Mapping[Node, Any]) -> Any:
    tf = import_tensorflow()
    attributes: dict[str, Any] = {}
    if template.type == node.op_type:
        attributes = {key: value for key, value in template.node_def.attr.items() if key not in _PLACES}
    else:  # an Identity
        attributes["T"] = tf.compat.v1.AttrValue(type=node.outputs[0].dtype.number)
    for key, value in node.attrs.items():
        if key.startswith("_graphwright"):
            attributes[key] = tf.compat.v1.AttrValue(s=value)
    with live.device(node.device), live.control_dependencies([operations[before] for before in node.control_inputs]):
        return live.create_op(
            node.op_type,
            [tensors[value] for value in node.inputs],
            [tensor.dtype for tensor in template.outputs] if template.type == node.op_type else None,
            name=node.name,
            attrs=attributes,
        )


def _hold(live: Any, gate: Node, solid: bool, tensors: Mapping[Value, Any], conditions: dict[tuple[Node, ...], Any]) -> Any:
    """Return the tensor behind a gate. Gates that wait for the same nodes share their condition."""
    tf, waits = import_tensorflow(), tuple(gate.control_inputs)
    with live.device(gate.device), live.name_scope(gate.name + "/"):
        if not waits:
            with live.gradient_override_map({NEVER_FOLDED: "Identity"}):  # an identity that counts as stateful, so nothing folds it
                return tf.raw_ops.GuaranteeConst(input=tensors[gate.inputs[0]])
        if waits not in conditions:
            outputs = [value for value in map(numeric_output, waits) if value is not None]
            conditions[waits] = always_true(some_bits([tensors[value] for value in outputs]))
        return held(tensors[gate.inputs[0]], conditions[waits], solid=solid)


def follow(operation: Any, tensors: Sequence[Any], waits: Sequence[Any]) -> None:
    for k, (old, new) in enumerate(zip(list(operation.inputs), tensors, strict=True)):
        if new is not old:
            private.set_input(operation, k, new)
    present: set[Any] = set(operation.control_inputs)
    if not present.issubset(waits):
        private.remove_control_inputs(operation)
        present = set()
    missing = [before for before in waits if before not in present]
    if missing:
        private.add_control_inputs(operation, missing)
