"""Joins what two graphs hold besides their nodes: variables, assets, objects, savers and initializers.

Values of variables go from both checkpoints into one, in a temporary folder that lives as long as the joined graph, under keys that
distinguish equal names. In the object graph, the root of the second model becomes a child of the first root. `keras_metadata.pb` is
dropped, which TensorFlow does not read.
"""

import shutil
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from graphwright.errors import ArgumentError, UnsupportedError
from graphwright.ir.edit.clone import CloneResult
from graphwright.ir.graph import Graph, Node
from graphwright.ir.signature import NamedRefs, node_of, references_of
from graphwright.source.join_checkpoints import checkpoint_keys, join_checkpoints, stored_objects
from graphwright.source.join_session import (
    drop_doubled_node_signatures,
    join_initializers,
    join_savers,
    rename_saved_keys,
    saves_objects,
    set_saved_objects,
)
from graphwright.source.meta_graph import ASSETS, LEGACY_ASSETS, SAVER, items_of
from graphwright.source.model_folder import check_variables, copy_around
from graphwright.source.object_graph import attach_objects, attach_stored_objects
from graphwright.source.objects_of_variables import add_objects, check_no_session_state, object_key
from graphwright.source.package import Package, TemporaryFolder
from graphwright.source.private_tensorflow import message_class

Finish = Callable[[CloneResult], None]
"""Takes where the nodes of the other graph went, when the copies, functions and collections are there."""


@dataclass(slots=True)
class _Side:
    graph: Graph
    package: Package
    saved_model: Any
    key_of: Callable[[str], str] = str
    """Key in the checkpoint that it comes from -> key as object graphs have it."""

    @property
    def meta_graph(self) -> Any:
        return self.saved_model.meta_graphs[self.package.meta_graph]

    @property
    def has_objects(self) -> bool:
        return bool(self.saved_model.meta_graphs) and self.meta_graph.HasField("object_graph_def")


@dataclass(slots=True, eq=False)
class OpenPackage(Package):
    """Of a graph that can be joined with another one."""

    def with_files(self, graph: Graph) -> Graph:
        return graph

    def prepare_join(self, graph: Graph, other: Graph, *, scope: str, signatures: Mapping[str, str]) -> Finish:
        return prepare_join(graph, other, scope=scope, signatures=signatures)


def prepare_join(graph: Graph, other: Graph, *, scope: str, signatures: Mapping[str, str]) -> Finish:
    """Check and write everything that does not depend on the copies of the nodes; return a function that finishes the graph when these
    exist.

    Args:
        other: is changed: its ops that save and restore use new keys, its assets get new names.
        scope: the name of the other root, and a prefix of its keys and variables.
        signatures: signature of `other` -> its new name, for those that are kept.
    """
    ours, theirs = _side(graph), _side(other)
    rest = _join_rest(ours.package.graph_rest, theirs.package.graph_rest, other.functions)
    if not theirs.saved_model.meta_graphs:
        if ours.has_objects:
            check_no_session_state(other, other.nodes)
        return _finish_graph_alone(graph, ours.package, rest, other)
    if ours.package.is_live:
        raise UnsupportedError(
            "the graph comes from a live function, whose variables have no files",
            where=f"graph {graph.name!r}",
            remedy="write it to a folder, and load that",
        )
    for side in (ours, theirs):
        if side.package.folder is not None:
            check_variables(side.package.folder, needed=side.has_objects)
    if not ours.saved_model.meta_graphs:
        _become_like(ours, theirs)
    # The objects in both checkpoints; where one has none, what it holds becomes objects first.
    both = (ours, theirs) if ours.has_objects or theirs.has_objects else ()
    stored = [stored_objects(side.package.folder) if side.has_objects else _made_objects(side) for side in both]

    def in_scope(name: str) -> str:
        return f"{scope}/{name}"

    def key_of(key: str) -> str:
        return in_scope(theirs.key_of(key))

    _check_free(ours, scope)
    keep = TemporaryFolder()
    folder = keep.path / "model"
    folder.mkdir()
    first_asset = len(ours.meta_graph.asset_file_def)
    _join_files(ours, theirs, folder, scope)
    ours_saves_objects = saves_objects(graph)
    rename_saved_keys(other, key_of, rename_objects=ours_saves_objects)
    shift = 0
    serialized = b""
    if stored:
        ours_stored, theirs_stored = stored
        attach_stored_objects(ours_stored, theirs_stored, scope, name_of=in_scope)
        serialized = ours_stored.SerializeToString(deterministic=True)
        shift = attach_objects(
            ours.meta_graph.object_graph_def,
            theirs.meta_graph.object_graph_def,
            scope,
            functions=other.functions,
            variable_name=in_scope,
            first_asset=first_asset,
            signatures=signatures,
        )
        _keep_one_meta_graph(ours)
    join_checkpoints([(ours.package.folder, ours.key_of), (theirs.package.folder, key_of)], serialized, folder)
    for name, alias in theirs.meta_graph.meta_info_def.function_aliases.items():
        if name in other.functions:
            ours.meta_graph.meta_info_def.function_aliases[name] = alias
    joined = replace(
        ours.package,
        graph_rest=rest,
        graph_digest=b"",
        saved_model=ours.saved_model.SerializeToString(deterministic=True),
        folder=folder,
        keep=keep,
    )

    def finish(copied: CloneResult) -> None:
        joined.object_ids = dict(ours.package.object_ids)
        joined.object_ids.update({copied.value_of.get(value, value): k + shift for value, k in theirs.package.object_ids.items()})
        graph.package = joined
        if ours.key_of is not str:
            own = checkpoint_keys(ours.package.folder)
            rename_saved_keys(graph, lambda key: ours.key_of(key) if key in own else key, rename_objects=False)
        join_savers(graph)
        join_initializers(graph)
        drop_doubled_node_signatures(graph)
        if serialized:
            set_saved_objects(graph, serialized)

    return finish


