"""Steps in all forms that users have them."""

import numpy as np
import pytest

from graphwright.errors import ArgumentError

tf = pytest.importorskip("tensorflow")
from graphwright.run.traced_step import TracedStep, resolve  # noqa: E402


class Owner:
    grappler_disabled = True

    def __init__(self, function):
        self.function = function

    def concrete_function(self, *args, **kwargs):
        return self.function.get_concrete_function(*args, **kwargs)


def test_forms():
    function = tf.function(lambda x, y: x - y)
    x, y = tf.constant(5.0), tf.constant(3.0)
    for form in (function, function.get_concrete_function(x, y), Owner(function)):
        for inputs in ((x, y), [x, y], {"y": y, "x": x}, (np.float32(5.0), np.float32(3.0)) if form is function else (x, y)):
            assert float(resolve(form, inputs).run()) == 2.0
    assert resolve(Owner(function), (x, y)).grappler_disabled
    assert not resolve(function, (x, y)).grappler_disabled


def test_a_traced_step_runs_on_its_own_arguments_or_on_others():
    step = resolve(Owner(tf.function(lambda x, y: x - y)), (tf.constant(5.0), tf.constant(3.0)))
    assert step.is_runnable
    assert step.feeds == {"x": (), "y": ()}
    assert resolve(step, None) is step
    other = resolve(step, (tf.constant(1.0), tf.constant(3.0)))
    assert float(other.run()) == -2.0
    assert (other.grappler_disabled, other.owner) == (True, step.owner)
    assert not TracedStep("step", step.function, step.shapes).is_runnable


def test_arguments_that_may_be_left_out():
    three = tf.constant(3.0)

    @tf.function
    def step(x, factor=three, *, training=True):
        return x * factor if training else x

    x = tf.constant(2.0)
    assert float(resolve(step, x).run()) == 6.0
    assert float(resolve(step, {"x": x, "training": False}).run()) == 2.0
    assert float(resolve(step.get_concrete_function(x, training=False), (x, tf.constant(4.0))).run()) == 2.0


def test_nested_arguments_and_methods():
    class Model(tf.Module):
        def __init__(self):
            self.weight = tf.Variable(2.0, name="weight")

        @tf.function
        def step(self, batch):
            return batch["x"] * self.weight + batch["y"][0]

    model = Model()
    step = resolve(model.step, ({"x": tf.constant(1.0), "y": [tf.constant(4.0)]},))
    assert float(step.run()) == 6.0
    assert len(step.arguments) == 2
    assert list(step.variable_handles().values()) == [model.weight.handle]
    assert list(step.variable_handles()) == ["weight:0"]


def test_variables_of_the_same_name_are_told_apart():
    kernels = [tf.Variable(float(k), name="kernel") for k in range(2)]

    @tf.function
    def step(x):
        with tf.name_scope("first"):
            x = x * kernels[0]
        with tf.name_scope("second"):
            return x * kernels[1]

    handles = resolve(step, tf.constant(1.0)).variable_handles()
    assert [handle is kernel.handle for handle, kernel in zip(handles.values(), kernels, strict=True)] == [True, True]
    first, second = handles
    assert "first" in first
    assert "second" in second


def test_bad_input():
    with pytest.raises(ArgumentError, match="function cannot be traced"):
        resolve(lambda x: x, 1.0)
    concrete = tf.function(lambda x: x).get_concrete_function(tf.TensorSpec([2]))
    with pytest.raises(ArgumentError, match="do not fit"):
        resolve(concrete, tf.zeros([3]))
