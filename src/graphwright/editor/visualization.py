"""Pictures in the words of graph_def_editor: `Graph.visualize`, drawn by Graphviz (the program `dot`), also in notebooks.

For large graphs `graphwright.draw` makes better pictures: pages whose scopes open and close.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container
from itertools import count
from typing import TYPE_CHECKING, Any

from graphviz import Digraph, escape

from graphwright.ir import graph as ir
from graphwright.ir.dtypes import Shape
from graphwright.report.drawing_tree import Part, scope_tree, visible
from graphwright.report.units import printable

if TYPE_CHECKING:
    from graphwright.editor.base_graph import BaseGraph
    from graphwright.editor.node import Node

FORMAT_JUPYTER_SVG = "jupyter_svg"
FORMAT_JUPYTER_INTERACTIVE = "jupyter_interactive"

_TEXT = {"fontcolor": "#414141"}
_SCOPE = {"bgcolor": "#eeeeee", "color": "#aaaaaa", "penwidth": "2"}
_NO_SCOPE = {"fillcolor": "white", "color": "white"}
_NODE = {"style": "filled", "fillcolor": "white", "color": "#aaaaaa", "penwidth": "2", **_TEXT}
_EDGE = {"color": "#aaaaaa", "arrowsize": "1.2", "penwidth": "2.5", **_TEXT}

# Drag to move, wheel to zoom: the part of the picture that is seen is the view box.
_PAN_AND_ZOOM = """
(() => {
  const svg = document.currentScript.parentElement.querySelector("svg"), box = svg.viewBox.baseVal;
  svg.addEventListener("wheel", (event) => {
    event.preventDefault();
    const by = Math.exp(event.deltaY * 0.001), place = svg.getBoundingClientRect();
    box.x += box.width * (1 - by) * (event.clientX - place.x) / place.width;
    box.y += box.height * (1 - by) * (event.clientY - place.y) / place.height;
    box.width *= by; box.height *= by;
  }, {passive: false});
  svg.addEventListener("pointermove", (event) => {
    if (!event.buttons) return;
    const scale = Math.max(box.width / svg.clientWidth, box.height / svg.clientHeight);
    box.x -= event.movementX * scale; box.y -= event.movementY * scale;
  });
})();
"""


class Html:
    """A piece of HTML that a notebook shows."""

    def __init__(self, data: str) -> None:
        self.data = data

    def _repr_html_(self) -> str:
        return self.data


def add_digraph(name: str | None = None, name_scope: str | None = None, style: bool = True) -> Digraph:
    """An empty picture, or the frame around a scope."""
    digraph: Any = Digraph(name)
    if name_scope:
        digraph.graph_attr |= {"label": _literal(name_scope), "tooltip": _literal(name_scope)}
    if style:
        digraph.graph_attr |= {**(_SCOPE if name_scope else _NO_SCOPE), **_TEXT, "style": "rounded"}
        digraph.node_attr |= _NODE
        digraph.edge_attr |= _EDGE
    return digraph


def add_digraph_node(digraph: Any, name: str, op: Node | None, attributes: Any = None) -> None:
    """Draw a node, or (where `op` is None) a closed scope, with the last part of its name; of a call, the function too."""
    label, tooltip = name.rpartition("/")[2], name
    if op is not None:
        tooltip += f":{op.op_type}"
        if "PartitionedCall" in op.op_type and op.has_attr("f"):
            label += f"\nf:{op.get_attr('f').name}"
    digraph.node(_literal(name), label=_literal(label), tooltip=_literal(tooltip), _attributes=attributes or [])


def add_digraph_edge(digraph: Any, from_node: str, to_node: str, label: str | None = None, attributes: Any = None) -> None:
    """Draw an arrow."""
    digraph.edge(_literal(from_node), _literal(to_node), label=label, _attributes=attributes or [])


def visualize(
    gde_graph: BaseGraph,
    format: str | None = None,  # noqa: A002 - the name it always had
    depth: int | None = 1,
    name: str = "G",
    style: bool = True,
    name_regex: str = "",
    negative_name_regex: str = "",
    add_digraph_func: Callable[..., Any] | None = None,
    add_digraph_node_func: Callable[..., Any] | None = None,
    add_digraph_edge_func: Callable[..., Any] | None = None,
    nodes: Container[ir.Node] | None = None,
) -> Any:
    """Draw a graph: a box per node and per closed scope, an arrow where one reads the other, with the shape of what is read.

    Args:
        gde_graph: what to draw.
        format: None, `jupyter_svg`, `jupyter_interactive` (drag and wheel), or a format of Graphviz: svg, png, pdf, json, ...
        depth: how many levels of names are seen; 1 shows every outermost scope as one box, None all levels.
        name: of the picture.
        style: whether to use colors and lines of its own, or Graphviz's.
        name_regex: only nodes in whose name it is found are drawn.
        negative_name_regex: nodes in whose name it is found are not.
        add_digraph_func: in place of `add_digraph`.
        add_digraph_node_func: in place of `add_digraph_node`.
        add_digraph_edge_func: in place of `add_digraph_edge`.
        nodes: only these are drawn; all by default.

    Returns:
        For None what `add_digraph_func` made: a `Digraph`, which notebooks show. For the jupyter formats something that notebooks show.
        Else the bytes of the picture.

    Raises:
        graphviz.ExecutableNotFound: the program `dot` is not installed.
        ValueError: Graphviz does not know the format.
    """
    digraph_of = add_digraph_func or add_digraph
    picture = digraph_of(name=name, style=style)
    positive, negative = re.compile(name_regex), re.compile(negative_name_regex)
    parts, leaves = scope_tree(gde_graph.ir)
    drawn = [n for n in leaves if nodes is None or n in nodes]
    drawn = [n for n in drawn if positive.search(n.name) and not (negative_name_regex and negative.search(n.name))]
    open_parts = _open(parts, len(leaves) if depth is None else depth)
    box = {node: visible(leaves[node], open_parts) for node in drawn}

    numbers = count()
    frames: dict[Part, Any] = {parts: picture}

    def frame(part: Part) -> Any:
        if part not in frames:
            above = frame(part.parent) if part.parent is not None else picture
            # A group of neighbors in a large scope is not a scope, and gets no frame.
            frames[part] = above if _is_group(part) else digraph_of(name=f"cluster_{next(numbers)}", name_scope=part.label, style=style)
        return frames[part]

    for part in dict.fromkeys(box.values()):
        node = part.node
        (add_digraph_node_func or add_digraph_node)(
            frame(part.parent or parts), part.path, None if node is None else gde_graph.view_of(node)
        )
    for part, digraph in reversed(frames.items()):
        if part is not parts and not _is_group(part):
            frames[part.parent or parts].subgraph(digraph)
    for (before, after), shape in _edges(drawn, box).items():
        (add_digraph_edge_func or add_digraph_edge)(picture, before.path, after.path, label=edge_label(shape))
    if format == FORMAT_JUPYTER_SVG:
        return jupyter_show_as_svg(picture)
    if format == FORMAT_JUPYTER_INTERACTIVE:
        return jupyter_pan_and_zoom(picture)
    return picture if format is None else picture.pipe(format=format)


def _is_group(part: Part) -> bool:
    return "#" in part.path and part.node is None


def _open(root: Part, depth: int) -> set[Part]:
    """The scopes whose parts are seen."""
    found = {root}
    level = [root]
    for _ in range(depth):
        inside: list[Part] = []
        for part in level:  # grows by the groups
            found.add(part)
            level += [child for child in part.parts if _is_group(child)]
            inside += [child for child in part.parts if child.node is None and not _is_group(child)]
        level = inside
    return found


def _edges(nodes: list[ir.Node], box: dict[ir.Node, Part]) -> dict[tuple[Part, Part], Shape]:
    """Which box reads which, with the shape of the first value."""
    found: dict[tuple[Part, Part], Shape] = {}
    for node in nodes:
        for value in node.inputs:
            before = box.get(value.producer)
            if before is not None and before is not box[node]:
                found.setdefault((before, box[node]), value.shape)
    return found


def edge_label(shape: Shape) -> str:
    """The shape as text.

    >>> edge_label((None, 3)), edge_label(()), edge_label(None)
    ('?×3', '', '')
    """
    return "×".join("?" if d is None else str(d) for d in shape or ())


def jupyter_show_as_svg(dg: Any) -> Html:
    """The picture for a notebook."""
    return Html(_svg(dg))


def jupyter_pan_and_zoom(dg: Any, element_styles: str = "height:auto", container_styles: str = "overflow:hidden") -> Html:
    """The picture for a notebook, which the mouse moves and zooms; nothing is loaded from anywhere.

    Args:
        dg: a `Digraph`.
        element_styles: CSS of the picture.
        container_styles: CSS of what is around it.
    """
    styled = _svg(dg).replace("<svg", f'<svg style="{element_styles}"', 1)
    return Html(f'<div style="{container_styles}">{styled}<script>{_PAN_AND_ZOOM}</script></div>')


def _literal(text: str) -> str:
    """The text as it is, where Graphviz would take `<...>` and backslashes for something else."""
    return escape(printable(text, lines=True))


def _svg(dg: Any) -> str:
    text = dg.pipe(format="svg").decode()
    return text[text.index("<svg") :]


def parse_graphviz_json(json_graph: str) -> dict[str, list[str]]:
    """What `visualize(format="json")` drew: the boxes by name, and of each those that it points to.

    >>> parse_graphviz_json('{"objects": [{"name": "a"}, {"name": "b"}], "edges": [{"tail": 0, "head": 1}]}')
    {'a': ['b'], 'b': []}
    """
    content = json.loads(json_graph)
    boxes = [item for item in content.get("objects", ()) if "nodes" not in item and "subgraphs" not in item]
    name_of = {item.get("_gvid", k): str(item["name"]) for k, item in enumerate(boxes)}
    found: dict[str, list[str]] = {name: [] for name in name_of.values()}
    for edge in content.get("edges", ()):
        found[name_of[edge["tail"]]].append(name_of[edge["head"]])
    return found
