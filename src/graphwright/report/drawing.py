"""Pictures of graphs: SVG through Graphviz, or one HTML page that needs no network.

The page opens and closes scopes and lays out each one when it is opened, so that it starts at once
however large the graph is. The SVG shows as many scopes open as it can with a limited number of boxes.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any, Literal

import graphviz
from markupsafe import Markup

from graphwright.analyze.layers import in_gradient_scope
from graphwright.bound_process import bound
from graphwright.errors import ArgumentError, MissingDependencyError
from graphwright.files import file_for_user
from graphwright.ir.dtypes import format_shape
from graphwright.ir.given import as_graph
from graphwright.ir.graph import Graph
from graphwright.report.drawing_tree import Part, edges_between, opened, served_tree
from graphwright.report.graph_data import checked_tree, graph_view, kind_of, served_view, types_text
from graphwright.report.page import environment, packed, source
from graphwright.report.served_picture import served_picture
from graphwright.report.units import counted, format_count, printable, shorten_apart

Kind = Literal["svg", "html"]

_LAYOUT_TIME_S = 120.0
_FONT = {"fontname": "Helvetica"}
_PAGE = {"rankdir": "TB", **_FONT, "fontsize": "11", "bgcolor": "white", "nodesep": "0.25", "ranksep": "0.35"}
_BOX = {"shape": "box", "style": "rounded,filled", "fillcolor": "#eef2f6", "color": "#7a8794", **_FONT, "fontsize": "10", "height": "0.3"}
_ARROW = {"color": "#7a8794", "arrowsize": "0.6", **_FONT, "fontsize": "9"}
_COLORS = ("", "#fdf3d8", "#f4f4f4", "#dff3e2")  # by kind of a node
_LABEL = 32  # letters of a box
_SCOPE = {"style": "rounded,filled", "color": "#c5ced8", "fillcolor": "#00000008", "margin": "8"}


def draw(
    graph: Any,
    path: str | Path | None = None,
    *,
    kind: Kind | None = None,
    scope: str = "",
    open_scopes: tuple[str, ...] = (),
    boxes: int = 120,
) -> Path:
    """Draw a graph into a file.

    Args:
        graph: a `Graph`, or whatever `load` reads; its main graph is drawn, in HTML the bodies of its functions too.
        path: the file; its suffix decides between `.svg` and `.html`. By default `<name of the graph>` in the current
            folder with the suffix of the kind.
        kind: by default what the suffix says, else "svg" where Graphviz (the program `dot`) is installed and "html" where it is not.
        scope: draw only what lies in this scope.
        open_scopes: scopes to show open from the start.
        boxes: about how many boxes an SVG shows; scopes are opened as long as there are fewer.

    Returns:
        The file that was written.

    Raises:
        ArgumentError: the scope is empty, the suffix is another, or the file cannot be written.
        MissingDependencyError: an SVG is wanted and Graphviz is not installed.
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
    chosen = kind or _kind_of(None if path is None else Path(path))
    target = default_path(graph, chosen) if path is None else Path(path)
    text = (
        svg(graph, scope=scope, open_scopes=open_scopes, boxes=boxes)
        if chosen == "svg"
        else page(graph, scope=scope, open_scopes=open_scopes)
    )
    with file_for_user(target) as stream:
        stream.write(text)
    return target


def default_path(graph: Graph, kind: Kind | None = None) -> Path:
    """Where a picture goes when nobody says where: into the current folder, under the name of the graph."""
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in graph.name) or "graph"
    return Path(f"{name}.{kind or _kind_of(None)}")


