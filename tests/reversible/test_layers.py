"""Shapes, inverses, errors, and what Keras does with layers: fit, save, load, distribute."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import graphwright as gw
from examples.reversible_networks import irevnet, reversible_transformer, revnet
from graphwright import train
from graphwright.reversible import check
from tests.reversible import cases


def compiled(**options):
    model = cases.network(**options)
    model.compile(keras.optimizers.Adam(1e-2), keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    return model


DATA = (np.random.default_rng(3).normal(size=(16, 6, 6, 8)).astype("float32"), np.arange(16) % 3)


def test_inverse_of_a_sequence_and_of_a_block(float64):
    model, x = cases.network("affine", rich=False), cases.images()
    trunk = model.get_layer("trunk")
    assert np.allclose(trunk.inverse(trunk(x)), x, atol=1e-12)
    block = trunk.layers[0]
    pair = tuple(tf.split(x, 2, -1))
    back = block.inverse(block(pair))
    assert all(np.allclose(a, b, atol=1e-12) for a, b in zip(back, pair, strict=True))


@pytest.mark.parametrize("axis", [1, -1])
def test_axis(axis):
    block = gw.ReversibleBlock(keras.layers.Activation("tanh"), keras.layers.Activation("sigmoid"), axis=axis)
    x = np.random.default_rng(0).normal(size=(2, 4, 6)).astype("float32")
    y = block(x)
    assert y.shape == x.shape
    x1, x2 = np.split(x, 2, axis)
    y1 = x1 + np.tanh(x2)
    assert np.allclose(y, np.concatenate([y1, x2 + 1 / (1 + np.exp(-y1))], axis), atol=1e-6)
    assert np.allclose(block.inverse(y), x, atol=1e-5)


def block(f=None, g=None, **options):
    dense = keras.layers.Dense
    return gw.ReversibleBlock(f or dense(2), g or dense(2), **options)


ROW = np.ones((1, 4), "float32")
REFUSED = {
    "turns shape": lambda: block(keras.layers.Dense(3))(ROW),
    "twice its channels": lambda: block(coupling="affine")(ROW),
    "split in two": lambda: block()(np.ones((1, 5), "float32")),
    "coupling=": lambda: block(coupling="multiplicative"),
    "not reversible": lambda: gw.ReversibleSequence([keras.layers.Dense(2)]),
    "second time": lambda: block(lambda x: tf.nn.dropout(x, 0.5))(ROW),
    "a dict of 2 tensors": lambda: block()({"a": ROW, "b": ROW}),
    "a tuple of 3 tensors": lambda: block()((ROW,) * 3),
    "multiples of 2": lambda: train.InvertibleDownsampling()(np.ones((1, 5, 4, 2), "float32")),
    "block_size=2.5": lambda: train.InvertibleDownsampling(2.5),
    "kept_blocks=1.5": lambda: gw.ReversibleSequence([train.InvertibleDownsampling()], kept_blocks=1.5),
    "one number of each": lambda: train.revnet([1, 1], [8]),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_reversed_is_refused(message):
    with pytest.raises((gw.ArgumentError, gw.UnsupportedError), match=message):
        REFUSED[message]()


def test_a_trunk_whose_stages_lose_information_has_no_inverse():
    trunk = train.revnet([1, 1], [4, 8]).get_layer("trunk")
    with pytest.raises(gw.UnsupportedError, match="no inverse"):
        trunk.inverse(trunk(np.ones((1, 32, 32, 8), "float32")))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["XLA", "a loss scale"])
def test_fit_with(how):
    keras.config.set_dtype_policy("mixed_float16" if how == "a loss scale" else "float32")
    try:
        model = compiled(rich=False)
    finally:
        keras.config.set_dtype_policy("float32")
    if how == "XLA":
        model.compile("adam", model.loss, jit_compile=True)
    assert (type(model.optimizer).__name__ == "LossScaleOptimizer") == (how == "a loss scale")
    history = model.fit(*DATA, batch_size=8, epochs=3, verbose=0).history["loss"]
    assert history[-1] < history[0]


@pytest.mark.slow
def test_fit_learns_as_plainly_and_saves(tmp_path):
    losses = []
    for reconstructs in (False, True):
        model = compiled()
        model.get_layer("trunk").reconstructs = reconstructs
        losses.append(model.fit(*DATA, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    expected = model.predict(DATA[0], verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert np.allclose(loaded.predict(DATA[0], verbose=0), expected, atol=1e-6)
    assert loaded.fit(*DATA, batch_size=8, verbose=0).history["loss"][0] < losses[1][0]
    model.export(tmp_path / "served", verbose=False)
    served = tf.saved_model.load(tmp_path / "served")
    assert np.allclose(served.serve(DATA[0]), expected, atol=1e-5)
    tf.saved_model.save(model, tmp_path / "saved")
    assert np.allclose(
        tf.saved_model.load(tmp_path / "saved").signatures["serving_default"](tf.constant(DATA[0]))["output_0"], expected, atol=1e-5
    )


@keras.saving.register_keras_serializable(package="graphwright_tests")
class Nested(keras.layers.Layer):
    """A function of a user's own, whose layers are in a list of lists and in a dictionary, as Keras allows."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.rows = [[keras.layers.Dense(2)], [keras.layers.Dense(2), keras.layers.Dropout(0.5)]]
        self.named = {"norm": keras.layers.BatchNormalization()}

    def build(self, shape):
        for layer in (*(layer for row in self.rows for layer in row), self.named["norm"]):
            layer.build(shape)
        self.built = True

    def call(self, x):
        return self.named["norm"](self.rows[1][1](self.rows[1][0](self.rows[0][0](x))))


