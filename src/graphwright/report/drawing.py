"""Pictures of graphs, each one HTML page that needs no network.

A page lays out a scope when the reader opens it, so large graphs appear at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from graphwright.analyze.layers import in_gradient_scope
from graphwright.errors import ArgumentError
from graphwright.ir.graph import Graph
from graphwright.ir.jobs import as_graph
from graphwright.report.graph_data import graph_view, served_view
from graphwright.report.page import render, source, write_page
from graphwright.report.served_picture import served_picture
from graphwright.report.units import counted, format_count, printable

_STYLES = ("theme.css", "drawing_page.css", "drawing.css")


def draw(graph: Any, path: str | Path | None = None, *, scope: str = "", open_scopes: tuple[str, ...] = ()) -> Path:
    """Draw a graph with its functions into an HTML file.

    Args:
        path: the file; by default `<name of the graph>.html` in the current folder.
        open_scopes: scopes that are open at first.

    Raises:
        ArgumentError: an empty scope, another suffix, or a file that cannot be written.
        UnsupportedError: the graph is too large for one page; draw a scope of it.

    >>> import tempfile
    >>> from graphwright.ir.graph import DTYPES
    >>> g = Graph("g")
    >>> _ = g.add_node("Placeholder", "x", output_types=[(DTYPES["float32"], (2,))])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     draw(g, f"{folder}/g.html").name
    'g.html'
    """
    graph = as_graph(graph)
    target = default_path(graph) if path is None else Path(path)
    _check_suffix(target)
    return write_page(target, page(graph, scope=scope, open_scopes=open_scopes))


def default_path(graph: Graph) -> Path:
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in graph.name) or "graph"
    return Path(f"{name}.html")


def check_target(path: str | Path, *, overwrite: bool = False) -> None:
    """Refuse a path before a graph is loaded, as `draw` would, and an existing file unless `overwrite`."""
    target = Path(path)
    _check_suffix(target)
    if target.is_dir() or (target.exists() and not overwrite):
        raise ArgumentError(f"there is something at {str(target)!r} already", remedy="give another name, or --overwrite for a file")
    if not target.absolute().parent.is_dir():
        raise ArgumentError(f"there is no folder {str(target.absolute().parent)!r} to write {target.name!r} into", remedy="make it first")


def _check_suffix(path: Path) -> None:
    if path.suffix.lower() not in ("", ".html", ".htm"):
        raise ArgumentError(f"a picture cannot be a {path.suffix!r} file", argument="path", remedy="end the name in .html")


def page(graph: Graph, *, scope: str = "", open_scopes: tuple[str, ...] = ()) -> str:
    picture = None if scope else served_picture(graph)
    title = graph.name or "graph"
    partial = picture is not None and len(picture.inputs) < len(graph)
    views = [served_view(graph, picture, "from inputs to outputs" if partial else title)] if picture else []
    if picture is None or partial:
        views.append(graph_view(graph, "all nodes" if partial else title, scope, open_scopes))
    if not scope:
        views += [graph_view(function.body, f"function {name}") for name, function in graph.functions.items() if len(function.body)]
    data = {"views": views}
    node_count = sum(len(view["nodes"]) for view in views if "served" not in view) or len(graph)
    summary = counted(node_count, "node") + (f", {counted(count, 'function')}" if (count := len(graph.functions)) else "")
    if picture and partial:
        later = any(in_gradient_scope(node.name) for node in graph.nodes)
        left_out = ", without gradients and updates" if later else ""
        summary = f"{format_count(len(picture.inputs))} operations from inputs to outputs{left_out}; in the whole file {summary}"
    script = source("drawing.js") + "\ngraphwright.drawing(reportData).show(0);"
    titles, name = [view["title"] for view in views], printable(graph.name or "graph")
    return render("drawing.html", data, _STYLES, script, title=name, summary=summary, views=titles)