def check_target(path: str | Path, *, kind: Kind | None = None, overwrite: bool = False) -> None:
    """Raise where `draw` would for its path, before a graph is loaded; and where there is something already.

    Args:
        overwrite: whether what is there may be replaced.

    Raises:
        ArgumentError: the suffix is another, there is something already, or there is no such folder.
        MissingDependencyError: an SVG is wanted and Graphviz is not installed.
    """
    target = Path(path)
    if (kind or _kind_of(target)) == "svg":
        _graphviz()
    if target.is_dir() or (target.exists() and not overwrite):
        raise ArgumentError(f"there is something at {str(target)!r} already", remedy="give another name, or --overwrite for a file")
    if not target.absolute().parent.is_dir():
        raise ArgumentError(f"there is no folder {str(target.absolute().parent)!r} to write {target.name!r} into", remedy="make it first")


def _kind_of(path: Path | None) -> Kind:
    if path is not None and path.suffix:
        suffix = path.suffix.lower()
        if suffix in (".html", ".htm"):
            return "html"
        if suffix == ".svg":
            return "svg"
        raise ArgumentError(f"a picture cannot be a {path.suffix!r} file", argument="path", remedy="end the name in .svg or .html")
    return "svg" if shutil.which("dot") else "html"


def svg(graph: Graph, *, scope: str = "", open_scopes: tuple[str, ...] = (), boxes: int = 120) -> str:
    """The picture as the text of an SVG file, laid out by Graphviz.

    Raises:
        MissingDependencyError: Graphviz is not installed.
        ArgumentError: the scope is empty, or Graphviz refuses the graph.
    """
    return laid_out(dot_source(graph, scope=scope, open_scopes=open_scopes, boxes=boxes)).decode()