def sequence_of_nested():
    return keras.Sequential([keras.Input((4,)), gw.ReversibleSequence([gw.ReversibleBlock(Nested(), Nested()) for _ in range(2)])])


SAVED = {
    "nested": sequence_of_nested,
    "revnet": lambda: train.revnet([1, 2], [4, 8], input_shape=(8, 8, 1), classes=2),
    "paper": lambda: revnet([1, 1], [4, 8], input_shape=(8, 8, 1), stem=8, bottleneck=True, classes=2),
    "i-revnet": lambda: irevnet([1, 1], [4, 8], input_shape=(8, 8, 1), classes=2),
    "transformer": lambda: reversible_transformer(9, 4, layers=1, width=4, heads=2),
}


def other_values(model, seed):
    """No value is as it was made, moving statistics and seeds among them."""
    random = np.random.default_rng(seed)
    for variable in model.variables:
        variable.assign(random.integers(1, 1000, variable.shape))
    return model


def unequal(variables, values):
    return [v.path for v, value in zip(variables, values, strict=True) if not np.array_equal(v.numpy(), value)]


@pytest.mark.parametrize(
    "make",
    [pytest.param(make, id=name, marks=pytest.mark.slow if "net" in name or "former" in name else ()) for name, make in SAVED.items()],
)
def test_every_variable_is_saved(make, tmp_path):
    """By TensorFlow without the optimizer, which would hold the trainable ones; and by Keras, which never keeps the states of seeds."""
    model = other_values(make(), 1)
    values, weights = [v.numpy() for v in model.variables], [v.numpy() for v in model.weights]
    path = tf.train.Checkpoint(model=model).save(tmp_path / "at")
    other = other_values(make(), 2)
    assert len(unequal(other.variables, values)) == len(values)  # the comparison tells them apart
    tf.train.Checkpoint(model=other).restore(path).assert_consumed()
    assert not unequal(other.variables, values)
    model.save(tmp_path / "model.keras")
    assert not unequal(keras.models.load_model(tmp_path / "model.keras").weights, weights)
    model.save_weights(tmp_path / "model.weights.h5")
    other = other_values(make(), 3)
    other.load_weights(tmp_path / "model.weights.h5")
    assert not unequal(other.weights, weights)
    tf.saved_model.save(model, tmp_path / "saved")
    again = other_values(make(), 4)
    tf.train.Checkpoint(again).restore(str(tmp_path / "saved" / "variables" / "variables")).expect_partial()  # the root is the model
    assert not unequal(again.variables, values)


