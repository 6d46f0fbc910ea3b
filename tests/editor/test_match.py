"""`OpMatcher` and `op_type`."""

from __future__ import annotations

import pytest

import graphwright.editor as gde

pytestmark = pytest.mark.tensorflow


def matcher():
    return gde.OpMatcher("^.*/f$")


def test_names_inputs_and_outputs(t):
    f = t.f.op
    assert matcher()(f)
    assert not matcher()(t.g.op)
    assert matcher().input_ops("^.*/c$", "^.*/d$")(f)
    assert not matcher().input_ops("^.*/d$", "^.*/c$")(f)
    assert not matcher().input_ops("^.*/c$")(f)
    assert matcher().input_ops(True, "^.*/d$")(f)
    assert matcher().input_ops(None, t.d.op)(f)
    assert matcher().input_ops(gde.op_type("AddV2"), gde.op_type("Const"))(f)
    waiting = gde.OpMatcher("^.*/h$").control_input_ops("^.*/c$")
    assert matcher().output_ops(waiting)(f)
    assert matcher().output_ops([waiting])(f)
    assert matcher().output_ops(None)(f)
    assert not matcher().output_ops([])(f)
    assert matcher().output_ops(gde.OpMatcher("^.*/h$").control_input_ops("^.*/c$").output_ops([]))(f)
    assert not gde.OpMatcher(True).control_input_ops("^.*/c$")(f)


def test_op_types(t):
    assert gde.op_type("Const", t.a.op)
    assert not gde.op_type(("Add", "AddV2"), t.a.op)
    assert gde.op_type(("Add", "AddV2"))(t.c.op)


def test_what_is_refused(t):
    with pytest.raises(ValueError, match="positive filter"):
        gde.OpMatcher(3)
    with pytest.raises(TypeError, match=r"gde\.Node"):
        matcher()(t.f)
    for word in ("input_ops", "control_input_ops", "output_ops"):
        with pytest.raises(ValueError, match="already set"):
            getattr(getattr(matcher(), word)(), word)()
