"""The scopes of a graph as a tree, for drawing.

A scope with very many parts is cut into groups of neighbors in execution order, so that each level fits a picture.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from graphwright.ir.graph import Graph, Node
from graphwright.ir.walk import topological_order
from graphwright.report.served_picture import ServedPicture

LARGEST_LEVEL = 150
"""A scope with more parts is cut into groups."""

_SERIES = 16


@dataclass(slots=True, eq=False)
class Part:
    """A node, or a scope or group with parts; `label` is the last part of its name `path`."""

    label: str
    path: str
    node: Node | None = None
    parent: Part | None = None
    parts: list[Part] = field(default_factory=list["Part"])
    node_count: int = 0

    def all_parts(self) -> list[Part]:
        """Return this part and all below it, each after its parent."""
        parts: list[Part] = [self]
        for part in parts:  # grows while it is walked
            parts += part.parts
        return parts


def served_tree(graph: Graph, picture: ServedPicture) -> tuple[Part, dict[Node, Part]]:
    """Return the tree of a picture by layers, like `scope_tree`; a layer of one operation is one box."""
    places = ((node, place, picture.names[node].rpartition("/")[2], picture.names[node]) for node, place in picture.place.items())
    return _tree(Part(graph.name or "graph", ""), places, lambda scope, _: scope.label)


def scope_tree(graph: Graph, *, scope: str = "") -> tuple[Part, dict[Node, Part]]:
    """Return the root of the tree and the leaf of each node below `scope`."""
    prefix = f"{scope}/" if scope else ""
    nodes = [node for node in topological_order(graph) if node.name.startswith(prefix)]
    names = [node.name.removeprefix(prefix).rpartition("/") for node in nodes]
    parts = [(node, place, label, node.name) for node, (place, _, label) in zip(nodes, names, strict=True)]
    return _tree(Part(graph.name or "graph", scope), parts, lambda part, only: f"{part.label}/{only.label}")


def _tree(root: Part, nodes: Iterable[tuple[Node, str, str, str]], joined: Callable[[Part, Part], str]) -> tuple[Part, dict[Node, Part]]:
    """Fill an empty tree with nodes, given with scope, label and path; `joined` labels a scope that holds only a node."""
    scopes: dict[str, Part] = {root.path: root}
    leaves: dict[Node, Part] = {}
    for node, place, label, path in nodes:
        parent = _scope(scopes, root, place)
        leaves[node] = Part(label, path, node, parent)
        parent.parts.append(leaves[node])
    _unwrap(root, joined)
    return _finished(root), leaves


def _scope(scopes: dict[str, Part], root: Part, place: str) -> Part:
    part, path = root, root.path
    for label in place.split("/") if place else ():
        path = f"{path}/{label}" if path else label
        if path not in scopes:
            scopes[path] = Part(label, path, None, part)
            part.parts.append(scopes[path])
        part = scopes[path]
    return part


def _unwrap(root: Part, label: Callable[[Part, Part], str]) -> None:
    for part in reversed(root.all_parts()):
        if part.parent is not None and len(part.parts) == 1 and (only := part.parts[0]).node is not None:
            only.label, only.parent = label(part, only), part.parent
            part.parent.parts[part.parent.parts.index(part)] = only


def _finished(root: Part) -> Part:
    """Cut levels that are too wide, and count the nodes of each part."""
    for part in root.all_parts():
        if part.node is None:
            _gather_series(part)
            _cut(part)
    for part in reversed(root.all_parts()):
        part.node_count = 1 if part.node is not None else sum(child.node_count for child in part.parts)
    return root


def _gather_series(part: Part) -> None:
    """Group many unnamed nodes of one type (AddN, AddN_1, AddN_2, ...)."""
    series: dict[str, list[Part]] = {}
    for child in part.parts:
        if child.node is not None and child.label.removeprefix(child.node.op_type).lstrip("_").isdigit():
            series.setdefault(child.node.op_type, []).append(child)
    for op_type, members in series.items():
        if _SERIES <= len(members) < len(part.parts):
            group = _group_of(members, f"{op_type} × {len(members)}", f"{part.path}#{op_type}")
            part.parts = [child for child in part.parts if child.parent is part] + [group]
            _cut(group)


def _cut(part: Part) -> None:
    """Cut many parts into groups of about the square root of their number, repeatedly."""
    while len(part.parts) > LARGEST_LEVEL:
        size = max(2, math.isqrt(len(part.parts)))
        slices = [part.parts[start : start + size] for start in range(0, len(part.parts), size)]
        borders = [f"{part.path}#{k * size}-{k * size + len(members)}" for k, members in enumerate(slices)]
        labels = [f"{members[0].label} … {members[-1].label}" for members in slices]
        part.parts = list(map(_group_of, slices, labels, borders))


def _group_of(members: list[Part], label: str, path: str) -> Part:
    group = Part(label, path, None, members[0].parent, members)
    for member in members:
        member.parent = group
    return group


def opened(root: Part, wanted: Iterable[str] = ()) -> set[Part]:
    names = set(wanted)
    open_parts = {root}
    for part in root.all_parts():
        above: Part | None = part if part.path in names and part.parts else None
        while above is not None:
            open_parts.add(above)
            above = above.parent
    return open_parts


def visible(part: Part, open_parts: set[Part]) -> Part:
    """Return the box that shows a part: itself, or the outermost closed scope around it."""
    box, above = part, part.parent
    while above is not None:
        if above not in open_parts:
            box = above
        above = above.parent
    return box
