"""Arguments that do not fit raise what they always raised, and the graph is as it was."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import graphwright.editor as gde
from graphwright.ir.text import to_text
from graphwright.ir.verify import verify
from tests.editor.graphs import eight_nodes

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def wide(graph):
    """A tensor of another shape."""
    return gde.make_const(graph, "wide", np.zeros(7, np.float32)).output(0)


@pytest.fixture
def ints(graph):
    """A tensor of another dtype."""
    return gde.make_const(graph, "ints", np.zeros(2, np.int32)).output(0)


@pytest.fixture
def removed(graph):
    """A tensor that is no longer in the graph."""
    tensor = gde.make_const(graph, "removed", np.zeros(2, np.float32)).output(0)
    graph.remove_node_by_name("removed")
    return tensor


@pytest.fixture
def other():
    """A tensor of another graph."""
    return eight_nodes()["a:0"]


def node_def(*inputs, group=b"loc:@a"):
    made = tf.NodeDef(name="new", op="AddV2", input=inputs)
    made.attr["_class"].list.s.append(group)
    return made


REFUSED = {
    "reroute to another dtype, second pair": (lambda x: gde.reroute_ts([x.t.a, x.ints], [x.t.b, x.t.c]), ValueError),
    "reroute to what was removed": (lambda x: gde.reroute_ts(x.removed, x.t.c), ValueError),
    "swap with what was removed": (lambda x: gde.swap_ts(x.t.c, x.removed), ValueError),
    "reroute a node": (lambda x: gde.reroute_ts(x.t.a.op, x.t.c), TypeError),
    "only tensors may be modified": (lambda x: gde.reroute_ts(x.t.a, x.t.c, can_modify=[x.t.a]), TypeError),
    "input that was removed": (lambda x: x.t.c.op.set_inputs([x.removed, x.t.b]), ValueError),
    "input of another graph": (lambda x: x.t.c.op.replace_input(0, x.other), ValueError),
    "input that does not exist": (lambda x: x.t.c.op.replace_input(5, x.t.a), IndexError),
    "inputs as text, waiting for itself": (lambda x: x.t.c.op.set_inputs_from_strings(["a", "^foo/c"]), ValueError),
    "waiting for itself": (lambda x: gde.add_control_inputs(x.t.c.op, [x.t.c.op]), ValueError),
    "waiting twice": (lambda x: gde.add_control_inputs(x.t.h.op, [x.t.a.op, x.t.c.op]), ValueError),
    "waiting for another graph": (lambda x: gde.add_control_inputs(x.t.h.op, [x.other.op]), ValueError),
    "not waiting": (lambda x: gde.remove_control_inputs(x.t.h.op, [x.t.c.op, x.t.a.op]), ValueError),
    "connect another shape": (
        lambda x: gde.connect(gde.sgv(x.wide.op), gde.sgv(x.t.e.op).remap_inputs([0]), disconnect_first=True),
        ValueError,
    ),
    "bypass of two inputs": (lambda x: gde.bypass(gde.sgv(x.t.f.op)), ValueError),
    "detach with both kinds": (
        lambda x: gde.detach(x.t.c.op, control_outputs=gde.ControlOutputs(x.graph), control_ios=gde.ControlOutputs(x.graph)),
        ValueError,
    ),
    "detach outputs without a table": (lambda x: gde.detach_outputs(gde.sgv(x.t.c.op), x.graph), TypeError),
    "swap of unequal views": (lambda x: gde.swap_ios(x.t.c.op, [x.t.h.op, x.t.g.op]), ValueError),
    "copy into something else": (lambda x: gde.copy(x.graph, dst_graph=x.graph.ir), TypeError),
    "copy from another scope": (lambda x: gde.copy(x.graph, dst_scope="x", src_scope="foo"), ValueError),
    "copy with another shape": (lambda x: gde.copy_with_input_replacements([x.t.c.op, x.t.e.op], {x.t.a: x.wide}), ValueError),
    "copy with another dtype": (lambda x: gde.copy_with_input_replacements([x.t.c.op, x.t.e.op], {x.t.a: x.ints}), ValueError),
    "copy with a tensor of another graph": (lambda x: gde.copy_with_input_replacements([x.t.c.op], {x.t.a: x.other}), ValueError),
    "replace by another shape": (lambda x: gde.graph_replace(x.t.h, {x.t.c: x.wide}), ValueError),
    "replace what is not connected": (lambda x: gde.graph_replace(x.t.c, {x.t.h: x.t.e}), ValueError),
    "rename to a name in use": (lambda x: x.graph.rename_node("a", "foo/b"), ValueError),
    "rename to a control edge": (lambda x: x.graph.rename_node("a", "^b"), ValueError),
    "add under a name in use": (lambda x: x.graph.add_node("A", "Const"), ValueError),
    "remove what is read": (lambda x: x.graph.remove_node_by_name("a"), ValueError),
    "node with an input that does not exist": (
        lambda x: x.graph.add_node_from_node_def(node_def("a", "nowhere"), set_inputs=True),
        ValueError,
    ),
    "node with a group that is none": (
        lambda x: x.graph.add_node_from_node_def(node_def("a", "a", group=b"a"), set_inputs=True),
        ValueError,
    ),
    "sum over two graphs": (lambda x: gde.make_simple_binary_op(x.graph, "z", "AddV2", x.t.a, x.other), ValueError),
    "identity of another graph": (lambda x: gde.make_identity(x.graph, "z", x.other), ValueError),
    "attribute of no kind": (lambda x: x.t.a.op.add_attr("x", object()), ValueError),
    "attribute that is there": (lambda x: x.t.a.op.add_attr("dtype", tf.float32), ValueError),
    "attribute that is not": (lambda x: x.t.a.op.replace_attr("x", 1), ValueError),
    "group of nobody": (lambda x: x.t.a.op.add_colocation_group("nobody"), ValueError),
}


class Things:
    """What the cases above name."""

    def __init__(self, **things):
        self.__dict__.update(things)


@pytest.mark.parametrize(("edit", "error"), REFUSED.values(), ids=REFUSED)
def test_a_refused_edit_changes_nothing(graph, t, wide, ints, removed, other, edit, error):
    before = to_text(graph.ir)
    with pytest.raises(error):
        edit(Things(graph=graph, t=t, wide=wide, ints=ints, removed=removed, other=other))
    assert to_text(graph.ir) == before
    verify(graph.ir)


FROZEN = {
    "reroute": lambda graph, t: gde.reroute_ts(t.a, t.b),
    "rename": lambda graph, t: graph.rename_node("a", "q"),
    "remove": lambda graph, t: graph.remove_node_by_name("foo/bar/e"),
    "copy": lambda graph, t: gde.copy(graph, dst_scope="q"),
    "replace": lambda graph, t: gde.graph_replace(t.h, {t.a: t.b}),
    "detach": lambda graph, t: gde.detach(t.c.op),
    "shape": lambda graph, t: setattr(t.c, "shape", [2]),
    "device": lambda graph, t: setattr(t.a.op, "device", "/cpu:0"),
    "attribute": lambda graph, t: t.a.op.add_attr("q", 1),
    "control": lambda graph, t: gde.add_control_inputs(t.h.op, t.a.op),
    "collection": lambda graph, t: t.a.add_to_collection("x"),
    "variable": lambda graph, t: graph.add_variable("v"),
    "node": lambda graph, t: graph.add_node_from_node_def(tf.NodeDef(name="q", op="NoOp")),
}


@pytest.mark.parametrize("edit", FROZEN.values(), ids=FROZEN)
def test_a_frozen_graph_refuses_every_edit(graph, t, edit):
    before = to_text(graph.ir)
    graph.frozen = True
    with pytest.raises(RuntimeError, match="frozen"):
        edit(graph, t)
    assert to_text(graph.ir) == before


def test_a_copy_whose_handler_raises_leaves_no_trace(graph):
    seen = []

    def handler(info, op, new_inputs):
        seen.append(op)
        if len(seen) == 5:
            raise KeyError("enough")
        return gde.copy_op_handler(info, op, new_inputs)

    before = to_text(graph.ir)
    copier = gde.Transformer()
    copier.transform_op_handler = handler
    with pytest.raises(KeyError, match="enough"):
        copier(graph, graph, "again")
    assert to_text(graph.ir) == before
    view, _ = gde.copy(graph, dst_scope="again")  # the names are free again
    assert view.ops[0].name == "again/a"
    verify(graph.ir)
