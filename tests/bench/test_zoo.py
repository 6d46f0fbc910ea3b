"""The reference models are what they claim to be, and their steps train."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from bench import zoo
from graphwright.commands.demo_model import build_unet, unet_output_size
from graphwright.errors import ArgumentError


def losses_of(step, inputs, count=3):
    return [float(step(*inputs)) for _ in range(count)]


@pytest.mark.parametrize("dropout", [0.5, 0.0])
def test_unet_has_the_parameters_of_the_paper(dropout):
    with keras.StatelessScope():  # shapes alone: no weight gets a value
        model = build_unet(dropout=dropout)
    assert zoo.trainable_parameters(model) == 31_030_658
    assert model.output_shape == (None, 388, 388, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("resnet50", 25_583_592),
        ("densenet121", 7_978_856),
        pytest.param("mlp1000", 1000 * (128 * 128 + 128) + 1290, marks=pytest.mark.thorough),
    ],
)
def test_full_models_have_their_parameters(name, count):
    assert zoo.trainable_parameters(zoo.make(name, batch=1).model) == count


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in ("unet", "lstm") else pytest.mark.slow) for name in zoo.MODELS])
def test_a_small_step_moves_every_weight_and_learns(name):
    reference = zoo.make(name, size="small")
    before = [variable.numpy().copy() for variable in reference.model.trainable_variables]
    losses = losses_of(reference.step, reference.inputs, 5)
    moved = [np.any(old != new.numpy()) for old, new in zip(before, reference.model.trainable_variables, strict=True)]
    assert all(moved)
    assert losses[-1] < losses[0]
    assert reference.step.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("name", ["unet", "transformer"])
def test_dropout_is_active(name):
    reference = zoo.make(name, size="small")
    x = reference.inputs[0]
    assert np.any(reference.model(x, training=True).numpy() != reference.model(x, training=True).numpy())


def test_batch_normalization_is_active():
    reference = zoo.make("resnet50", size="small")
    means = [variable for variable in reference.model.non_trainable_variables if variable.name == "moving_mean"]
    before = [mean.numpy().copy() for mean in means]
    reference.step(*reference.inputs)
    assert means
    assert all(np.any(old != mean.numpy()) for old, mean in zip(before, means, strict=True))


def test_the_same_seed_gives_the_same_losses():
    losses = []
    for seed in (0, 0, 1):
        reference = zoo.make("mlp1000", size="small", seed=seed)
        losses.append(losses_of(reference.step, reference.inputs))
    assert losses[0] == losses[1] != losses[2]


def test_the_lstm_is_a_loop():
    reference = zoo.make("lstm", size="small")
    graph = reference.step.get_concrete_function(*reference.inputs).graph
    assert any(operation.type == "While" for operation in graph.get_operations())


def test_bfloat16_computes_in_bfloat16_and_keeps_the_global_policy():
    reference = zoo.make("transformer_bfloat16", size="small")
    graph = reference.step.get_concrete_function(*reference.inputs).graph
    products = [operation.outputs[0].dtype for operation in graph.get_operations() if operation.type == "BatchMatMulV2"]
    assert products
    assert set(products) == {tf.bfloat16}
    assert keras.config.dtype_policy().name == "float32"


@pytest.mark.parametrize("name", ["mlp1000", *(pytest.param(name, marks=pytest.mark.slow) for name in ("unet", "resnet50", "densenet121"))])
def test_recompute_grad_runs_the_forward_pass_twice_with_the_same_first_loss(name):
    plain = zoo.make(name, size="small")
    recomputing = zoo.make(name, size="small", variant="recompute_grad")
    counts = []
    for reference in (plain, recomputing):
        operations = reference.step.get_concrete_function(*reference.inputs).graph.get_operations()
        counts.append(sum(operation.type in ("Conv2D", "Tanh") for operation in operations))
    assert counts[1] > 1.5 * counts[0]
    assert losses_of(plain.step, plain.inputs, 1) == pytest.approx(losses_of(recomputing.step, recomputing.inputs, 1), rel=1e-5)


def test_a_variant_shares_model_and_optimizer():
    plain = zoo.make("mlp1000", size="small")
    other = plain.with_variant("recompute_grad")
    before = plain.model.trainable_variables[0].numpy().copy()
    other.step(*other.inputs)
    assert np.any(before != plain.model.trainable_variables[0].numpy())
    assert other.optimizer is plain.optimizer


def test_keras_models_fit_with_a_smaller_last_batch():
    model, (x, y) = zoo.keras_model("mlp1000", batch=4, batches=2)
    assert len(x) == 9
    history = model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0).history
    assert history["loss"][1] < history["loss"][0]


@pytest.mark.parametrize(("argument", "value"), [("name", "vgg"), ("size", "medium"), ("variant", "magic")])
def test_unknown_choices_are_named(argument, value):
    options = {"name": "unet", "size": "small", argument: value}
    with pytest.raises(ArgumentError, match=value):
        zoo.make(**options)


def test_a_model_without_blocks_learns_and_recomputes_nothing():
    reference = zoo.make("depthwise", size="small", batch=4)
    losses = losses_of(reference.step, reference.inputs, 3)
    assert losses[-1] < losses[0]
    with pytest.raises(ArgumentError, match="'depthwise' has no blocks"):
        reference.with_variant("recompute_grad")


def test_the_smallest_image_for_one_pooling():
    assert unet_output_size(18, 1) == 2


@pytest.mark.parametrize(("size", "poolings"), [(571, 4), (92, 4), (16, 1), (4, 1)])
def test_sizes_that_do_not_fit_the_unet_are_refused(size, poolings):
    with pytest.raises(ArgumentError, match=str(size)):
        unet_output_size(size, poolings)
