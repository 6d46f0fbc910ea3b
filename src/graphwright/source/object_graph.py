"""Keeps the object graph of a TF2 SavedModel consistent with an edited graph.

`tf.saved_model.load` serves a signature from the function that the object graph names (the *wrapper*), a session from the main graph. A
signature whose nodes in the main graph are still one call of its wrapper keeps it. Any other gets a new wrapper, *outlined* from the main
graph: the nodes between its inputs and outputs, with variables, tables, assets and large constants as captures.
"""

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Any

from graphwright.errors import FileFormatError, GraphError
from graphwright.ir.dtypes import DTYPES
from graphwright.ir.graph import Function, Graph, Value
from graphwright.ir.names import free_name
from graphwright.ir.traits.control_flow import CALL_TYPES, callee
from graphwright.ir.traits.values import is_constant
from graphwright.ir.traits.variables import opens_variable, shared_name
from graphwright.source.attributes import shape_from_proto
from graphwright.source.function_def import write_function
from graphwright.source.graph_def import nodes_of
from graphwright.source.meta_graph import OBJECTS, items_of
from graphwright.source.named_refs import find
from graphwright.source.outline import outline_signature
from graphwright.source.package import Package, called_by
from graphwright.source.protobuf_files import remove_items
from graphwright.source.structured_values import fill_specs, full_argument_spec, result_structure, signature_structure, spec_count, specs_of

_EXPORT_LIST = "_all_variables"
"""Below this child of its root, Keras exports a twin of each variable."""


def check_object_graph(meta_graph: Any, folder: Path) -> None:
    if not meta_graph.HasField("object_graph_def"):
        return
    objects = meta_graph.object_graph_def
    library = {f.signature.name for f in meta_graph.graph_def.library.function}
    count = len(objects.nodes)
    if not count:
        raise _damaged("it has no root", folder)
    for name, function in objects.concrete_functions.items():
        if name not in library:
            raise _damaged(f"function {name!r} is not in the library", folder)
        if any(not 0 <= k < count for k in function.bound_inputs):
            raise _damaged(f"function {name!r} captures an object that does not exist", folder)
    for k, node in enumerate(objects.nodes):
        if any(not 0 <= child.node_id < count for child in (*node.children, *node.dependencies)):
            raise _damaged(f"object {k} has a child that does not exist", folder)
        if node.WhichOneof("kind") == "asset" and not 0 <= node.asset.asset_file_def_index < len(meta_graph.asset_file_def):
            raise _damaged(f"object {k} is an asset that does not exist", folder)


def _damaged(what: str, folder: Path) -> FileFormatError:
    return FileFormatError(what, where=f"object graph of {str(folder)!r}", cause="the file is damaged")


def note_objects(graph: Graph, objects: Any, package: Package) -> None:
    bound = {name: list(function.bound_inputs) for name, function in objects.concrete_functions.items()}
    for name, ids in bound.items():
        if name in graph.functions:
            inputs = graph.functions[name].body.inputs
            package.object_ids.update(zip(inputs[len(inputs) - len(ids) :], ids, strict=len(inputs) >= len(ids)))
    for node in graph.nodes:
        ids = bound.get(callee(node), [])
        if ids and len(node.inputs) >= len(ids):
            for value, k in zip(node.inputs[len(node.inputs) - len(ids) :], ids, strict=True):
                package.object_ids.setdefault(value, k)
    for k, held in enumerate(objects.nodes):
        if held.WhichOneof("kind") == "constant" and held.constant.operation in graph:
            package.object_ids.setdefault(graph[held.constant.operation].outputs[0], k)
    for item in items_of(graph, OBJECTS):
        name, _, k = item.decode("utf-8", "replace").rpartition(" ") if isinstance(item, bytes) else ("", "", "")
        value = find(graph, name)
        if isinstance(value, Value) and k.isdecimal() and int(k) < len(objects.nodes):
            package.object_ids.setdefault(value, int(k))
    twins = exported_twins(objects)
    variables = {k: o.variable.name for k, o in enumerate(objects.nodes) if o.WhichOneof("kind") == "variable"}
    times = Counter(name for k, name in variables.items() if k not in twins)
    by_name = {name: k for k, name in variables.items() if name and times[name] == 1}
    for node in graph.nodes:
        if opens_variable(node) and shared_name(node) in by_name:
            package.object_ids.setdefault(node.outputs[0], by_name[shared_name(node)])


