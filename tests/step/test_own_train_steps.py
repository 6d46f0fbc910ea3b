"""Keras models that train their parts by a `train_step` of their own: `fit` and every question about the step work without a `call`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import graphwright as gw

layers = keras.layers
BATCH = 16


class VAE(keras.Model):
    """Draws inside the step; its parts have no `Input`, so that nothing is built before the first step."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = keras.Sequential([layers.Flatten(), layers.Dense(12, activation="tanh"), layers.Dense(4)])
        self.decoder = keras.Sequential([layers.Dense(12, activation="tanh"), layers.Dense(64), layers.Reshape((8, 8, 1))])
        self.seed_generator = keras.random.SeedGenerator(1)
        self.total = keras.metrics.Mean(name="loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.total]

    def train_step(self, data: Any) -> Any:
        with tf.GradientTape() as tape:
            mean, log_variance = tf.split(self.encoder(data), 2, axis=1)
            noise = keras.random.normal(tf.shape(mean), seed=self.seed_generator)
            restored = self.decoder(mean + tf.exp(0.5 * log_variance) * noise)
            loss = tf.reduce_mean((data - restored) ** 2) + tf.reduce_mean(mean**2 + tf.exp(log_variance) - log_variance)
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_weights), self.trainable_weights, strict=True))
        self.total.update_state(loss)
        return {"loss": self.total.result()}


class GAN(keras.Model):
    """Two optimizers that `compile` takes; the one that Keras makes itself is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.judge = keras.Sequential([layers.Conv2D(4, 3, strides=2), layers.LeakyReLU(0.2), layers.Flatten(), layers.Dense(1)])
        self.maker = keras.Sequential([layers.Dense(64, activation="relu"), layers.Dense(64), layers.Reshape((8, 8, 1))])
        self.seed_generator = keras.random.SeedGenerator(3)

    def compile(self, judge_optimizer: Any, maker_optimizer: Any, loss_fn: Any) -> None:
        super().compile()
        self.judge_optimizer, self.maker_optimizer, self.loss_fn = judge_optimizer, maker_optimizer, loss_fn

    def train_step(self, data: Any) -> Any:
        count = tf.shape(data)[0]
        noise = keras.random.normal((count, 6), seed=self.seed_generator)
        labels = tf.concat([tf.ones((count, 1)), tf.zeros((count, 1))], 0)
        with tf.GradientTape() as tape:
            loss = self.loss_fn(labels, self.judge(tf.concat([self.maker(noise), data], 0)))
        weights = self.judge.trainable_weights
        self.judge_optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        with tf.GradientTape() as tape:
            other = self.loss_fn(tf.zeros((count, 1)), self.judge(self.maker(noise)))
        weights = self.maker.trainable_weights
        self.maker_optimizer.apply_gradients(zip(tape.gradient(other, weights), weights, strict=True))
        return {"judge": loss, "maker": other}


class GANWithCall(GAN):
    """Its `call` takes noise, and `fit` gives it images."""

    def call(self, noise: Any) -> Any:
        return self.maker(noise)


class Contrastive(keras.Model):
    """Two encoders, one of which follows the other; the data are a mapping of two views."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = (keras.Sequential([layers.Dense(8, activation="relu"), layers.Dense(4)]) for _ in range(2))
        self.key.trainable = False

    def train_step(self, data: Any) -> Any:
        with tf.GradientTape() as tape:
            query, key = tf.math.l2_normalize(self.query(data["a"]), 1), tf.math.l2_normalize(self.key(data["b"]), 1)
            scores = tf.matmul(query, key, transpose_b=True)
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(tf.range(tf.shape(query)[0]), scores, from_logits=True))
        weights = self.query.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        for weight, average in zip(self.query.weights, self.key.weights, strict=True):
            average.assign(0.9 * average + 0.1 * weight)
        return {"contrast": loss}


class Diffusion(keras.Model):
    """An adapted normalization, batch norm and an exponential average of the network; the data are images and their classes."""

    def __init__(self) -> None:
        super().__init__()
        image, rate = keras.Input((8, 8, 1)), keras.Input((1, 1, 1))
        hidden = layers.Concatenate()([layers.Conv2D(4, 3, padding="same")(image), layers.UpSampling2D(8)(rate)])
        hidden = layers.BatchNormalization()(layers.Activation("swish")(hidden))
        self.normalizer, self.classes = layers.Normalization(), layers.Embedding(3, 1)
        self.network = keras.Model([image, rate], layers.Conv2D(1, 3, padding="same")(hidden))
        self.average = keras.models.clone_model(self.network)
        self.seed_generator = keras.random.SeedGenerator(5)

    def train_step(self, data: Any) -> Any:
        images, kinds = data
        images = self.normalizer(images)
        noise = keras.random.normal(tf.shape(images), seed=self.seed_generator)
        rate = tf.sigmoid(self.classes(kinds))[:, None, None, :]
        with tf.GradientTape() as tape:
            loss = self.loss(noise, self.network([tf.sqrt(1 - rate) * images + tf.sqrt(rate) * noise, rate], training=True))
        weights = self.network.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        for weight, average in zip(self.network.weights, self.average.weights, strict=True):
            average.assign(0.9 * average + 0.1 * weight)
        return {"noise": loss}


_RNG = np.random.default_rng(0)
_IMAGES = _RNG.random((2 * BATCH, 8, 8, 1)).astype("float32")
_VIEWS = _RNG.random((2, 2 * BATCH, 10)).astype("float32")


def _gan(kind: Callable[[], Any]) -> Any:
    model = kind()
    model.compile(keras.optimizers.Adam(), keras.optimizers.SGD(), keras.losses.BinaryCrossentropy(from_logits=True))
    return model