def test_variables_made_after_a_restore_are_restored(tmp_path):
    def sequence():
        return gw.ReversibleSequence([gw.ReversibleBlock(keras.layers.Dense(2), keras.layers.Dense(2))])

    x = np.ones((1, 4), "float32")
    first, second = sequence(), sequence()
    expected = first(x)
    path = tf.train.Checkpoint(layer=first).save(tmp_path / "at")
    assert not np.allclose(sequence()(x), expected)
    tf.train.Checkpoint(layer=second).restore(path)
    assert np.array_equal(second(x), expected)


def test_fused_batch_norm_in_half_precision_and_inference():
    x = np.random.default_rng(0).normal(2.0, 3.0, (4, 5, 5, 3)).astype("float32")
    for policy in ("mixed_float16", "float64"):
        ours, theirs = train.FusedBatchNormalization(dtype=policy), keras.layers.BatchNormalization(dtype=policy)
        assert np.allclose(ours(x, training=True), theirs(x, training=True), atol=1e-2)
        assert np.allclose(ours(x), theirs(x), atol=1e-2)
        assert ours(x, training=True).dtype == theirs(x, training=True).dtype


def test_check_inverse_tells_dtypes_apart():
    model = train.revnet([1, 3], [4, 8], input_shape=(8, 8, 1), classes=3)
    before = [w.numpy() for w in model.weights]
    result = gw.check_inverse(model, np.random.default_rng(0).normal(size=(4, 8, 8, 1)).astype("float32"), training=True)
    errors = [result.worst(dtype).relative_error for dtype in ("float64", "float32", "mixed_bfloat16", "bfloat16")]
    assert errors[0] < 1e-13 < errors[1] < 1e-5
    assert errors[2] < 1e-5 < errors[3]
    assert max(row.depth for row in result.rows) == 2
    assert "blocks back" in str(result)
    assert all(np.array_equal(a, w.numpy()) for a, w in zip(before, model.weights, strict=True))
    with pytest.raises(gw.ArgumentError, match="no reversible layer"):
        gw.check_inverse(keras.Sequential([keras.layers.Dense(1)]), np.ones((1, 1)))
    for inputs, dtypes in ((np.ones((0, 8, 8, 1), "float32"), ["float32"]), (np.ones((1, 8, 8, 1), "float32"), [])):
        with pytest.raises(gw.ArgumentError, match="there is nothing to check"):
            gw.check_inverse(model, inputs, dtypes=dtypes)


class _Subclassed(keras.Model):
    def __init__(self, block, head):
        super().__init__()
        self.block, self.head = block, head

    def call(self, x):
        return self.head(self.block(x))


def _blocks(count=1):
    return [train.ReversibleBlock(*(keras.layers.Dense(4, activation="tanh") for _ in range(2))) for _ in range(count)]


@pytest.mark.parametrize(
    ("model", "blocks"),
    [
        (lambda: keras.Sequential([keras.layers.Dense(8), *_blocks(2)]), 2),
        (lambda: keras.Sequential([keras.Input((8,)), *_blocks()]), 1),
        (lambda: keras.Sequential([keras.layers.Dense(8), keras.Sequential(_blocks(2)), keras.layers.Dense(1)]), 2),
        (lambda: _Subclassed(train.ReversibleSequence(_blocks(3)), keras.layers.Dense(1)), 1),
    ],
    ids=["not built", "built", "nested", "subclassed"],
)
def test_check_inverse_takes_models_of_any_kind(model, blocks, monkeypatch):
    inputs = np.random.default_rng(0).normal(size=(2, 8)).astype("float32")
    model, seen = model(), []
    errors = check._errors
    monkeypatch.setattr(check, "_errors", lambda layer, x, *rest: seen.append(np.array(x)) or errors(layer, x, *rest))
    result = gw.check_inverse(model, inputs, dtypes=["float64", "float32"])
    assert result.worst("float64").relative_error < 1e-12 < result.worst("float32").relative_error < 1e-5
    assert len(seen) == 2 * blocks
    first = model.layers[0]
    if isinstance(first, keras.layers.Dense):  # a block is given what the layers before it make of the inputs
        assert np.allclose(seen[0], first(inputs))
