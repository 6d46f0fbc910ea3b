"""Joins savers and initializers of two graphs: a SavedModel names one op that restores, and one that initializes."""

from collections.abc import Callable, Iterable
from typing import Any

from graphwright.ir.attributes import Attribute
from graphwright.ir.dtypes import DTYPES
from graphwright.ir.edit.insert import add_op
from graphwright.ir.edit.library import bodies, call_sites
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.signature import Collection, NamedRefs, node_of
from graphwright.ir.traits.effects import reads_file, writes_file
from graphwright.ir.traits.values import is_constant
from graphwright.ir.walk import backward_reachable, topological_order
from graphwright.source.attributes import constant_array, tensor_to_attribute
from graphwright.source.join_checkpoints import OBJECT_GRAPH
from graphwright.source.meta_graph import NODE_SIGNATURES, SAVER, items_of
from graphwright.source.private_tensorflow import message_class

_STRING = DTYPES["string"]
_MAIN_OPS = ("saved_model_main_op", "legacy_init_op")
_ROLES = ("filename_tensor_name", "save_tensor_name", "restore_op_name")
_INIT = "__saved_model_init_op"


# Keys of the checkpoint, which are constants of the ops that save and restore


def rename_saved_keys(graph: Graph, key_of: Callable[[str], str], *, rename_objects: bool) -> None:
    for body in bodies(graph):
        for node in body:
            if not (writes_file(node) or reads_file(node)):
                continue
            names = _texts(node.inputs[1])
            stays = () if rename_objects and writes_file(node) else (OBJECT_GRAPH,)
            if names is not None:
                _set_texts(body, node, 1, [name if name in stays else key_of(name) for name in names])


def saves_objects(graph: Graph) -> bool:
    return bool(_whole_savers(graph)) and any(OBJECT_GRAPH in (_texts(node.inputs[1]) or ()) for _, node in _savers(graph))


def set_saved_objects(graph: Graph, serialized: bytes) -> None:
    for body, node in _savers(graph):
        for k, name in enumerate(_texts(node.inputs[1]) or ()):
            if name != OBJECT_GRAPH or 3 + k >= len(node.inputs):
                continue
            value = node.inputs[3 + k]
            if value in body.inputs:
                for call in call_sites(graph, body.name):
                    if body.inputs.index(value) < len(call.inputs):
                        _set_text(call.inputs[body.inputs.index(value)].producer, serialized)
            else:
                _set_text(value.producer, serialized)


def _savers(graph: Graph) -> Iterable[tuple[Graph, Node]]:
    return ((body, node) for body in bodies(graph) for node in body if writes_file(node))


def _texts(value: Value) -> list[str] | None:
    array = constant_array(value)
    return None if array is None else [text.decode("utf-8", "replace") for text in array.ravel()]


def _set_texts(graph: Graph, reader: Node, place: int, texts: list[str]) -> None:
    old = reader.inputs[place]
    attribute = tensor_to_attribute(texts)
    if old.use_count == 1:
        graph.set_attr(old.producer, "value", attribute)
        return
    # Optimized graphs share equal constants, also between what saves and what restores.
    attrs: dict[str, Attribute] = {"dtype": _STRING, "value": attribute}
    constant = graph.add_node("Const", graph.unique_name(old.producer.name), attrs=attrs, output_types=[(_STRING, (len(texts),))])
    graph.replace_input(reader, place, constant.outputs[0])
    graph.sort_nodes(topological_order(graph))


def _set_text(node: Node, text: bytes) -> None:
    if is_constant(node):
        node.graph.set_attr(node, "value", tensor_to_attribute(text))


# Savers and initializers