def exported_twins(objects: Any) -> dict[int, int]:
    """Return the twins of variables that Keras exports, each with the variable that it repeats."""
    looks = {k: o.variable.SerializeToString(deterministic=True) for k, o in enumerate(objects.nodes) if o.WhichOneof("kind") == "variable"}
    lists = [objects.nodes[child.node_id] for child in objects.nodes[0].children if child.local_name == _EXPORT_LIST]
    listed = {child.node_id for held in lists for child in held.children}
    first = {look: k for k, look in reversed(looks.items()) if k not in listed}
    return {k: first[look] for k, look in looks.items() if k in listed and look in first}


def nodes_named_by_objects(package: Package) -> dict[str, set[str]]:
    names: dict[str, set[str]] = {}
    for held in package.parsed().meta_graphs[package.meta_graph].object_graph_def.nodes if package.has_files else ():
        kind = held.WhichOneof("kind")
        if kind == "constant":
            names.setdefault("", set()).add(held.constant.operation)
        elif kind == "captured_tensor":
            names.setdefault(held.captured_tensor.concrete_function, set()).add(held.captured_tensor.name.partition(":")[0])
    return names


def update_object_graph(graph: Graph, meta_graph: Any, package: Package, assets: Sequence[str]) -> set[int]:
    """Update the object graph of a `MetaGraphDef` whose graph and signatures are written; return the variables that are gone.

    `package` maps values to objects; `assets` are the files that the numbers in the object graph mean. Raise `GraphError` where a signature
    reads something without an object.
    """
    objects = meta_graph.object_graph_def
    for value, k in package.object_ids.items():
        if is_constant(value.producer) and graph.owns(value.producer) and objects.nodes[k].WhichOneof("kind") == "constant":
            objects.nodes[k].constant.operation = value.producer.name
    _update_assets(meta_graph, assets)
    for name in list(objects.concrete_functions):
        if name in graph.functions:
            _update_function(graph.functions[name], objects.concrete_functions[name], package)
        else:
            forget_function(objects, name)
    _update_function_specs(objects)
    table = signature_map_of(objects)
    if table is None and not graph.signatures:
        return set()
    signature_map = objects.nodes[add_signature_map(objects) if table is None else table]
    children = {child.local_name: child.node_id for child in signature_map.children}
    for key in graph.signatures:
        old = children.get(key)
        name = objects.nodes[old].bare_concrete_function.concrete_function_name if old is not None else ""
        if name in objects.concrete_functions and _is_wrapper(graph, key, name, objects.concrete_functions[name], package):
            continue
        children[key] = _add_wrapper(graph, key, meta_graph, package)
        if name:
            _drop_function_if_unused(meta_graph, name, old)
    del signature_map.children[:]
    for key, node_id in children.items():
        if key in graph.signatures:
            signature_map.children.add(node_id=node_id, local_name=key)
    constants = {node.name for node in graph if is_constant(node)}
    for node in objects.nodes:  # what an edit removed, or made something else of
        if node.WhichOneof("kind") == "constant" and node.constant.operation not in constants:
            make_user_object(node)
    held = {value: k for value, k in package.object_ids.items() if graph.owns(value.producer)}
    meta_graph.collection_def.pop(OBJECTS, None)
    if held:
        meta_graph.collection_def[OBJECTS].bytes_list.value[:] = [f"{value.name} {k}".encode() for value, k in held.items()]
    known = all(node.outputs[0] in held for node in graph if opens_variable(node))
    return _forget_variables(objects, set(held.values())) if known else set()