def _side(graph: Graph) -> _Side:
    package = graph.package if isinstance(graph.package, Package) else OpenPackage()
    return _Side(graph, package, package.parsed())


def _finish_graph_alone(graph: Graph, package: Package, rest: bytes, other: Graph) -> Finish:
    tables = items_of(other, "table_initializer")

    def finish(copied: CloneResult) -> None:
        if SAVER in graph.collections and package.saved_model:  # it would restore what the files do not hold
            added = set(copied.nodes)
            savers = graph.collections[SAVER].items
            savers[:] = [item for item in savers if not any(node_of(held) in added for held in references_of(item))]
        if rest:
            graph.package = replace(package, graph_rest=rest)
        join_initializers(graph, [copied.node_of[item] for item in tables if isinstance(item, Node) and item in copied.node_of])

    return finish


def _become_like(ours: _Side, theirs: _Side) -> None:
    message = ours.saved_model.meta_graphs.add()
    ours.saved_model.saved_model_schema_version = theirs.saved_model.saved_model_schema_version
    ours.package = replace(ours.package, meta_graph=0)
    info = theirs.meta_graph.meta_info_def
    message.meta_info_def.tags.extend(info.tags)
    message.meta_info_def.tensorflow_version = info.tensorflow_version
    message.meta_info_def.tensorflow_git_version = info.tensorflow_git_version


def _made_objects(side: _Side) -> Any:
    stored, object_ids = add_objects(side.graph, side.meta_graph.object_graph_def, checkpoint_keys(side.package.folder))
    side.package = replace(side.package, object_ids={**side.package.object_ids, **object_ids})
    side.key_of = object_key
    return stored


def _keep_one_meta_graph(side: _Side) -> None:
    """Drop other MetaGraphs: TensorFlow reads objects only of files with one, and others would restore missing keys."""
    own = type(side.meta_graph)()
    own.CopyFrom(side.meta_graph)
    del side.saved_model.meta_graphs[:]
    side.saved_model.meta_graphs.add().CopyFrom(own)
    side.package = replace(side.package, meta_graph=0)


def _check_free(ours: _Side, scope: str) -> None:
    taken = any(key.startswith(f"{scope}/") for key in checkpoint_keys(ours.package.folder))
    if ours.has_objects:
        taken |= any(child.local_name == scope for child in ours.meta_graph.object_graph_def.nodes[0].children)
    if taken:
        raise ArgumentError(f"the model has variables or a part called {scope!r} already", argument="scope", remedy="give another scope")


def _join_rest(ours: bytes, theirs: bytes, functions: Container[str]) -> bytes:
    """Join the `GraphDef` fields that the IR does not hold: gradients of functions of both, the rest of the first."""
    if not theirs:
        return ours
    kind = message_class("framework.graph", "GraphDef")
    joined, added = kind.FromString(ours), kind.FromString(theirs)
    if added.versions.bad_consumers:
        joined.versions.bad_consumers[:] = sorted({*joined.versions.bad_consumers, *added.versions.bad_consumers})
    for gradient in added.library.gradient:
        if gradient.function_name in functions and gradient.gradient_func in functions:
            joined.library.gradient.add().CopyFrom(gradient)
    for gradient in added.library.registered_gradients:
        if gradient.gradient_func in functions:
            joined.library.registered_gradients.add().CopyFrom(gradient)
    return joined.SerializeToString(deterministic=True)


# Files


def _join_files(ours: _Side, theirs: _Side, folder: Path, scope: str) -> None:
    """Copy the files of both graphs, except variables; assets of the second get another name where theirs is taken."""
    if ours.package.folder is not None:
        copy_around(ours.package.folder, folder, skip=("variables", "keras_metadata.pb"))
    if theirs.package.folder is None:
        return
    spare = TemporaryFolder()
    copy_around(theirs.package.folder, spare.path, skip=("variables", "keras_metadata.pb"))
    names: dict[str, str] = {}
    for source in sorted(path for path in spare.path.rglob("*") if path.is_file()):
        relative = source.relative_to(spare.path)
        if relative.parts[0] == "assets":
            name = relative.relative_to("assets").as_posix()
            names[name] = _free_name(folder / "assets", name, scope)
            relative = Path("assets") / names[name]
        elif relative.parts[0] == "assets.extra":
            relative = Path("assets.extra") / scope / relative.relative_to("assets.extra")
        if not (folder / relative).exists():
            (folder / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.move(source, folder / relative)
    _rename_assets(theirs.graph, names)
    for asset in theirs.meta_graph.asset_file_def:
        added = ours.meta_graph.asset_file_def.add()
        added.CopyFrom(asset)
        added.filename = names.get(asset.filename, asset.filename)


def _free_name(folder: Path, name: str, scope: str) -> str:
    place = Path(name)
    candidate, number = place, 0
    while (folder / candidate).exists():
        number += 1
        candidate = place.with_name(f"{scope.replace('/', '_')}_{place.name}" + (f"_{number}" if number > 1 else ""))
    return candidate.as_posix()


def _rename_assets(graph: Graph, names: Mapping[str, str]) -> None:
    kind = message_class("protobuf.meta_graph", "AssetFileDef")
    for key in (ASSETS, LEGACY_ASSETS):
        for item in items_of(graph, key):
            if isinstance(item, NamedRefs):
                asset = kind.FromString(item.serialized)
                asset.filename = names.get(asset.filename, asset.filename)
                item.serialized = asset.SerializeToString(deterministic=True)
