"""`Graph.restored_on_error`: after an error, the same objects in the same state."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphwright.errors import GraphError, GraphwrightError
from graphwright.ir.dtypes import DTYPES
from graphwright.ir.graph import Function, Graph, Value
from graphwright.ir.shapes import Shapes
from graphwright.ir.signature import Collection, NamedRefs, Signature
from graphwright.ir.text import from_text, to_text
from graphwright.ir.verify import verify
from tests.ir.edits import Editor
from tests.ir.graphs import graphs

F32 = (DTYPES["float32"], (2,))


class StopError(Exception):
    """What a block raises here."""


def _abandon(graph: Graph, change: Callable[[], object]) -> None:
    with graph.restored_on_error():
        change()
        raise StopError


def _everything(graph: Graph) -> dict[str, Any]:
    """All that can be seen of a graph and its bodies, the objects themselves and their order included."""
    seen: dict[str, Any] = {"text": to_text(graph), "functions": list(graph.functions.items())}
    for name, each in [("", graph), *((f.name, f.body) for f in graph.functions.values())]:
        values = [v for node in each for v in node.outputs]
        seen[name] = (
            each,
            each.nodes,
            [(n.graph, n.name, n.op_type, n.attrs.copy(), n.device, n.inputs, n.control_inputs, n.control_consumers) for n in each],
            [(v, v.index, v.dtype, v.last_shape, v.uses, v.producer) for v in values],
            (each.inputs, each.outputs, each.control_outputs, each.versions, each.variables.copy()),
            [(key, s, dict(s.inputs), dict(s.outputs), s.method_name, s.extra) for key, s in each.signatures.items()],
            [(key, c, c.kind, list(c.items)) for key, c in each.collections.items()],
            [dict(item.refs) for c in each.collections.values() for item in c.items if isinstance(item, NamedRefs)],
            [(each.is_border(n), each.collections_of(n), set(each.colocated_with(n)), each[n.name] is n) for n in each],
            [each.unique_name(n.name) for n in each],
            (each.package, each.shapes, each.touched),
        )
    return seen


def _is_well_formed(graph: Graph) -> bool:
    try:
        verify(graph)
    except GraphError:
        return False
    return True


@given(graphs(), st.data())
def test_random_edits_are_undone(graph, data):
    other = Graph("other")
    stranger = other.add_node("Add", "stranger", output_types=[F32, (DTYPES["int32"], (2,))])
    other.add_node("Neg", "reader", inputs=[stranger.outputs[0]], output_types=[F32])
    before, well_formed = _everything(graph), _is_well_formed(graph)

    def change() -> None:
        for _ in range(data.draw(st.integers(1, 8))):
            with contextlib.suppress(GraphwrightError):
                Editor(data.draw, graph, other).apply()
            if not (_is_well_formed(graph) and _is_well_formed(other)):
                break

    for _ in range(2):  # what was put back can be edited, and put back, again
        with pytest.raises(StopError):
            _abandon(graph, change)
        assert _everything(graph) == before
        assert _is_well_formed(graph) == well_formed


def _serving() -> Graph:
    graph = from_text("""
        graph "g"
        inputs %x:0
        outputs %y:0
        variable %w:0 = "w" : float32[2] trainable
        signature "serve" ("x" = %x:0) ("y" = %y:0)
        collection "nodes" nodes [%y, %x:0]
        collection "messages" bytes [0x0a {"name" = %w:0}]

        %x = Placeholder() : float32[2]
        %w = VarHandleOp() : resource[]
        %y = my_function(%x:0) ^w : float32[2]

        function "my_function"
        inputs %a:0
        outputs %b:0
        %a = Placeholder() : float32[2]
        %b = Neg(%a:0) : float32[2]
        """)
    verify(graph)
    return graph


def _change_everything(graph: Graph) -> None:
    function = graph.functions["my_function"]
    function.definition = b"changed"
    body = function.body
    body.rename(body["b"], "c")
    body.replace_uses(body.value("c"), body.value("a"))
    body.name = "other"
    function.body = Graph("empty", functions=graph.functions)
    del graph.functions["my_function"]
    graph.functions["new"] = Function("new", Graph("new", functions=graph.functions))
    graph.signatures["serve"].inputs["z"] = graph.value("x")
    graph.signatures["serve"].outputs = {}
    graph.signatures = {"other": Signature({}, {})}
    graph.collections["messages"].items[0].refs.clear()
    graph.collections["nodes"].items.reverse()
    graph.collections = {"other": Collection("ints", [1])}
    graph.variables.clear()
    graph.inputs, graph.outputs = [], []
    graph.name, graph.versions = "h", (1, 2)
    graph["y"].device = "/device:GPU:0"
    graph.set_attr(graph["y"], "T", DTYPES["float32"])
    graph.set_op_type(graph["y"], "Neg")
    graph.add_output(graph["x"], *F32)
    graph.value("x").shape = (3,)
    graph.sort_nodes(graph.nodes[::-1])
    graph.remove_node(graph["y"])
    graph.add_node("Neg", "y", inputs=[graph.value("x")], output_types=[F32])
    graph.functions = {}


def test_every_part_is_put_back_into_the_same_objects():
    graph = _serving()
    held = (graph.signatures, graph.signatures["serve"].outputs, graph.collections["nodes"].items, graph.functions, graph.variables)
    x, y, w = graph["x"], graph["y"], graph["w"]
    body = graph.functions["my_function"].body
    before = _everything(graph)
    with pytest.raises(StopError):
        _abandon(graph, lambda: _change_everything(graph))
    assert _everything(graph) == before
    now = (graph.signatures, graph.signatures["serve"].outputs, graph.collections["nodes"].items, graph.functions, graph.variables)
    assert all(a is b for a, b in zip(held, now, strict=True))
    assert (graph["x"], graph["y"], graph["w"]) == (x, y, w)
    assert body.nodes[1].name == "b"
    # Plain changes of signatures and collections are still noticed.
    graph.signatures["serve"].outputs.clear()
    graph.collections["nodes"].items.append(w)
    assert graph.collections_of(w) == ("nodes", "messages")
    verify(graph)


def test_nested_blocks_undo_their_own_part():
    graph = _serving()
    before = to_text(graph)

    def inner() -> None:
        graph.rename(graph["outer"], "inner")
        body = graph.functions["my_function"].body
        body.rename(body["b"], "inner")

    def outer() -> None:
        graph.rename(graph["x"], "outer")
        within = to_text(graph)
        with pytest.raises(StopError):
            _abandon(graph, inner)
        assert to_text(graph) == within

    with pytest.raises(StopError):
        _abandon(graph, outer)
    assert to_text(graph) == before


def test_shapes_that_wait_to_be_settled_still_do():
    graph = _serving()
    asked: list[str] = []

    def rule(nodes: Any) -> list[list[tuple[int, ...]]]:
        asked.extend(n.name for n in nodes)
        return [[(7,)] * len(n.outputs) for n in nodes]

    graph.shapes = Shapes(graph, rule)
    graph.set_attr(graph["y"], "n", 1)
    with pytest.raises(StopError):
        _abandon(graph, lambda: graph.value("y").shape)
    assert asked == ["y"]
    assert graph.value("y").last_shape == (2,)
    assert graph.value("y").shape == (7,)
    assert asked == ["y", "y"]


@dataclass(slots=True, eq=False)
class Package:
    digest: bytes = b""
    ids: dict[Value, int] = field(default_factory=dict)


def test_the_package_is_put_back():
    graph = _serving()
    graph.package = package = Package(b"read", {graph.value("x"): 1})

    def change() -> None:
        package.ids.clear()
        package.digest = b"changed"
        graph.package = None

    with pytest.raises(StopError):
        _abandon(graph, change)
    assert graph.package is package
    assert package.digest == b"read"
    assert package.ids == {graph.value("x"): 1}