def _forget_variables(objects: Any, held: set[int]) -> set[int]:
    needed = held.union(*(function.bound_inputs for function in objects.concrete_functions.values()))
    gone = {k for k, node in enumerate(objects.nodes) if node.WhichOneof("kind") == "variable" and k not in needed}
    for node in objects.nodes:
        remove_items(node.slot_variables, lambda slot: not gone.isdisjoint((slot.original_variable_node_id, slot.slot_variable_node_id)))
    for k in gone:
        make_user_object(objects.nodes[k])
    return gone


def _update_assets(meta_graph: Any, assets: Sequence[str]) -> None:
    """Update the numbers of asset files; an asset whose node was removed from the main graph gets a node again."""
    number = {asset.filename: k for k, asset in enumerate(meta_graph.asset_file_def)}
    for node in meta_graph.object_graph_def.nodes:
        if node.WhichOneof("kind") != "asset":
            continue
        filename = assets[node.asset.asset_file_def_index]
        if filename not in number:
            number[filename] = len(meta_graph.asset_file_def)
            name = free_name("asset_path", {n.name for n in meta_graph.graph_def.node})
            placeholder = meta_graph.graph_def.node.add(name=name, op="Placeholder")
            placeholder.attr["dtype"].type = DTYPES["string"].number
            placeholder.attr["shape"].shape.SetInParent()
            meta_graph.asset_file_def.add(filename=filename).tensor_info.name = f"{name}:0"
        node.asset.asset_file_def_index = number[filename]


# Functions


def _bound(function: Function, known: Sequence[int], package: Package) -> list[int]:
    ids = [package.object_ids.get(value) for value in function.body.inputs]
    if known and not any(k is not None for k in ids):
        return list(known)[-len(ids) :] if ids else []
    first = next((k for k, found in enumerate(ids) if found is not None), len(ids))
    bound = [k for k in ids[first:] if k is not None]
    if len(bound) != len(ids) - first:
        raise GraphError(
            "an argument that is not a captured object comes after one that is",
            where=f"function {function.name!r}, argument {function.body.inputs[first + ids[first:].index(None)].name}",
            remedy="put new arguments before the captured ones in body.inputs",
        )
    return bound


def _update_function(function: Function, saved: Any, package: Package) -> None:
    bound = _bound(function, saved.bound_inputs, package)
    if list(saved.bound_inputs) != bound:
        saved.bound_inputs[:] = bound
    inputs = function.body.inputs
    arguments = inputs[: len(inputs) - len(bound)]
    if spec_count(saved.canonicalized_input_signature) not in (len(arguments), None):
        parts = saved.canonicalized_input_signature.tuple_value.values
        is_keywords = len(parts) == 2 and not parts[0].tuple_value.values and bool(parts[1].dict_value.fields)
        named = dict(zip((value.producer.name for value in arguments), arguments, strict=True))
        fresh = signature_structure({}, named) if is_keywords else signature_structure(named, {})
        saved.canonicalized_input_signature.CopyFrom(fresh)
    else:
        fill_specs(saved.canonicalized_input_signature, arguments)
    if spec_count(saved.output_signature) not in (len(function.body.outputs), None):
        saved.output_signature.CopyFrom(result_structure({f"output_{k}": v for k, v in enumerate(function.body.outputs)}))
    else:
        fill_specs(saved.output_signature, function.body.outputs)


def forget_function(objects: Any, name: str) -> None:
    del objects.concrete_functions[name]
    for node in objects.nodes:
        if name in called_by(node):
            if node.WhichOneof("kind") == "function":
                node.function.concrete_functions.remove(name)
            else:
                make_user_object(node)
        elif node.captured_tensor.concrete_function == name:
            make_user_object(node)


def make_user_object(node: Any, identifier: str = "_generic_user_object") -> None:
    node.Clear()
    node.user_object.identifier = identifier
    node.user_object.version.producer = node.user_object.version.min_consumer = 1


