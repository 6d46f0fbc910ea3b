"""SavedModel folders <-> `ir.Graph`, at the level of `saved_model.pb`, so that nothing is lost. Variables and assets are copied when the
graph is written. `fingerprint.pb` is left out, which TensorFlow accepts: computing another one crashes TensorFlow 2.21 on some graphs.
"""

import hashlib
from collections.abc import Iterable
from heapq import nlargest
from pathlib import Path
from typing import Any

from graphwright.errors import ArgumentError, FileFormatError, GraphError, UnsupportedError
from graphwright.ir.attributes import SerializedAttribute
from graphwright.ir.edit.library import bodies
from graphwright.ir.graph import Graph
from graphwright.ir.traits.variables import VARIABLES
from graphwright.ir.walk import served_variables
from graphwright.source import protobuf_files
from graphwright.source.graph_def import from_graph_def, to_graph_def
from graphwright.source.join import OpenPackage
from graphwright.source.meta_graph import read_meta_graph, write_meta_graph
from graphwright.source.model_folder import check_is_model, check_variables, copy_around
from graphwright.source.object_graph import check_object_graph, note_objects, update_object_graph
from graphwright.source.package import Package
from graphwright.source.private_tensorflow import message_class
from graphwright.source.protobuf_files import read_message, remove_items, serialize
from graphwright.source.variable_values import drop_values

_SCHEMA_VERSION = 1
_ALL = -1
_RESTORING = ("variables", "saved_model_main_op", "legacy_init_op", "__saved_model_init_op")


def read_saved_model(folder: Path, tags: Iterable[str] | None, *, keep: Any = None) -> Graph:
    """Read one MetaGraph of a SavedModel; `keep` is kept alive with the graph, such as a temporary folder."""
    saved_model = parse_saved_model(folder)
    index = _choose(saved_model, tags, folder)
    meta_graph = saved_model.meta_graphs[index]
    check_object_graph(meta_graph, folder)
    graph = from_graph_def(meta_graph.graph_def, name=folder.name, file_order=True)
    read_meta_graph(graph, meta_graph)
    digest = graph_digest(meta_graph)
    rest = graph_rest(meta_graph.graph_def)
    for name in ("graph_def", "signature_def", "collection_def", "saver_def"):  # asset files stay: objects tell them by number
        meta_graph.ClearField(name)
    graph.package = package = OpenPackage(
        graph_rest=rest,
        graph_digest=digest,
        saved_model=saved_model.SerializeToString(deterministic=True),
        meta_graph=index,
        folder=folder.absolute(),
        keep=keep,
    )
    if meta_graph.HasField("object_graph_def"):
        note_objects(graph, meta_graph.object_graph_def, package)
    return graph


def graph_rest(graph_def: Any) -> bytes:
    """Return the fields of a `GraphDef` that the IR does not hold, serialized. The message is emptied."""
    graph_def.ClearField("node")
    if graph_def.HasField("library"):
        graph_def.library.ClearField("function")
    if graph_def.HasField("versions"):
        graph_def.versions.ClearField("producer")
        graph_def.versions.ClearField("min_consumer")
    return graph_def.SerializeToString(deterministic=True)


def graph_digest(meta_graph: Any) -> bytes:
    """Return a digest of the graph and signatures of a MetaGraph, without shapes in the signatures."""
    digest = hashlib.blake2b(meta_graph.graph_def.SerializeToString(deterministic=True), digest_size=16)
    for key in sorted(meta_graph.signature_def):
        signature = meta_graph.signature_def[key]
        names = [sorted((k, info.name) for k, info in infos.items()) for infos in (signature.inputs, signature.outputs)]
        digest.update(repr((key, names)).encode())
    return digest.digest()


def write_saved_model(graph: Graph, folder: Path) -> None:
    package = graph.package if isinstance(graph.package, Package) else Package()
    if not graph.signatures and not package.saved_model:
        raise ArgumentError(
            "a SavedModel needs a signature, and the graph has none",
            where=f"graph {graph.name!r}",
            remedy='set graph.signatures["serving_default"], or write to a file that ends in .pb',
        )
    saved_model, gone = _filled(graph, package)
    if package.folder is not None:
        check_variables(package.folder, needed=saved_model.meta_graphs[package.meta_graph].HasField("object_graph_def"))
        copy_around(package.folder, folder, skip=("variables",) if gone else ())
        (folder / "variables").mkdir(exist_ok=True)
        if gone - {_ALL}:
            drop_values(package, gone, folder)
    (folder / "saved_model.pb").write_bytes(serialize(saved_model, f"graph {graph.name!r}"))


