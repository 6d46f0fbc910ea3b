"""SavedModels as graphs in the words of graph_def_editor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from graphwright.editor.graph import Graph
from graphwright.errors import ArgumentError
from graphwright.source.load import load
from graphwright.source.meta_graph import SAVER
from graphwright.source.saved_model import parse_saved_model


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
    folder = Path(saved_model_path)
    if not folder.is_dir():
        raise ArgumentError(f"SavedModel root directory {str(folder)!r} not found", argument="saved_model_path")
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
    listed = [sorted(m.meta_info_def.tags) for m in parse_saved_model(folder).meta_graphs]
    if sorted(tags) in listed:
        return tags
    wider = [have for have in listed if set(tags) <= set(have)]
    if len(wider) == 1:
        return wider[0]
    return listed[0] if fallback and not wider and len(listed) == 1 else tags
