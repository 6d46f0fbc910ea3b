"""Gradients by reconstruction are those of backpropagation, states move once."""

import importlib.util
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import graphwright as gw
from graphwright import train
from graphwright.run.xla_memory import xla_memory
from graphwright.source.concrete_function import from_concrete_function
from graphwright.step.flatten import flatten_graph

_spec = importlib.util.spec_from_file_location("reversible_cases", Path(__file__).with_name("cases.py"))
cases = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(cases)


@pytest.mark.parametrize("coupling", cases.COUPLINGS, ids=["additive", "affine", "custom"])
def test_gradients_and_states_are_those_of_backpropagation(float64, coupling):
    x = cases.images()
    loss, expected, states = cases.gradients(cases.network(coupling), x, plain=True)
    untouched = [v.numpy() for v in cases.network(coupling).non_trainable_variables]
    assert cases.largest_difference(states, untouched) > 1e-3  # moving statistics and seeds have moved
    for how, kept in (("graph", 0), ("graph", 1), ("eager", 0)):
        found = cases.gradients(cases.network(coupling, kept_blocks=kept), x, how=how)
        assert found[0] == pytest.approx(loss, rel=1e-12)
        assert cases.largest_difference(found[1], expected) < 1e-10
        assert cases.largest_difference(found[2], states) < 1e-12


@pytest.mark.slow
def test_xla_gives_the_gradients_that_xla_gives_plainly(float64):
    x = cases.images()
    loss, expected, states = cases.gradients(cases.network(), x, how="xla", plain=True)
    found = cases.gradients(cases.network(kept_blocks=1), x, how="xla")
    assert found[0] == pytest.approx(loss, rel=1e-12)
    assert cases.largest_difference(found[1], expected) < 1e-10
    assert cases.largest_difference(found[2], states) < 1e-12


def test_another_dropout_mask_would_be_noticed(float64):
    model = cases.network()
    first = cases.gradients(model, cases.images())
    second = cases.gradients(model, cases.images())  # the seeds have moved on
    assert cases.largest_difference(second[1], first[1]) > 1e-3


@pytest.mark.slow
def test_a_tape_around_a_function_that_is_traced_already(float64):
    model, x = cases.network(), cases.images()
    _, expected, _ = cases.gradients(cases.network(), x, plain=True)
    forward = tf.function(lambda x: tf.add_n([tf.reduce_sum(tf.square(model(x, training=True))), *model.losses]))
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = forward(x)
    found = tape.gradient(loss, [x, *(v.value for v in model.trainable_variables)])
    assert cases.largest_difference([g.numpy() for g in found], expected) < 1e-10


def test_shared_layers_frozen_layers_and_functions_of_variables(float64):
    keras.utils.set_random_seed(0)
    shared, frozen, free = keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(3), tf.Variable(0.5, dtype="float64")
    frozen.trainable = False
    sequence = gw.ReversibleSequence(
        [gw.ReversibleBlock(shared, lambda x: free * x), gw.ReversibleBlock(frozen, shared), gw.ReversibleBlock(shared, tf.sin)]
    )
    x = tf.constant(np.random.default_rng(0).normal(size=(5, 6)))
    found = []
    for sequence.reconstructs in (False, True):

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(tf.square(sequence(x)))
            return tape.gradient(loss, [x, free, *(v.value for v in sequence.trainable_variables)])

        found.append([g.numpy() for g in step(x)])
    assert len(found[0]) == 4
    assert cases.largest_difference(found[1], found[0]) < 1e-10


def test_second_derivatives_are_right_or_refused(float64):
    keras.utils.set_random_seed(0)
    dense = keras.layers.Dense
    blocks = [gw.ReversibleBlock(dense(2, activation="tanh"), dense(2, activation="tanh")) for _ in range(2)]
    sequence = gw.ReversibleSequence(blocks)
    x = tf.constant([[0.1, -0.2, 0.3, 0.4]], tf.float64)
    sequence(x)

    def hessian(x):
        with tf.GradientTape(persistent=True) as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                loss = tf.reduce_sum(sequence(x) ** 3)
            gradient = inner.gradient(loss, x)
            parts = [gradient[0, k] for k in range(4)]
        return tf.concat([outer.gradient(part, x) for part in parts], 0)

    found = []
    for sequence.reconstructs in (False, True):
        found += [hessian(x).numpy(), tf.function(hessian)(x).numpy()]
    assert cases.largest_difference(found[1:], [found[0]] * 3) < 1e-10
    sequence.kept_blocks = 1
    with pytest.raises(gw.UnsupportedError, match="second derivative"):
        hessian(x)


@pytest.mark.parametrize("policy", ["bfloat16", "mixed_float16"])
def test_low_precision(policy):
    keras.config.set_dtype_policy(policy)
    try:
        model, plain = cases.network(rich=False), cases.network(rich=False)
    finally:
        keras.config.set_dtype_policy("float32")
    x = cases.images(dtype="float32")
    _, expected, _ = cases.gradients(plain, x, plain=True)
    _, found, _ = cases.gradients(model, x)
    error = np.linalg.norm(np.concatenate([(a - b).astype("float64").ravel() for a, b in zip(found, expected, strict=True)]))
    assert error < 0.1 * np.linalg.norm(np.concatenate([b.astype("float64").ravel() for b in expected]))
    assert model.get_layer("trunk").stream_dtype == ("float32" if "mixed" in policy else policy)