def _compiled(model: Any, **options: Any) -> Any:
    model.compile("adam", **options)
    return model


def _diffusion() -> Any:
    model = Diffusion()
    model.normalizer.adapt(_IMAGES)
    return _compiled(model, loss=keras.losses.mean_absolute_error)


_KINDS: dict[str, tuple[Callable[[], Any], Any, dict[str, Any]]] = {
    "vae": (lambda: _compiled(VAE()), _IMAGES, {"x": (BATCH, 8, 8, 1)}),
    "gan": (lambda: _gan(GAN), _IMAGES, {"x": (BATCH, 8, 8, 1)}),
    "gan with call": (lambda: _gan(GANWithCall), _IMAGES, {}),
    "contrastive": (lambda: _compiled(Contrastive()), {"a": _VIEWS[0], "b": _VIEWS[1]}, {"a": (BATCH, 10), "b": (BATCH, 10)}),
    "diffusion": (_diffusion, (_IMAGES, np.arange(2 * BATCH) % 3), {"x": (BATCH, 8, 8, 1), "y": tf.TensorSpec((BATCH,), tf.int64)}),
}


def _made(kind: str) -> Any:
    keras.utils.set_random_seed(0)
    return _KINDS[kind][0]()


def _dataset(kind: str) -> Any:
    return tf.data.Dataset.from_tensor_slices(_KINDS[kind][1]).batch(BATCH)


def _inputs(kind: str) -> Any:
    batch = next(iter(_dataset(kind)))
    return batch if isinstance(batch, tuple) else (batch,)


_SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("gan", "diffusion")]


@pytest.mark.parametrize("kind", ["vae", "gan with call", "contrastive", *_SLOW])
def test_fit_in_a_budget_trains_as_plain_fit_does(kind: str) -> None:
    plain = _made(kind).fit(_dataset(kind), epochs=2, shuffle=False, verbose=0).history
    model = gw.optimize_memory(_made(kind), 0.9, cache_dir=None, time_limit_s=0.5)
    history = model.fit(_dataset(kind), epochs=2, shuffle=False, verbose=0).history
    assert history.keys() == plain.keys()
    for name in plain:
        np.testing.assert_allclose(history[name], plain[name], rtol=1e-5, err_msg=name)
    assert len(model.optimized_step.plans) == 1
    assert model.memory_plan().verification.startswith("equal")
    if kind.startswith("gan"):
        assert not model.optimizer.built, "an optimizer that the step does not use takes no memory"


def test_the_first_batch_of_fit_is_what_inputs_mean() -> None:
    peaks = [gw.predict_peak(_made("vae"), inputs=inputs).peak_bytes for inputs in (_inputs("vae"), _dataset("vae"), _IMAGES[:BATCH])]
    assert len(set(peaks)) == 1
    model = gw.optimize_memory(_made("vae"), 0.9, inputs=_dataset("vae"), cache_dir=None, time_limit_s=0.5)
    model.train_on_batch(_IMAGES[:BATCH])
    assert len(model.optimized_step.plans) == 1, "train_on_batch gives the step what fit gives it"


@pytest.mark.parametrize("kind", ["contrastive", _SLOW[1]])
def test_feeds_training_and_inputs_lead_to_the_same_figures(kind: str) -> None:
    by_inputs = gw.count_flops(_made(kind), inputs=_inputs(kind))
    by_feeds = gw.count_flops(_made(kind), feeds=_KINDS[kind][2])
    trained = _made(kind)
    trained.fit(_dataset(kind), shuffle=False, verbose=0)
    by_training = gw.count_flops(trained, batch=BATCH)
    assert by_inputs.feeds == by_feeds.feeds == by_training.feeds
    assert by_inputs.total == by_feeds.total == by_training.total
    assert not by_inputs.unknown


def test_parameters_are_those_that_the_step_has() -> None:
    table = gw.count_parameters(_made("gan"), inputs=_inputs("gan"))
    judge, maker = 4 * 9 + 4 + 36 + 1, 6 * 64 + 64 + 64 * 64 + 64
    assert table.trainable == judge + maker
    moments = sum(p.elements for p in table.parameters if p.kind == "optimizer state" and ("momentum" in p.name or "velocity" in p.name))
    assert moments == 2 * judge, "Adam keeps two numbers per weight, SGD and the unused optimizer none"
    with pytest.raises(gw.ArgumentError, match="not built"):
        gw.count_parameters(_made("gan"))  # its parts are made at the first step


def test_what_is_not_known_is_said() -> None:
    with pytest.raises(gw.ArgumentError, match="inputs are not known") as error:
        gw.predict_peak(_made("vae"))
    assert "inputs=" in str(error.value)
    with pytest.raises(gw.ArgumentError, match="no `call`") as error:
        gw.predict_peak(_made("vae"), inputs=_inputs("vae"), mode="infer")
    assert "one of its parts" in str(error.value)


@pytest.mark.slow
def test_every_question_is_answered() -> None:
    inputs = _inputs("vae")
    plain = gw.predict_peak(_made("vae"), inputs=inputs).peak_bytes
    assert gw.inspect(_made("vae"), inputs=inputs).peak_bytes > 0
    smaller, larger = gw.sweep(_made("vae"), inputs=inputs, batches=[BATCH, 2 * BATCH]).points
    assert smaller.peak_bytes < larger.peak_bytes
    assert gw.max_batch(_made("vae"), 2 * plain, inputs=inputs).batch > BATCH
    assert gw.advise(_made("vae"), plain // 2, inputs=inputs, time_limit_s=0.5).feeds == {"x": (BATCH, 8, 8, 1)}
    assert gw.profile(_made("vae"), inputs=inputs, steps=1, isolated=False).feeds == {"x": (BATCH, 8, 8, 1)}
