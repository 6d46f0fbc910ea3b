"""The boxes and arrows of a picture, in the words of graph_def_editor. `graphwright.draw(g.ir)` draws the picture itself."""

from __future__ import annotations

import json
import re
from collections.abc import Container
from typing import Any

from graphwright.errors import UnsupportedError
from graphwright.ir import graph as ir
from graphwright.report.drawing_tree import Part, scope_tree, visible


def visualize(
    graph: ir.Graph,
    format: str | None = "json",  # noqa: A002 - the name it always had
    depth: int | None = 1,
    name_regex: str = "",
    negative_name_regex: str = "",
    nodes: Container[ir.Node] | None = None,
) -> bytes:
    """Return a box per node and per closed scope, and an arrow per read, as JSON; `parse_graphviz_json` reads it.

    Args:
        graph: the graph of the IR.
        format: "json".
        depth: how many levels of scopes are open; 1 shows each outermost scope as one box, None all nodes.
        name_regex: only nodes whose name contains a match are shown.
        negative_name_regex: nodes whose name contains a match are not shown.
        nodes: only these are shown; all by default.

    Raises:
        UnsupportedError: another format was given.
    """
    if format != "json":
        raise UnsupportedError(f"pictures of format {format!r} are not drawn here", remedy='graphwright.draw(g.ir, "picture.html")')
    positive, negative = re.compile(name_regex), re.compile(negative_name_regex)
    root, leaves = scope_tree(graph)
    open_parts = _open_scopes(root, len(leaves) if depth is None else depth)
    box: dict[ir.Node, str] = {}
    for node in leaves:
        is_excluded = negative_name_regex and negative.search(node.name)
        if (nodes is None or node in nodes) and positive.search(node.name) and not is_excluded:
            box[node] = visible(leaves[node], open_parts).path
    numbers = {name: k for k, name in enumerate(dict.fromkeys(box.values()))}
    pairs = dict.fromkeys((box[value.producer], box[node]) for node in box for value in node.inputs if value.producer in box)
    arrows = [{"tail": numbers[tail], "head": numbers[head]} for tail, head in pairs if tail != head]
    return json.dumps({"objects": [{"name": name} for name in numbers], "edges": arrows}).encode()


def parse_graphviz_json(json_graph: str) -> dict[str, list[str]]:
    """Return the boxes that `visualize` lists, by name, each with the boxes that its arrows point to.

    >>> parse_graphviz_json('{"objects": [{"name": "a"}, {"name": "b"}], "edges": [{"tail": 0, "head": 1}]}')
    {'a': ['b'], 'b': []}
    """
    content: Any = json.loads(json_graph)
    names = [str(item["name"]) for item in content["objects"]]
    heads: dict[str, list[str]] = {name: [] for name in names}
    for edge in content["edges"]:
        heads[names[int(edge["tail"])]].append(names[int(edge["head"])])
    return heads


def _open_scopes(root: Part, depth: int) -> set[Part]:
    opened: set[Part] = {root}
    level = [root]
    for _ in range(depth):
        inside: list[Part] = []
        for part in level:  # grows by groups, which are parts of a large scope and no level of their own
            opened.add(part)
            level += [child for child in part.parts if _is_group(child)]
            inside += [child for child in part.parts if child.node is None and not _is_group(child)]
        level = inside
    return opened


def _is_group(part: Part) -> bool:
    return "#" in part.path and part.node is None
