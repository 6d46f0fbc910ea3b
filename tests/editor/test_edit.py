"""Detaching, connecting and bypassing, judged by what reads what afterwards."""

from __future__ import annotations

import numpy as np
import pytest

import graphwright.editor as gde
from graphwright.ir.verify import verify
from tests.editor.graphs import close, run

pytestmark = pytest.mark.tensorflow


def test_detach(graph, t):
    view, before, behind = gde.detach(gde.sgv(t.c.op, t.a.op), control_ios=gde.ControlOutputs(graph))
    assert gde.OpMatcher("^foo/c$").input_ops("^a$", "^foo/geph__b_0$")(t.c.op)
    assert [p.name for p in before] == ["foo/geph__b_0:0"]
    assert sorted(p.name for p in behind) == ["foo/geph__c_0:0", "geph__a_0:0"]
    assert gde.OpMatcher("^foo/bar/g$").input_ops("^foo/geph__c_0$", "^geph__a_0$")(t.g.op)
    assert t.h.op.control_inputs == ()
    assert list(view.inputs) == before
    verify(graph.ir)
    feeds = {"foo/geph__c_0:0": [10.0, 20.0], "geph__a_0:0": [1.0, 2.0], "foo/geph__b_0:0": [5.0, 7.0]}
    close(run(graph, "foo/bar/g:0", feeds), [11.0, 22.0])
    close(run(graph, "foo/c:0", feeds), [6.0, 8.0])


def test_detach_inputs_and_outputs_of_a_node(graph, t):
    view, placeholders = gde.detach_inputs(t.h.op, control_inputs=True)
    assert [p.op.name for p in placeholders] == ["foo/bar/geph__f_0", "foo/bar/geph__g_0"]
    assert t.h.op.control_inputs == ()
    assert list(view.inputs) == placeholders
    _, behind = gde.detach_outputs(t.c.op)
    assert [p.name for p in behind] == ["foo/geph__c_0:0"]
    assert t.c.consumers() == []
    assert set(behind[0].consumers()) == {t.e.op, t.f.op, t.g.op}


def test_connect(graph, t):
    x = gde.make_const(graph, "x", np.array([1.0, 1.0], np.float32))
    y = gde.make_const(graph, "y", np.array([2.0, 2.5], np.float32))
    z = graph.add_node("z", "AddV2")
    z.add_attr("T", t.a.dtype)
    z.set_inputs([x.outputs[0], y.outputs[0]])
    z.infer_outputs()
    gde.connect(gde.sgv(x, y, z), gde.sgv(t.e.op).remap_inputs([0]))
    assert gde.OpMatcher("^foo/bar/e$").input_ops("^z$", "^foo/d$")(t.e.op)
    close(run(graph, "foo/bar/e:0"), [6.0, 6.5])


def test_connect_that_disconnects_first(graph, t):
    gde.connect(gde.sgv(t.d.op), gde.sgv(t.g.op).remap_inputs([1]), disconnect_first=True)
    assert gde.OpMatcher("g").input_ops("^foo/c$", "^foo/d$")(t.g.op)
    assert gde.OpMatcher("f").input_ops("^foo/c$", "geph__d_0")(t.f.op)
    verify(graph.ir)


def test_bypass(graph, t):
    view, placeholders = gde.bypass(gde.sgv(t.f.op).remap_inputs([0]))
    assert gde.OpMatcher("^foo/bar/h$").input_ops("^foo/c$", "foo/bar/g$")(t.h.op)
    assert list(view.inputs) == placeholders
    assert t.f.consumers() == []
    verify(graph.ir)
