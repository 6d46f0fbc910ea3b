"""Renamed functions of While, If and Case are served by TensorFlow, with the same numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from graphwright.ir import edit
from graphwright.ir.verify import verify
from graphwright.source.load import load
from graphwright.source.package import rename_in_graph_rest
from graphwright.source.write import write
from tests.corpus.serving import by_loading

pytestmark = pytest.mark.tensorflow
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
