"""SavedModels in the words of graph_def_editor; `source` reads and writes them."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphwright.errors import ArgumentError
from graphwright.files import replaced_folder
from graphwright.ir import graph as ir
from graphwright.ir.signature import Collection
from graphwright.source.load import load
from graphwright.source.meta_graph import SAVER
from graphwright.source.named_refs import message_class, read_refs
from graphwright.source.package import Package
from graphwright.source.write import check_target, write

if TYPE_CHECKING:
    from graphwright.editor.graph import Graph


class SaverInfo:
    """Where the values of a graph's variables are.

    Args:
        path: the folder `variables` of a SavedModel.
        saver_def: the `SaverDef` that restores them.
    """

    def __init__(self, path: str, saver_def: Any) -> None:
        self.path = path
        self.saver_def = saver_def


class SignatureInfo:
    """Signatures for a graph that is about to be made."""

    def __init__(self) -> None:
        self._signature_defs: dict[str, Any] = {}

    def add_signature_def(self, name: str, signature_def: Any) -> None:
        """Add a `SignatureDef`.

        Raises:
            ValueError: there is one of that name.
        """
        if name in self._signature_defs:
            raise ValueError(f"Already have a signature with name '{name}'")
        self._signature_defs[name] = signature_def

    @property
    def signature_defs(self) -> dict[str, Any]:
        """The signatures by name."""
        return self._signature_defs


def keep_saver(graph: ir.Graph, saver_info: SaverInfo) -> None:
    """Let the graph carry a `SaverDef`; the nodes that it names follow renames."""
    graph.collections[SAVER] = Collection("any", [read_refs(graph, saver_info.saver_def)])


def saved_model_to_graph(
    saved_model_path: str,
    tag: str | Sequence[str] | None = None,
    include_saver: bool = True,
    include_signatures: bool = True,
    fallback_to_default_graph: bool = False,
) -> Graph:
    """Load a SavedModel, of TF1 or TF2.

    Of one of TF2 this is the main graph, in which the signatures call functions; `get_function_graph_by_name` shows their bodies.

    Args:
        saved_model_path: its folder.
        tag: of the MetaGraph, one or several; by default the only one, or the one tagged `serve`. Where none has exactly these tags, one
            that has them among others is taken.
        include_saver: whether to keep what restores the variables. Without it the graph has initializers only.
        include_signatures: whether to keep the signatures.
        fallback_to_default_graph: whether to take the only MetaGraph when none has the tags.

    Raises:
        ValueError: there is no such folder, it is damaged, or no MetaGraph has the tags.
    """
    from graphwright.editor.graph import Graph

    folder = Path(saved_model_path)
    if not folder.is_dir():
        raise ArgumentError(f"SavedModel root directory {str(folder)!r} not found", where="argument 'saved_model_path'")
    tags = None if tag is None else [tag] if isinstance(tag, str) else list(tag)
    graph = load(folder, tags=None if tags is None else _complete_tags(folder, tags, fallback_to_default_graph))
    if not include_signatures:
        graph.signatures = {}
    if not include_saver:
        graph.collections.pop(SAVER, None)
        graph.package = None
    return Graph(graph, name=graph.name)


def _complete_tags(folder: Path, tags: Sequence[str], fallback: bool) -> Sequence[str]:
    """All tags of the MetaGraph that has these among its own."""
    file = folder / "saved_model.pb"
    if not file.is_file():
        return tags
    saved_model: Any = message_class("protobuf.saved_model", "SavedModel")()
    try:
        saved_model.ParseFromString(file.read_bytes())
    except Exception:  # noqa: BLE001 - the loader says what is wrong with the file
        return tags
    listed = [sorted(m.meta_info_def.tags) for m in saved_model.meta_graphs]
    if sorted(tags) in listed:
        return tags
    wider = [have for have in listed if set(tags) <= set(have)]
    if len(wider) == 1:
        return wider[0]
    return listed[0] if fallback and not wider and len(listed) == 1 else tags


def write_saved_model(graph: Graph, path: str, tags: Iterable[str] | None, variables: str | None) -> Any:
    """Write a graph as a SavedModel; returns the message that was written.

    Args:
        graph: is not changed.
        path: of the folder, which must not exist.
        tags: of the MetaGraph, instead of those it has.
        variables: a folder with the values of the variables, where the graph was not loaded from a SavedModel.

    Raises:
        ArgumentError: the folder exists, or its parent does not.
        NotImplementedError: there are variables, and nothing that restores them.
    """
    target = Path(path)
    package = graph.ir.package
    if not isinstance(package, Package) and variables is None and graph.variable_names:
        raise NotImplementedError("Can't generate a SaverDef.")
    check_target(target)
    graph.ir.package = _with_tags(package if isinstance(package, Package) else Package(), tags, graph.name)
    try:
        with replaced_folder(target) as folder:
            write(graph.ir, folder, overwrite=True)
            if variables is not None:
                shutil.copytree(variables, folder / "variables", dirs_exist_ok=True)
            (folder / "variables").mkdir(exist_ok=True)
    finally:
        graph.ir.package = package
    written: Any = message_class("protobuf.saved_model", "SavedModel")()
    written.ParseFromString((target / "saved_model.pb").read_bytes())
    return written


def _with_tags(package: Package, tags: Iterable[str] | None, name: str) -> Package:
    """The package with only the MetaGraph that the graph is, under other tags."""
    if package.keep_function is not None:
        return package
    saved_model: Any = message_class("protobuf.saved_model", "SavedModel")()
    if package.saved_model:
        saved_model.ParseFromString(package.saved_model)
    else:
        saved_model.saved_model_schema_version = 1
        info = saved_model.meta_graphs.add().meta_info_def
        info.tags.append("serve")
        info.meta_graph_version = name
    kept = saved_model.meta_graphs[package.meta_graph]
    if tags is not None:
        del kept.meta_info_def.tags[:]
        kept.meta_info_def.tags.extend(tags)
    only = type(saved_model)()
    only.saved_model_schema_version = saved_model.saved_model_schema_version
    only.meta_graphs.add().CopyFrom(kept)
    return replace(package, saved_model=only.SerializeToString(deterministic=True), meta_graph=0)
