"""The data from which a page's script draws a graph: nodes with their inputs by number, and the tree of scopes.

A report shows the operations from inputs to outputs first, and the whole graph only up to a limit; `graphwright.draw` shows all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphwright.errors import ArgumentError, UnsupportedError
from graphwright.ir.dtypes import format_shape
from graphwright.ir.graph import Graph, Node
from graphwright.ir.traits.values import MAY_BE_FED, is_constant
from graphwright.ir.traits.variables import VARIABLES
from graphwright.ops.flops import flop_rule
from graphwright.report.attribute_text import attribute_text
from graphwright.report.cost_rows import NodeCost
from graphwright.report.drawing_tree import Part, opened, scope_tree, served_tree
from graphwright.report.served_picture import ServedPicture, served_picture
from graphwright.report.timeline import LiveBuffer
from graphwright.report.units import format_count, printable, shorten_middle

REPORT_NODES = 15_000
"""A graph with more nodes is left out of a report."""

_MOST_NODES = 200_000
_NO_COST = NodeCost("", 0.0, 0.0, 0.0)
_HUES = {
    **dict.fromkeys(("convolution", "matrix product", "recurrent", "fused"), 0),
    **dict.fromkeys(("normalization", "pooling", "reduction", "softmax and losses"), 1),
    "element by element": 2,
}
"""Colors of boxes by family of FLOP rules, as the page's script numbers them; 3 for all others."""


def graph_view(graph: Graph, title: str, scope: str = "", open_scopes: tuple[str, ...] = ()) -> dict[str, Any]:
    root, leaves = checked_tree(graph, scope)
    line = _line_of(graph)
    return _view(title, root, leaves, opened(root, open_scopes), lambda node: line(node) | _attributes(node))


def served_view(graph: Graph, picture: ServedPicture, title: str, costs: NodeCosts | None = None) -> dict[str, Any]:
    """Return the layers, shapes and weights of a picture, with costs if they are known."""
    root, leaves = served_tree(graph, picture)
    numbers, line = {node: k for k, node in enumerate(leaves)}, _line_of(graph)

    def row(node: Node) -> list[Any]:
        kind = 3 if node in picture.outputs else 1 if not picture.inputs[node] and node in picture.labels else _kind_of(node)
        read = [numbers[value.producer] for value in picture.inputs[node]]
        name = picture.names[node]
        attributes = line(node) | _attributes(node) | ({"node": node.name} if name != node.name else {})
        return [name, kind, read, [], _types_text(node), attributes, picture.weights[node]]

    view = _rows_and_tree(title, root, leaves, {root}, row) | {"served": True}
    return view if costs is None else view | costs.data(leaves)


@dataclass(frozen=True)
class NodeCosts:
    """The costs of nodes by name, and the live buffers of the peak; `measured` tells measured from estimated times."""

    costs: Mapping[str, NodeCost]
    live_at_peak: Sequence[LiveBuffer]
    measured: bool

    def data(self, nodes: Iterable[Node]) -> dict[str, Any]:
        layers: dict[str, int] = {}
        rows: list[tuple[float, ...]] = []
        layer_of: list[int] = []
        at_peak = Counter[str]()
        for buffer in self.live_at_peak:
            at_peak[buffer.name.rpartition(":")[0] or buffer.name] += buffer.nbytes
        for node in nodes:
            cost = self.costs.get(node.name, _NO_COST)
            layer_of.append(layers.setdefault(cost.layer, len(layers)))
            time_s = cost.measured_time_s if self.measured else cost.estimated_time_s
            rows.append((cost.flops, cost.bytes_moved, round(time_s, 9) if math.isfinite(time_s) else 0.0, at_peak[node.name]))
        columns = [[int(f) if f == int(f) else f for f in column] for column in zip(*rows, strict=True)]
        return {"costs": dict(zip(("flops", "moved", "time", "peak"), columns, strict=False)), "layers": list(layers), "layerOf": layer_of}


