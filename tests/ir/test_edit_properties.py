"""Random graphs under random sequences of all edits: the invariants hold, and an edit that raises changes nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphwright.errors import GraphError, GraphwrightError
from graphwright.ir.colocation import colocated_with
from graphwright.ir.dtypes import DTYPES
from graphwright.ir.graph import Graph
from graphwright.ir.signature import node_of
from graphwright.ir.text import from_text, to_text
from graphwright.ir.verify import verify
from tests.ir.edits import Editor
from tests.ir.graphs import graphs

F32 = (DTYPES["float32"], (2,))
I32 = (DTYPES["int32"], (2,))


def _other() -> Graph:
    graph = Graph("other")
    made = [graph.add_node("Add", f"stranger{k}", output_types=[F32, I32]) for k in range(2)]
    graph.add_node("Neg", "reader", inputs=[made[0].outputs[0]], control_inputs=[made[1]], output_types=[F32])
    return graph


def _is_acyclic(graph: Graph) -> bool:
    """Random edges make cycles, which no verb looks for; anything else that is wrong raises."""
    try:
        verify(graph)
    except GraphError as error:
        if "wait for each other" not in error.what:
            raise
        return False
    return True


def _apply_edits(graph: Graph, data: st.DataObject, steps: int) -> None:
    other = _other()
    for _ in range(steps):
        before, before_other = to_text(graph), to_text(other)
        refused = None
        try:
            Editor(data.draw, graph, other).apply()
        except GraphwrightError as error:
            refused = error
        if refused is not None:
            # What the harness adds before it calls the verb is no part of the edit.
            assert _without_additions(to_text(graph)) == _without_additions(before), refused
            assert to_text(other) == before_other, refused
        _check_indices(graph)
        if not (_is_acyclic(graph) and _is_acyclic(other)):
            return
    assert to_text(from_text(to_text(graph))) == to_text(graph)


def _check_indices(graph: Graph) -> None:
    """What a graph knows in O(1) of collections, signatures and colocation is what a look at everything says."""
    for node in graph:
        held = {name for name, c in graph.collections.items() if any(node_of(item) is node for item in c.references())}
        assert set(graph.collections_of(node)) == held
        fed = (v for s in graph.signatures.values() for v in (*s.inputs.values(), *s.outputs.values()))
        borders = {*(v.producer for v in (*graph.inputs, *graph.outputs, *fed)), *graph.control_outputs}
        assert graph.is_border(node) == (node in borders)
        assert set(graph.colocated_with(node)) == {other for other in graph if node.name in colocated_with(other)}


def _without_additions(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("%replacement")]


@given(graphs(), st.data())
def test_all_edits_keep_the_invariants_and_a_refused_edit_changes_nothing(graph, data):
    _apply_edits(graph, data, 8)


@pytest.mark.slow
@given(graphs(), st.data())
@settings(max_examples=2 * settings.default.max_examples)
def test_long_sequences_of_all_edits(graph, data):
    _apply_edits(graph, data, 25)
