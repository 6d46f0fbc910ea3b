"""Signatures, collections, saver and asset files of a `MetaGraphDef` <-> the IR.

Saver, assets and signatures that name nodes (`__saved_model_init_op`) become collections named `graphwright:...`, so that they follow edits
and protect the nodes that they need. `graphwright:objects` is written into files: it maps values to objects where calls were inlined.
"""

from typing import Any

from graphwright.errors import FileFormatError, GraphError
from graphwright.ir.dtypes import Shape
from graphwright.ir.graph import Graph, Value
from graphwright.ir.signature import Collection, NamedRefs, Signature
from graphwright.ir.traits.variables import WHOLE_READS
from graphwright.source.attributes import shape_from_proto, shape_to_proto
from graphwright.source.model_folder import leaves_folder
from graphwright.source.named_refs import find, parsed, read_refs, refs_bytes, write_refs
from graphwright.source.private_tensorflow import collection_message, message_class

SAVER = "graphwright:saver"
ASSETS = "graphwright:assets"
NODE_SIGNATURES = "graphwright:signatures"
OBJECTS = "graphwright:objects"

LEGACY_ASSETS = "saved_model_assets"
_LISTS = {"nodes": "node_list", "bytes": "bytes_list", "ints": "int64_list", "floats": "float_list", "any": "any_list"}


def read_meta_graph(graph: Graph, meta_graph: Any) -> None:
    _read_signatures(graph, meta_graph.signature_def)
    for key in sorted(meta_graph.collection_def):
        graph.collections[key] = _read_collection(graph, key, meta_graph.collection_def[key])
    if meta_graph.HasField("saver_def"):
        graph.collections[SAVER] = Collection("any", [read_refs(graph, meta_graph.saver_def)])
    for asset in meta_graph.asset_file_def:
        check_asset_path(asset.filename)
    if meta_graph.asset_file_def:
        graph.collections[ASSETS] = Collection("any", [read_refs(graph, asset) for asset in meta_graph.asset_file_def])


def write_meta_graph(graph: Graph, meta_graph: Any, *, forget: bool = False) -> None:
    """Write signatures, collections, saver and asset files of the graph into a `MetaGraphDef`, replacing its own. With `forget`, names
    that an edit removed are left out, and messages in collections that miss one.
    """
    for name in ("signature_def", "collection_def", "saver_def", "asset_file_def"):
        meta_graph.ClearField(name)
    for key, signature in graph.signatures.items():
        _write_signature(graph, key, signature, meta_graph.signature_def[key])
    for key, collection in graph.collections.items():
        if key == SAVER:
            for item in collection.items:
                if is_whole(item, message_class("protobuf.saver", "SaverDef")):  # one whose nodes are gone would restore nothing
                    write_refs(graph, item, meta_graph.saver_def)
        elif key == ASSETS:
            for item in collection.items:
                write_refs(graph, item, meta_graph.asset_file_def.add())
        elif key == NODE_SIGNATURES:
            for item in collection.items:
                read = message_class("protobuf.meta_graph", "MetaGraphDef").FromString(item.serialized)
                meta_graph.signature_def[read.meta_info_def.meta_graph_version].CopyFrom(_node_signature(read, item))
        else:
            _write_collection(graph, key, collection, meta_graph.collection_def[key], forget=forget)


# Signatures


def _read_signatures(graph: Graph, signature_defs: Any) -> None:
    for key in sorted(signature_defs):
        definition = signature_defs[key]
        if any(":" not in info.name for info in definition.outputs.values() if info.WhichOneof("encoding") == "name"):
            _keep_node_signature(graph, key, definition)
            continue
        signature = Signature({}, {}, definition.method_name, definition.SerializeToString(deterministic=True))
        for role, infos, values in (("input", definition.inputs, signature.inputs), ("output", definition.outputs, signature.outputs)):
            for name in sorted(infos):
                for part, info_name in _tensor_names(infos[name]).items():
                    value = find(graph, info_name)
                    if not isinstance(value, Value):
                        raise FileFormatError(
                            f"{role} {name!r} is {info_name!r}, which does not exist",
                            where=f"signature {key!r}",
                            cause="the file is damaged",
                        )
                    values[name + part] = value
                    if not part and value.shape is None:
                        value.shape = shape_from_proto(infos[name].tensor_shape)
        graph.signatures[key] = signature


def _tensor_names(info: Any) -> dict[str, str]:
    """Return the tensors of a `TensorInfo` by the suffix of their key: one, or several of a sparse or composite tensor."""
    encoding = info.WhichOneof("encoding")
    if encoding == "coo_sparse":
        sparse = info.coo_sparse
        return {
            "/values": sparse.values_tensor_name,
            "/indices": sparse.indices_tensor_name,
            "/dense_shape": sparse.dense_shape_tensor_name,
        }
    if encoding == "composite_tensor":
        return {f"/{k}": component.name for k, component in enumerate(info.composite_tensor.components)}
    return {"": info.name}


def _write_signature(graph: Graph, key: str, signature: Signature, definition: Any) -> None:
    original = type(definition)()
    if signature.extra:
        original.ParseFromString(signature.extra)
        definition.CopyFrom(original)
    definition.method_name = signature.method_name
    definition.inputs.clear()
    definition.outputs.clear()
    for values, old, new in (
        (signature.inputs, original.inputs, definition.inputs),
        (signature.outputs, original.outputs, definition.outputs),
    ):
        for name, value in values.items():
            if not graph.owns(value.producer):
                raise GraphError(f"{name!r} is {value.name}, which is not in the graph", where=f"signature {key!r}")
            stem, slash, part = name.rpartition("/")
            if slash and stem in old and f"/{part}" in _tensor_names(old[stem]):
                if stem not in new:
                    new[stem].CopyFrom(old[stem])
                _set_part(new[stem], part, value)
                continue
            info = new[name]
            if name in old:
                info.CopyFrom(old[name])
            _write_tensor_info(info, value)


