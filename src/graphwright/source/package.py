"""`Graph.package`: what a file or object holds besides the graph, kept until the graph is written again."""

import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphwright.ir.graph import Value
from graphwright.source.private_tensorflow import message_class
from graphwright.source.tracebacks import innermost_line


class TemporaryFolder:
    """A folder that is removed when nothing refers to it any more, or when the process ends."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="graphwright-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


@dataclass(slots=True, eq=False)
class Package:
    """The parts of a file that are written back as they were read. `join.OpenPackage` can also be joined, `function_module.LivePackage`
    saved.

    Attributes:
        graph_rest: the `GraphDef` without nodes and functions (gradients of functions, debug info), serialized.
        graph_digest: of the `GraphDef` as it was read, to detect edits.
        saved_model, meta_graph: the serialized `SavedModel` without the parts in this graph (empty for other origins), and its MetaGraph.
        folder, keep: of its variables and assets, or None; `keep` keeps a temporary one alive.
        object_ids: the object of the SavedModel of a value: of handles in the main graph, of arguments of functions.
        captures: for a function, the outer tensor of each input that is not an argument; `keep_function` keeps its variables alive.
        made_in: the `tf.Graph` whose operations know the Python lines that made them.
    """

    graph_rest: bytes = b""
    graph_digest: bytes = b""
    saved_model: bytes = b""
    meta_graph: int = 0
    folder: Path | None = None
    keep: Any = None
    object_ids: dict[Value, int] = field(default_factory=dict[Value, int])
    captures: dict[Value, Any] = field(default_factory=dict[Value, Any])
    keep_function: Any = None
    made_in: Any = None

    @property
    def is_live(self) -> bool:
        return self.keep_function is not None

    @property
    def has_files(self) -> bool:
        return bool(self.saved_model)

    def line_of(self) -> Callable[[str], str]:
        """Return a function from a node's name to its Python line, or that of its scope; "" where it is not known."""
        asked = self.keep_function or self.made_in
        return (lambda _: "") if asked is None else innermost_line(asked)

    def parsed(self) -> Any:
        return message_class("protobuf.saved_model", "SavedModel").FromString(self.saved_model)

    def functions_of_state(self) -> set[str]:
        """Return the functions that loading calls: they make, fill and restore tables and other resources."""
        objects = self.parsed().meta_graphs[self.meta_graph].object_graph_def
        names: set[str] = set()
        for held in objects.nodes:
            ids = [child.node_id for child in held.children] if held.WhichOneof("kind") == "resource" else []
            ids += [k for saved in held.saveable_objects.values() for k in (saved.save_function, saved.restore_function)]
            names.update(name for k in ids for name in called_by(objects.nodes[k]))
        bound = {k for name in names for k in objects.concrete_functions[name].bound_inputs}
        return names.union(filter(None, (objects.nodes[k].captured_tensor.concrete_function for k in bound)))

    def rename_functions(self, new_of: Mapping[str, str]) -> None:
        rest, saved_model = rename_in_graph_rest(self.graph_rest, new_of), rename_in_saved_model(self.saved_model, self.meta_graph, new_of)
        self.graph_rest, self.saved_model = rest, saved_model


# Functions under other names, in what a SavedModel says of them beside the graph


def rename_in_graph_rest(graph_rest: bytes, new_of: Mapping[str, str]) -> bytes:
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
    if not saved_model:
        return saved_model
    message: Any = message_class("protobuf.saved_model", "SavedModel").FromString(saved_model)
    own = message.meta_graphs[meta_graph]
    _rename_keys(own.meta_info_def.function_aliases, new_of)
    objects = own.object_graph_def
    _rename_keys(objects.concrete_functions, new_of)
    for node in objects.nodes:
        rename_called(node, new_of)
    return message.SerializeToString(deterministic=True)


def rename_called(node: Any, new_of: Mapping[str, str]) -> None:
    kind = node.WhichOneof("kind")
    if kind == "function":
        node.function.concrete_functions[:] = [new_of.get(name, name) for name in node.function.concrete_functions]
    elif kind == "bare_concrete_function":
        bare = node.bare_concrete_function
        bare.concrete_function_name = new_of.get(bare.concrete_function_name, bare.concrete_function_name)


def called_by(node: Any) -> Sequence[str]:
    kind = node.WhichOneof("kind")
    if kind == "bare_concrete_function":
        return (node.bare_concrete_function.concrete_function_name,)
    return node.function.concrete_functions if kind == "function" else ()


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
