"""Pictures of graphs: SVG through Graphviz, or one HTML page that needs no network.

The page opens and closes scopes and lays out each one when it is opened, so that it starts at once
however large the graph is. The SVG shows as many scopes open as it can with a limited number of boxes.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import jinja2
from markupsafe import Markup

from graphwright.errors import ArgumentError, MissingDependencyError, UnsupportedError
from graphwright.ir.dtypes import format_shape
from graphwright.ir.graph import Graph, Node
from graphwright.ir.traits import VARIABLES
from graphwright.report.attribute_text import attribute_text
from graphwright.report.drawing_tree import Part, edges_between, opened, scope_tree
from graphwright.report.units import format_count, printable, shorten_middle

Kind = Literal["svg", "html"]

_MOST_NODES = 200_000
_LAYOUT_TIME_S = 120.0


def draw(
    graph: Graph,
    path: str | Path | None = None,
    *,
    kind: Kind | None = None,
    scope: str = "",
    open_scopes: tuple[str, ...] = (),
    boxes: int = 120,
) -> Path:
    """Draw a graph into a file.

    Args:
        graph: its main graph is drawn, in HTML the bodies of its functions too.
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
    target = None if path is None else Path(path)
    chosen = kind or _kind_of(target)
    if target is None:
        name = "".join(c if c.isalnum() or c in "-_." else "_" for c in graph.name) or "graph"
        target = Path(f"{name}.{chosen}")
    text = (
        svg(graph, scope=scope, open_scopes=open_scopes, boxes=boxes)
        if chosen == "svg"
        else page(graph, scope=scope, open_scopes=open_scopes)
    )
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"{target} cannot be written: {error.strerror}", where="argument 'path'") from error
    return target


