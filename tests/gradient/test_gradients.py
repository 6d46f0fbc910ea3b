"""`gw.gradients` in graphs of TF1: equal to `tf.gradients`, whatever the graph holds and however it is called."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import graphwright as gw
from graphwright.gradient.gradients import PLANS
from tests.gradient.sessions import assert_equal, both, peak_mib, recomputed, session, v1

MODES = ("memory", "speed", 0.7)
F64 = tf.float64


def weights(name: str, *shape: int, dtype: Any = F64, use_resource: bool = True) -> Any:
    values = np.random.default_rng(sum(map(ord, name))).normal(0, 0.3, shape)
    return v1.get_variable(name, initializer=tf.constant(values, dtype), use_resource=use_resource)


def dense_layers(depth: int = 6, use_resource: bool = True, dtype: Any = F64) -> tuple[Any, Any]:
    hidden = weights("x", 256, 64, use_resource=use_resource, dtype=dtype)
    xs = [hidden]
    for k in range(depth):
        xs.append(weights(f"w{k}", 64, 64, use_resource=use_resource, dtype=dtype))
        hidden = tf.sigmoid(tf.tanh(tf.matmul(hidden, xs[-1], name=f"product{k}"), name=f"tanh{k}"), name=f"hidden{k}")
    return tf.reduce_sum(hidden), xs


def hidden_of(*numbers: int) -> Any:
    return lambda graph: [graph.get_tensor_by_name(f"hidden{k}:0") for k in numbers]


@pytest.mark.parametrize("checkpoints", [*MODES, hidden_of(1, 3), "60%"])
def test_every_mode_gives_plain_gradients(checkpoints: Any) -> None:
    one, other, _ = both(dense_layers, checkpoints)
    assert_equal(one, other)


def test_the_comparison_can_fail() -> None:
    one, other, _ = both(dense_layers, "memory")
    with pytest.raises(AssertionError):
        assert_equal(one, [g * (1 + 1e-6) for g in other])


def test_a_collection_names_what_is_kept() -> None:
    def build() -> Any:
        y, xs = dense_layers()
        for k in (1, 3):
            v1.add_to_collection("checkpoints", tf.compat.v1.get_default_graph().get_tensor_by_name(f"hidden{k}:0"))
        return y, xs

    one, other, graph = both(build, "collection")
    assert_equal(one, other)
    again = {name.removeprefix("recomputed/") for name in recomputed(graph)}
    assert {"product0", "tanh0", "hidden0", "product2"} <= again
    assert again.isdisjoint({"hidden1", "hidden3"})


def test_speed_repeats_no_product() -> None:
    one, other, graph = both(dense_layers, "speed")
    assert_equal(one, other)
    assert {graph.get_operation_by_name(name).type for name in recomputed(graph)} <= {"Tanh", "Sigmoid"}


def test_what_was_in_the_graph_stays_as_it_was() -> None:
    graph = tf.Graph()
    with graph.as_default():
        y, xs = dense_layers()
        before = {op.name: op.node_def.SerializeToString() for op in graph.get_operations()}
        gw.gradients(y, xs, checkpoints="memory", time_limit_s=0.3)
        after = {op.name: op.node_def.SerializeToString() for op in graph.get_operations()}
    assert recomputed(graph)
    assert {name: after[name] for name in before} == before


def _several_ys() -> Any:
    y, xs = dense_layers()
    return [y, v1.get_default_graph().get_tensor_by_name("hidden3:0")], xs


def _an_x_between() -> Any:
    y, xs = dense_layers()
    return y, [v1.get_default_graph().get_tensor_by_name("hidden2:0"), weights("alone", 3), *xs]


def _checkpoints_among_ys_and_xs() -> Any:
    y, xs = dense_layers()
    hidden = [v1.get_default_graph().get_tensor_by_name(f"hidden{k}:0") for k in (1, 4)]
    return [y, hidden[1]], [*xs, hidden[0]]


def _chain_of(function: Any) -> Any:
    """A builder of a chain of a function of hidden values and weights."""

    def build() -> Any:
        hidden = weights("x", 64, 64)
        xs = [hidden, weights("w", 64, 64)]
        for _ in range(4):
            hidden = function(hidden, tf.convert_to_tensor(xs[1]))
        return tf.reduce_sum(hidden), xs

    return build


@tf.custom_gradient
def _odd(x: Any) -> Any:
    return tf.tanh(x), lambda dy: 3.0 * dy


@tf.function
def _block(h: Any, w: Any) -> Any:
    return tf.tanh(tf.sigmoid(h @ w))


EQUAL: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "incoming gradients": (_several_ys, "memory", {"grad_ys": [np.float64(2.0), None]}),
    "an x between": (_an_x_between, "memory", {}),
    "unconnected": (_an_x_between, "memory", {"unconnected_gradients": tf.UnconnectedGradients.ZERO}),
    "checkpoints among ys and xs": (_checkpoints_among_ys_and_xs, hidden_of(1, 4), {}),
    "gates": (dense_layers, "memory", {"gate_gradients": True}),
    "aggregation": (dense_layers, "memory", {"aggregation_method": tf.AggregationMethod.EXPERIMENTAL_ACCUMULATE_N}),
    "a name": (dense_layers, "memory", {"name": "mine"}),
    "half precision": (_chain_of(lambda h, w: tf.cast(tf.tanh(tf.cast(h, tf.float16) @ tf.cast(w, tf.float16)), F64)), "memory", {}),
    "custom gradients": (_chain_of(lambda h, w: tf.sigmoid(_odd(h)) @ w), "memory", {}),
    "functions": (_chain_of(lambda h, w: tf.tanh(tf.sin(_block(h, w)))), "memory", {"least": 0}),
    "functions, for speed": (_chain_of(lambda h, w: tf.tanh(tf.sin(_block(h, w)))), "speed", {"least": 0}),
}


@pytest.mark.parametrize("case", EQUAL)
def test_gradients_equal_plain_ones(case: str) -> None:
    build, checkpoints, options = EQUAL[case]
    one, other, _ = both(build, checkpoints, **options)
    assert_equal(one, other)


def test_stop_gradients() -> None:
    graph = tf.Graph()
    with graph.as_default():
        y, xs = dense_layers()
        stop = graph.get_tensor_by_name("hidden2:0")
        found = gw.gradients(y, xs, checkpoints="memory", stop_gradients=[stop], time_limit_s=0.3)
    assert [g is None for g in found] == [True] * 4 + [False] * 3


def test_sparse_gradients_stay_sparse() -> None:
    def build() -> Any:
        table, w = weights("table", 50, 16), weights("w", 16, 16)
        rows = tf.nn.embedding_lookup(table, tf.constant([[1, 2, 3, 1] * 8] * 4))
        hidden = tf.tanh(tf.tanh(tf.einsum("bti,ij->btj", rows, w)))
        return tf.reduce_sum(tf.tanh(tf.sigmoid(hidden))), [table, w]

    graph = tf.Graph()
    with graph.as_default():
        y, xs = build()
        assert isinstance(gw.gradients(y, xs, checkpoints="memory", time_limit_s=0.3)[0], tf.IndexedSlices)
    one, other, _ = both(build, "memory")
    assert_equal(one, other)


def test_dropout_keeps_its_mask_and_statistics_move_once() -> None:
    graph = tf.Graph()
    with graph.as_default():
        v1.set_random_seed(3)
        image, kernel = weights("image", 4, 12, 12, 3, dtype=tf.float32), weights("kernel", 3, 3, 3, 8, dtype=tf.float32)
        moving = v1.get_variable("moving", initializer=tf.zeros(8), trainable=False)
        count = v1.get_variable("count", initializer=0.0, trainable=False)
        hidden = tf.nn.conv2d(image, kernel, 1, "SAME")
        hidden, mean, _, *_ = v1.nn.fused_batch_norm(hidden, tf.ones(8), tf.zeros(8))
        with tf.control_dependencies([moving.assign_sub(0.1 * (moving - mean)), count.assign_add(1.0)]):
            hidden = tf.nn.dropout(tf.nn.relu(hidden), 0.5)
        hidden = tf.tanh(tf.tanh(hidden))
        y = tf.reduce_sum(hidden * hidden)
        plain = tf.gradients(y, [image, kernel])
        found = gw.gradients(y, [image, kernel], checkpoints="memory", time_limit_s=0.3)
    types = {graph.get_operation_by_name(name).type for name in recomputed(graph)}
    assert types
    assert types.isdisjoint({"RandomUniform", "AssignSubVariableOp", "AssignAddVariableOp"})
    with session(graph) as opened:
        one, other = opened.run([plain, found])
        assert_equal(one, other, 1e-6)
        assert opened.run(count) == 1.0


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("taken", [0, 1])
def test_conditionals(version: int, taken: int) -> None:
    def build() -> Any:
        y, xs = dense_layers(4)
        hidden = v1.get_default_graph().get_tensor_by_name("hidden3:0")
        chosen = tf.cond(tf.constant(taken) > 0, lambda: tf.tanh(hidden) @ xs[1], lambda: tf.sin(hidden))
        return y + tf.reduce_sum(tf.tanh(tf.tanh(chosen))), xs

    _with_control_flow(version, build)


@pytest.mark.parametrize("version", [1, 2])
def test_loops(version: int) -> None:
    def build() -> Any:
        y, xs = dense_layers(4)
        hidden = v1.get_default_graph().get_tensor_by_name("hidden3:0")
        _, last = tf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, tf.tanh(h @ xs[1])), [tf.constant(0), tf.tanh(hidden)])
        return y + tf.reduce_sum(tf.tanh(tf.tanh(last))), xs

    _with_control_flow(version, build)


def _with_control_flow(version: int, build: Any) -> None:
    switch = {1: v1.disable_control_flow_v2, 2: v1.enable_control_flow_v2}
    before = 2 if v1.control_flow_v2_enabled() else 1
    switch[version]()
    try:
        for mode in ("memory", hidden_of(1)):
            one, other, _ = both(build, mode)
            assert_equal(one, other)
    finally:
        switch[before]()


def test_variables_without_handles_are_updated_behind_the_clones_that_read_them() -> None:
    """Updates are in place; were they early, a clone would read new weights."""
    one, other, _ = both(lambda: dense_layers(use_resource=False), "memory")
    assert_equal(one, other)
    graph = tf.Graph()
    with graph.as_default():
        y, xs = dense_layers(use_resource=False)
        assert xs[0].op.type == "VariableV2"
        found = gw.gradients(y, xs, checkpoints=hidden_of(3)(graph))
        updates = [v1.assign_sub(x, 1e-3 * g) for x, g in zip(xs, found, strict=True)]
    read_again = 0
    for clone in (graph.get_operation_by_name(name) for name in recomputed(graph)):
        read = [t.op.inputs[0].op for t in clone.inputs if t.op.name.endswith("/read")]
        for x, update in zip(xs, updates, strict=True):
            if x.op in read:
                read_again += 1
                assert _waits_for(update.op, clone)
    assert read_again >= 4


def _waits_for(later: Any, earlier: Any) -> bool:
    seen, stack = {later}, [later]
    while stack:
        op = stack.pop()
        for before in (*(t.op for t in op.inputs), *op.control_inputs):
            if before not in seen:
                seen.add(before)
                stack.append(before)
    return earlier in seen


def test_devices_and_scopes() -> None:
    graph = tf.Graph()
    with graph.as_default():
        with graph.device("/device:CPU:0"):
            y, xs = dense_layers()
        with graph.name_scope("outer"), graph.device("/job:elsewhere"), graph.control_dependencies([tf.no_op("before")]):
            gw.gradients(y, xs, checkpoints="memory", time_limit_s=0.3)
    names = recomputed(graph)
    assert names
    for name in names:
        operation = graph.get_operation_by_name(name)
        assert operation.device == graph.get_operation_by_name(operation.get_attr("_graphwright_recomputed_from").decode()).device
        assert "before" not in [c.name for c in operation.control_inputs]


def test_gradients_of_gradients() -> None:
    graph = tf.Graph()
    with graph.as_default():
        y, xs = dense_layers(4)
        plain = tf.gradients(tf.reduce_sum(tf.gradients(y, xs[0])[0] ** 2), xs)
        first = gw.gradients(y, xs[0], checkpoints="memory", time_limit_s=0.3)[0]
        second = gw.gradients(tf.reduce_sum(first**2), xs, checkpoints="memory", time_limit_s=0.3)
    assert recomputed(graph)
    with session(graph) as opened:
        assert_equal(*opened.run([plain, second]))


def test_open_dimensions_are_assumed_or_given() -> None:
    def build() -> Any:
        x = v1.placeholder(F64, [None, 64], name="x")
        hidden, w = x, weights("w", 64, 64)
        for _ in range(4):
            hidden = tf.tanh(tf.tanh(hidden @ w) + tf.reduce_mean(hidden, 0, keepdims=True))
        return tf.reduce_sum(hidden), [w, x]

    feeds = {"x": np.random.default_rng(0).normal(size=(50, 64))}
    with pytest.warns(gw.AssumedSizeWarning, match="32 for the unknown dimensions of x"):
        one, other, _ = both(build, "memory", feeds=feeds)
    assert_equal(one, other)
    one, other, _ = both(build, "speed", feeds=feeds)  # needs no sizes
    assert_equal(one, other)


_KINDS: dict[str, Any] = {
    "tanh": lambda a, b, w: tf.tanh(a),
    "square": lambda a, b, w: tf.square(tf.sin(a)),
    "product": lambda a, b, w: tf.tanh(a @ w),
    "add": lambda a, b, w: tf.tanh(a) + b,
    "branch": lambda a, b, w: tf.concat(tf.split(tf.tanh(a), 2)[::-1], 0) * b,
}


@pytest.mark.filterwarnings("ignore::graphwright.errors.CheckpointWarning")  # not all that is drawn leads to the result
@settings(max_examples=12, phases=[Phase.explicit, Phase.generate])  # shrinking takes minutes: each try builds graphs
@given(st.data())
def test_random_graphs(data: st.DataObject) -> None:
    count = data.draw(st.integers(3, 9))
    picks = [data.draw(st.lists(st.integers(0, k), min_size=1, max_size=2)) for k in range(count)]
    kinds = [data.draw(st.sampled_from(sorted(_KINDS))) for _ in range(count)]
    mode = data.draw(st.sampled_from(["memory", "speed", "list", 0.5, 0.8]))

    def build() -> Any:
        values = [weights("x", 32, 32)]
        w = weights("w", 32, 32)
        for pick, kind in zip(picks, kinds, strict=True):
            values.append(_KINDS[kind](values[pick[0]], values[pick[-1]], w))
        return tf.reduce_sum(tf.add_n([tf.sin(v) for v in values[-3:]])), [values[0], w]

    def kept(graph: Any) -> Any:
        inside = [op.outputs[0] for op in graph.get_operations() if op.type == "Tanh"]
        return inside[:: max(1, len(inside) // 3)] or [graph.get_tensor_by_name("x/Read/ReadVariableOp:0")]

    graph = tf.Graph()
    with graph.as_default():
        y, xs = build()
        checkpoints = kept(graph) if mode == "list" else mode
        plain = tf.gradients(y, xs)
        try:
            found = gw.gradients(y, xs, checkpoints=checkpoints, time_limit_s=0.2)
        except gw.InfeasibleError:
            return
        pairs = [(p, f) for p, f in zip(plain, found, strict=True) if p is not None]
    with session(graph) as opened:
        values = opened.run(pairs)
    assert_equal([p for p, _ in values], [f for _, f in values])


# Bars: the peaks that the tool of 2018 reached in its own tests, in MiB of tensors of 1 MiB.


def _peak(build: Any, checkpoints: Any, **options: Any) -> float:
    graph = tf.Graph()
    with graph.as_default():
        y, x = build()
        kept = checkpoints(graph) if callable(checkpoints) else checkpoints
        found = tf.gradients(y, x) if kept is None else gw.gradients(y, x, checkpoints=kept, **options)
    return peak_mib(graph, found)


def _chain(length: int) -> Any:
    def build() -> Any:
        x = weights("x", 512, 512, dtype=tf.float32)
        hidden = x
        for k in range(length):
            hidden = tf.tanh(hidden, name=f"hidden{k}")
        return tf.reduce_sum(hidden), x

    return build


def _double_chain() -> Any:
    """Two chains that read each other: no single tensor separates them."""
    x = weights("x", 512, 512, dtype=tf.float32)
    a = b = x
    for k in range(5):
        a, b = tf.tanh(a, name=f"a{k}"), tf.sin(a + b, name=f"b{k}")
    return tf.reduce_sum(a + b), x


def test_peak_of_a_short_chain() -> None:
    assert _peak(_chain(5), hidden_of(2)) <= 4.1
    assert _peak(_chain(5), "memory", time_limit_s=0.3) <= 4.1


def test_peak_without_separators() -> None:
    plain = _peak(_double_chain, None)
    assert _peak(_double_chain, "memory", time_limit_s=0.5) <= min(7.1, 0.7 * plain)


def test_peak_of_a_long_chain() -> None:
    assert _peak(_chain(100), "memory", time_limit_s=1.0) <= 19.1


WIDTH = 40_000


def _sines(h: Any, scale: Any) -> tuple[Any, Any]:
    start = h
    for _ in range(12):
        h = tf.sin(h) * 1.01
    return tf.reduce_sum(h) * scale, start


def _can_be_folded(operation: Any) -> bool:
    """Whether TensorFlow may compute it when it prepares the graph."""
    return not operation.op_def.is_stateful and (
        operation.type == "Const" or (bool(operation.inputs) and all(_can_be_folded(t.op) for t in operation.inputs))
    )


def test_a_chain_from_a_constant_is_planned_and_not_folded() -> None:
    @tf.function
    def slope(scale: Any) -> Any:
        y, x = _sines(tf.ones((1, WIDTH)) * 0.5, scale)
        return gw.gradients_memory(y, [x])[0], tf.gradients(y, [x])[0]

    concrete = slope.get_concrete_function(tf.ones(()))
    (plan,) = concrete.graph.get_collection(PLANS)
    assert plan.peak_bytes < 0.6 * plan.plain_peak_bytes
    mine, plain = concrete(tf.constant(2.0))
    np.testing.assert_allclose(mine, plain, rtol=1e-6)
    clones = [concrete.graph.get_operation_by_name(name) for name in recomputed(concrete.graph)]
    sines = [clone for clone in clones if clone.type == "Sin"]
    assert sines
    assert not any(map(_can_be_folded, sines))


@pytest.mark.parametrize("kind", ["argument", "between", "ones"])
def test_second_derivatives_by_a_tensor_between_are_those_of_tensorflow(kind: str) -> None:
    """The second gradient has to meet the very tensor that the first one was taken by, so that tensor is never repeated."""

    @tf.function
    def second(take: Any, a: Any) -> Any:
        x = {"argument": a, "between": a * 1.0, "ones": tf.ones((1, 4096)) * 0.5}[kind]
        h = x
        for _ in range(12):
            h = tf.sin(h) * 1.01
        return tf.gradients(take(tf.reduce_sum(h), [x])[0], [x])[0]

    a = tf.fill((1, 4096), 0.5)
    np.testing.assert_allclose(second(gw.gradients_memory, a), second(tf.gradients, a), rtol=1e-5)
