"""Views of a part of a graph and their remaps."""

from __future__ import annotations

import pytest

import graphwright.editor as gde
from tests.editor.graphs import eight_nodes

pytestmark = pytest.mark.tensorflow


def test_views(graph, t):
    whole = gde.sgv(graph)
    assert (list(whole.inputs), list(whole.outputs), len(whole.ops)) == ([], [t.e, t.h], 8)
    two = gde.sgv(t.f.op, t.g.op)
    assert (list(two.inputs), list(two.outputs)) == ([t.c, t.d, t.a], [t.f, t.g])
    scope = gde.sgv_scope("foo/bar", graph=graph)
    assert scope.ops == [t.e.op, t.f.op, t.g.op, t.h.op]
    assert gde.make_view(two) is two
    assert gde.make_view("^foo/bar/", graph=graph).ops == scope.ops
    with pytest.raises(ValueError, match="Graph mismatch"):
        gde.make_view(two, graph=eight_nodes())


def test_remaps(t):
    view = gde.sgv(t.c.op)
    assert (list(view.inputs), list(view.outputs)) == ([t.a, t.b], [t.c])
    view = view.remap([t.a], [0, t.c])
    assert (list(view.inputs), list(view.outputs)) == ([t.a], [t.c, t.c])
    view = view.remap_outputs_to_consumers()
    assert list(view.outputs) == [t.c, t.c, t.c]
    view = view.remap_outputs_make_unique()
    assert list(view.outputs) == [t.c]
    view = view.remap(new_input_indices=[], new_output_indices=[])
    assert (len(view.inputs), len(view.outputs)) == (0, 0)
    assert list(view.remap_default(remove_input_map=False).inputs) == []
    view = view.remap_default()
    assert (list(view.inputs), list(view.outputs)) == ([t.a, t.b], [t.c])
    assert list(view.remap_inputs([1, 0]).inputs) == [t.b, t.a]


def test_remaps_that_are_refused(t):
    view = gde.sgv(t.c.op)
    with pytest.raises(ValueError, match="repetition"):
        view.remap_inputs([0, 0])
    with pytest.raises(ValueError, match="Out of"):
        view.remap_outputs([1])
    with pytest.raises(ValueError, match="not in list"):
        view.remap_inputs([t.h])


def test_unused_nodes_are_left_out(graph, t):
    view = gde.sgv(graph).remap_outputs([1]).remove_unused_ops()
    assert list(view.outputs) == [t.h]
    assert t.e.op not in view.ops
    assert len(view.ops) == 7


def test_what_a_view_shows(t):
    view = gde.sgv(t.c.op, t.f.op, t.h)
    assert view
    assert view.op(1) == t.f.op
    assert view.find_op_by_name("foo/c") == t.c.op
    assert (view.input_index(t.d), view.output_index(t.f)) == (2, 1)
    assert set(view.consumers()) == {t.e.op, t.g.op, t.h.op}
    assert list(view.passthroughs) == [t.h]
    assert view.is_passthrough(t.h)
    assert t.h in view.inputs
    assert t.h not in view.connected_inputs
    assert view.connected_outputs == [t.c, t.f]
    assert "foo/bar/h:0 *" in str(view)
    for refused in (lambda: view.find_op_by_name("nowhere"), lambda: view.input_index(t.e), lambda: view.output_index(t.e)):
        with pytest.raises(ValueError, match=r"not in subgraph|Can't find"):
            refused()
    copied = view.copy()
    assert copied is not view
    assert copied.ops == view.ops
    with view as same:
        assert same is view


def test_an_empty_view_is_false():
    assert not gde.SubGraphView()
    assert str(gde.SubGraphView()) == "SubGraphView: empty"
    assert gde.SubGraphView().graph is None