def _update_function_specs(objects: Any) -> None:
    for node in objects.nodes:
        kind = node.WhichOneof("kind")
        if kind != "function" or len(node.function.concrete_functions) != 1:
            continue
        saved = objects.concrete_functions[node.function.concrete_functions[0]]
        input_signature = node.function.function_spec.input_signature
        if input_signature.WhichOneof("kind") == "tuple_value" and input_signature.tuple_value.values:
            parts = saved.canonicalized_input_signature.tuple_value.values
            if len(parts) == 2 and len(parts[0].tuple_value.values) == len(input_signature.tuple_value.values):
                for target, source in zip(input_signature.tuple_value.values, parts[0].tuple_value.values, strict=True):
                    if target.WhichOneof("kind") == "tensor_spec_value" and source.WhichOneof("kind") == "tensor_spec_value":
                        name = target.tensor_spec_value.name
                        target.CopyFrom(source)
                        target.tensor_spec_value.name = name
            else:
                input_signature.Clear()
                input_signature.none_value.SetInParent()


# Signatures


def signature_map_of(objects: Any) -> int | None:
    for child in objects.nodes[0].children:
        node = objects.nodes[child.node_id]
        if child.local_name == "signatures" and node.WhichOneof("kind") == "user_object":
            return int(child.node_id) if node.user_object.identifier == "signature_map" else None
    return None


def add_signature_map(objects: Any) -> int:
    objects.nodes[0].children.add(node_id=len(objects.nodes), local_name="signatures")
    make_user_object(objects.nodes.add(), "signature_map")
    return len(objects.nodes) - 1


def _is_wrapper(graph: Graph, key: str, name: str, saved: Any, package: Package) -> bool:
    signature = graph.signatures[key]
    parts = saved.canonicalized_input_signature.tuple_value.values
    if len(parts) != 2 or sorted(parts[1].dict_value.fields) != sorted(signature.inputs):
        return False
    if sorted(saved.output_signature.dict_value.fields) != sorted(signature.outputs):
        return False
    calls = {value.producer for value in signature.outputs.values()}
    if len(calls) != 1:
        return False
    (call,) = calls
    if callee(call) != name or call.control_inputs:
        return False
    arguments = [signature.inputs[k] for k in sorted(signature.inputs)]
    results = [signature.outputs[k] for k in sorted(signature.outputs)]
    shapes = [shape_from_proto(leaf.tensor_spec_value.shape) for leaf in specs_of(parts[1])]
    if len(shapes) != len(arguments) or any(v.shape not in (None, s) for v, s in zip(arguments, shapes, strict=True)):
        return False  # the batch size was changed, for example
    captured = [package.object_ids.get(value) for value in call.inputs[len(arguments) :]]
    return list(call.inputs[: len(arguments)]) == arguments and list(call.outputs) == results and captured == list(saved.bound_inputs)


def _add_wrapper(graph: Graph, key: str, meta_graph: Any, package: Package) -> int:
    objects = meta_graph.object_graph_def
    taken = {f.signature.name for f in meta_graph.graph_def.library.function}
    name = free_name("__inference_signature_wrapper_" + "".join(c if c.isalnum() and c.isascii() else "_" for c in key), taken)
    signature = graph.signatures[key]
    outlined = outline_signature(graph, key, name, package.object_ids)
    write_function(outlined.function, meta_graph.graph_def.library.function.add())
    saved = objects.concrete_functions[name]
    saved.bound_inputs.extend(
        _object_of_constant(objects, captured.producer.name) if (known := package.object_ids.get(captured)) is None else known
        for captured in outlined.captures
    )
    saved.canonicalized_input_signature.CopyFrom(signature_structure({}, signature.inputs))
    saved.output_signature.CopyFrom(result_structure(signature.outputs))
    node = objects.nodes.add()
    bare = node.bare_concrete_function
    bare.concrete_function_name = name
    bare.argument_keywords.extend(sorted(signature.inputs))
    bare.allowed_positional_arguments = len(signature.inputs) if len(signature.inputs) == 1 else 0
    bare.function_spec.fullargspec.CopyFrom(full_argument_spec(sorted(signature.inputs)))
    bare.function_spec.input_signature.none_value.SetInParent()
    return len(objects.nodes) - 1