def revnet_gradients(kept, remembering, *, plain=False, jit_compile=False, **options):
    keras.utils.set_random_seed(0)
    model = train.revnet([1, 2], [4, 8], input_shape=(8, 8, 2), classes=3, stem=8, **options)
    trunk = model.get_layer("trunk")
    trunk.reconstructs, trunk.kept_blocks, trunk.remembering_blocks = not plain, kept, remembering
    x = tf.constant(np.random.default_rng(0).normal(size=(4, 8, 8, 2)))

    @tf.function(jit_compile=jit_compile)
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(x, training=True)))
        return tape.gradient(loss, [v.value for v in model.trainable_variables])

    return [g.numpy() for g in step(x)] + [v.numpy() for v in model.non_trainable_variables]


EVERY_WAY = ((0, 0), (1, None), (1, 2), (0, 9))


@pytest.mark.parametrize(
    ("options", "ways"),
    [
        ({"downsampling": "invertible"}, EVERY_WAY[2:]),
        pytest.param({}, EVERY_WAY, marks=pytest.mark.slow),
        pytest.param({"bottleneck": True}, EVERY_WAY, marks=pytest.mark.slow),
        pytest.param({"downsampling": "invertible"}, EVERY_WAY, marks=pytest.mark.slow),
    ],
    ids=["invertible", "basic", "bottleneck", "invertible in every way"],
)
def test_units_that_keep_inputs_or_remember_or_are_computed_again(float64, options, ways):
    expected = revnet_gradients(0, 0, plain=True, **options)
    for kept, remembering in ways:
        assert cases.largest_difference(revnet_gradients(kept, remembering, **options), expected) < 1e-10


@pytest.mark.slow
def test_xla_and_what_functions_remember(float64):
    expected = revnet_gradients(0, 0, plain=True, jit_compile=True)
    assert cases.largest_difference(revnet_gradients(1, 2, jit_compile=True), expected) < 1e-10


@pytest.mark.slow
def test_xla_rebuilds_one_unit_after_the_other():
    """XLA drops control dependencies, and merges what is computed again with the forward pass unless it is kept from it."""
    model = train.revnet([6], [8], input_shape=(16, 16, 3), classes=3, stem=8)
    trunk, x = model.get_layer("trunk"), tf.zeros((32, 16, 16, 3))
    trunk.kept_blocks = trunk.remembering_blocks = 0

    def temporary_bytes(*, reversible):
        trunk.reconstructs = reversible

        @tf.function(jit_compile=True)
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(model(x, training=True)))
            return tape.gradient(loss, [v.value for v in model.trainable_variables])

        return xla_memory(step.get_concrete_function(x), [tuple(x.shape)]).temporary_bytes

    assert temporary_bytes(reversible=True) < 0.5 * temporary_bytes(reversible=False)


@pytest.mark.slow
def test_activations_take_the_same_at_every_depth():
    """As built, where some is kept to save time; what grows with the depth is the weights and their gradients."""
    found = []
    for units in (2, 6, 9):
        model = train.revnet([units] * 3, [16, 32, 64], bottleneck=True, input_shape=(16, 16, 3), classes=3)
        assert model.get_layer("trunk").remembering_blocks

        @tf.function
        def step(x, model=model):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(model(x, training=True)))
            return tape.gradient(loss, [v.value for v in model.trainable_variables])

        predicted = gw.predict_peak(step, inputs=(tf.zeros((8, 16, 16, 3)),))
        found.append(
            predicted.peak_bytes - predicted.resident_bytes - sum(4 * v.value.shape.num_elements() for v in model.trainable_variables)
        )
    assert max(found[1:]) <= found[0], found


def test_no_convolution_runs_again_where_all_is_kept():
    model = train.revnet([1, 2], [4, 8], input_shape=(8, 8, 2), classes=3, stem=8)
    trunk, x = model.get_layer("trunk"), tf.zeros((4, 8, 8, 2))

    def convolutions(kept, remembering):
        trunk.kept_blocks, trunk.remembering_blocks = kept, remembering

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(model(x, training=True)))
            return tape.gradient(loss, [v.value for v in model.trainable_variables])

        graph, _ = flatten_graph(from_concrete_function(step.get_concrete_function(x))[0])
        return sum(node.op_type == "Conv2D" for node in graph.nodes)

    forward = 1 + 3 * 4  # stem, and four a unit
    assert convolutions(9, 9) == forward + 1  # the stem runs again in any case
    assert convolutions(0, 9) == forward + 1 + 2 * 2  # the last convolutions of two reversible units
    assert convolutions(0, 0) == forward + 1 + 2 * 4 + 2  # of the unit that is not, no last one


def test_masks_and_dropout_of_the_transformer(float64):
    found = []
    for reconstructs in (False, True):
        keras.utils.set_random_seed(0)
        model = train.reversible_transformer(11, 5, layers=2, width=8, heads=2, dropout=0.2, mask_zero=True)
        model.get_layer("trunk").reconstructs = reconstructs
        ids = tf.constant([[3, 4, 0, 0, 0], [1, 2, 3, 4, 5]])

        @tf.function
        def step(ids, model=model):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(model(ids, training=True)))
            return tape.gradient(loss, [v.value for v in model.trainable_variables])

        found.append([tf.convert_to_tensor(g).numpy() for g in step(ids)])
    assert cases.largest_difference(found[1], found[0]) < 1e-10
    changed = model(tf.constant([[3, 4, 7, 7, 7]]), training=False)[:, :2]
    assert np.allclose(changed, model(tf.constant([[3, 4, 0, 0, 0]]), training=False)[:, :2])
