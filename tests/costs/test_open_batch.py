"""Signatures that leave the batch open, live, exported and frozen: it goes on behind loops, branches and lists."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import graphwright as gw

BATCH, STEPS, WIDTH = 3, 5, 6
SHAPES = {"x": (BATCH, STEPS, WIDTH)}


def _branch(x: Any, weight: Any) -> Any:
    rows = x[:, 0]
    return tf.cond(tf.reduce_sum(x) > 0, lambda: tf.nn.relu(rows @ weight), lambda: tf.tanh(rows @ weight) * 2.0)


def _case_in_a_branch(x: Any, weight: Any) -> Any:
    which = tf.cast(x[0, 0, 0], tf.int32)
    ways = [lambda: x[:, 1] @ weight, lambda: tf.tanh(x[:, 2]), lambda: tf.exp(x[:, 0] @ weight)]
    return tf.cond(tf.reduce_sum(x) > 0, lambda: tf.switch_case(which, ways), lambda: x[:, 0]) @ weight


def _loop_in_a_branch(x: Any, weight: Any) -> Any:
    def around() -> Any:
        return tf.while_loop(lambda k, _: k < 4, lambda k, rows: (k + 1, tf.tanh(rows @ weight)), [0, x[:, 0]])[1]

    return tf.cond(tf.reduce_sum(x) > 0, around, lambda: x[:, 1])


def _recurrent(x: Any, weight: Any) -> Any:
    """Takes its rows out of a list, and puts its states into one."""
    rows = tf.TensorArray(tf.float32, size=STEPS).unstack(tf.transpose(x, [1, 0, 2]))
    states = tf.TensorArray(tf.float32, size=STEPS)
    start = tf.zeros([tf.shape(x)[0], WIDTH])

    def once(k: Any, state: Any, states: Any) -> Any:
        state = tf.tanh(rows.read(k) @ weight + state)
        return k + 1, state, states.write(k, state)

    return tf.transpose(tf.while_loop(lambda k, *_: k < STEPS, once, [0, start, states])[2].stack(), [1, 0, 2])


_STEPS = {
    "branch": _branch,
    "case in a branch": _case_in_a_branch,
    "loop in a branch": _loop_in_a_branch,
    "recurrent": _recurrent,
    "two recurrent": lambda x, weight: _recurrent(_recurrent(x, weight), weight),
}


class _Model(tf.Module):
    """A model of one step, and what is behind it."""

    def __init__(self, step: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.weight = tf.Variable(tf.ones((WIDTH, WIDTH)))
        self.step = step

    @tf.function
    def traced(self, x: Any) -> Any:
        return {"y": tf.nn.softmax(self.step(x, self.weight) @ self.weight)}

    @tf.function(input_signature=[tf.TensorSpec((None, STEPS, WIDTH), name="x")])
    def serve(self, x: Any) -> Any:
        return self.traced(x)

    @tf.function(input_signature=[tf.TensorSpec((None, WIDTH), name="code")])
    def decode(self, code: Any) -> Any:
        return {"x": code @ self.weight @ self.weight}


@pytest.mark.parametrize("kind", _STEPS)
def test_flops_and_sizes_are_those_of_the_bound_step(kind: str) -> None:
    model = _Model(_STEPS[kind])
    bound = tf.function(lambda x: model.traced(x)).get_concrete_function(tf.TensorSpec(SHAPES["x"], name="x"))
    of_open, of_bound = gw.count_flops(model.serve, batch=BATCH), gw.count_flops(bound)
    assert of_open.total == of_bound.total > 0
    assert not of_open.unknown
    inspected = gw.inspect(model.serve, batch=BATCH)
    assert inspected.forward_flops == of_bound.total
    assert "loops" not in inspected.how, "nothing is only bounded"
    assert [value.shape for value in inspected.graph.outputs] == [value.shape for value in gw.inspect(bound).graph.outputs]


@pytest.mark.parametrize(
    "kind", ["two recurrent", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("branch", "loop in a branch"))]
)
def test_a_graph_whose_loops_were_lowered_counts_the_same(kind: str, tmp_path: Path) -> None:
    model = _Model(_STEPS[kind])
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    frozen = convert_variables_to_constants_v2(model.serve.get_concrete_function())
    (tmp_path / "frozen.pb").write_bytes(frozen.graph.as_graph_def().SerializeToString())
    assert gw.count_flops(tmp_path / "frozen.pb", batch=BATCH).total == gw.count_flops(model.serve, batch=BATCH).total


@pytest.mark.parametrize("beside", [{"serve": "serve"}, {"decode": "decode"}, {"again": "serve", "decode": "decode"}])
def test_of_a_graph_frozen_with_several_signatures_the_default_one_counts(beside: dict[str, str], tmp_path: Path) -> None:
    model = _Model(_branch)
    signatures = {"serving_default": model.serve, **{key: getattr(model, name) for key, name in beside.items()}}
    tf.saved_model.save(model, str(tmp_path / "model"), signatures=signatures)
    gw.freeze_variables(tmp_path / "model", out=tmp_path / "frozen.pb")
    found = gw.count_flops(tmp_path / "frozen.pb", batch=BATCH)
    assert found.total == gw.count_flops(tmp_path / "model", batch=BATCH).total
    assert found.name == "frozen (serving_default)"
    assert list(found.feeds) == ["serving_default_x"]
