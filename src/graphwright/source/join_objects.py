"""One object graph of two: the second root becomes a child of the first, in the SavedModel and in its checkpoint alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from graphwright.source.object_graph import add_signature_map, forget_function, make_plain, signature_map_of
from graphwright.source.package import rename_called


def attach_objects(
    objects: Any,
    others: Any,
    child: str,
    *,
    functions: Mapping[str, str],
    variable_name: Callable[[str], str],
    first_asset: int,
    signatures: Mapping[str, str],
) -> int:
    """Append a `SavedObjectGraph` to another one, below the root.

    Args:
        objects: gets the others.
        others: is used up.
        child: the name of their root.
        functions: the names of the functions of `others` that are left -> their names from now on.
        variable_name: the new name of a variable.
        first_asset: how many asset files come before those of `others`.
        signatures: key in the map of signatures of `others` -> key in that of `objects`, for those that are kept.

    Returns:
        How much the numbers of the others grew.
    """
    for name in [name for name in others.concrete_functions if name not in functions]:
        forget_function(others, name)
    shift = len(objects.nodes)
    kept = _take_signatures(others, signatures)
    for node in others.nodes:
        _renumber(node, shift)
        for dependency in node.dependencies:
            dependency.node_id += shift
        for saveable in node.saveable_objects.values():
            saveable.save_function += shift
            saveable.restore_function += shift
        rename_called(node, functions)
        kind = node.WhichOneof("kind")
        if kind == "variable":
            for variable in (node.variable, *node.variable.experimental_distributed_variable_components):
                variable.name = variable_name(variable.name) if variable.name else ""
        elif kind == "asset":
            node.asset.asset_file_def_index += first_asset
        objects.nodes.add().CopyFrom(node)
    for old, new in functions.items():
        if old in others.concrete_functions:
            function = objects.concrete_functions[new]
            function.CopyFrom(others.concrete_functions[old])
            function.bound_inputs[:] = [k + shift for k in function.bound_inputs]
    objects.nodes[0].children.add(node_id=shift, local_name=child)
    if kept:
        table = signature_map_of(objects)
        held = objects.nodes[add_signature_map(objects) if table is None else table]
        for key, k in kept.items():
            held.children.add(node_id=k + shift, local_name=key)
    return shift


def _take_signatures(others: Any, names: Mapping[str, str]) -> dict[str, int]:
    """The signatures that are kept, by their new keys; the map that held them is one no longer."""
    table = signature_map_of(others)
    if table is None:
        return {}
    kept = {names[child.local_name]: child.node_id for child in others.nodes[table].children if child.local_name in names}
    for node in others.nodes:
        remaining = [(c.node_id, c.local_name) for c in node.children if c.node_id != table]
        if len(remaining) != len(node.children):
            del node.children[:]
            for node_id, local_name in remaining:
                node.children.add(node_id=node_id, local_name=local_name)
    make_plain(others.nodes[table])
    return kept


def _renumber(node: Any, shift: int) -> None:
    for child in node.children:
        child.node_id += shift
    for slot in node.slot_variables:
        slot.original_variable_node_id += shift
        slot.slot_variable_node_id += shift


def attach_stored_objects(stored: Any, others: Any, child: str, *, name_of: Callable[[str], str]) -> None:
    """Append a `TrackableObjectGraph` to another one, below the root.

    Args:
        stored: gets the others.
        others: is used up.
        child: the name of their root.
        name_of: the new name of a variable, and the new key of its value.
    """
    shift = len(stored.nodes)
    for node in others.nodes:
        _renumber(node, shift)
        for attribute in node.attributes:
            attribute.checkpoint_key = name_of(attribute.checkpoint_key)
            attribute.full_name = name_of(attribute.full_name) if attribute.full_name else ""
        stored.nodes.add().CopyFrom(node)
    stored.nodes[0].children.add(node_id=shift, local_name=child)