def join_savers(graph: Graph) -> None:
    """Make one saver of the savers in the collection: each saves a piece, and the pieces become one checkpoint."""
    if SAVER not in graph.collections:
        return
    whole = _whole_savers(graph)
    if len(whole) < 2:
        graph.collections[SAVER].items[:] = whole
        return
    named = [[item.refs[role] for role in _ROLES[:2]] for item in whole]
    ends = [tuple(held if isinstance(held, Value) else held.outputs[0] for held in pair) for pair in named]
    restores = [node_of(item.refs["restore_op_name"]) for item in whole]
    filename = ends[0][0]
    pieces: list[Value] = []
    for k, ((own, saved), restore) in enumerate(zip(ends, restores, strict=True)):
        suffix = _node(graph, "Const", "save/piece_suffix", [], dtype=_STRING, value=tensor_to_attribute(f"_piece_{k}"))
        piece = _node(graph, "StringJoin", "save/piece", [filename, suffix], N=2, separator=b"")
        pieces.append(piece)
        only_saves = backward_reachable([saved.producer]) - backward_reachable([restore])
        for use in list(own.uses):
            if use.node is piece.producer:
                continue
            if use.node in only_saves:
                graph.replace_input(use.node, use.index, piece)
            elif own is not filename:
                graph.replace_input(use.node, use.index, filename)
    prefixes = _node(graph, "Pack", "save/pieces", pieces, N=len(pieces), T=_STRING, axis=0)
    merged = graph.add_node(
        "MergeV2Checkpoints",
        graph.unique_name("save/MergeV2Checkpoints"),
        inputs=[prefixes, filename],
        control_inputs=dict.fromkeys(saved.producer for _, saved in ends),
        attrs={"delete_old_dirs": False, "allow_missing_files": False},
    )
    result = _node(graph, "Identity", "save/saved", [filename], T=_STRING)
    graph.add_control_input(result.producer, merged)
    restore = graph.add_node("NoOp", graph.unique_name("save/restore_both"), control_inputs=dict.fromkeys(restores))
    refs: dict[str, Value | Node] = dict(zip(_ROLES, (filename, result, restore), strict=True))
    graph.collections[SAVER].items[:] = [NamedRefs(whole[0].serialized, refs)]


def _whole_savers(graph: Graph) -> list[NamedRefs]:
    return [item for item in items_of(graph, SAVER) if all(role in item.refs for role in _ROLES)]


def join_initializers(graph: Graph, more: Iterable[Node] = ()) -> None:
    signatures = [item for item in items_of(graph, NODE_SIGNATURES) if _signature_key(item) == _INIT and item.refs]
    listed = [node_of(item) for name in _MAIN_OPS for item in items_of(graph, name)]
    named = [node_of(ref) for item in signatures for ref in item.refs.values()]
    nodes = list(dict.fromkeys([*listed, *named, *more]))
    if len(nodes) < 2 and len(signatures) < 2 and not more:
        return
    op = graph.add_node("NoOp", graph.unique_name("initialize_both"), control_inputs=nodes)
    for name in _MAIN_OPS:
        graph.collections.pop(name, None)
    if not signatures:
        graph.collections[_MAIN_OPS[0]] = Collection("nodes", [op])
        return
    signatures[0].refs = dict.fromkeys(signatures[0].refs, op)
    graph.collections[NODE_SIGNATURES].items[:] = [item for item in items_of(graph, NODE_SIGNATURES) if item not in signatures[1:]]


def drop_doubled_node_signatures(graph: Graph) -> None:
    first: dict[str, NamedRefs] = {}
    for item in items_of(graph, NODE_SIGNATURES):
        first.setdefault(_signature_key(item), item)
    if first:
        graph.collections[NODE_SIGNATURES].items[:] = first.values()


def _signature_key(item: NamedRefs) -> str:
    return str(message_class("protobuf.meta_graph", "MetaGraphDef").FromString(item.serialized).meta_info_def.meta_graph_version)


def _node(graph: Graph, op_type: str, name: str, inputs: list[Value], **attrs: Any) -> Value:
    return add_op(graph, op_type, name, inputs, _STRING, (len(inputs),) if op_type == "Pack" else (), **attrs)
