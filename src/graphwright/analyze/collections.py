"""Variables in the collections of TF1 graphs.

A collection is a list under a key that travels with a graph. TensorFlow and its libraries agree on keys
(`tf.compat.v1.GraphKeys`); users make their own. Variables stand in them as a `VariableDef`
(tensorflow/core/framework/variable.proto), which this file reads.
"""

from dataclasses import dataclass

from graphwright.ir.graph import Node, Value
from graphwright.ir.signature import Collection, NamedRefs
from graphwright.ir.wire import fields_of

TRAINABLE = "trainable_variables"
GLOBAL = "variables"
LOCAL = "local_variables"
METRICS = "metric_variables"
UPDATE_OPS = "update_ops"
TRAIN_OPS = ("train_op", "saved_model_train_op")


@dataclass(frozen=True, slots=True)
class VariableEntry:
    """A variable as a collection names it.

    Attributes:
        name: as its `VariableDef` says, without ":0".
        value: the handle or reference in the graph; None when it is gone.
        part_of: the name of the partitioned variable of which it is a part, or "".
    """

    name: str
    value: Value | None
    part_of: str


def variables_in(collection: Collection | None) -> list[VariableEntry]:
    """The variables that a collection holds; what is not a variable is passed over."""
    found: list[VariableEntry] = []
    for item in () if collection is None else collection.items:
        if isinstance(item, NamedRefs):
            entry = _entry_of(item)
            if entry is not None:
                found.append(entry)
        elif isinstance(item, Value):
            found.append(VariableEntry(item.producer.name, item, ""))
        elif isinstance(item, Node) and item.outputs:
            found.append(VariableEntry(item.name, item.outputs[0], ""))
    return found


def _entry_of(item: NamedRefs) -> VariableEntry | None:
    held = item.refs.get("variable_name")
    value = held if isinstance(held, Value) else held.outputs[0] if held is not None and held.outputs else None
    try:
        name, part_of = _read_variable_def(item.serialized)
    except ValueError:  # another message
        return None
    return VariableEntry(name, value, part_of) if name else None


def _read_variable_def(data: bytes) -> tuple[str, str]:
    """Name, and name of the whole of a `VariableDef`: fields 1 and 4, in the latter 1."""
    name, part_of = "", ""
    for field in fields_of(data):
        if field.number == 1 and isinstance(field.content, bytes):
            name = field.content.decode("utf-8", "replace").removesuffix(":0")
        elif field.number == 4 and isinstance(field.content, bytes):
            for inner in fields_of(field.content):
                if inner.number == 1 and isinstance(inner.content, bytes):
                    part_of = inner.content.decode("utf-8", "replace")
    return name, part_of
