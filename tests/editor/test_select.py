"""Filters, walks and boundaries find what contrib.graph_editor's found."""

from __future__ import annotations

import re

import pytest

import graphwright.editor as gde

pytestmark = pytest.mark.tensorflow


def ops(*ts):
    return {t.op for t in ts}


def test_strings_and_expressions_can_be_expressions():
    assert gde.can_be_regex("foo")
    assert gde.can_be_regex(re.compile("foo"))
    assert not gde.can_be_regex(3)
    expression = re.compile("foo")
    assert gde.make_regex(expression) is expression
    with pytest.raises(ValueError, match="Expected a string or a regex"):
        gde.make_regex(3)


def test_filters(graph):
    assert len(gde.filter_ops(graph, True)) == 8
    assert [n.name for n in gde.filter_ops(graph, lambda op: op.op_type == "Const")] == ["a", "foo/b", "foo/d"]
    assert len(gde.filter_ops_by_optype(graph, "AddV2")) == 5
    assert len(gde.filter_ops_by_optype(graph, ["AddV2", "Const"])) == 8
    assert len(gde.filter_ops_from_regex(graph, r"^.*\b[abc]$")) == 3
    assert len(gde.filter_ts(graph, True)) == 8
    assert [t.name for t in gde.filter_ts_from_regex(graph, r"^.*/[fgh]:\d$")] == ["foo/bar/f:0", "foo/bar/g:0", "foo/bar/h:0"]
    assert len(gde.get_name_scope_ops(graph, "foo/")) == 7
    assert len(gde.get_name_scope_ops(graph, "foo/bar")) == 4
    assert gde.get_name_scope_ops(graph, "fo") == []
    assert len(gde.select._get_input_ts(graph)) == 6
    assert len(gde.select._get_output_ts(graph)) == 8


def test_neighbors_with_and_without_control_edges(graph, t):
    control = gde.ControlOutputs(graph)
    assert len(gde.get_ops_ios(t.h.op)) == 2
    assert len(gde.get_ops_ios(t.h.op, control_ios=control)) == 3
    assert set(gde.get_ops_ios(t.h.op, control_inputs=True)) == ops(t.f, t.g, t.c)
    assert len(gde.get_ops_ios(t.c.op)) == 5
    assert len(gde.get_ops_ios(t.c.op, control_ios=control)) == 6


def test_boundaries(t):
    assert gde.compute_boundary_ts(t.g.op) == ([t.c, t.a], [t.g], [])
    assert gde.compute_boundary_ts([t.g.op, t.h.op]) == ([t.c, t.a, t.f], [t.h], [t.g])
    # a is read inside (by c) and outside (by g): it comes out, and is inside.
    assert gde.compute_boundary_ts([t.a.op, t.c.op]) == ([t.b], [t.a, t.c], [t.a])


def test_within_a_boundary(graph, t):
    found = gde.get_within_boundary_ops(
        graph, t.f.op, boundary_ops=[t.c.op, t.h.op], inclusive=False, control_ios=gde.ControlOutputs(graph)
    )
    assert set(found) == ops(t.d, t.e, t.f)
    assert set(gde.get_within_boundary_ops(graph, t.h.op, boundary_ops=[t.f.op, t.g.op])) == ops(t.f, t.g, t.h)
    with pytest.raises(ValueError, match="intersecting"):
        gde.get_within_boundary_ops(graph, t.h.op, boundary_ops=t.h.op)


def test_intersection_of_walks(t):
    assert gde.get_walks_intersection_ops([t.c.op], [t.g.op]) == [t.c.op, t.g.op]
    assert set(gde.get_walks_intersection_ops([t.a.op], [t.f.op])) == ops(t.a, t.c, t.f)
    allowed = [t.a.op, t.f.op]
    assert gde.get_walks_intersection_ops([t.a.op], [t.f.op], within_ops=allowed) == []
    assert gde.get_walks_intersection_ops([t.a.op], [t.f.op], within_ops_fn=lambda op: op in allowed) == []


def test_union_of_walks(t):
    assert len(gde.get_walks_union_ops([t.f.op], [t.g.op])) == 6
    assert len(gde.get_walks_union_ops([t.a.op], [t.f.op])) == 8
    within = [t.a.op, t.c.op, t.d.op, t.f.op]
    assert set(gde.get_walks_union_ops([t.a.op], [t.f.op], within_ops=within)) == set(within)
    allowed = [t.a.op, t.c.op, t.f.op]
    assert set(gde.get_walks_union_ops([t.a.op], [t.f.op], within_ops_fn=lambda op: op in allowed)) == set(allowed)


