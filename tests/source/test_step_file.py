"""A step written to disk runs in a fresh process as it runs here."""

import numpy as np
import pytest

from graphwright.errors import UnsupportedError

tf = pytest.importorskip("tensorflow")
from graphwright.source.step_file import read_steps, write_steps  # noqa: E402


def train_step():
    """Has a loop, a random generator, a bfloat16 variable, a large constant and a counter."""
    weight = tf.Variable(tf.random.stateless_normal([16, 16], [1, 2]), name="weight")
    half = tf.Variable(tf.ones([16], tf.bfloat16) * 0.5, name="half")
    count = tf.Variable(0, dtype=tf.int64, name="count")
    generator = tf.random.Generator.from_seed(4)
    constant = tf.random.stateless_normal([16, 16], [3, 4])

    @tf.function
    def step(x, scale):
        noise = generator.normal([16])
        with tf.GradientTape() as tape:
            hidden = tf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, tf.tanh(h @ weight)), [0, x])[1]
            loss = tf.reduce_mean(tf.square(hidden @ constant * tf.cast(half, tf.float32) + noise)) * scale
        gradient = tape.gradient(loss, weight)
        weight.assign_sub(0.1 * gradient)
        half.assign(half * tf.constant(0.75, tf.bfloat16))
        count.assign_add(1)
        return {"loss": loss, "count": count.read_value()}

    arguments = [tf.random.stateless_normal([4, 16], [5, 6]), tf.constant(2.0)]
    return step.get_concrete_function(*arguments), arguments, [weight, half, count, generator.state, generator, constant]


def test_round_trip_in_this_process(tmp_path):
    concrete, arguments, _kept = train_step()
    write_steps({"step": (concrete, arguments)}, tmp_path)
    stored = read_steps(tmp_path)["step"]
    for _ in range(2):
        expected = concrete(*arguments)
        count, loss = stored.concrete(*stored.arguments)
        np.testing.assert_array_equal(expected["loss"].numpy(), loss.numpy())
        assert int(count) == int(expected["count"])
    assert len(stored.variables) == 4
    for ours, theirs in zip(concrete.graph.variables, sorted_like(stored, concrete), strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.numpy().tobytes() == theirs.numpy().tobytes()


def sorted_like(stored, concrete):
    """The stored variables in the order of the original's, told apart by dtype and shape."""
    return [
        next(theirs for theirs in stored.variables if (theirs.dtype, theirs.shape) == (ours.dtype, ours.shape))
        for ours in concrete.graph.variables
    ]


def test_steps_share_their_variables(tmp_path):
    total = tf.Variable(1.0)
    add = tf.function(lambda x: total.assign_add(x)).get_concrete_function(tf.TensorSpec([], tf.float32))
    multiply = tf.function(lambda x: total.assign(total * x)).get_concrete_function(tf.TensorSpec([], tf.float32))
    two = tf.constant(2.0)
    write_steps({"add": (add, [two]), "multiply": (multiply, [two])}, tmp_path)
    steps = read_steps(tmp_path)
    assert list(steps) == ["add", "multiply"]
    for name in ("add", "multiply", "add"):
        steps[name].concrete(*steps[name].arguments)
    assert float(steps["add"].variables[0]) == 8.0
    assert steps["add"].variables[0] is steps["multiply"].variables[0]
    assert float(total) == 1.0


def test_strings_unknown_shapes_complex_and_variable_arguments(tmp_path):
    text = tf.Variable(["a", "b"])
    grows = tf.Variable([1.0], shape=[None])
    given = tf.Variable(tf.constant([1 + 2j]))

    @tf.function
    def step(variable, words):
        grows.assign(tf.concat([grows, [2.0]], 0))
        variable.assign(variable * 2)
        return tf.strings.join([text, words]), tf.size(grows), variable.read_value()

    words = tf.constant(["c", "d"])
    concrete = step.get_concrete_function(given, words)
    write_steps({"step": (concrete, [given.handle, words])}, tmp_path)
    stored = read_steps(tmp_path)["step"]
    for _ in range(2):
        strings, size, number = stored.concrete(*stored.arguments)
    assert strings.numpy().tolist() == [b"ac", b"bd"]
    assert int(size) == 3
    assert number.numpy().tolist() == [4 + 8j]
    assert given.numpy().tolist() == [1 + 2j]


def test_what_cannot_be_taken_along(tmp_path):
    x = tf.constant(1.0)
    calls_python = tf.function(lambda x: tf.cond(x > 0, lambda: tf.py_function(lambda v: v, [x], tf.float32), lambda: x))
    with pytest.raises(UnsupportedError, match="EagerPyFunc"):
        write_steps({"step": (calls_python.get_concrete_function(x), [x])}, tmp_path)
    iterator = iter(tf.data.Dataset.range(3))
    with pytest.raises(UnsupportedError, match="used by IteratorGetNext"):
        write_steps({"step": (tf.function(lambda x: next(iterator)).get_concrete_function(x), [x])}, tmp_path)
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1], [2]), 0)
    with pytest.raises(UnsupportedError, match="LookupTableFind"):
        write_steps({"step": (tf.function(lambda x: table.lookup(tf.cast(x, tf.int32))).get_concrete_function(x), [x])}, tmp_path)
    assert not (tmp_path / "steps.json").exists()