def _set_part(info: Any, part: str, value: Value) -> None:
    if info.WhichOneof("encoding") == "coo_sparse":
        setattr(info.coo_sparse, f"{part}_tensor_name", value.name)
    else:
        info.composite_tensor.components[int(part)].name = value.name


def _write_tensor_info(info: Any, value: Value) -> None:
    info.name = value.name
    info.dtype = value.dtype.number
    known: Shape = shape_from_proto(info.tensor_shape) if info.HasField("tensor_shape") else None
    if not info.HasField("tensor_shape") or known != value.shape:
        info.ClearField("tensor_shape")
        shape_to_proto(value.shape, info.tensor_shape)


def _keep_node_signature(graph: Graph, key: str, definition: Any) -> None:
    """Keep a signature that names nodes in a `MetaGraphDef` of its own, which holds both key and content."""
    message = message_class("protobuf.meta_graph", "MetaGraphDef")()
    message.meta_info_def.meta_graph_version = key
    message.signature_def["0"].CopyFrom(definition)
    item = NamedRefs(message.SerializeToString(deterministic=True), {})
    for role in ("inputs", "outputs"):
        infos = getattr(definition, role)
        for name in infos:
            target = find(graph, infos[name].name)
            if target is not None:
                item.refs[f"{role}/{name}"] = target
    graph.collections.setdefault(NODE_SIGNATURES, Collection("any")).items.append(item)


def _node_signature(message: Any, item: NamedRefs) -> Any:
    definition = message.signature_def["0"]
    for path, held in item.refs.items():
        role, _, name = path.partition("/")
        getattr(definition, role)[name].name = held.name
    return definition


# Collections


def _read_collection(graph: Graph, key: str, definition: Any) -> Collection:
    match definition.WhichOneof("kind"):
        case "node_list":
            return Collection("nodes", [find(graph, name) or name for name in definition.node_list.value])
        case "int64_list":
            return Collection("ints", list(definition.int64_list.value))
        case "float_list":
            return Collection("floats", list(definition.float_list.value))
        case "any_list":
            if key != LEGACY_ASSETS:
                return Collection("any", [item.SerializeToString(deterministic=True) for item in definition.any_list.value])
            kind, where = message_class("protobuf.meta_graph", "AssetFileDef"), f"collection {key!r}"
            assets = [parsed(kind, item.value, where) for item in definition.any_list.value]
            for asset in assets:
                check_asset_path(asset.filename)
            return Collection("any", [read_refs(graph, asset) for asset in assets])
        case _:
            items, message = list(definition.bytes_list.value), collection_message(key)
            if message is None:
                return Collection("bytes", items)
            return Collection("bytes", [read_refs(graph, parsed(message, item, f"collection {key!r}"), item) for item in items])


def _write_collection(graph: Graph, key: str, collection: Collection, definition: Any, *, forget: bool) -> None:
    held = getattr(definition, _LISTS[collection.kind])
    held.SetInParent()
    match collection.kind:
        case "nodes":
            held.value.extend(item if isinstance(item, str) else item.name for item in collection.items)
        case "ints" | "floats":
            held.value.extend(collection.items)
        case "any":
            for item in collection.items:
                target = held.value.add()
                if isinstance(item, NamedRefs):
                    asset = message_class("protobuf.meta_graph", "AssetFileDef")()
                    write_refs(graph, item, asset)
                    target.Pack(asset)
                else:
                    target.ParseFromString(item)
        case "bytes":
            message = collection_message(key)
            for item in collection.items:
                if isinstance(item, NamedRefs):
                    if message is None:
                        raise GraphError(f"it is not known what its items are: {item!r:.80}", where=f"collection {key!r}")
                    data = refs_bytes(graph, _with_snapshot(item) if forget else item, message(), forget=forget)
                    if data:
                        held.value.append(data)
                else:
                    held.value.append(item)


def _with_snapshot(item: NamedRefs) -> NamedRefs:
    """Return the description of a variable, with another read of it where its read was removed."""
    variable = item.refs.get("variable_name")
    if not isinstance(variable, Value) or "snapshot_name" in item.refs:
        return item
    read = next((reader for reader in variable.consumers if reader.op_type in WHOLE_READS), None)
    return item if read is None else NamedRefs(item.serialized, {**item.refs, "snapshot_name": read.outputs[0]})


def items_of(graph: Graph, key: str) -> list[Any]:
    return list(graph.collections[key].items) if key in graph.collections else []


def is_whole(item: NamedRefs, kind: Any) -> bool:
    message = parsed(kind, item.serialized, "a saver")
    names = [message.filename_tensor_name, message.save_tensor_name, message.restore_op_name]
    return len(item.refs) >= sum(bool(name) for name in names)


def check_asset_path(filename: str) -> None:
    if not filename or leaves_folder(filename) or "\0" in filename:
        raise FileFormatError(
            f"the path {filename!r} of an asset leaves the folder of the SavedModel",
            where="asset files",
            cause="the file may be malicious, or is damaged",
        )
