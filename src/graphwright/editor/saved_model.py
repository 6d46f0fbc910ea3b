"""SavedModels in the words of graph_def_editor."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from graphwright.files import replaced_folder
from graphwright.ir.graph import Graph
from graphwright.source.join import OpenPackage
from graphwright.source.model_folder import check_target
from graphwright.source.package import Package
from graphwright.source.saved_model import parse_saved_model
from graphwright.source.write import write


class SaverInfo:
    """The location of the values of a graph's variables.

    Args:
        path: the folder `variables` of a SavedModel.
        saver_def: the `SaverDef` that restores them.
    """

    def __init__(self, path: str, saver_def: Any) -> None:
        self.path = path
        self.saver_def = saver_def


class SignatureInfo:
    """Signatures for a new graph."""

    def __init__(self) -> None:
        self._signature_defs: dict[str, Any] = {}

    def add_signature_def(self, name: str, signature_def: Any) -> None:
        """Add a `SignatureDef` under a new name."""
        if name in self._signature_defs:
            raise ValueError(f"Already have a signature with name '{name}'")
        self._signature_defs[name] = signature_def

    @property
    def signature_defs(self) -> dict[str, Any]:
        """The signatures by name."""
        return self._signature_defs


def write_saved_model(graph: Graph, path: str, tags: Iterable[str] | None, variables: str | None, name: str = "") -> Any:
    """Write a graph as a SavedModel, and return the `SavedModel` message.

    `variables` is a folder with the values of variables, and `name` that of the MetaGraph, if the graph was not loaded from a SavedModel.
    """
    target, package = Path(path), graph.package
    check_target(target)
    graph.package = _with_tags(package if isinstance(package, Package) else OpenPackage(), tags, name)
    try:
        with replaced_folder(target) as folder:
            write(graph, folder, overwrite=True)
            if variables is not None:
                shutil.copytree(variables, folder / "variables", dirs_exist_ok=True)
            (folder / "variables").mkdir(exist_ok=True)
    finally:
        graph.package = package
    return parse_saved_model(target)


def _with_tags(package: Package, tags: Iterable[str] | None, name: str) -> Package:
    if package.is_live:
        return package
    saved_model = package.parsed()
    if not package.saved_model:
        saved_model.saved_model_schema_version = 1
        info = saved_model.meta_graphs.add().meta_info_def
        info.tags.append("serve")
        info.meta_graph_version = name
    meta_graph = saved_model.meta_graphs.pop(package.meta_graph)
    if tags is not None:
        meta_graph.meta_info_def.tags[:] = tags
    del saved_model.meta_graphs[:]
    saved_model.meta_graphs.append(meta_graph)
    return replace(package, saved_model=saved_model.SerializeToString(deterministic=True), meta_graph=0)
