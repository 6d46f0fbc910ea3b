"""Gradients by reconstruction equal those of backpropagation; states move once."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import graphwright as gw
from examples.reversible_networks import irevnet, reversible_transformer, revnet
from graphwright import train
from graphwright.run.xla_memory import xla_memory
from graphwright.source.concrete_function import from_concrete_function
from graphwright.step.flatten import flatten_graph
from tests.reversible import cases


@pytest.mark.parametrize("coupling", cases.COUPLINGS, ids=["additive", "affine", "custom"])
def test_gradients_and_states_are_those_of_backpropagation(float64, coupling):
    x = cases.images()
    loss, expected, states = cases.gradients(cases.network(coupling), x, plain=True)
    untouched = [v.numpy() for v in cases.network(coupling).non_trainable_variables]
    assert cases.largest_difference(states, untouched) > 1e-3  # moving statistics and seeds have moved
    for how, kept in (("graph", 0), ("graph", 1), ("eager", 0)):
        result = cases.gradients(cases.network(coupling, kept_blocks=kept), x, how=how)
        assert result[0] == pytest.approx(loss, rel=1e-12)
        assert cases.largest_difference(result[1], expected) < 1e-10
        assert cases.largest_difference(result[2], states) < 1e-12


@pytest.mark.slow
def test_xla_gives_the_gradients_that_xla_gives_plainly(float64):
    x = cases.images()
    loss, expected, states = cases.gradients(cases.network(), x, how="xla", plain=True)
    result = cases.gradients(cases.network(kept_blocks=1), x, how="xla")
    assert result[0] == pytest.approx(loss, rel=1e-12)
    assert cases.largest_difference(result[1], expected) < 1e-10
    assert cases.largest_difference(result[2], states) < 1e-12


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
    result = tape.gradient(loss, [x, *(v.value for v in model.trainable_variables)])
    assert cases.largest_difference([g.numpy() for g in result], expected) < 1e-10


def test_shared_layers_frozen_layers_and_functions_of_variables(float64):
    keras.utils.set_random_seed(0)
    shared, frozen, free = keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(3), tf.Variable(0.5, dtype="float64")
    frozen.trainable = False
    sequence = gw.ReversibleSequence(
        [gw.ReversibleBlock(shared, lambda x: free * x), gw.ReversibleBlock(frozen, shared), gw.ReversibleBlock(shared, tf.sin)]
    )
    x = tf.constant(np.random.default_rng(0).normal(size=(5, 6)))
    gradients = []
    for sequence.reconstructs in (False, True):

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(tf.square(sequence(x)))
            return tape.gradient(loss, [x, free, *(v.value for v in sequence.trainable_variables)])

        gradients.append([g.numpy() for g in step(x)])
    assert len(gradients[0]) == 4
    assert cases.largest_difference(gradients[1], gradients[0]) < 1e-10


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

    hessians = []
    for sequence.reconstructs in (False, True):
        hessians += [hessian(x).numpy(), tf.function(hessian)(x).numpy()]
    assert cases.largest_difference(hessians[1:], [hessians[0]] * 3) < 1e-10
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
    _, result, _ = cases.gradients(model, x)
    error = np.linalg.norm(np.concatenate([(a - b).astype("float64").ravel() for a, b in zip(result, expected, strict=True)]))
    assert error < 0.1 * np.linalg.norm(np.concatenate([b.astype("float64").ravel() for b in expected]))
    assert model.get_layer("trunk").stream_dtype == ("float32" if "mixed" in policy else policy)


def step_of(model, *, jit_compile=False):
    """The gradients of a training step."""

    @tf.function(jit_compile=jit_compile)
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(x, training=True)))
        return tape.gradient(loss, [v.value for v in model.trainable_variables])

    return step


def revnet_gradients(kept, remembering, *, build=revnet, plain=False, jit_compile=False, **options):
    keras.utils.set_random_seed(0)
    model = build([1, 2], [4, 8], input_shape=(8, 8, 2), classes=3, **options)
    trunk = model.get_layer("trunk")
    trunk.reconstructs, trunk.kept_blocks, trunk.remembering_blocks = not plain, kept, remembering
    x = tf.constant(np.random.default_rng(0).normal(size=(4, 8, 8, 2)))
    return [g.numpy() for g in step_of(model, jit_compile=jit_compile)(x)] + [v.numpy() for v in model.non_trainable_variables]


EVERY_WAY = ((0, 0), (1, None), (1, 2), (0, 9))


@pytest.mark.parametrize(
    ("options", "ways"),
    [
        ({"build": train.revnet}, EVERY_WAY[2:3]),
        pytest.param({"stem": 8}, EVERY_WAY, marks=pytest.mark.slow),
        pytest.param({"stem": 8, "bottleneck": True}, EVERY_WAY, marks=pytest.mark.slow),
        pytest.param({"build": irevnet}, EVERY_WAY, marks=pytest.mark.slow),
    ],
    ids=["of the library", "basic", "bottleneck", "invertible"],
)
def test_units_that_keep_inputs_or_remember_or_are_computed_again(float64, options, ways):
    expected = revnet_gradients(0, 0, plain=True, **options)
    for kept, remembering in ways:
        assert cases.largest_difference(revnet_gradients(kept, remembering, **options), expected) < 1e-10


@pytest.mark.slow
def test_xla_and_what_functions_remember(float64):
    expected = revnet_gradients(0, 0, plain=True, jit_compile=True, stem=8)
    assert cases.largest_difference(revnet_gradients(1, 2, jit_compile=True, stem=8), expected) < 1e-10


@pytest.mark.slow
def test_xla_rebuilds_one_unit_after_the_other():
    """XLA drops control dependencies, and merges what is computed again with the forward pass unless it is kept from it."""
    model = revnet([6], [8], input_shape=(16, 16, 3), classes=3, stem=8)
    trunk, x = model.get_layer("trunk"), tf.zeros((32, 16, 16, 3))
    trunk.kept_blocks = trunk.remembering_blocks = 0

    def temporary_bytes(*, reversible):
        trunk.reconstructs = reversible
        return xla_memory(step_of(model, jit_compile=True).get_concrete_function(x), [tuple(x.shape)]).temporary_bytes

    assert temporary_bytes(reversible=True) < 0.5 * temporary_bytes(reversible=False)


@pytest.mark.slow
def test_activations_take_the_same_at_every_depth():
    """As built, with some tensors stored to save time. Only the weights and their gradients grow with the depth."""
    activations = []
    for units in (2, 6, 9):
        model = revnet([units] * 3, [16, 32, 64], bottleneck=True, input_shape=(16, 16, 3), classes=3)
        assert model.get_layer("trunk").remembering_blocks
        peak = gw.predict_peak(step_of(model), inputs=(tf.zeros((8, 16, 16, 3)),))
        gradients = sum(4 * v.value.shape.num_elements() for v in model.trainable_variables)
        activations.append(peak.peak_bytes - peak.resident_bytes - gradients)
    assert max(activations[1:]) <= activations[0], activations


def test_no_convolution_runs_again_where_all_is_kept():
    model = revnet([1, 2], [4, 8], input_shape=(8, 8, 2), classes=3, stem=8)
    trunk, x = model.get_layer("trunk"), tf.zeros((4, 8, 8, 2))

    def convolutions(kept, remembering):
        trunk.kept_blocks, trunk.remembering_blocks = kept, remembering
        graph, _ = flatten_graph(from_concrete_function(step_of(model).get_concrete_function(x))[0])
        return sum(node.op_type == "Conv2D" for node in graph.nodes)

    forward = 1 + 3 * 4  # stem, and four a unit
    assert convolutions(9, 9) == forward + 1  # the stem runs again in any case
    assert convolutions(0, 9) == forward + 1 + 2 * 2  # the last convolutions of two reversible units
    assert convolutions(0, 0) == forward + 1 + 2 * 4 + 2  # of the unit that is not reversible, all but the last ones


def test_masks_and_dropout_of_the_transformer(float64):
    gradients = []
    ids = tf.constant([[3, 4, 0, 0, 0], [1, 2, 3, 4, 5]])
    for reconstructs in (False, True):
        keras.utils.set_random_seed(0)
        model = reversible_transformer(11, 5, layers=2, width=8, heads=2, dropout=0.2, mask_zero=True)
        model.get_layer("trunk").reconstructs = reconstructs
        gradients.append([tf.convert_to_tensor(g).numpy() for g in step_of(model)(ids)])
    assert cases.largest_difference(gradients[1], gradients[0]) < 1e-10
    changed = model(tf.constant([[3, 4, 7, 7, 7]]), training=False)[:, :2]
    assert np.allclose(changed, model(tf.constant([[3, 4, 0, 0, 0]]), training=False)[:, :2])
