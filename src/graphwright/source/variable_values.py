"""The values of a loaded model's variables, which are stored outside of its graph."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import numpy as np

from graphwright.errors import FileFormatError
from graphwright.ir.jobs import as_graph
from graphwright.ir.traits.variables import VARIABLES, shared_name
from graphwright.source.join_checkpoints import has_checkpoint, join_checkpoints, readable, stored_objects
from graphwright.source.package import Package
from graphwright.source.protobuf_files import remove_items

_VALUE = "VARIABLE_VALUE"


def variable_values(graph: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Return the value of each variable of a loaded graph, by the name of its node or input.

    Args:
        graph: of a SavedModel of TF1 or TF2, a Keras model or a live function; or one of these itself, as `load` takes it.

    Returns:
        The values. Variables that are not saved (local ones of TF1) are left out.

    Raises:
        FileFormatError: the checkpoint cannot be read, or lacks a variable of the object graph.

    >>> import tensorflow as tf
    >>> from graphwright.source.load import load
    >>> weight = tf.Variable([2.0, 3.0])
    >>> graph = load(tf.function(lambda x: x * weight).get_concrete_function(tf.TensorSpec([2], tf.float32, name="x")))
    >>> [value.tolist() for value in variable_values(graph).values()]
    [[2.0, 3.0]]
    """
    graph = as_graph(graph)
    package = graph.package
    if not isinstance(package, Package):
        return {}
    if package.keep_function is not None:
        by_handle = {id(variable.handle): variable for variable in package.keep_function.graph.variables}
        captured = {value.producer.name: by_handle.get(id(outer)) for value, outer in package.captures.items()}
        return {name: np.asarray(variable.numpy()) for name, variable in captured.items() if variable is not None}
    if package.folder is None or not has_checkpoint(package.folder):
        return {}
    with readable(package.folder) as reader:
        keys = set(reader.get_variable_to_shape_map())
        by_object = _object_keys(package, stored_objects(package.folder))
        values: dict[str, np.ndarray[Any, Any]] = {}
        for node in graph.nodes:
            if node.op_type not in VARIABLES:
                continue
            known = package.object_ids.get(node.outputs[0])
            names = [by_object[known]] if known in by_object else [shared_name(node), node.name]
            key = next((name for name in names if name in keys), None)
            if key is not None:
                values[node.name] = reader.get_tensor(key)
            elif known is not None:
                raise FileFormatError(
                    f"the checkpoint has no value for the variable {node.name!r}",
                    where=str(package.folder / "variables"),
                    cause="the files of variables belong to another model, or are damaged",
                )
    return values


def drop_values(package: Package, gone: AbstractSet[int], target: Path) -> None:
    if package.folder is None or not has_checkpoint(package.folder):
        return
    stored = stored_objects(package.folder)
    by_object = _object_keys(package, stored)
    dropped = {by_object[k] for k in gone & by_object.keys()} - {key for k, key in by_object.items() if k not in gone}
    for node in stored.nodes:
        remove_items(node.attributes, lambda entry: entry.checkpoint_key in dropped)
    join_checkpoints([(package.folder, lambda key: "" if key in dropped else key)], stored.SerializeToString(deterministic=True), target)


def _object_keys(package: Package, stored: Any) -> dict[int, str]:
    """Return the keys of the checkpoint by object: both object graphs are walked from their roots along equal names."""
    objects = package.parsed().meta_graphs[package.meta_graph].object_graph_def.nodes
    pairs = [(0, 0)] if len(objects) and len(stored.nodes) else []
    same: dict[int, int] = {}
    while pairs:
        ours, theirs = pairs.pop()
        if ours in same or not 0 <= theirs < len(stored.nodes):
            continue
        same[ours] = theirs
        children = {child.local_name: child.node_id for child in stored.nodes[theirs].children}
        pairs += [(child.node_id, children[child.local_name]) for child in objects[ours].children if child.local_name in children]
    for ours, theirs in list(same.items()):  # an optimizer has its slots by variable, not by name
        slots = {(s.original_variable_node_id, s.slot_name): s.slot_variable_node_id for s in stored.nodes[theirs].slot_variables}
        for slot in objects[ours].slot_variables:
            same[slot.slot_variable_node_id] = slots.get((same.get(slot.original_variable_node_id), slot.slot_name), -1)
    keys = {k: attribute.checkpoint_key for k, node in enumerate(stored.nodes) for attribute in node.attributes if attribute.name == _VALUE}
    return {ours: keys[theirs] for ours, theirs in same.items() if theirs in keys}