def _object_of_constant(objects: Any, name: str) -> int:
    for k, node in enumerate(objects.nodes):
        if node.WhichOneof("kind") == "constant" and node.constant.operation == name:
            return k
    node = objects.nodes.add()
    node.constant.operation = name
    node.registered_name = "tf.TrackableConstant"
    return len(objects.nodes) - 1


def _drop_function_if_unused(meta_graph: Any, name: str, node_id: int | None) -> None:
    objects = meta_graph.object_graph_def
    if [k for k, node in enumerate(objects.nodes) if name in called_by(node)] != [node_id]:
        return
    library = meta_graph.graph_def.library.function
    if any(value.func.name == name for n in nodes_of(meta_graph.graph_def) if n.op in CALL_TYPES for value in n.attr.values()):
        return
    make_user_object(objects.nodes[node_id])
    del objects.concrete_functions[name]
    for k, function in enumerate(library):
        if function.signature.name == name:
            del library[k]
            break


# One object graph of two: the second root becomes a child of the first, in the SavedModel and in its checkpoint alike


def attach_objects(
    objects: Any,
    others: Any,
    child: str,
    *,
    functions: Container[str],
    variable_name: Callable[[str], str],
    first_asset: int,
    signatures: Mapping[str, str],
) -> int:
    """Append a `SavedObjectGraph`, which is used up, to another one, below the root; return the offset of the numbers of its objects.

    Args:
        child: the name of their root.
        functions: the library; references to other functions are dropped.
        variable_name: returns the new name of a variable.
        first_asset: the number of asset files before those of `others`.
        signatures: key of a signature of `others` -> its new key, for those that are kept.
    """
    for name in [name for name in others.concrete_functions if name not in functions]:
        forget_function(others, name)
    shift = len(objects.nodes)
    kept_signatures = _take_signatures(others, signatures)
    for node in others.nodes:
        _renumber(node, shift)
        for dependency in node.dependencies:
            dependency.node_id += shift
        for saveable in node.saveable_objects.values():
            saveable.save_function += shift
            saveable.restore_function += shift
        kind = node.WhichOneof("kind")
        if kind == "variable":
            for variable in (node.variable, *node.variable.experimental_distributed_variable_components):
                variable.name = variable_name(variable.name) if variable.name else ""
        elif kind == "asset":
            node.asset.asset_file_def_index += first_asset
        objects.nodes.add().CopyFrom(node)
    for name, function in others.concrete_functions.items():
        function.bound_inputs[:] = [k + shift for k in function.bound_inputs]
        objects.concrete_functions[name].CopyFrom(function)
    objects.nodes[0].children.add(node_id=shift, local_name=child)
    if kept_signatures:
        table = signature_map_of(objects)
        held = objects.nodes[add_signature_map(objects) if table is None else table]
        for key, k in kept_signatures.items():
            held.children.add(node_id=k + shift, local_name=key)
    return shift


def _take_signatures(others: Any, names: Mapping[str, str]) -> dict[str, int]:
    table = signature_map_of(others)
    if table is None:
        return {}
    kept = {names[child.local_name]: child.node_id for child in others.nodes[table].children if child.local_name in names}
    for node in others.nodes:
        remove_items(node.children, lambda child: child.node_id == table)
    make_user_object(others.nodes[table])
    return kept


def _renumber(node: Any, shift: int) -> None:
    for child in node.children:
        child.node_id += shift
    for slot in node.slot_variables:
        slot.original_variable_node_id += shift
        slot.slot_variable_node_id += shift


def attach_stored_objects(stored: Any, others: Any, child: str, *, name_of: Callable[[str], str]) -> None:
    """Append a `TrackableObjectGraph` to another one, as `attach_objects` does; `name_of` returns new names of variables and keys of
    values.
    """
    shift = len(stored.nodes)
    for node in others.nodes:
        _renumber(node, shift)
        for attribute in node.attributes:
            attribute.checkpoint_key = name_of(attribute.checkpoint_key)
            attribute.full_name = name_of(attribute.full_name) if attribute.full_name else ""
        stored.nodes.add().CopyFrom(node)
    stored.nodes[0].children.add(node_id=shift, local_name=child)
