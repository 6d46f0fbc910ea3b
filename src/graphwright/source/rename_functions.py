"""Functions under other names in what a SavedModel says of them beside the graph."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from graphwright.source.private_tensorflow import message_class


def rename_in_graph_rest(graph_rest: bytes, new_of: Mapping[str, str]) -> bytes:
    """The rest of a `GraphDef`, whose gradients name functions."""
    if not graph_rest:
        return graph_rest
    message: Any = message_class("framework.graph", "GraphDef").FromString(graph_rest)
    for gradient in message.library.gradient if message.HasField("library") else ():
        gradient.function_name = new_of.get(gradient.function_name, gradient.function_name)
        gradient.gradient_func = new_of.get(gradient.gradient_func, gradient.gradient_func)
    for gradient in message.library.registered_gradients if message.HasField("library") else ():
        gradient.gradient_func = new_of.get(gradient.gradient_func, gradient.gradient_func)
    return message.SerializeToString(deterministic=True)


def rename_in_saved_model(saved_model: bytes, meta_graph: int, new_of: Mapping[str, str]) -> bytes:
    """The `SavedModel`, one of whose MetaGraphs has these functions: its object graph names those that Python calls."""
    if not saved_model:
        return saved_model
    message: Any = message_class("protobuf.saved_model", "SavedModel").FromString(saved_model)
    found = message.meta_graphs[meta_graph]
    _rename_keys(found.meta_info_def.function_aliases, new_of)
    objects = found.object_graph_def
    _rename_keys(objects.concrete_functions, new_of)
    for node in objects.nodes:
        rename_called(node, new_of)
    return message.SerializeToString(deterministic=True)


def rename_called(node: Any, new_of: Mapping[str, str]) -> None:
    """Let an object of a SavedModel call its functions by their new names."""
    kind = node.WhichOneof("kind")
    if kind == "function":
        node.function.concrete_functions[:] = [new_of.get(name, name) for name in node.function.concrete_functions]
    elif kind == "bare_concrete_function":
        bare = node.bare_concrete_function
        bare.concrete_function_name = new_of.get(bare.concrete_function_name, bare.concrete_function_name)


def _rename_keys(entries: Any, new_of: Mapping[str, str]) -> None:
    """Rename keys of a map, all at the same time, so that two may exchange their names."""
    copy: Any = {name: deepcopy(entries[name]) for name in entries if name in new_of}
    for name in copy:
        del entries[name]
    for name, item in copy.items():
        if isinstance(item, str):
            entries[new_of[name]] = item
        else:
            entries[new_of[name]].CopyFrom(item)
