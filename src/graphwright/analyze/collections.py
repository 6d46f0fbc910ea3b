"""Describe collections of TF1 graphs: their meaning and their contents.

A collection is a list under a key that travels with a graph. TensorFlow and its libraries agree on keys (`tf.compat.v1.GraphKeys`);
users add their own. Variables are stored as a `VariableDef` (tensorflow/core/framework/variable.proto), which this file reads.
"""

from dataclasses import dataclass

from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.signature import Collection, NamedRefs
from graphwright.ir.wire import fields_of

TRAINABLE = "trainable_variables"
GLOBAL = "variables"
LOCAL = "local_variables"
METRICS = "metric_variables"
UPDATE_OPS = "update_ops"
TRAIN_OPS = ("train_op", "saved_model_train_op")

MEANINGS = {
    GLOBAL: "GLOBAL_VARIABLES: variables that are initialized together and shared between machines; a Saver saves these",
    TRAINABLE: "TRAINABLE_VARIABLES: what an optimizer trains when minimize() is given no list",
    LOCAL: "LOCAL_VARIABLES: variables of one process that are not saved, such as counters of metrics",
    METRICS: "METRIC_VARIABLES: the totals that metrics keep",
    "model_variables": "MODEL_VARIABLES: variables that inference needs",
    "moving_average_variables": "MOVING_AVERAGE_VARIABLES: variables of which an ExponentialMovingAverage keeps an average",
    "trainable_resource_variables": "TRAINABLE_RESOURCE_VARIABLES: trainable resources other than variables",
    UPDATE_OPS: "UPDATE_OPS: updates that training must run besides the optimizer's, such as moving statistics of batch norms",
    "train_op": "TRAIN_OP: the operation that trains one step",
    "saved_model_train_op": "the operation that trains one step, as a SavedModel keeps it",
    "global_step": "GLOBAL_STEP: the counter of training steps",
    "eval_step": "EVAL_STEP: the counter of evaluation steps",
    "savers": "SAVERS: how checkpoints are written and restored",
    "losses": "LOSSES: parts of the loss, to be added up",
    "regularization_losses": "REGULARIZATION_LOSSES: penalties on weights, to be added to the loss",
    "weights": "WEIGHTS: kernels, for regularizers",
    "biases": "BIASES: biases, for regularizers",
    "activations": "ACTIVATIONS: outputs of layers, for summaries",
    "summaries": "SUMMARIES: what is written for TensorBoard",
    "summary_op": "SUMMARY_OP: the operation that makes all summaries",
    "init_op": "INIT_OP: initializes the variables",
    "local_init_op": "LOCAL_INIT_OP: initializes local variables and tables",
    "ready_op": "READY_OP: lists variables that are not initialized",
    "ready_for_local_init_op": "READY_FOR_LOCAL_INIT_OP: lists what local initialization still waits for",
    "table_initializer": "TABLE_INITIALIZERS: fill the lookup tables",
    "asset_filepaths": "ASSET_FILEPATHS: tensors with the paths of asset files",
    "saved_model_assets": "asset files of a SavedModel, in the old form",
    "saved_model_main_op": "what a SavedModel runs when it is loaded",
    "legacy_init_op": "what a SavedModel runs when it is loaded, in the old form",
    "queue_runners": "QUEUE_RUNNERS: threads that fill input queues",
    "cond_context": "COND_CONTEXT: branches of tf.cond, for gradients",
    "while_context": "WHILE_CONTEXT: loops of tf.while_loop, for gradients",
    "resources": "RESOURCES: shared resources, such as tree ensembles",
    "local_resources": "LOCAL_RESOURCES: resources of one process",
    "concatenated_variables": "CONCATENATED_VARIABLES: partitioned variables put together",
    "graphwright:saver": "the Saver of the SavedModel",
    "graphwright:assets": "the asset files of the SavedModel",
    "graphwright:signatures": "signatures that name operations",
}
OWN_KEY = "a collection of the user's own"


@dataclass(frozen=True, slots=True)
class CollectionSummary:
    """A collection in words; items are names of variables, operations and tensors, texts and numbers."""

    key: str
    meaning: str
    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VariableEntry:
    """A variable in a collection: its handle or reference in the graph, if it is there, and the partitioned variable around it, or ""."""

    name: str
    value: Value | None
    part_of: str


def summarize_collections(graph: Graph) -> dict[str, CollectionSummary]:
    """Return a summary of every collection of a graph, by key."""
    summaries: dict[str, CollectionSummary] = {}
    for key in sorted(graph.collections):
        items = tuple(_name_of(item) for item in graph.collections[key].items)
        summaries[key] = CollectionSummary(key, MEANINGS.get(key, OWN_KEY), items)
    return summaries


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


def _name_of(item: object) -> str:
    if isinstance(item, Node | Value):
        return item.name.removesuffix(":0")
    if isinstance(item, NamedRefs):
        held = item.refs.get("variable_name") or item.refs.get("restore_op_name") or next(iter(item.refs.values()), None)
        if held is not None:
            return held.name.removesuffix(":0")
        entry = _entry_of(item)
        return entry.name if entry is not None else f"{len(item.serialized)} bytes"
    if isinstance(item, bytes):
        return item.decode() if item.isascii() and item.decode().isprintable() else f"{len(item)} bytes"
    return str(item)
