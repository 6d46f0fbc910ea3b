"""Keras's private machinery still does what we use it for."""

import sys
import tempfile
from traceback import walk_stack

import keras
import numpy as np
import pytest
import tensorflow as tf

from graphwright.source import private_keras as private
from graphwright.source.private_keras import track_parts, without_autocast


def test_variables_keep_their_dtype():
    class Probe(keras.layers.Layer):
        def build(self, shape):
            self.kernel = self.add_weight(shape=(1,))

        def call(self, x):
            self.cast = str(self.kernel.value.dtype.name)
            with without_autocast():
                self.kept = str(self.kernel.value.dtype.name)
            return x

    probe = Probe(dtype="mixed_float16")
    probe(keras.ops.ones((1,)))
    assert (probe.cast, probe.kept) == ("float16", "float32")


def test_tensorflow_sees_what_keras_keeps_in_lists():
    class Holder(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.parts = [keras.layers.Dense(1), keras.layers.Dropout(0.5)]

        def build(self, shape):
            self.parts[0].build(shape)

    def saved(layer):
        return {key for key, _ in tf.train.list_variables(tf.train.Checkpoint(layer).write(f"{folder}/at")) if "VARIABLE_VALUE" in key}

    with tempfile.TemporaryDirectory() as folder:
        holder = Holder()
        holder.build((1, 1))
        holder.built = True
        assert not saved(holder)  # where this fails Keras does it itself
        track_parts(holder)
        assert len(saved(holder)) == len(holder.variables) == 3


def test_layers_and_variables_of_a_model():
    inner = keras.Sequential([keras.layers.Dense(2), keras.layers.BatchNormalization()])
    model = keras.Sequential([inner, keras.layers.Dense(1)])
    model.build((None, 3))
    assert [type(layer).__name__ for layer in private.all_layers(model)].count("Dense") == 2
    assert model in private.all_layers(model)
    normalize = inner.layers[1]
    assert {id(v) for v in private.own_variables(normalize)} == {id(v) for v in normalize.variables}
    assert private.own_variables(inner) == []


def test_losses_that_a_call_adds():
    kept = keras.layers.Dense(2, activity_regularizer="l2", kernel_regularizer="l2")
    model = keras.Sequential([keras.Input((3,)), kept])
    model(keras.ops.ones((2, 3)))
    assert len(private.added_losses(model)) == 1
    assert len(model.losses) == 2


def test_the_structure_of_inputs():
    x, y = keras.Input((2,), name="x"), keras.Input((2,), name="y")
    model = keras.Model({"y": y, "x": x}, x + y)
    assert {key: tensor.name for key, tensor in private.input_structure(model).items()} == {"x": "x", "y": "y"}
    assert private.input_structure(keras.Sequential([x, keras.layers.Dense(1)]))[0].shape == (None, 2)


def test_what_a_model_is_compiled_with():
    model = keras.Sequential([keras.layers.Dense(1)])
    assert (private.compile_arguments(model), private.losses_and_metrics(model)) == ({}, [])
    model.compile("sgd", "mse", metrics=["mae"], jit_compile=False)
    assert private.compile_arguments(model)["jit_compile"] is False
    assert [item.built for item in private.losses_and_metrics(model)] == [False, False]
    assert private.loss_tracker_of(model) in model.metrics
    private.build_from(model, (tf.ones([4, 3]), tf.ones([4, 1])))
    assert [item.built for item in private.losses_and_metrics(model)] == [True, True]
    assert tuple(model.layers[0].kernel.shape) == (3, 1)


def test_fit_calls_the_builder_and_starts_at_the_epoch_that_are_set():
    class Later(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            private.set_first_epoch(self.model, 2)

        def on_epoch_begin(self, epoch, logs=None):
            epochs.append(epoch)
            private.set_first_epoch(self.model, None)

    model, built, epochs = keras.Sequential([keras.layers.Dense(1)]), [], []
    model.compile("sgd", "mse")

    def build(iterator=None, data_batch=None):
        built.append(iterator)
        private.build_from(model, (tf.ones([4, 3]), tf.ones([4, 1])))

    private.set_builder(model, build)
    model.fit(tf.ones([4, 3]), tf.ones([4, 1]), epochs=4, verbose=0, callbacks=[Later()])
    assert epochs == [2, 3]
    assert len(built) == 1


def test_what_layers_note_on_their_outputs():
    y = keras.layers.Masking()(tf.constant([[[0.0], [1.0]]]))
    assert private.mask_of(y).numpy().tolist() == [[False, True]]
    assert private.mask_of(tf.zeros([1])) is None
    logits = tf.constant([[1.0, 2.0]])
    assert private.logits_of(keras.activations.softmax(logits)) is logits
    assert private.logits_of(logits) is None


def test_who_trains_is_found_among_the_calls() -> None:
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    found = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            found.append(private.training_in(frame for frame, _ in walk_stack(None)))

    model.fit(tf.ones([6, 3]), tf.ones([6, 1]), batch_size=4, verbose=0, callbacks=[Look()])
    owner, (x, y) = found[0]
    assert owner is model
    assert (x.shape, y.shape) == ((4, 3), (4, 1))
    assert private.training_in([]) is None


class TestWhatAModelTakes:
    def test_the_names_of_inputs_are_those_of_their_layers(self):
        layer = keras.layers.Input((3,))
        assert private.input_name(layer).startswith("input_layer")
        assert private.input_name(keras.Input((3,), name="image")) == "image"

    def test_what_a_subclassed_model_was_called_with(self):
        class Model(keras.Model):
            def __init__(self):
                super().__init__()
                self.scores = keras.layers.Dense(2)

            def call(self, x):
                return self.scores(x["a"] + x["b"])

        model = Model()
        assert private.called_specs(model) is None
        specs = {key: tf.TensorSpec((4, 3)) for key in "ab"}
        assert private.call_with_specs(model, specs).shape == (4, 2)
        assert private.called_specs(model) == specs
        assert private.trained_on(model) is None
        model.compile("sgd", "mse")
        data = {key: tf.zeros((4, 3)) for key in "ab"}, tf.zeros((4, 2))
        model.fit(*data, batch_size=4, verbose=0)
        x, y = private.trained_on(model)
        assert (x["a"].shape, y.shape) == ((4, 3), (4, 2))
        model.train_on_batch(data[0], tf.zeros((4, 2)), tf.ones(4))
        assert len(private.trained_on(model)) == 3

    def test_an_optimizer_of_nothing_is_built_again(self):
        optimizer = keras.optimizers.SGD()
        optimizer.build([])
        private.forget_empty_build(optimizer)
        weight = keras.Variable([1.0])
        optimizer.build([weight])
        private.forget_empty_build(optimizer)
        assert optimizer.built


def test_layers_have_classes_by_their_names():
    inner = keras.Sequential([keras.layers.Dense(2, name="scores")], name="inner")
    model = keras.Sequential([keras.Input((3,)), keras.layers.ReLU(name="relu"), inner])
    classes = {layer: kind for layer, kind in private.layer_classes(model).items() if kind != "InputLayer"}
    assert classes == {"relu": "ReLU", "inner": "Sequential", "inner/scores": "Dense"}


def test_the_graph_of_a_functional_model_is_called_call_by_call():
    inputs = keras.Input((3,), name="x")
    drop, penalized = keras.layers.Dropout(0.999), keras.layers.Dense(2, activity_regularizer="l2")
    model = keras.Model(inputs, penalized(drop(inputs)))
    sequential = keras.Sequential([keras.layers.Dense(1)])
    assert [private.is_functional(layer) for layer in (model, sequential, drop)] == [True, False, False]
    sequential.build((None, 3))
    assert private.is_functional(sequential)
    assert not private.is_functional(type("Own", (keras.Sequential,), {"call": lambda self, x: x})([keras.Input((3,))]))
    (x,) = private.inputs_of_graph(model, np.ones([4, 3]))
    assert x.dtype == tf.float32
    values = {id(model.inputs[0]): x}
    for operation, fill, takes, gives in private.graph_calls(model):
        assert all(id(value) in values for value in takes)
        args, kwargs = fill(values)
        values[id(gives[0])] = private.as_called_in(training=False, operation=operation)(*args, **kwargs)
    assert tf.reduce_all(values[id(private.output_structure(model))] == model(x))
    assert tf.reduce_any(private.as_called_in(training=True, operation=drop)(x) == 0.0)
    assert len(private.added_losses(penalized)) == 1
    private.forget_added_losses(penalized)
    assert private.added_losses(penalized) == []


def test_fit_calls_evaluate_in_a_way_that_is_seen():
    model, seen = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]), []
    model.compile("sgd", "mse")
    plain = model.evaluate
    model.evaluate = lambda *args, **kwargs: seen.append(private.is_from_fit(kwargs)) or plain(*args, **kwargs)
    data = tf.ones([4, 3]), tf.ones([4, 1])
    model.fit(*data, validation_data=data, verbose=0)
    model.evaluate(*data, verbose=0)
    assert seen == [True, False]


