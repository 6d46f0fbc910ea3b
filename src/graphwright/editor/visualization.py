"""The boxes and arrows of a picture, in the words of graph_def_editor. `graphwright.draw(g.ir)` draws the picture itself."""

from __future__ import annotations

import json
import re
from collections.abc import Container
from typing import Any

from graphwright.errors import UnsupportedError
from graphwright.ir import graph as ir


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
        format: "json"; others raise an UnsupportedError.
        depth: how many levels of scopes are open; 1 shows each outermost scope as one box, None all nodes.
        name_regex, negative_name_regex: only nodes whose names contain a match of the first and no match of the second are shown.
        nodes: only these are shown; all by default.
    """
    if format != "json":
        raise UnsupportedError(f"pictures of format {format!r} are not drawn here", remedy='graphwright.draw(g.ir, "picture.html")')
    box = {
        node: "/".join(node.name.split("/")[:depth])
        for node in graph
        if (nodes is None or node in nodes) and re.search(name_regex, node.name)
        if not (negative_name_regex and re.search(negative_name_regex, node.name))
    }
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
