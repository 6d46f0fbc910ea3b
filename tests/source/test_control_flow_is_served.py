"""Edited arguments and results of the functions of While, If and Case are served by TensorFlow, with the numbers that were meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from graphwright.errors import GraphError
from graphwright.ir import edit
from graphwright.ir.graph import DTYPES, Graph, Node, Value
from graphwright.ir.verify import verify
from graphwright.source.load import load
from graphwright.source.package import rename_in_graph_rest
from graphwright.source.write import write
from tests.corpus.serving import by_loading, by_session

pytestmark = pytest.mark.tensorflow
FLOAT, HALF, INT = DTYPES["float32"], DTYPES["float16"], DTYPES["int32"]
X, Y = np.array([1.0, 2.0], np.float32), np.array([10.0, -1.0], np.float32)


class Model(tf.Module):
    def __init__(self):
        super().__init__()
        self.weight = tf.Variable(3.0)

    @tf.function(input_signature=[tf.TensorSpec([2], name="x"), tf.TensorSpec([2], name="y"), tf.TensorSpec([], tf.int32, name="n")])
    def call(self, x, y, n):
        chosen = tf.cond(n > 1, lambda: x * self.weight, lambda: x - 1.0)
        picked = tf.switch_case(n, [lambda: x + 1.0, lambda: x * 2.0, lambda: -x])
        total, count = tf.while_loop(lambda total, k: k < n, lambda total, k: (total + x, k + 1), (tf.zeros([2]), 0))
        return {"chosen": chosen, "picked": picked, "total": total, "count": count, "y": y + 0.0}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "model"
    module = Model()
    tf.saved_model.save(module, str(folder), signatures=module.call)
    return folder


class Edited:
    """The graph, and the node of control flow in the body of its function."""

    def __init__(self, saved: Path, kind: str) -> None:
        self.graph = load(saved)
        (self.body,) = [f.body for f in self.graph.functions.values() if any(n.op_type.endswith("While") for n in f.body)]
        (self.node,) = [n for n in self.body if n.op_type.removeprefix("Stateless") == kind]

    def function(self, key: str) -> str:
        attribute = self.node.attrs[key]
        return (attribute[0] if isinstance(attribute, tuple) else attribute).name

    def value(self, name: str) -> Value:
        return next(v for v in self.body.inputs if v.producer.name == name)

    def served(self, folder: Path, n: int) -> dict[str, Any]:
        verify(self.graph)
        write(self.graph, folder / "edited", overwrite=True)
        feeds = {"serving_default": {"x": X, "y": Y, "n": np.int32(n)}}
        ours = by_loading(folder / "edited", feeds)["serving_default"]
        theirs = by_session(folder / "edited", feeds)["serving_default"]
        assert {k: v.tolist() for k, v in ours.items()} == {k: np.asarray(v).tolist() for k, v in theirs.items()}
        return {k: v.tolist() for k, v in ours.items()}


def binary(op_type: str, a: Value, b: Value) -> Value:
    graph = a.producer.graph
    name = graph.unique_name(op_type)
    return graph.add_node(op_type, name, inputs=[a, b], attrs={"T": a.dtype}, output_types=[(a.dtype, a.shape)]).outputs[0]


def cast(value: Value, to: Any) -> Value:
    graph = value.producer.graph
    attrs = {"SrcT": value.dtype, "DstT": to}
    return graph.add_node("Cast", graph.unique_name("cast"), inputs=[value], attrs=attrs, output_types=[(to, value.shape)]).outputs[0]


@pytest.mark.parametrize(("kind", "key"), [("If", "then_branch"), ("Case", "branches")])
def test_an_argument_of_all_branches(saved, tmp_path, kind, key):
    model = Edited(saved, kind)
    name = model.function(key)
    added = edit.add_argument(model.graph, name, "extra", FLOAT, (2,), lambda _: model.value("y"))
    branch = model.graph.functions[name].body
    edit.set_result(model.graph, name, 0, binary("AddV2", branch.outputs[0], added))
    before = {"If": {0: X - 1, 2: X * 3}, "Case": {0: X + 1, 2: -X}}[kind]
    output = {"If": "chosen", "Case": "picked"}[kind]
    changed = {"If": 2, "Case": 0}[kind]
    for n in (0, 2):
        expected = before[n] + (Y if n == changed else 0)
        assert model.served(tmp_path, n)[output] == expected.tolist()
    edit.set_result(model.graph, name, 0, branch.outputs[0].producer.inputs[0])
    branch.remove_nodes(added.consumers)
    edit.remove_argument(model.graph, name, len(branch.inputs) - 1)
    assert model.served(tmp_path, changed)[output] == before[changed].tolist()


def test_an_argument_of_all_branches_in_half_precision(saved, tmp_path):
    model = Edited(saved, "If")
    name = model.function("then_branch")
    body = model.graph.functions[name].body
    index = next(k for k, v in enumerate(body.inputs) if v.dtype == FLOAT)
    less = cast(model.node.inputs[1 + index], HALF)
    edit.change_argument(model.graph, name, index, HALF, (2,), convert=lambda v: cast(v, FLOAT), values=lambda _: less)
    assert model.node.inputs[1 + index].dtype == HALF
    assert model.served(tmp_path, 2)["chosen"] == (X * 3).tolist()
    assert model.served(tmp_path, 0)["chosen"] == (X - 1).tolist()


def test_one_more_result_of_all_branches(saved, tmp_path):
    model = Edited(saved, "If")
    name = model.function("then_branch")
    edit.add_argument(model.graph, name, "extra", FLOAT, (2,), lambda _: model.value("y"))
    last = model.graph.functions[name].body.inputs[-1]
    made = edit.add_result(model.graph, name, last, others=lambda body: binary("Mul", body.inputs[-1], body.inputs[-1]))
    _return(model, "y", made[model.node])
    assert model.served(tmp_path, 2)["y"] == Y.tolist()
    assert model.served(tmp_path, 0)["y"] == (Y * Y).tolist()


def _return(model: Edited, name: str, value: Value) -> None:
    """Let the function return a value in the place of a result."""
    (k,) = [k for k, v in enumerate(model.body.outputs) if model.body.inputs[1] in _ancestors(v)]
    edit.set_result(model.graph, model.body.name, k, value)


def _ancestors(value: Value) -> set[Value]:
    found: set[Value] = set()
    stack = [value]
    while stack:
        item = stack.pop()
        if item not in found:
            found.add(item)
            stack += item.producer.inputs if "While" not in item.producer.op_type and "If" not in item.producer.op_type else ()
    return found


def test_a_loop_variable_that_stays_and_one_that_grows(saved, tmp_path):
    model = Edited(saved, "While")
    name = model.function("body")
    outputs = len(model.node.outputs)
    step = edit.add_argument(model.graph, name, "step", FLOAT, (2,), lambda _: model.value("y"))
    total = next(k for k, v in enumerate(model.node.outputs) if v.shape == (2,) and v.uses)
    body: Graph = model.graph.functions[name].body
    edit.set_result(model.graph, name, total, binary("AddV2", body.outputs[total], step))
    assert model.served(tmp_path, 3)["total"] == (3 * (X + Y)).tolist()
    grown = edit.add_argument(
        model.graph, name, "grown", FLOAT, (2,), lambda _: model.value("x"), next_value=lambda now: binary("AddV2", now, now)
    )
    assert len(model.node.inputs) == len(model.node.outputs) == outputs + 2
    assert grown.producer.graph is body
    _return(model, "y", model.node.outputs[-1])
    assert model.served(tmp_path, 3)["y"] == (X * 8).tolist()
    _return_again(model)
    edit.remove_argument(model.graph, name, outputs + 1)  # with the node that made its next value
    assert len(model.node.outputs) == outputs + 1
    assert model.served(tmp_path, 3)["total"] == (3 * (X + Y)).tolist()


def _return_again(model: Edited) -> None:
    places = [k for k, v in enumerate(model.body.outputs) if v is model.node.outputs[-1]]
    for k in places:
        edit.set_result(model.graph, model.body.name, k, model.value("y"))


def test_a_loop_variable_in_half_precision(saved, tmp_path):
    model = Edited(saved, "While")
    name = model.function("body")
    total = next(k for k, v in enumerate(model.node.outputs) if v.shape == (2,) and v.uses)
    reader = model.node.outputs[total]
    start = cast(model.node.inputs[total], HALF)
    convert: dict[str, Any] = {"convert": lambda v: cast(v, FLOAT), "convert_result": lambda v: cast(v, HALF), "values": lambda _: start}
    with pytest.raises(GraphError, match="is read by"):
        edit.change_argument(model.graph, name, total, HALF, (2,), **convert)
    readers: list[Node] = list(reader.consumers)
    zero = model.value("y")
    model.body.replace_uses(reader, zero)
    edit.change_argument(model.graph, name, total, HALF, (2,), **convert)
    back = cast(model.node.outputs[total], FLOAT)
    for node in readers:
        model.body.replace_inputs(node, [back if v is zero else v for v in node.inputs])
    assert model.served(tmp_path, 3)["total"] == (3 * X).tolist()


def test_renamed_functions_are_found_by_all_who_name_them(saved, tmp_path):
    """Calls, branches, loops, the object graph: `loaded.call`, its signature, and the functions that save and restore."""
    graph = load(saved)
    edit.rename_functions(graph, {name: f"renamed_{k}" for k, name in enumerate(graph.functions)})
    verify(graph)
    write(graph, tmp_path / "edited")
    feeds = {"serving_default": {"x": X, "y": Y, "n": np.int32(2)}}
    before, after = by_loading(saved, feeds)["serving_default"], by_loading(tmp_path / "edited", feeds)["serving_default"]
    assert {k: v.tolist() for k, v in after.items()} == {k: v.tolist() for k, v in before.items()}
    loaded = tf.saved_model.load(str(tmp_path / "edited"))
    assert loaded.call(X, Y, 2)["total"].numpy().tolist() == (2 * X).tolist()
    again = load(tmp_path / "edited")
    assert set(again.functions) == set(graph.functions)  # the wrapper of the signature was kept, not made anew
    copy = edit.copy_graph(again).graph
    edit.rename_functions(copy, {"renamed_0": "renamed_1", "renamed_1": "renamed_0"})
    write(copy, tmp_path / "exchanged")
    exchanged = by_loading(tmp_path / "exchanged", feeds)["serving_default"]
    assert {k: v.tolist() for k, v in exchanged.items()} == {k: v.tolist() for k, v in before.items()}


def test_gradients_of_functions_follow_a_renaming():
    graph_def = tf.compat.v1.GraphDef()
    graph_def.library.gradient.add(function_name="f", gradient_func="g")
    rest = rename_in_graph_rest(graph_def.SerializeToString(), {"f": "g", "g": "h"})
    (gradient,) = tf.compat.v1.GraphDef.FromString(rest).library.gradient
    assert (gradient.function_name, gradient.gradient_func) == ("g", "h")