def test_walk_forward(t):
    seeds, within = [t.a.op, t.d.op], [x.op for x in (t.a, t.b, t.c, t.d, t.e, t.f, t.h)]
    not_e = {"within_ops_fn": lambda op: op != t.e.op, "stop_at_ts": (t.f,)}
    walk = gde.get_forward_walk_ops
    assert set(walk(seeds, within_ops=within, **not_e)) == ops(t.a, t.c, t.d, t.f)
    assert set(walk(seeds, inclusive=False, within_ops=within, **not_e)) == ops(t.c, t.f)
    assert set(walk(seeds, inclusive=False, within_ops=within, stop_at_ts=(t.f,))) == ops(t.c, t.e, t.f)
    assert set(walk(seeds, inclusive=False, within_ops=within)) == ops(t.c, t.e, t.f, t.h)
    # A tensor stands for what reads it.
    assert set(walk([t.a])) == ops(t.c, t.e, t.f, t.g, t.h)
    assert walk([]) == []
    assert walk(t.h.op) == [t.h.op]


def test_walk_forward_along_control_edges(graph, t):
    gde.reroute_ts(t.a, t.c, can_modify=[t.f.op, t.g.op])
    assert t.h.op not in gde.get_forward_walk_ops(t.c.op)
    assert t.h.op in gde.get_forward_walk_ops(t.c.op, control_outputs=gde.ControlOutputs(graph))


def test_walk_backward(t):
    seeds, within = [t.h.op], [x.op for x in (t.a, t.b, t.c, t.d, t.e, t.f, t.h)]
    not_c = {"within_ops_fn": lambda op: op != t.c.op}
    walk = gde.get_backward_walk_ops
    assert walk(seeds, within_ops=within, stop_at_ts=(t.f,), **not_c) == [t.h.op]
    assert walk(seeds, inclusive=False, within_ops=within, stop_at_ts=(t.f,), **not_c) == []
    assert set(walk(seeds, within_ops=within, **not_c)) == ops(t.d, t.f, t.h)
    assert set(walk(seeds, within_ops=within)) == ops(t.a, t.b, t.c, t.d, t.f, t.h)
    assert set(walk(seeds)) == ops(t.a, t.b, t.c, t.d, t.f, t.g, t.h)
    assert set(walk([t.c])) == ops(t.a, t.b, t.c)


def test_selecting_with_expressions_and_lists(graph, t):
    assert len(gde.select_ops("^foo/", graph=graph)) == 7
    assert len(gde.select_ops("^foo/bar/", "a", graph=graph)) == 5
    assert gde.select_ops(t.a.op, [t.b.op, t.a.op], t.c) == [t.a.op, t.b.op]
    assert gde.select_ops("^foo/", graph=graph, positive_filter=lambda op: op.op_type == "Const") == [t.b.op, t.d.op]
    assert len(gde.select_ts(".*:0", graph=graph)) == 8
    assert len(gde.select_ts(r".*/bar/\w+:0", graph=graph)) == 4
    assert gde.select_ts(t.a.op, [t.b, t.a]) == [t.b, t.a]
    for arguments, counts in (((r"^foo/.*",), (7, 0)), ((r"^foo/.*", "(?#ts)^foo/bar/.*"), (7, 4))):
        assert tuple(len(found) for found in gde.select_ops_and_ts(*arguments, graph=graph)) == counts
    with pytest.raises(ValueError, match="graph"):
        gde.select_ops("^foo/")
    with pytest.raises(ValueError, match="Wrong keywords argument: grpah"):
        gde.select_ops("^foo/", grpah=graph)
    with pytest.raises(TypeError, match="Expected a type"):
        gde.select_ops([3])


def test_tree_expressions(graph, t):
    tree = gde.TreeExpr(op="Add.*", alias="sum", inputs=(gde.TreeExpr(op="Add.*", alias="left"), gde.TreeExpr(op="Const", alias="right")))
    assert tree.eval_from(t.f.op) == {"sum": t.f.op, "left": t.c.op, "right": t.d.op}
    assert tree.eval_from(t.h.op) is None
    assert tree.eval_from(t.a.op) is None
    maybe = gde.TreeExpr(op="Identity", optional=True, inputs=gde.TreeExpr(op="Const", alias="constant"))
    assert maybe.eval_from(t.a.op) == {"constant": t.a.op}
    graph.remove_node_by_name("foo/bar/h")
    gone = graph["foo/bar/e"]
    graph.remove_node_by_name("foo/bar/e")
    with pytest.raises(ValueError, match="has been removed"):
        tree.eval_from(gone)
