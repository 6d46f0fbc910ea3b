"""A step in parts of its batch leaves what the step leaves, but for the order of sums over the batch."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from graphwright.analyze.in_parts import part_of_size
from graphwright.analyze.splitting import find_batch, find_splitting
from graphwright.errors import ArgumentError
from graphwright.ir.graph import Graph
from graphwright.ir.text import from_text
from graphwright.ir.traits.effects import Purity
from graphwright.ir.traits.values import PART, PART_OF
from graphwright.run.verify import verify
from graphwright.transform.split_batch import split_batch
from tests.transform.parts import split_step
from tests.transform.steps import STEPS

pytestmark = pytest.mark.tensorflow

keras: Any = importlib.import_module("keras")
tf: Any = importlib.import_module("tensorflow")

LAYER = """
graph "layer"
inputs %x:0, %w:0
outputs %mean:0
%x = Placeholder() : float32[8,4]
%w = Placeholder() : float32[4,4]
%axes = Const() {dtype = int32, value = tensor int32[2] [0, 1]} : int32[2]
%late = Const() ^y {dtype = float32, value = tensor float32[] [2.0]} : float32[]
%y = MatMul(%x:0, %w:0) {T = float32} : float32[8,4]
%z = Mul(%y:0, %late:0) {T = float32} : float32[8,4]
%mean = Mean(%z:0, %axes:0) {T = float32, Tidx = int32, keep_dims = false} : float32[]
"""


def split_layer(parts: int) -> Graph:
    graph = from_text(LAYER)
    purity = Purity(graph, {"Mean": False})
    found = find_splitting(graph, purity, graph.inputs)
    assert found is not None
    return split_batch(graph, purity, found, parts)


def test_parts_come_one_after_another() -> None:
    graph = split_layer(2)
    work = [node.name for node in graph if node.op_type not in ("Const", "Placeholder", "Slice")]
    assert work == "y/part0 z/part0 mean/part0 y/part1 z/part1 mean/part1 mean/added1 mean/divided".split()


def test_a_constant_that_waits_for_the_forward_pass_does_not_wait_for_all_parts() -> None:
    assert not split_layer(2)["late"].control_inputs


def test_what_runs_because_a_result_waits_for_it_still_runs() -> None:
    yes = "%yes = Const() {dtype = bool, value = tensor bool[] [true]} : bool[]\n"
    check = "%check = Assert(%yes:0, %axes:0) {T = [int32], summarize = 3}\n"
    text = LAYER.replace("%late =", f"{yes}{check}%late =").replace("%z = Mul(%y:0, %late:0)", "%z = Mul(%y:0, %late:0) ^check")
    graph = from_text(text)
    purity = Purity(graph, {"Mean": False, "Mul": False, "MatMul": False, "Assert": True})
    found = find_splitting(graph, purity, graph.inputs)
    assert found is not None
    assert "check" in split_batch(graph, purity, found, 2)


def test_a_size_times_a_part_may_be_more_than_its_type_holds() -> None:
    assert part_of_size(np.array([3, 2**30], np.int32), 1, 0, 8, 16).tolist() == [3, 2**29]


def test_parts_are_uneven_where_the_batch_is() -> None:
    graph = split_layer(3)
    sizes = [node.outputs[0].shape for node in graph if node.attrs.get(PART_OF) == b"y"]
    assert sizes == [(3, 4), (3, 4), (2, 4)]


def test_each_part_has_an_attribute_of_its_own_or_tensorflow_merges_equal_ones() -> None:
    graph = split_layer(4)
    marks = [(node.attrs[PART_OF], node.attrs[PART]) for node in graph if PART_OF in node.attrs]
    assert len(marks) == len(set(marks)) == 3 * 4


@pytest.mark.parametrize("parts", [1, 9])
def test_a_batch_of_eight_has_two_to_eight_parts(parts: int) -> None:
    with pytest.raises(ArgumentError, match="a batch of 8 cannot be split"):
        split_layer(parts)


def test_the_batch_is_what_most_arguments_have_in_front() -> None:
    graph = from_text(
        'graph "g"\n%a = Placeholder() : float32[3]\n%b = Placeholder() : float32[8,2]\n%c = Placeholder() : int32[8]\n'
        "%d = Placeholder() : float32[]\n"
    )
    batch, split = find_batch([graph.value(name) for name in "abcd"])
    assert (batch, [value.name for value in split]) == (8, ["b:0", "c:0"])


@pytest.mark.parametrize("name", [name for name in STEPS if name != "keras_model"])
def test_steps_that_rewrites_could_get_wrong(name: str) -> None:
    function, inputs = STEPS[name]()
    step = function if isinstance(function, tf.types.experimental.PolymorphicFunction) else tf.function(function)
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    found = split_step(step, inputs, 4)
    assert (proved := verify(step, found.function, inputs, rtol=1e-4, atol=1e-6)), proved


@contextmanager
def _float64() -> Iterator[None]:
    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    try:
        yield
    finally:
        keras.config.set_floatx(before[0])
        keras.config.set_dtype_policy(before[1])


def _model_with(*layers: Any) -> tuple[Any, Any]:
    """A step of Adam with dropout and batch normalization, in float64, and 10 examples."""
    model = keras.Sequential([keras.Input((8, 8, 3)), *layers, keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(3)])
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    rng = np.random.default_rng(3)
    return tf.function(step), (tf.constant(rng.normal(size=(10, 8, 8, 3))), tf.constant(rng.integers(0, 3, 10), tf.int32))


def test_dropout_and_batch_normalization_are_those_of_the_whole_batch() -> None:
    with _float64():
        step, inputs = _model_with(
            keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization(), keras.layers.ReLU(), keras.layers.Dropout(0.5, seed=1)
        )
        found = split_step(step, inputs, 4)
        assert (proved := verify(step, found.function, inputs, steps=2, rtol=1e-12, atol=2e-15)), proved
    assert not found.gathered
    assert "StatelessRandomUniformV2" in found.in_parts
    assert max(found.splitting.phases.values()) > 3  # two for the moments, forward and backward


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["transformer", "resnet50", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("mlp1000", "unet"))]
)
def test_reference_models_differ_by_roundings_alone(name: str) -> None:
    """Outputs and all variables. Not relatively: of a bias before batch normalization, the gradient is nothing but rounding."""
    from bench import zoo

    with _float64():
        reference = zoo.make(name, size="small", batch=6)
        inputs = tuple(tf.cast(x, tf.float64) if x.dtype.is_floating else x for x in reference.inputs)
        found = split_step(reference.step, inputs, 4)
        proved = verify(reference.step, found.function, inputs, rtol=0, atol=2e-15)
    assert not found.gathered
    assert proved, proved