def costed_views(graph: Graph, costs: NodeCosts, *, node_limit: int = REPORT_NODES) -> list[dict[str, Any]]:
    """Return a graph with costs from inputs to outputs, and whole, without views that are too large."""
    picture = served_picture(graph)
    views: list[dict[str, Any]] = []
    if picture is not None and len(picture.inputs) <= node_limit:
        views.append(served_view(graph, picture, "from inputs to outputs", costs))
    if 0 < len(graph) <= node_limit:
        root, leaves = scope_tree(graph)
        view = _view("all nodes", root, leaves, {root}, lambda n: {k: text for k, text in _attributes(n).items() if k in _TELLING})
        views.append(view | costs.data(leaves))
    return views


def checked_tree(graph: Graph, scope: str) -> tuple[Part, dict[Node, Part]]:
    """Return the tree of scopes; raise an error if the scope is empty or the graph too large."""
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


def _kind_of(node: Node) -> int:
    """Return 1 for a fed node, 2 for a stored value, 3 for an output, else 0."""
    if not node.inputs and node.op_type in MAY_BE_FED:
        return 1
    if node.op_type in VARIABLES or is_constant(node):
        return 2
    return 3 if node.graph.is_border(node) else 0


def _types_text(node: Node) -> str:
    return ", ".join(f"{v.dtype}{format_shape(v.shape)}" for v in node.outputs[:8]) + (" …" if len(node.outputs) > 8 else "")


def _view(
    title: str, root: Part, leaves: Mapping[Node, Part], open_parts: set[Part], attributes: Callable[[Node], dict[str, str]]
) -> dict[str, Any]:
    numbers = {node: k for k, node in enumerate(leaves)}

    def row(node: Node) -> list[Any]:
        inputs = [numbers.get(v.producer, v.name) for v in node.inputs]
        controls = [numbers[c] for c in node.control_inputs if c in numbers]
        return [leaves[node].path, _kind_of(node), inputs, controls, _types_text(node), attributes(node)]

    return _rows_and_tree(title, root, leaves, open_parts, row)


def _rows_and_tree(
    title: str, root: Part, leaves: Mapping[Node, Part], open_parts: set[Part], row: Callable[[Node], list[Any]]
) -> dict[str, Any]:
    """Return the data of a view: the row of each node with the number of its op type in second place, and the tree."""
    ops: dict[str, int] = {}
    nodes = [[name, ops.setdefault(node.op_type, len(ops)), *others] for node in leaves for name, *others in [row(node)]]
    families = [rule.family if (rule := flop_rule(op_type)) is not None else "" for op_type in ops]
    tree = _tree_data(root, {leaf: k for k, leaf in enumerate(leaves.values())}, open_parts)
    return {"title": printable(title), "ops": list(ops), "hues": [_HUES.get(name, 3) for name in families], "nodes": nodes, "tree": tree}


def _tree_data(root: Part, numbers: Mapping[Part, int], wanted: set[Part]) -> list[Any]:
    """Return `[label, is open, parts, path]` per part, or the number of the node."""
    data: dict[Part, Any] = {}
    for part in reversed(root.all_parts()):
        if part in numbers:
            named = part.node is not None and part.path.rpartition("/")[2] != part.label
            data[part] = [part.label, numbers[part]] if named else numbers[part]
        else:
            data[part] = [part.label, int(part in wanted), [data[child] for child in part.parts], part.path]
    return data[root]


def _line_of(graph: Graph) -> Callable[[Node], dict[str, str]]:
    """Return a function that names the line of Python of a node, if the source of the graph knows it."""
    asked: Callable[[], Callable[[str], str]] | None = getattr(graph.package, "line_of", None)
    line = asked() if asked is not None else None
    return lambda node: {"source line": found} if line is not None and (found := line(node.name)) else {}


def _attributes(node: Node) -> dict[str, str]:
    shown = {key: shorten_middle(printable(attribute_text(value)), 120) for key, value in node.attrs.items() if key != "_output_shapes"}
    return shown | ({"device": node.device} if node.device else {})


# Attributes that tell operations of one type apart; element types are in the outputs.
_TELLING = frozenset(
    "strides padding dilations data_format ksize transpose_a transpose_b adj_x adj_y epsilon is_training keep_dims axis rate alpha "
    "equation device".split()
)
