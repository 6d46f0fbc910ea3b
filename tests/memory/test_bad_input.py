"""Each mistake that users make gets an error of its own, which names the place and the remedy."""

import keras
import pytest
import tensorflow as tf

import graphwright as gw


def make_step(**options):
    weight = tf.Variable(tf.random.stateless_normal((32, 32), (0, 1)))

    @tf.function(**options)
    def step(x, y):
        with tf.GradientTape() as tape:
            hidden = x
            for _ in range(6):
                hidden = tf.tanh(hidden @ weight)
            loss = tf.reduce_mean(tf.square(hidden - y))
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    return step


def make_model():
    return keras.Sequential([keras.layers.Input((32,)), keras.layers.Dense(32, activation="tanh"), keras.layers.Dense(1)])


OPEN = {"input_signature": [tf.TensorSpec((None, 32)), tf.TensorSpec((None, 32))]}
FEEDS = {"x": (256, 32), "y": (256, 32)}


class TestShapes:
    def test_an_argument_without_a_feed(self):
        with pytest.raises(gw.UnknownShapeError, match="argument 'y'") as caught:
            gw.inspect(make_step(), feeds={"x": (256, 32)})
        assert "feeds" in caught.value.remedy

    def test_a_signature_that_leaves_a_dimension_open(self):
        with pytest.raises(gw.UnknownShapeError, match="argument 'x'") as caught:
            gw.inspect(make_step(**OPEN))
        assert "'x'" in caught.value.remedy
        with pytest.raises(gw.UnknownShapeError, match="argument 'y'"):
            gw.inspect(make_step(**OPEN), feeds={"x": (256, 32)})
        open_peak, peak = (gw.inspect(step, feeds=FEEDS, order="traced").peak_bytes for step in (make_step(**OPEN), make_step()))
        assert open_peak == peak

    def test_a_feed_for_no_argument(self):
        with pytest.raises(gw.ArgumentError, match="no argument 'z'") as caught:
            gw.inspect(make_step(), feeds={**FEEDS, "z": (1,)})
        assert "x, y" in caught.value.remedy

    def test_a_feed_that_does_not_fit(self):
        with pytest.raises(gw.ArgumentError, match="does not fit"):
            gw.inspect(make_step(**OPEN), feeds={"x": (256, 31), "y": (256, 32)})
        with pytest.raises(gw.ArgumentError, match="cannot be traced with these feeds"):
            gw.inspect(make_step(), feeds={"x": (256, 31), "y": (256, 32)})

    @pytest.mark.parametrize("shape", [(-1, 32), (None, 32), ("a", 32), (2.0, 32), 5, (True, 32)])
    def test_a_feed_that_is_no_shape(self, shape):
        with pytest.raises(gw.ArgumentError, match=r"not a shape|leaves a size open|x=5 was taken as a number"):
            gw.inspect(make_step(), feeds={"x": shape, "y": (256, 32)})

    def test_a_dimension_that_only_the_run_knows(self):
        @tf.function
        def step(x):
            return tf.reduce_sum(tf.exp(tf.ones((tf.cast(tf.reduce_max(x), tf.int32),))))

        with pytest.raises(gw.UnknownShapeError) as caught:
            gw.inspect(step, feeds={"x": (4096,)})
        assert "ones" in str(caught.value)

    def test_a_step_never_traced_and_no_feeds(self):
        with pytest.raises(gw.ArgumentError, match="has not been traced yet"):
            gw.inspect(make_step())

    def test_a_step_with_two_signatures(self):
        step = make_step()
        for rows in (2, 3):
            step(tf.ones((rows, 32)), tf.ones((rows, 32)))
        with pytest.raises(gw.ArgumentError, match="2 signatures") as caught:
            gw.inspect(step)
        assert "inputs=" in caught.value.remedy


class TestBudget:
    def test_one_below_the_bound(self):
        with pytest.raises(gw.InfeasibleError) as caught:
            gw.optimize_memory(make_step(), 10_000, feeds=FEEDS, cache_dir=None)
        smallest = caught.value.smallest_budget_bytes
        assert smallest > 10_000
        assert str(smallest) in caught.value.remedy
        plan = gw.optimize_memory(make_step(), smallest, feeds=FEEDS, cache_dir=None).plan
        assert plan.lower_bound_bytes <= plan.peak_bytes <= smallest

    @pytest.mark.parametrize("budget", [0, -1, 0.0, 1.5, float("nan"), "much", None])
    def test_one_that_cannot_be_read(self, budget):
        with pytest.raises(gw.ArgumentError, match="budget"):
            gw.optimize_memory(make_step(), budget)

    def test_a_share_of_a_peak_that_depends_on_the_batch(self):
        with pytest.raises(gw.ArgumentError, match="share"):
            gw.sweep(make_step(), FEEDS, batches=[1, 2], budget=0.5)


class TestSteps:
    @pytest.mark.parametrize("target", [len, 3, "no such file", None, object()])
    def test_what_is_no_step(self, target):
        with pytest.raises(gw.ArgumentError):
            gw.inspect(target, feeds={})

    def test_a_plain_function(self):
        with pytest.raises(gw.ArgumentError, match="plain Python function") as caught:
            gw.optimize_memory(lambda x: x, 0.5)
        assert "@tf.function" in caught.value.remedy

    @pytest.mark.parametrize("call", [tf.numpy_function, tf.py_function])
    def test_a_step_that_calls_back_into_python(self, call):
        weight = tf.Variable(tf.ones((32, 32)))

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                y = tf.reduce_sum(call(lambda v: v, [tf.tanh(x @ weight)], tf.float32))
            weight.assign_sub(tape.gradient(y, weight) if call is tf.py_function else tf.ones((32, 32)) * y)
            return y

        with pytest.raises(gw.UnsupportedError) as caught:
            gw.optimize_memory(step, 0.5, inputs=(tf.ones((8, 32)),), cache_dir=None)
        assert "PyFunc" in str(caught.value)

    def test_inputs_and_feeds(self):
        with pytest.raises(gw.ArgumentError, match="both feeds and inputs"):
            gw.optimize_memory(make_step(), 0.5, feeds=FEEDS, inputs=(tf.ones((8, 32)),), cache_dir=None)


class TestModels:
    def test_one_that_is_not_compiled(self):
        with pytest.raises(gw.ArgumentError, match="not compiled") as caught:
            gw.optimize_memory(make_model(), 0.5)
        assert "compile" in caught.value.remedy

    def test_one_without_a_batch_size(self):
        model = make_model()
        model.compile("adam", "mse")
        with pytest.raises(gw.ArgumentError, match="input") as caught:
            gw.inspect(model)
        assert "batch=" in caught.value.remedy
        assert caught.value.code == "open_batch"

    def test_one_that_runs_eagerly(self):
        model = make_model()
        model.compile("adam", "mse", run_eagerly=True)
        with pytest.raises(gw.UnsupportedError, match="eagerly") as caught:
            gw.optimize_memory(model, 0.5)
        assert "compile" in caught.value.remedy


class TestFiles:
    @pytest.mark.parametrize(
        ("name", "content"), [("a.keras", b"no zip"), ("a.pb", b"\xff\xff no graph"), ("a.pbtxt", b"node {"), ("a.pb", b"")]
    )
    def test_one_that_is_damaged(self, tmp_path, name, content):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(gw.FileFormatError) as caught:
            gw.inspect(path)
        assert str(path) in str(caught.value)

    def test_a_folder_that_holds_no_model(self, tmp_path):
        with pytest.raises(gw.FileFormatError):
            gw.inspect(tmp_path)