def laid_out(source: str, form: str = "svg") -> bytes:
    """What Graphviz makes of a picture in its language.

    Args:
        source: see `dot_source`.
        form: svg, png, pdf, json, or another of its formats.

    Raises:
        MissingDependencyError: Graphviz is not installed.
        ArgumentError: it refuses the picture or the format, or takes too long.
    """
    program = _graphviz()
    try:
        done = subprocess.run(
            bound([program, f"-T{form}"]), input=source.encode(), capture_output=True, timeout=_LAYOUT_TIME_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ArgumentError(f"Graphviz took more than {_LAYOUT_TIME_S:.0f} s", remedy="draw fewer boxes, or an .html file") from error
    if done.returncode:
        raise ArgumentError(f"Graphviz failed: {done.stderr.decode(errors='replace').strip()[:300]}", where="the program dot")
    return done.stdout


class Digraph(graphviz.Digraph):
    """A picture in Graphviz's language, which notebooks show: laid out in a process that is bound to this one and limited in time.

    >>> picture = Digraph("g")
    >>> picture.edge("a", "b")
    >>> picture.source.split()
    ['digraph', 'g', '{', 'a', '->', 'b', '}']
    """

    def pipe(self, format: str = "svg") -> bytes:  # noqa: A002  # pyright: ignore[reportIncompatibleMethodOverride]
        """What Graphviz makes of it; the formats and errors are those of `laid_out`."""
        return laid_out(self.source, format)

    def _repr_mimebundle_(self, *_: Any, **__: Any) -> dict[str, bytes | str]:
        return {"image/svg+xml": self.pipe().decode()}


def _graphviz() -> str:
    program = shutil.which("dot")
    if program is None:
        raise MissingDependencyError(
            "Graphviz is not installed", cause="there is no program called dot", remedy="install graphviz, or draw into an .html file"
        )
    return program


def dot_source(graph: Graph, *, scope: str = "", open_scopes: tuple[str, ...] = (), boxes: int = 120) -> str:
    """The picture in Graphviz's language: open scopes as clusters, closed ones as one box.

    >>> from graphwright.ir.graph import DTYPES
    >>> g = Graph("g")
    >>> x = g.add_node("Placeholder", "x", output_types=[(DTYPES["float32"], (2,))])
    >>> _ = g.add_node("Relu", "y", inputs=x.outputs, output_types=[(DTYPES["float32"], (2,))])
    >>> print(dot_source(g))
    digraph {
      graph [bgcolor=white fontname=Helvetica fontsize=11 nodesep=0.25 rankdir=TB ranksep=0.35]
      node [color="#7a8794" fillcolor="#eef2f6" fontname=Helvetica fontsize=10 height=0.3 shape=box style="rounded,filled"]
      edge [arrowsize=0.6 color="#7a8794" fontname=Helvetica fontsize=9]
      n1 [label="x
    Placeholder" fillcolor="#fdf3d8" tooltip="x = Placeholder() : float32[2]"]
      n2 [label="y
    Relu" tooltip="y = Relu(x:0) : float32[2]"]
      n1 -> n2 [tooltip="x:0 float32[2]"]
    }
    """
    picture = None if scope else served_picture(graph)
    root, leaves = served_tree(graph, picture) if picture else checked_tree(graph, scope)
    inputs = picture.inputs if picture else None
    open_parts = opened(root, limit=boxes, wanted=open_scopes)
    numbers: dict[Part, str] = {}
    picture: Any = Digraph(graph_attr=_PAGE, node_attr=_BOX, edge_attr=_ARROW)
    _boxes(root, open_parts, numbers, picture)
    for (before, after), (count, only_control) in edges_between(list(leaves), leaves, open_parts, inputs).items():
        if before in numbers and after in numbers:
            picture.edge(numbers[before], numbers[after], **_edge(before, after, count, only_control=only_control))
    return picture.source


def _boxes(part: Part, open_parts: set[Part], numbers: dict[Part, str], picture: Any) -> None:
    closed = [printable(child.label) for child in part.parts if child not in open_parts]
    shown = dict(zip(closed, shorten_apart(closed, _LABEL), strict=True))
    for child in part.parts:
        if child in open_parts:
            frame = Digraph(literal(f"cluster_{child.path}"), graph_attr={**_SCOPE, "label": literal(child.label)})
            _boxes(child, open_parts, numbers, frame)
            picture.subgraph(frame)
            continue
        numbers[child] = f"n{len(numbers) + 1}"
        if child.node is None:
            below, look = f"{format_count(child.node_count)} nodes", {"tooltip": child.path, "fillcolor": "#dbe9fb", "peripheries": "2"}
        else:
            node = child.node
            inputs = ", ".join(v.name for v in node.inputs[:6]) + (", …" if len(node.inputs) > 6 else "")
            line = f"{node.name} = {node.op_type}({inputs})" + (f" : {types_text(node)}" if node.outputs else "")
            below, look = node.op_type, {"tooltip": line, "fillcolor": _COLORS[kind_of(node)]}
        picture.node(
            numbers[child],
            literal(f"{shown[printable(child.label)]}\n{below}"),
            **{key: literal(text) for key, text in look.items() if text},
        )


def _edge(before: Part, after: Part, count: int, *, only_control: bool) -> dict[str, str]:
    if only_control:
        return {"style": "dashed", "tooltip": "control edge"}
    if before.node is not None and after.node is not None:
        values = [v for v in after.node.inputs if v.producer is before.node]
        return {"tooltip": literal(", ".join(f"{v.name} {v.dtype}{format_shape(v.shape)}" for v in values))}
    return {"label": f" {count}"} if count > 1 else {"penwidth": "1"}


def literal(text: str) -> str:
    """The text as it is, where Graphviz would take `<...>` and backslashes for something else."""
    return graphviz.escape(printable(text, lines=True))


def page(graph: Graph, *, scope: str = "", open_scopes: tuple[str, ...] = ()) -> str:
    """The picture as the text of an HTML page that loads nothing from anywhere."""
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
    return (
        environment()
        .get_template("drawing.html")
        .render(
            title=printable(graph.name or "graph"),
            summary=summary,
            views=[view["title"] for view in views],
            data=data,
            packed=packed(data),
            style=Markup("\n".join(source(name) for name in ("theme.css", "drawing_page.css", "drawing.css"))),
            script=Markup(source("drawing.js") + "\ngraphwright.drawing(reportData).show(0);"),
        )
    )