def test_which_methods_of_training_a_model_replaces():
    class Own(keras.Sequential):
        def compute_loss(self, *args, **kwargs):
            return super().compute_loss(*args, **kwargs)

    model = Own([keras.layers.Dense(1)])
    assert private.what_is_overridden(model) == ["compute_loss"]
    model.train_step = model.train_step
    assert private.what_is_overridden(model) == ["train_step", "compute_loss"]
    assert private.what_is_overridden(keras.Sequential()) == []


def test_names_in_configurations_and_parts_of_models():
    assert private.object_of_config("keras.layers", "Dense") is keras.layers.Dense
    functional = private.object_of_config("keras.src.models.functional", "Functional")
    assert issubclass(functional, keras.Model)
    assert private.object_of_config("", "Dense") is keras.layers.Dense
    assert private.object_of_config("keras.src.not_loaded", "x") is None
    parts = (keras.layers.Dense, keras.Model, keras.losses.MeanSquaredError, keras.metrics.Mean, keras.optimizers.Adam, keras.DTypePolicy)
    for part in (*parts, keras.initializers.Zeros, keras.regularizers.L2, keras.random.SeedGenerator, keras.quantizers.AbsMaxQuantizer):
        assert private.is_saved_part(part), part
    for other in (keras.callbacks.CSVLogger, keras.utils.PyDataset, keras.activations.relu, None):
        assert not private.is_saved_part(other), other


def test_keras_imports_no_module_that_a_file_names():
    config = {"module": "antigravity", "class_name": "Thing", "config": {}, "registered_name": "Thing"}
    with pytest.raises(TypeError, match="Could not locate class"):
        keras.saving.deserialize_keras_object(config)
    assert "antigravity" not in sys.modules
