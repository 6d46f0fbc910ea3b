"""Grappler is off where it is said to be, and nowhere else."""

import importlib
import threading
from collections import Counter

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
from graphwright.run.call_options import grappler_disabled, grappler_enabled, is_grappler_disabled  # noqa: E402
from graphwright.source import private_tensorflow as private  # noqa: E402
from graphwright.source.rebuild import rebuild_concrete_function  # noqa: E402

context = importlib.import_module("tensorflow.python.eager.context").context()


def executed_ops(function, *arguments):
    """Op types of what TensorFlow runs; empty when it runs what it optimized in an earlier call with the same options."""
    context.enable_run_metadata()
    try:
        context.export_run_metadata()  # TensorFlow also hands out the graphs of functions called before: leave those
        function(*arguments)
        metadata = context.export_run_metadata()
    finally:
        context.disable_run_metadata()
    return Counter(node.op for graphs in metadata.function_graphs for graph in graphs.partition_graphs for node in graph.node)


def duplicate():
    """A function with two equal ops, which Grappler merges. A new one each time, since TensorFlow caches the outcome."""
    return tf.function(lambda x: tf.exp(x) + tf.exp(x)).get_concrete_function(tf.TensorSpec([4], tf.float32))


def test_grappler_is_off_in_the_block_only():
    function, x = duplicate(), tf.ones([4])
    assert executed_ops(function, x)["Exp"] == 1
    with grappler_disabled():
        assert is_grappler_disabled()
        assert executed_ops(function, x)["Exp"] == 2
    assert not is_grappler_disabled()
    assert executed_ops(function, x) == Counter()  # what was optimized at first is still what runs
    assert executed_ops(duplicate(), x)["Exp"] == 1


def test_on_where_the_user_has_it_off_and_back():
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        assert executed_ops(duplicate(), tf.ones([4]))["Exp"] == 2
        with grappler_enabled():
            assert executed_ops(duplicate(), tf.ones([4]))["Exp"] == 1
        assert is_grappler_disabled()
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


def test_restored_when_the_block_raises_and_nested():
    before = private.call_options()
    with grappler_disabled():
        with grappler_enabled():
            assert not is_grappler_disabled()
        assert is_grappler_disabled()

    def fail():
        with grappler_disabled():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert private.call_options() is before


def test_other_threads_are_not_touched():
    seen = []
    with grappler_disabled():
        thread = threading.Thread(target=lambda: seen.append(is_grappler_disabled()))
        thread.start()
        thread.join()
    assert seen == [False]


def test_executor_is_handed_on():
    with grappler_disabled(executor="SINGLE_THREADED_EXECUTOR"):
        assert private.call_options().executor_type == "SINGLE_THREADED_EXECUTOR"
        assert duplicate()(tf.zeros([4])).numpy().tolist() == [2.0] * 4
    with grappler_disabled(executor="no such executor"), pytest.raises(tf.errors.OpError):
        duplicate()(tf.zeros([4]))


def test_tracing_in_the_block_takes_the_outer_options():
    inner = duplicate()
    outer = tf.function(lambda x: inner(x)).get_concrete_function(tf.TensorSpec([4], tf.float32))
    assert executed_ops(outer, tf.ones([4]))["Exp"] == 1
    with grappler_disabled():
        assert executed_ops(outer, tf.ones([4]))["Exp"] == 2


@pytest.mark.parametrize(("noinline", "traced_without", "rewritten"), [(False, True, True), (True, False, True), (True, True, False)])
def test_function_that_is_not_inlined_keeps_the_options_of_its_trace(noinline, traced_without, rewritten):
    """Grappler makes one product of two constants, which changes the last bits: so the result tells whether it ran."""
    x = tf.random.stateless_normal([1000], [1, 2])
    plain = tf.function(lambda x: (x * 0.1) * 0.3).get_concrete_function(x)
    inner = rebuild_concrete_function(
        plain.graph.as_graph_def(), inputs=[plain.inputs[0].name], outputs=[plain.outputs[0].name], like=plain, noinline=noinline
    )

    @tf.function
    def outer(x):
        with grappler_disabled() if traced_without else grappler_enabled():
            return inner(x)

    as_written, as_rewritten = (x * 0.1) * 0.3, x * (np.float32(0.1) * np.float32(0.3))
    assert not np.array_equal(as_written, as_rewritten)
    np.testing.assert_array_equal(outer(x), as_rewritten if rewritten else as_written)
