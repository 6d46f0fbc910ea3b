"""Training graphs as programs of TensorFlow 1 build them: placeholders with an open batch, variables, a train op, an initializer."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

v1: Any = tf.compat.v1
OUTPUTS = ["net/train", "net/loss:0"]


@contextmanager
def control_flow(*, v2: bool) -> Generator[None]:
    """Loops and branches that are made in this block are those of TensorFlow 1, or functions."""
    before = v1.control_flow_v2_enabled()
    (v1.enable_control_flow_v2 if v2 else v1.disable_control_flow_v2)()
    try:
        yield
    finally:
        (v1.enable_control_flow_v2 if before else v1.disable_control_flow_v2)()


def trained(make: Callable[[Any], Any], shape: tuple[int, ...], *, handles: bool = True, optimizer: Any = None) -> Any:
    """A graph that trains with the loss that `make` gives for a placeholder `x` of this shape and an open batch."""
    graph = tf.Graph()
    with graph.as_default():
        x = v1.placeholder(tf.float32, (None, *shape), "x")
    with graph.as_default(), v1.variable_scope("net", use_resource=handles):
        loss = tf.identity(make(x), "loss")
        with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
            (optimizer or v1.train.MomentumOptimizer(0.1, 0.9)).minimize(loss, name="train")
        v1.global_variables_initializer()
    return graph


def residual(*, handles: bool = True, blocks: int = 2, size: int = 16, filters: int = 8) -> Any:
    """Residual blocks of convolutions with batch normalization, whose moving averages are updated."""

    def normalized(x: Any, name: str) -> Any:
        weight = v1.get_variable(f"{name}/kernel", (3, 3, x.shape[-1], filters))
        x = tf.nn.conv2d(x, weight, 1, "SAME")
        scale, offset = (v1.get_variable(f"{name}/{key}", (filters,)) for key in ("scale", "offset"))
        average = v1.get_variable(f"{name}/average", (filters,), trainable=False)
        x, mean, _ = v1.nn.fused_batch_norm(x, scale, offset, is_training=True)
        v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, v1.assign_sub(average, 0.1 * (average - mean)))
        return x

    def loss(x: Any) -> Any:
        h = tf.nn.relu(normalized(x, "stem"))
        for k in range(blocks):
            h = tf.nn.relu(h + normalized(tf.nn.relu(normalized(h, f"{k}a")), f"{k}b"))
        return tf.reduce_mean(h**2)

    return trained(loss, (size, size, 3), handles=handles)


def logistic(*, handles: bool = True) -> Any:
    """Logistic regression by Adam."""

    def loss(x: Any) -> Any:
        return tf.reduce_mean(tf.nn.sigmoid(x @ v1.get_variable("w", (64, 10)) + v1.get_variable("b", (10,))))

    return trained(loss, (64,), handles=handles, optimizer=v1.train.AdamOptimizer())


def embedding(*, handles: bool = True) -> Any:
    """Rows of a table, updated by rows."""

    def loss(x: Any) -> Any:
        return tf.reduce_mean(tf.nn.embedding_lookup(v1.get_variable("table", (50, 16)), tf.cast(x, tf.int32)) ** 2)

    return trained(loss, (4,), handles=handles, optimizer=v1.train.GradientDescentOptimizer(0.1))


def branched(*, handles: bool = True, v2: bool = True) -> Any:
    """A branch by a placeholder with a default."""

    def loss(x: Any) -> Any:
        h = tf.tanh(x @ v1.get_variable("w", (32, 32)))
        h = v1.cond(v1.placeholder_with_default(True, (), "training"), lambda: 2.0 * h, lambda: h)
        return tf.reduce_mean(h**2)

    with control_flow(v2=v2):
        return trained(loss, (32,), handles=handles)


def looped(*, handles: bool = True, v2: bool = True) -> Any:
    """A loop with a gradient."""

    def loss(x: Any) -> Any:
        w = v1.get_variable("w", (16, 16))
        return tf.reduce_mean(v1.while_loop(lambda i, h: i < 6, lambda i, h: (i + 1, tf.tanh(h @ w)), (0, x))[1])

    with control_flow(v2=v2):
        return trained(loss, (16,), handles=handles)


def exported(graph: Any, path: Path) -> Any:
    """The graph as a `MetaGraphDef`, which is also written."""
    with graph.as_default():
        return v1.train.export_meta_graph(str(path))


def steps_of(graph: Any, fetches: Any, x: np.ndarray[Any, Any], count: int = 3) -> list[Any]:
    """Losses of some steps and then the variables, from the same start, in a session."""
    with graph.as_default():
        variables = v1.global_variables()
    with v1.Session(graph=graph) as session:
        session.run("net/init")
        for k, variable in enumerate(v for v in variables if "Momentum" not in v.name and v.shape.rank):
            variable.load(np.cos(np.arange(variable.shape.num_elements()) + k).reshape(variable.shape).astype("float32") / 4, session)
        return [*(session.run(fetches, {"x:0": x})[-1] for _ in range(count)), *session.run(variables)]
