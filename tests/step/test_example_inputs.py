import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from graphwright.step.example_inputs import example_inputs, preparable, runnable
from graphwright.step.targets import trace


def test_they_have_the_structure_and_the_shapes_of_the_step():
    step = tf.function(lambda data, scale: (data, scale))
    x, y = tf.zeros((4, 3), tf.bfloat16), tf.ones((4,), tf.int64)
    (made_x, made_y), scale = example_inputs(trace(step, inputs=((x, y), tf.constant(2.0, tf.float64))))
    assert (made_x.shape, made_x.dtype) == ((4, 3), tf.bfloat16)
    assert (made_y.shape, made_y.dtype) == ((4,), tf.int64)
    assert (scale.shape, scale.dtype) == ((), tf.float64)
    step((made_x, made_y), scale)


def test_open_dimensions_are_bound():
    @tf.function(input_signature=[tf.TensorSpec((None, 3)), tf.TensorSpec((None,), tf.bool)])
    def step(x, mask):
        return tf.reduce_sum(tf.boolean_mask(x, mask))

    x, mask = example_inputs(trace(step, feeds={"x": (5, 3), "mask": (5,)}))
    assert x.shape == (5, 3)
    assert mask.numpy().tolist() == [False] * 5
    assert len(set(x.numpy().ravel().tolist())) == 15
    again, _ = example_inputs(trace(step, feeds={"x": (5, 3), "mask": (5,)}))
    tf.debugging.assert_equal(x, again)


def test_python_arguments_stay_as_they_were_traced():
    @tf.function
    def step(x, training):
        return x if training else -x

    x, training = example_inputs(trace(step, inputs=(tf.ones((2,)), True)))
    assert training is True
    assert x.shape == (2,)


def test_a_wrapped_graph_takes_its_inputs_one_by_one(tmp_path):
    import tensorflow as tf

    from graphwright.source.files import load_callable
    from graphwright.step.targets import trace

    graph = tf.Graph()
    with graph.as_default():
        image = tf.compat.v1.placeholder(tf.float32, (None, 3), "image")
        tf.identity(image * tf.cast(tf.compat.v1.placeholder(tf.int32, (), "times"), tf.float32), "scaled")
    tf.io.write_graph(graph.as_graph_def(), str(tmp_path), "scale.pb", as_text=False)
    target = trace(load_callable(tmp_path / "scale.pb"), feeds={"image": (2, 3)})
    assert target.name == "scale"
    assert runnable(target).run()[0].shape == (2, 3)


def test_arguments_by_position_and_by_name():
    def difference(x, /, *, y):
        return x - y

    step = tf.function(difference)
    call = example_inputs(trace(step, feeds={"x": (2, 3), "y": (3,)}))
    assert [tuple(value.shape) for value in (*call.args, call.kwargs["y"])] == [(2, 3), (3,)]
    assert step(*call.args, **call.kwargs).shape == (2, 3)
    assert tuple(trace(step, inputs=call).shapes) == ((2, 3), (3,))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn", "int64", "uint8", "bool", "complex64", "string"])
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 4)])
def test_a_step_can_be_prepared_with_inputs_of_every_kind(dtype: str, shape: tuple[int, ...]) -> None:
    step = trace(tf.function(lambda x: x), feeds={"x": tf.TensorSpec(shape, tf.dtypes.as_dtype(dtype))})
    (given,) = preparable(step).arguments
    assert (given.dtype, tuple(given.shape)) == (tf.dtypes.as_dtype(dtype), shape)
    assert dtype == "string" or not np.asarray(given.numpy()).astype(bool).any()


def test_inputs_to_be_prepared_with_take_no_memory() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = resident()
    step = preparable(trace(tf.function(lambda x: x), feeds={"x": (1 << 28,)}))
    assert step.arguments[0].shape == (1 << 28,)
    assert resident() - before < 1 << 28, "a quarter of what the input would take"
