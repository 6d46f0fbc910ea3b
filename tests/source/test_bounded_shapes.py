"""The largest shapes of what depends on data: never below what a run gives, and where there is none, an error that says so."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import graphwright as gw
from graphwright.errors import UnknownShapeError
from graphwright.source.graph_def import to_graph_def
from graphwright.step.flatten import flatten

X = (12, 4)
Step = Callable[[Any, Any], Any]


def rows(x: Any) -> Any:
    return tf.boolean_mask(x, x[:, 0] > 0)


def kept_boxes(x: Any) -> Any:
    boxes = tf.concat([x[:, :2], x[:, :2] + 1.0], 1)
    return tf.gather(x, tf.image.non_max_suppression(boxes, x[:, 3], 5))


def branch(x: Any) -> Any:
    found = rows(x)
    return tf.cond(tf.reduce_sum(x) > 0, lambda: found * 2.0, lambda: tf.concat([x, x[:3]], 0))


def counted_in_a_branch(x: Any) -> Any:
    """The branch makes its rows from how many it was given: not what the bound says."""
    found = rows(x)
    return tf.cond(tf.reduce_sum(x) > -1e9, lambda: tf.zeros([12 - tf.shape(found)[0], 4]), lambda: x[:1])


def loop(x: Any) -> Any:
    return tf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, tf.nn.relu(h) + 1.0), (0, rows(x)))[1]


CASES: dict[str, tuple[Step, tuple[int, ...]]] = {
    "where": (lambda x, n: tf.where(x > 0), (48, 2)),
    "masked": (lambda x, n: rows(x) @ tf.ones([4, 7]), (12, 7)),
    "unique": (lambda x, n: tf.unique(n)[0], (20,)),
    "unique with counts": (lambda x, n: tf.unique_with_counts(n)[2], (20,)),
    "segment sum": (lambda x, n: tf.math.unsorted_segment_sum(tf.ones([20, 4]), *reversed(unique_size(n))), (20, 4)),
    "what is left": (lambda x, n: tf.zeros([20 - tf.size(tf.unique(n)[0])]), (20,)),
    "what is left of a slice": (lambda x, n: tf.range(20.0)[tf.size(tf.unique(n)[0]) :], (20,)),
    "both": (lambda x, n: tf.concat([rows(x), tf.zeros([12 - tf.shape(rows(x))[0], 4])], 0), (24, 4)),
    "padded": (lambda x, n: tf.pad(rows(x), [[0, 12 - tf.shape(rows(x))[0]], [0, 0]]), (24, 4)),
    "divided": (lambda x, n: tf.zeros([100 // (1 + tf.size(tf.unique(n)[0]))]), (100,)),
    "range": (lambda x, n: tf.range(tf.size(tf.unique(n)[0]), 30), (30,)),
    "reshaped": (lambda x, n: tf.reshape(rows(x), [-1, 2]) + 1.0, (24, 2)),
    "reshaped by what was found": (lambda x, n: tf.transpose(tf.reshape(rows(x), [tf.shape(rows(x))[0] * 2, -1])), (48, 24)),
    "partitioned": (lambda x, n: tf.dynamic_partition(x, n[:12] % 2, 2)[1], (12, 4)),
    "boxes": (lambda x, n: kept_boxes(x), (5, 4)),
    "branch": (lambda x, n: branch(x), (15, 4)),
    "counted in a branch": (lambda x, n: counted_in_a_branch(x), (12, 4)),
    "loop": (lambda x, n: loop(x), (12, 4)),
    "gradient": (lambda x, n: masked_gradient(x), (12, 4)),
    "slice of a random size": (lambda x, n: x[: tf.reduce_max(n) % 12, 1:], (12, 4)),
    "sparse sum": (lambda x, n: tf.sparse.add(tf.sparse.from_dense(x), tf.sparse.from_dense(tf.nn.relu(x))).values, (96,)),
    "difference": (lambda x, n: tf.sets.difference(n[None, :], n[None, :5]).values, (25,)),
    "rows filled": (lambda x, n: tf.sparse.fill_empty_rows(tf.sparse.from_dense(tf.nn.relu(x)), 1.0)[0].values, (60,)),
    "stated": (lambda x, n: tf.ensure_shape(tf.zeros([tf.reduce_sum(tf.ones_like(n))]), [20]) + 1.0, (20,)),
}


def unique_size(n: Any) -> tuple[Any, Any]:
    found, which = tf.unique(n)
    return tf.size(found), which


def masked_gradient(x: Any) -> Any:
    with tf.GradientTape() as tape:
        found = rows(x)
        tape.watch(found)
        loss = tf.reduce_sum(tf.square(found * tf.ones([4]) + tf.reduce_mean(found)))
    return tape.gradient(loss, found)


def traced(step: Step) -> Any:
    return tf.function(step).get_concrete_function(tf.TensorSpec(X), tf.TensorSpec((20,), tf.int32))


def data() -> list[tuple[Any, Any]]:
    draw = np.random.default_rng(0)
    found = [np.concatenate([np.full((k, 4), 1.0), np.full((12 - k, 4), -1.0)]) for k in (0, 1, 5, 11, 12)]
    numbers = [np.zeros(20), np.arange(20), draw.integers(0, 7, 20)]
    return [(tf.constant(x, tf.float32), tf.constant(n, tf.int32)) for x, n in itertools.product((*found, draw.normal(size=X)), numbers)]


@pytest.mark.parametrize("name", CASES)
def test_a_bound_is_what_the_ops_allow_and_no_run_gives_more(name: str) -> None:
    step, bound = CASES[name]
    flat = flatten(traced(step))
    assert flat.graph.outputs[0].shape == bound
    assert name == "stated" or "upper bounds" in flat.how["sizes"]
    for x, n in data():
        shape = tuple(step(x, n).shape)
        assert all(a <= b for a, b in zip(shape, bound, strict=True)), (shape, bound)


@pytest.mark.parametrize("name", ["masked", "counted in a branch", "both", "loop", "branch"])
@pytest.mark.filterwarnings("error::graphwright.errors.VerificationWarning")
def test_a_plan_computes_with_what_is_there_not_with_the_bound(name: str) -> None:
    """A size that is only a bound is not folded, nor written for TensorFlow to fold by."""
    step = tf.function(CASES[name][0])
    planned = gw.optimize_memory(step, "100%", inputs=data()[0], cache_dir=None, time_limit_s=0.5)
    for x, n in data():
        expected, got = step(x, n), planned(x, n)
        assert got.shape == expected.shape
        np.testing.assert_array_equal(got, expected)
    assert "as in the example inputs" in planned.plans[0].how["sizes"]


def test_a_bound_is_not_written_as_the_shape_of_an_argument() -> None:
    flat = flatten(traced(CASES["counted in a branch"][0]))
    inputs = {v: f.body for f in flat.graph.functions.values() for v in f.body.inputs if v in f.body.at_most}
    assert {v.shape for v in inputs} >= {X}
    written = {f.signature.name: f for f in to_graph_def(flat.graph).library.function}
    for value, body in inputs.items():
        attributes = written[body.name].arg_attr[body.inputs.index(value)].attr
        assert [[d.size for d in s.dim] for s in attributes["_output_shapes"].list.shape] == [[-1, 4]]


def test_without_a_bound_the_error_names_the_node_and_the_remedy() -> None:
    step = tf.function(lambda n: tf.sort(tf.fill([tf.reduce_sum(n)], 1.0, name="made")))
    with pytest.raises(UnknownShapeError, match=r"(?s)'made' \(Fill\).*tf\.ensure_shape"):
        gw.optimize_memory(step, "100%", feeds={"n": tf.TensorSpec((8,), tf.int32)}, cache_dir=None)