def _kind_of(path: Path | None) -> Kind:
    if path is not None and path.suffix:
        suffix = path.suffix.lower()
        if suffix in (".html", ".htm"):
            return "html"
        if suffix == ".svg":
            return "svg"
        raise ArgumentError(f"a picture cannot be a {path.suffix!r} file", where="argument 'path'", remedy="end the name in .svg or .html")
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
    program = shutil.which("dot")
    if program is None:
        raise MissingDependencyError(
            "Graphviz is not installed", cause="there is no program called dot", remedy="install graphviz, or draw into an .html file"
        )
    try:
        done = subprocess.run([program, f"-T{form}"], input=source.encode(), capture_output=True, timeout=_LAYOUT_TIME_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ArgumentError(f"Graphviz took more than {_LAYOUT_TIME_S:.0f} s", remedy="draw fewer boxes, or an .html file") from error
    if done.returncode:
        raise ArgumentError(f"Graphviz failed: {done.stderr.decode(errors='replace').strip()[:300]}", where="the program dot")
    return done.stdout


def dot_source(graph: Graph, *, scope: str = "", open_scopes: tuple[str, ...] = (), boxes: int = 120) -> str:
    """The picture in Graphviz's language: open scopes as clusters, closed ones as one box.

    >>> from graphwright.ir.graph import DTYPES
    >>> g = Graph("g")
    >>> x = g.add_node("Placeholder", "x", output_types=[(DTYPES["float32"], (2,))])
    >>> _ = g.add_node("Relu", "y", inputs=x.outputs, output_types=[(DTYPES["float32"], (2,))])
    >>> print(dot_source(g))
    digraph {
      graph [rankdir=TB, fontname="Helvetica", fontsize=11, bgcolor="white", nodesep=0.25, ranksep=0.35]
      node [shape=box, style="rounded,filled", fillcolor="#eef2f6", color="#7a8794", fontname="Helvetica", fontsize=10, height=0.3]
      edge [color="#7a8794", arrowsize=0.6, fontname="Helvetica", fontsize=9]
      n1 [label="x\\nPlaceholder", tooltip="x = Placeholder() : float32[2]", fillcolor="#fdf3d8"]
      n2 [label="y\\nRelu", tooltip="y = Relu(x:0) : float32[2]"]
      n1 -> n2 [tooltip="x:0 float32[2]"]
    }
    """
    root, leaves = _tree(graph, scope)
    open_parts = opened(root, limit=boxes, wanted=open_scopes)
    numbers: dict[Part, str] = {}
    lines = [
        "digraph {",
        '  graph [rankdir=TB, fontname="Helvetica", fontsize=11, bgcolor="white", nodesep=0.25, ranksep=0.35]',
        '  node [shape=box, style="rounded,filled", fillcolor="#eef2f6", color="#7a8794", fontname="Helvetica", fontsize=10, height=0.3]',
        '  edge [color="#7a8794", arrowsize=0.6, fontname="Helvetica", fontsize=9]',
    ]
    _boxes(root, open_parts, graph, numbers, lines, "  ")
    for (before, after), (count, only_control) in edges_between(list(leaves), leaves, open_parts).items():
        if before not in numbers or after not in numbers:
            continue
        lines.append(f"  {numbers[before]} -> {numbers[after]} [{_edge(before, after, count, only_control=only_control)}]")
    return "\n".join([*lines, "}"])


def _boxes(part: Part, open_parts: set[Part], graph: Graph, numbers: dict[Part, str], lines: list[str], indent: str) -> None:
    for child in part.parts:
        if child in open_parts:
            lines.append(f"{indent}subgraph cluster_{len(lines)} {{")
            lines.append(f'{indent}  label={quoted(child.label)}; style="rounded,filled"; color="#c5ced8"; fillcolor="#00000008"; margin=8')
            _boxes(child, open_parts, graph, numbers, lines, indent + "  ")
            lines.append(f"{indent}}}")
            continue
        numbers[child] = f"n{len(numbers) + 1}"
        if child.node is None:
            text = f"{shorten_middle(printable(child.label), 32)}\n{format_count(child.node_count)} nodes"
            look = f'label={quoted(text)}, tooltip={quoted(child.path)}, fillcolor="#dbe9fb", peripheries=2'
        else:
            text = f"{shorten_middle(printable(child.label), 32)}\n{child.node.op_type}"
            color = _color(child.node, graph)
            look = f"label={quoted(text)}, tooltip={quoted(_line_of(child.node))}" + (f', fillcolor="{color}"' if color else "")
        lines.append(f"{indent}{numbers[child]} [{look}]")


def _edge(before: Part, after: Part, count: int, *, only_control: bool) -> str:
    if only_control:
        return 'style=dashed, tooltip="control edge"'
    if before.node is not None and after.node is not None:
        values = [v for v in after.node.inputs if v.producer is before.node]
        return f"tooltip={quoted(', '.join(f'{v.name} {v.dtype}{format_shape(v.shape)}' for v in values))}"
    return f'label=" {count}"' if count > 1 else "penwidth=1"


def _color(node: Node, graph: Graph) -> str:
    if not node.inputs and node.op_type in ("Placeholder", "PlaceholderV2", "_Arg", "PlaceholderWithDefault"):
        return "#fdf3d8"
    if node.op_type in VARIABLES or node.op_type == "Const":
        return "#f4f4f4"
    return "#dff3e2" if graph.is_border(node) else ""


def quoted(text: str) -> str:
    """The text as a string of Graphviz's language."""
    safe = "".join(c if c == "\n" else printable(c) for c in text)
    return '"' + safe.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _tree(graph: Graph, scope: str) -> tuple[Part, dict[Node, Part]]:
    root, leaves = scope_tree(graph, scope=scope.strip("/"))
    if scope and not leaves:
        raise ArgumentError(f"no node lies in scope {scope!r}", where=f"graph {graph.name!r}")
    if len(leaves) > _MOST_NODES:
        raise UnsupportedError(
            f"{format_count(len(leaves))} nodes are too many for one picture",
            where=f"graph {graph.name!r}",
            remedy=f"draw a scope of at most {format_count(_MOST_NODES)} nodes: scope=...",
        )
    return root, leaves


def page(graph: Graph, *, scope: str = "", open_scopes: tuple[str, ...] = ()) -> str:
    """The picture as the text of an HTML page that loads nothing from anywhere."""
    views = [_view(graph, graph.name or "graph", scope, open_scopes)]
    if not scope:
        views += [_view(function.body, f"function {name}", "", ()) for name, function in graph.functions.items() if len(function.body)]
    environment = jinja2.Environment(loader=jinja2.FunctionLoader(_source), autoescape=True, undefined=jinja2.StrictUndefined)
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.policies["json.dumps_function"] = json.dumps
    node_count = sum(len(view["nodes"]) for view in views)
    return environment.get_template("drawing.html").render(
        title=printable(graph.name or "graph"),
        summary=f"{format_count(node_count)} nodes" + (f", {len(views) - 1} functions" if len(views) > 1 else ""),
        views=[view["title"] for view in views],
        data={"views": views},
        style=Markup(_source("drawing.css")),
        script=Markup(_source("drawing.js")),
    )


def _source(name: str) -> str:
    return resources.files("graphwright.report").joinpath("templates", name).read_text(encoding="utf-8")


def _view(graph: Graph, title: str, scope: str, open_scopes: tuple[str, ...]) -> dict[str, Any]:
    """What the page's script draws one graph from: nodes with their inputs by number, and the tree of scopes over them."""
    root, leaves = _tree(graph, scope)
    numbers = {node: k for k, node in enumerate(leaves)}
    op_types = list(dict.fromkeys(node.op_type for node in leaves))
    op_number = {op_type: k for k, op_type in enumerate(op_types)}
    nodes: list[list[Any]] = []
    for node in leaves:
        kind = {"#fdf3d8": 1, "#f4f4f4": 2, "#dff3e2": 3}.get(_color(node, graph), 0)
        inputs = [numbers.get(v.producer, v.name) for v in node.inputs]
        controls = [numbers[c] for c in node.control_inputs if c in numbers]
        nodes.append([node.name, op_number[node.op_type], kind, inputs, controls, _types(node), _attributes(node)])
    wanted = opened(root, limit=0, wanted=open_scopes)
    return {"title": printable(title), "ops": op_types, "nodes": nodes, "tree": _tree_data(root, numbers, wanted)}


def _tree_data(root: Part, numbers: dict[Node, int], wanted: set[Part]) -> list[Any]:
    """Per part `[label, is open, parts]`, or the number of the node."""
    order = [root]
    for part in order:
        order += part.parts
    made: dict[Part, Any] = {}
    for part in reversed(order):
        if part.node is not None:
            made[part] = numbers[part.node]
        else:
            made[part] = [part.label, int(part in wanted), [made[child] for child in part.parts]]
    return made[root]


def _types(node: Node) -> str:
    return ", ".join(f"{v.dtype}{format_shape(v.shape)}" for v in node.outputs[:8]) + (" …" if len(node.outputs) > 8 else "")


def _attributes(node: Node) -> dict[str, str]:
    shown = {key: shorten_middle(printable(attribute_text(value)), 120) for key, value in node.attrs.items() if key != "_output_shapes"}
    return shown | ({"device": node.device} if node.device else {})


def _line_of(node: Node) -> str:
    inputs = ", ".join(v.name for v in node.inputs[:6]) + (", …" if len(node.inputs) > 6 else "")
    return f"{node.name} = {node.op_type}({inputs})" + (f" : {_types(node)}" if node.outputs else "")
