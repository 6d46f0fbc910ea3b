"""What `gw.gradients` and `gw.checkpointed` refuse, before they change anything, and what they warn of."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import graphwright as gw

v1: Any = tf.compat.v1


@pytest.fixture
def graph() -> Generator[Any]:
    """A graph with `x`, 8 times `h`, and `y`."""
    with tf.Graph().as_default() as made:
        hidden = tf.identity(tf.random.uniform((64, 64)), name="x")
        for k in range(8):
            hidden = tf.tanh(hidden, name=f"h{k}")
        tf.reduce_sum(hidden, name="y")
        yield made


@pytest.mark.parametrize(
    ("checkpoints", "said"),
    [
        ("memoory", "unknown way to choose checkpoints: 'memoory'"),
        ("", "unknown way"),
        ("collection", "the graph's collection 'checkpoints' is empty"),
        ([], "the list of checkpoints is empty"),
        (["h1"], "'h1' is not a tensor of a graph"),
        (None, "NoneType is no way to choose checkpoints"),
        (True, "bool is no way"),
        (1.5, "not below 1"),
        (0, "not a positive amount"),
        ("5 parsecs", "unknown unit 'parsecs'"),
        (object(), "object is no way"),
    ],
)
def test_checkpoints_that_say_nothing(graph: Any, checkpoints: Any, said: str) -> None:
    count = len(graph.get_operations())
    with pytest.raises(gw.ArgumentError, match=said):
        gw.gradients(graph.get_tensor_by_name("y:0"), graph.get_tensor_by_name("x:0"), checkpoints=checkpoints)
    assert len(graph.get_operations()) == count


def test_a_checkpoint_of_another_graph(graph: Any) -> None:
    with tf.Graph().as_default():
        strange = tf.ones(3, name="strange")
    with pytest.raises(gw.ArgumentError, match="'strange:0' belongs to another graph"):
        gw.gradients(graph.get_tensor_by_name("y:0"), graph.get_tensor_by_name("x:0"), checkpoints=[strange])


def test_a_checkpoint_that_does_not_lie_between(graph: Any) -> None:
    aside = tf.tanh(graph.get_tensor_by_name("h1:0"), name="aside")
    kept = [aside, graph.get_tensor_by_name("h3:0")]
    with pytest.warns(gw.CheckpointWarning, match="no gradient needs these checkpoints: aside:0") as caught:
        gw.gradients(graph.get_tensor_by_name("y:0"), graph.get_tensor_by_name("x:0"), checkpoints=kept)
    assert caught[0].filename == __file__


def test_a_collection_may_hold_more(graph: Any) -> None:
    tf.tanh(graph.get_tensor_by_name("h1:0"), name="aside")
    for name in ("aside:0", "h3:0"):
        v1.add_to_collection("checkpoints", graph.get_tensor_by_name(name))
    gw.gradients(graph.get_tensor_by_name("y:0"), graph.get_tensor_by_name("x:0"))
    gw.gradients_collection(graph.get_tensor_by_name("y:0"), graph.get_tensor_by_name("x:0"))


def test_a_budget_that_cannot_be_kept(graph: Any) -> None:
    with pytest.raises(gw.InfeasibleError) as raised:
        gw.gradients(graph.get_tensor_by_name("y:0"), graph.get_tensor_by_name("x:0"), checkpoints="20KiB", time_limit_s=0.2)
    smallest = raised.value.smallest_budget_bytes
    assert gw.gradients(graph.get_tensor_by_name("y:0"), graph.get_tensor_by_name("x:0"), checkpoints=smallest, time_limit_s=0.2)


def test_errors_keep_their_type_inside_a_function() -> None:
    @tf.function
    def slope(x: Any) -> Any:
        return gw.gradients(tf.reduce_sum(tf.tanh(tf.sin(x))), x, checkpoints="1KiB", time_limit_s=0.1)

    with pytest.raises(gw.InfeasibleError) as raised:
        slope(tf.ones((64, 64)))
    assert raised.value.smallest_budget_bytes > 1024


def test_an_unknown_argument(graph: Any) -> None:
    with pytest.raises(gw.ArgumentError, match=r"unknown argument 'gate'[^$]*tf.gradients takes name"):
        gw.gradients_memory(graph.get_tensor_by_name("y:0"), graph.get_tensor_by_name("x:0"), gate=True)


def test_nothing_to_differentiate(graph: Any) -> None:
    with pytest.raises(gw.ArgumentError, match="nothing to differentiate"):
        gw.gradients([], graph.get_tensor_by_name("x:0"), checkpoints="memory")


def test_eagerly_there_is_no_graph() -> None:
    x = tf.ones((64, 64))
    with pytest.raises(gw.UnsupportedError, match=r"gw\.checkpointed"):
        gw.gradients(tf.tanh(x), x, checkpoints="memory")


def test_no_gradient_at_all(graph: Any) -> None:
    assert gw.gradients_speed(graph.get_tensor_by_name("y:0"), tf.ones(3)) == [None]


@pytest.mark.parametrize("bad", [3, "text"])
def test_what_cannot_be_wrapped(bad: Any) -> None:
    with pytest.raises(gw.ArgumentError, match="cannot be called"):
        gw.checkpointed(bad)


@pytest.mark.parametrize("bad", [0, -1.0, None, "1", float("nan"), float("inf"), True])
def test_a_time_that_is_none(graph: Any, bad: Any) -> None:
    with pytest.raises(gw.ArgumentError, match="is not a time"):
        gw.gradients_memory(graph.get_tensor_by_name("y:0"), graph.get_tensor_by_name("x:0"), time_limit_s=bad)
    with pytest.raises(gw.ArgumentError, match="is not a time"):
        gw.checkpointed(tf.tanh, time_limit_s=bad)


@pytest.mark.parametrize(
    ("feeds", "said"),
    [
        ({"z": (2, 3)}, "'z' is not a placeholder of the graph"),
        ({"h1": (64, 64)}, "'h1' is not a placeholder of the graph"),
        *(({"given": shape}, "is not a shape of 'given'") for shape in ((2, None), (2, 4), (2, 3, 1), (-1, 3), 2, "ab", None)),
    ],
)
def test_feeds_that_do_not_fit(graph: Any, feeds: Any, said: str) -> None:
    given = v1.placeholder(tf.float32, [None, 3], name="given")
    count = len(graph.get_operations())
    with pytest.raises(gw.ArgumentError, match=said):
        gw.gradients_memory(tf.reduce_sum(tf.tanh(given)), given, feeds=feeds)
    assert len(graph.get_operations()) == count + 3  # the ys of this test


def test_budgets_by_numpy(graph: Any) -> None:
    for budget in (np.int64(2**30), np.float32(0.99)):
        assert gw.gradients(graph.get_tensor_by_name("y:0"), graph.get_tensor_by_name("x:0"), checkpoints=budget)


def test_a_tensor_of_keras_has_no_values() -> None:
    with pytest.raises(gw.ArgumentError, match="a KerasTensor was given"):
        gw.checkpointed(tf.tanh)(keras.Input((3,)))


def test_checkpoints_of_a_wrapped_function() -> None:
    with pytest.raises(gw.ArgumentError, match="unknown way"):
        gw.checkpointed(tf.tanh, checkpoints="memry")
    with pytest.raises(gw.ArgumentError, match="add_to_collection"):
        gw.checkpointed(tf.tanh, checkpoints=[tf.ones(3)])
