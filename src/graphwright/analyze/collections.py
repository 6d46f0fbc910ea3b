"""Variables in the collections of TF1 graphs.

A collection is a list under a key that travels with a graph. TensorFlow and its libraries agree on keys (`tf.compat.v1.GraphKeys`);
users add their own. Variables are stored as a `VariableDef` (tensorflow/core/framework/variable.proto), which this file reads.
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
    """A variable in a collection.

    Attributes:
        name: the name in its `VariableDef`, without ":0".
        value: the handle or reference in the graph; None if it is gone.
        part_of: the name of the partitioned variable that it is a part of, or "".
    """

    name: str
    value: Value | None
    part_of: str


def variables_in(collection: Collection | None) -> list[VariableEntry]:
    """Return the variables in a collection; other items are skipped."""
    entries: list[VariableEntry] = []
    for item in () if collection is None else collection.items:
        if isinstance(item, NamedRefs):
            entry = _entry_of(item)
            if entry is not None:
                entries.append(entry)
        elif isinstance(item, Value):
            entries.append(VariableEntry(item.producer.name, item, ""))
        elif isinstance(item, Node) and item.outputs:
            entries.append(VariableEntry(item.name, item.outputs[0], ""))
    return entries


def _entry_of(item: NamedRefs) -> VariableEntry | None:
    held = item.refs.get("variable_name")
    value = held if isinstance(held, Value) else held.outputs[0] if held is not None and held.outputs else None
    try:
        name, part_of = _read_variable_def(item.serialized)
    except ValueError:  # another message
        return None
    return VariableEntry(name, value, part_of) if name else None


def _read_variable_def(data: bytes) -> tuple[str, str]:
    """Return the name (field 1) and the full name of the partitioned variable (field 4, then 1) of a `VariableDef`."""
    name, part_of = "", ""
    for field in fields_of(data):
        if field.number == 1 and isinstance(field.content, bytes):
            name = field.content.decode("utf-8", "replace").removesuffix(":0")
        elif field.number == 4 and isinstance(field.content, bytes):
            for inner in fields_of(field.content):
                if inner.number == 1 and isinstance(inner.content, bytes):
                    part_of = inner.content.decode("utf-8", "replace")
    return name, part_of