def _filled(graph: Graph, package: Package) -> tuple[Any, set[int]]:
    saved_model = package.parsed()
    if package.saved_model:
        meta_graph = saved_model.meta_graphs[package.meta_graph]
    else:
        saved_model.saved_model_schema_version = _SCHEMA_VERSION
        meta_graph = saved_model.meta_graphs.add()
        meta_graph.meta_info_def.tags.append("serve")
    assets = [asset.filename for asset in meta_graph.asset_file_def]
    fill_graph_def(graph, package, meta_graph.graph_def)
    shapes, graph.shapes = graph.shapes, None  # to compare with what was read, no shape needs to be inferred
    write_meta_graph(graph, meta_graph)
    graph.shapes = shapes
    if package.graph_digest and graph_digest(meta_graph) == package.graph_digest:
        return saved_model, set()
    graph.settle_shapes()
    write_meta_graph(graph, meta_graph, forget=True)
    _check_restored(graph, meta_graph)
    info = meta_graph.meta_info_def
    info.ClearField("stripped_op_list")
    for name in [n for n in info.function_aliases if n not in graph.functions]:
        del info.function_aliases[name]
    alone = len(saved_model.meta_graphs) == 1  # others may need the values
    if meta_graph.HasField("object_graph_def"):
        gone = update_object_graph(graph, meta_graph, package, assets)
        return saved_model, gone if alone else set()
    needed = meta_graph.saver_def.restore_op_name or any(node.op_type in VARIABLES for body in bodies(graph) for node in body)
    return saved_model, {_ALL} if alone and not needed else set()


def _check_restored(graph: Graph, meta_graph: Any) -> None:
    """Refuse served variables that nothing restores: no saver, no initializer, no list for TensorFlow to make one from."""
    listed = {key for key, held in meta_graph.collection_def.items() if held.bytes_list.value or held.node_list.value}
    if meta_graph.saver_def.restore_op_name or not listed.union(meta_graph.signature_def).isdisjoint(_RESTORING):
        return
    left = served_variables(graph)
    if left:
        raise GraphError(
            f"{len(left)} variables are read by what is served, and nothing restores them: {', '.join(left[:3])}",
            where=f"graph {graph.name!r}",
            cause="an edit removed what restores them (the collection 'graphwright:saver'), or they were added without it",
            remedy="freeze them (freeze_variables), or keep the collections where the graph is pruned",
        )


def fill_graph_def(graph: Graph, package: Package, graph_def: Any, *, every_function: bool = True) -> None:
    """Write the graph, with what was kept of its file, into an empty message; by default also functions that no node reaches."""
    _check_size(graph)
    graph_def.ParseFromString(package.graph_rest)
    rest = graph_def.library
    every_function = every_function or bool(rest.gradient or rest.registered_gradients)  # they name functions that no node does
    for name in ("gradient", "registered_gradients") if graph_def.HasField("library") else ():
        remove_items(getattr(graph_def.library, name), lambda entry: entry.gradient_func and entry.gradient_func not in graph.functions)
    to_graph_def(graph, every_function=every_function, into=graph_def)


def _check_size(graph: Graph) -> None:
    sizes = [
        (sum(len(a.data) for a in node.attrs.values() if isinstance(a, SerializedAttribute)), node.name)
        for body in bodies(graph)
        for node in body
    ]
    total = sum(nbytes for nbytes, _ in sizes)
    if total <= protobuf_files.PROTOBUF_LIMIT_BYTES:
        return
    named = ", ".join(f"{name} ({nbytes:,} bytes)" for nbytes, name in nlargest(3, sizes))
    raise UnsupportedError(
        f"the graph is larger than the {protobuf_files.PROTOBUF_LIMIT_BYTES} bytes that a protobuf can hold: "
        f"its constants have {total:,} bytes, the largest are {named}",
        where=f"graph {graph.name!r}",
        cause="variables were made constants; TensorFlow itself cannot read or write more",
        remedy="leave them variables, which a SavedModel holds outside of the graph; or freeze only some "
        "(freeze_variables with partial=True), or store them in 16 bits (convert_weights)",
    )


def parse_saved_model(folder: Path) -> Any:
    check_is_model(folder)
    message: Any = message_class("protobuf.saved_model", "SavedModel")()
    for name in ("saved_model.pb", "saved_model.pbtxt"):
        if (folder / name).is_file():
            read_message(folder / name, message)
            if not message.meta_graphs:
                raise FileFormatError("the SavedModel holds no graph", where=str(folder / name), cause="the file is damaged or cut off")
            return message
    if (folder / "saved_model.cpb").is_file():
        raise UnsupportedError(
            "the SavedModel is kept in chunks (saved_model.cpb), because its graph is larger than 2 GB",
            where=str(folder),
            remedy="keep the weights in variables, and save it again",
        )
    raise FileFormatError("the SavedModel holds no graph", where=str(folder), cause="the folder was copied in part")


def _choose(saved_model: Any, tags: Iterable[str] | None, folder: Path) -> int:
    listed = [sorted(m.meta_info_def.tags) for m in saved_model.meta_graphs]
    if tags is None:
        if len(listed) == 1:
            return 0
        wanted = ["serve"]
    else:
        wanted = sorted([tags] if isinstance(tags, str) else tags)
    matches = [k for k, have in enumerate(listed) if have == wanted]
    if len(matches) != 1:
        raise ArgumentError(
            f"{len(matches)} MetaGraphs have the tags {wanted}",
            where=str(folder),
            remedy=f"give tags=, one of {', '.join(map(str, listed[:10]))}",
        )
    return matches[0]
