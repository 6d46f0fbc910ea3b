"""Ops that make, read and write variables and tables, by handle or by reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphwright.ir.traits.control_flow import LOOPS
from graphwright.ir.traits.of_type import of_type
from graphwright.ir.traits.values import IDENTITIES, origin

if TYPE_CHECKING:  # a trait is of a node: nodes and graphs ask for traits, so these are types only
    from graphwright.ir.node import Node, Value

REFERENCE_VARIABLES = frozenset({"VariableV2", "Variable"})
"""Variables of TF1 without a handle: their output is the value itself, by reference."""
VARIABLES = REFERENCE_VARIABLES | {"VarHandleOp"}
MAKES_BY_REFERENCE = REFERENCE_VARIABLES | {"TemporaryVariable"}
"""Makes a buffer that others write by reference."""
READS_OF_ROWS = frozenset({"ResourceGather", "ResourceGatherNd"})
READS_OF_VALUES = READS_OF_ROWS | {"ReadVariableOp"}
"""Reads a variable with a handle, or rows of it."""
WHOLE_READS = IDENTITIES | {"ReadVariableOp"}
"""Reads a whole variable, by handle or by reference."""
ASKS_ABOUT_VARIABLES = frozenset({"VarIsInitializedOp", "VariableShape"})
READS_OF_VARIABLES = READS_OF_VALUES | ASKS_ABOUT_VARIABLES
"""Takes a handle and changes nothing, though TensorFlow's registry calls it stateful."""
LEAVES_VALUES_ALONE = ASKS_ABOUT_VARIABLES | {"IsVariableInitialized", "DestroyResourceOp", "DestroyTemporaryVariable"}
READS_OF_TABLES = frozenset({"LookupTableFindV2", "LookupTableSizeV2", "LookupTableExportV2"})
ASSIGNS_WHOLE_VALUE = frozenset({"Assign", "AssignVariableOp"})
SAVES = frozenset({"Save", "SaveSlices", "SaveV2"})
DRAWS_FROM_VARIABLE = frozenset(
    "StatefulStandardNormal StatefulStandardNormalV2 StatefulUniform StatefulUniformInt StatefulUniformFullInt StatefulTruncatedNormal "
    "StatefulRandomBinomial RngSkip RngReadAndSkip".split()
)
"""Makes random numbers from the state in a variable, which it advances."""
_WRITES_HANDLES = ("Assign", "ResourceApply", "ResourceSparseApply", "ResourceScatter", "ResourceStridedSliceAssign")
_WRITES_ROWS = ("ResourceSparseApply", "ResourceScatter", "ResourceStridedSliceAssign")
_UPDATES_REFERENCES = ("Apply", "SparseApply")
_OPTIMIZERS = (*_UPDATES_REFERENCES, "ResourceApply", "ResourceSparseApply")
_WRITES_REFERENCES = ("Assign", "Scatter", "StridedSliceAssign", "CountUpTo")
_ADDS_TO_VARIABLE = ("AssignAdd", "AssignSub", "ScatterAdd", "ScatterSub", "ScatterNdAdd", "ScatterNdSub")
opens_variable = of_type({"VarHandleOp"})
is_read = of_type({"ReadVariableOp"})


def resource_of(value: Value) -> Value:
    return origin(value, IDENTITIES | LOOPS)


def updated_weight(node: Node) -> Value | None:
    """Return the variable that an optimizer op of TF1 (`Apply*`, `ResourceApply*`) trains: its first input. None for other ops."""
    return resource_of(node.inputs[0]) if node.op_type.startswith(_OPTIMIZERS) and node.inputs else None


def shared_name(node: Node) -> str:
    """Return the name under which a session knows the variable or table of a node; empty where it is the node's name."""
    shared = node.attrs.get("shared_name")
    return shared.decode("utf-8", "replace") if isinstance(shared, bytes) else ""


def variable_key(value: Value) -> str:
    """Return a key that identifies the variable of a handle, a reference or an input.

    >>> from graphwright.ir.graph import DTYPES, Graph
    >>> g = Graph()
    >>> handles = [g.add_node("VarHandleOp", n, attrs={"shared_name": b"w"}, output_types=[(DTYPES["resource"], ())]) for n in "ab"]
    >>> {variable_key(node.outputs[0]) for node in handles}
    {'VarHandleOp::w'}
    """
    node = value.producer
    if node.op_type not in VARIABLES:
        return value.name
    container = node.attrs.get("container")
    where = container.decode("utf-8", "replace") if isinstance(container, bytes) else ""
    return f"{node.op_type if opens_variable(node) else 'Variable'}:{where}:{shared_name(node) or node.name}"


def written_resources(node: Node) -> tuple[Value, ...]:
    """Return the variables with handles among the inputs that the node writes; an optimizer's kernel writes several."""
    if not node.op_type.startswith(_WRITES_HANDLES) or not node.inputs or node.inputs[0].dtype.name != "resource":
        return ()
    return tuple(v for v in node.inputs if v.dtype.name == "resource")


def written_references(node: Node) -> tuple[Value, ...]:
    """Return the inputs that the node writes by reference: all inputs of an optimizer's op, else the first."""
    if node.op_type.startswith(_UPDATES_REFERENCES):
        return node.inputs
    by_reference = node.op_type.startswith(_WRITES_REFERENCES) and node.op_type not in ("ScatterNd", "ScatterNdNonAliasingAdd")
    return tuple(v for v in node.inputs[:1] if v.dtype.name != "resource") if by_reference else ()


def with_handle(op_type: str) -> str:
    """Return the op type that does with a handle what this op does by reference; it may not exist.

    >>> with_handle("AssignSub"), with_handle("ApplyAdam")
    ('AssignSubVariableOp', 'ResourceApplyAdam')
    """
    return f"{op_type}VariableOp" if op_type.startswith("Assign") else f"Resource{op_type}"


def accesses_rows(node: Node) -> bool:
    """Return whether it reads or writes rows of variables with handles: TensorFlow then copies them on every other access."""
    return node.op_type in READS_OF_ROWS or node.op_type.startswith(_WRITES_ROWS)


def assigns(node: Node) -> bool:
    return node.op_type.startswith("Assign")


def updates_whole_value(node: Node) -> bool:
    """Return whether it computes a new value of a variable with a handle from the old one, in place."""
    return bool(written_resources(node)) and node.op_type not in ASSIGNS_WHOLE_VALUE and not accesses_rows(node)


def adds_to_variable(node: Node) -> bool:
    return node.op_type.removeprefix("Resource").startswith(_ADDS_TO_VARIABLE)


def makes_table(node: Node) -> bool:
    return "HashTable" in node.op_type


def reads_resource(node: Node) -> bool:
    return "resource" in [v.dtype.name for v in node.inputs]
