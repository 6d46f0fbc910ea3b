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
    with tf.Graph().as_default() as built:
        hidden = tf.identity(tf.random.uniform((64, 64)), name="x")
        for k in range(8):
            hidden = tf.tanh(hidden, name=f"h{k}")
        tf.reduce_sum(hidden, name="y")
        yield built


def ends(graph: Any) -> tuple[Any, Any]:
    return graph.get_tensor_by_name("y:0"), graph.get_tensor_by_name("x:0")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"checkpoints": "memoory"}, "unknown way to choose checkpoints: 'memoory'"),
    ({"checkpoints": ""}, "unknown way"),
    ({"checkpoints": "collection"}, "the graph's collection 'checkpoints' is empty"),
    ({"checkpoints": []}, "the list of checkpoints is empty"),
    ({"checkpoints": ["h1"]}, "'h1' is not a tensor of a graph"),
    ({"checkpoints": None}, "NoneType is no way to choose checkpoints"),
    ({"checkpoints": True}, "bool is no way"),
    ({"checkpoints": 1.5}, "not below 1"),
    ({"checkpoints": 0}, "not a positive amount"),
    ({"checkpoints": "5 parsecs"}, "unknown unit 'parsecs'"),
    ({"checkpoints": "memory", "gate": True}, r"unknown argument 'gate'[^$]*tf.gradients takes name"),
    ({"checkpoints": "memory", "feeds": {"z": (2, 3)}}, "'z' is not a placeholder of the graph"),
    ({"checkpoints": "memory", "feeds": {"h1": (64, 64)}}, "'h1' is not a placeholder of the graph"),
    *(({"checkpoints": "memory", "time_limit_s": bad}, "is not a time") for bad in (0, -1.0, None, "1", float("nan"), float("inf"), True)),
    *(
        ({"checkpoints": "memory", "feeds": {"open": shape}}, "is not a shape of 'open'")
        for shape in ((2, None), (2, 4), (2, 3, 1), (-1, 3), 2, "ab", None)
    ),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_what_is_refused_changes_no_graph(graph: Any, options: dict[str, Any], message: str) -> None:
    v1.placeholder(tf.float32, [None, 3], name="open")
    count = len(graph.get_operations())
    with pytest.raises(gw.ArgumentError, match=message):
        gw.gradients(*ends(graph), **options)
    assert len(graph.get_operations()) == count


def test_a_checkpoint_of_another_graph(graph: Any) -> None:
    with tf.Graph().as_default():
        strange = tf.ones(3, name="strange")
    with pytest.raises(gw.ArgumentError, match="'strange:0' belongs to another graph"):
        gw.gradients(*ends(graph), checkpoints=[strange])


def test_a_checkpoint_that_does_not_lie_between(graph: Any) -> None:
    tensors = [tf.tanh(graph.get_tensor_by_name("h1:0"), name="aside"), graph.get_tensor_by_name("h3:0")]
    with pytest.warns(gw.CheckpointWarning, match="no gradient needs these checkpoints: aside:0") as caught:
        gw.gradients(*ends(graph), checkpoints=tensors)
    assert caught[0].filename == __file__
    for tensor in tensors:  # a collection may hold more
        v1.add_to_collection("checkpoints", tensor)
    gw.gradients(*ends(graph))
    gw.gradients_collection(*ends(graph))


def test_a_budget_that_cannot_be_kept(graph: Any) -> None:
    with pytest.raises(gw.InfeasibleError) as raised:
        gw.gradients(*ends(graph), checkpoints="20KiB", time_limit_s=0.2)
    assert gw.gradients(*ends(graph), checkpoints=raised.value.smallest_budget_bytes, time_limit_s=0.2)


def test_errors_keep_their_type_inside_a_function() -> None:
    @tf.function
    def slope(x: Any) -> Any:
        return gw.gradients(tf.reduce_sum(tf.tanh(tf.sin(x))), x, checkpoints="1KiB", time_limit_s=0.1)

    with pytest.raises(gw.InfeasibleError) as raised:
        slope(tf.ones((64, 64)))
    assert raised.value.smallest_budget_bytes > 1024


def test_nothing_to_differentiate(graph: Any) -> None:
    y, x = ends(graph)
    with pytest.raises(gw.ArgumentError, match="nothing to differentiate"):
        gw.gradients([], x, checkpoints="memory")
    assert gw.gradients_speed(y, tf.ones(3)) == [None]


def test_eagerly_there_is_no_graph() -> None:
    x = tf.ones((64, 64))
    with pytest.raises(gw.UnsupportedError, match=r"gw\.checkpointed"):
        gw.gradients(tf.tanh(x), x, checkpoints="memory")


def test_budgets_by_numpy(graph: Any) -> None:
    for budget in (np.int64(2**30), np.float32(0.99)):
        assert gw.gradients(*ends(graph), checkpoints=budget)


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (3, {}, "cannot be called"),
        ("text", {}, "cannot be called"),
        (tf.tanh, {"checkpoints": "memry"}, "unknown way"),
        (tf.tanh, {"checkpoints": [1.0]}, "add_to_collection"),
        (tf.tanh, {"time_limit_s": 0}, "is not a time"),
    ],
)
def test_what_cannot_be_wrapped(function: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(gw.ArgumentError, match=message):
        gw.checkpointed(function, **options)


def test_a_tensor_of_keras_has_no_values() -> None:
    with pytest.raises(gw.ArgumentError, match="a KerasTensor was given"):
        gw.checkpointed(tf.tanh)(keras.Input((3,)))
