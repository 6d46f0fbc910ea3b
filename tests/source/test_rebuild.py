"""A graph taken apart and rebuilt runs as the original does."""

import gc

import numpy as np
import pytest

from graphwright.errors import ArgumentError, GraphError

tf = pytest.importorskip("tensorflow")
from graphwright.source import private_tensorflow as private  # noqa: E402
from graphwright.source import rebuild  # noqa: E402
from graphwright.source.rebuild import is_jit_compiled, rebuild_concrete_function  # noqa: E402

pytestmark = pytest.mark.tensorflow


def again(concrete, **changes):
    """Rebuild a concrete function from its own graph."""
    graph = concrete.graph
    arguments = {
        "inputs": [tensor.name for tensor in concrete.inputs[: len(concrete.inputs) - len(concrete.captured_inputs)]],
        "captures": [(external, internal.name) for external, internal in graph.captures],
        "outputs": [tensor.name for tensor in concrete.outputs],
        "control_outputs": [operation.name for operation in graph.control_outputs],
        "like": concrete,
    }
    return rebuild_concrete_function(changes.pop("graph_def", graph.as_graph_def()), **(arguments | changes))


def test_structured_signature_and_outputs():
    @tf.function
    def step(x, y, *, scale, flag=True):
        return {"sum": (x + y["left"] * scale, None), "list": [x, y["right"]]}

    spec = tf.TensorSpec([3], tf.float32)
    concrete = step.get_concrete_function(spec, {"left": spec, "right": spec}, scale=tf.TensorSpec([], tf.float32), flag=True)
    rebuilt = again(concrete)
    x, left, right, scale = tf.constant([1.0, 2, 3]), tf.ones([3]), tf.zeros([3]), tf.constant(2.0)
    for call in (concrete, rebuilt):
        result = call(x, {"left": left, "right": right}, scale=scale, flag=True)
        assert result["sum"][0].numpy().tolist() == [3.0, 4.0, 5.0]
        assert result["sum"][1] is None
        assert isinstance(result["list"], list)
        assert call(x=x, y={"left": left, "right": right}, scale=scale, flag=True)["list"][0].numpy().tolist() == [1.0, 2.0, 3.0]
    assert rebuilt.structured_input_signature == concrete.structured_input_signature
    assert str(rebuilt.function_type) == str(concrete.function_type)
    with pytest.raises(TypeError):
        rebuilt(tf.constant(1.0))


def test_variables_are_written_and_their_shapes_known():
    weight, count = tf.Variable(tf.ones([2, 3])), tf.Variable(0)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(x @ weight))
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        count.assign_add(1)
        return loss

    x = tf.random.normal([4, 2], seed=1)
    concrete = step.get_concrete_function(tf.TensorSpec([4, 2], tf.float32))
    rebuilt = again(concrete)
    before = weight.numpy()
    expected = float(concrete(x))
    after = weight.numpy()
    assert not np.array_equal(before, after)
    weight.assign(before)
    assert float(rebuilt(x)) == expected
    assert np.array_equal(weight.numpy(), after)
    assert int(count) == 2
    products = [op.outputs[0].shape for op in rebuilt.graph.get_operations() if op.type == "MatMul"]
    assert [4, 3] in products
    assert all(shape.is_fully_defined() for shape in products)
    assert list(rebuilt.graph.variables) == list(concrete.graph.variables)


def test_control_outputs_run_though_nothing_needs_them():
    total = tf.Variable(0.0)

    @tf.function
    def step(x):
        total.assign_add(x)
        return x

    concrete = step.get_concrete_function(tf.TensorSpec([], tf.float32))
    without = again(concrete, control_outputs=[])
    without(tf.constant(1.0))
    # The identity that is returned waits for the update, so cut that edge as well: now nothing asks for it.
    graph_def = concrete.graph.as_graph_def()
    for node in graph_def.node:
        kept = [edge for edge in node.input if not edge.startswith("^")]
        del node.input[:]
        node.input.extend(kept)
    total.assign(0.0)
    again(concrete, graph_def=graph_def, control_outputs=[])(tf.constant(1.0))
    assert float(total) == 0.0
    again(concrete, graph_def=graph_def)(tf.constant(1.0))
    assert float(total) == 1.0


def loop_step(weight):
    @tf.function
    def inner(h):
        return tf.tanh(h @ weight)

    @tf.function
    def step(x, n):
        h = tf.while_loop(lambda i, h: i < n, lambda i, h: (i + 1, inner(h)), [0, x])[1]
        return tf.cond(tf.reduce_sum(h) > 0.0, lambda: inner(h), lambda: h - 1.0)

    return step.get_concrete_function(tf.TensorSpec([2, 3], tf.float32), tf.TensorSpec([], tf.int32))


def test_library_lives_as_long_as_the_rebuilt_function():
    weight = tf.Variable(tf.random.stateless_normal([3, 3], [1, 2]))
    concrete = loop_step(weight)
    x = tf.random.stateless_normal([2, 3], [5, 6])
    expected = [concrete(sign * x, tf.constant(3)).numpy() for sign in (1.0, -1.0)]
    rebuilt = again(concrete)
    names = [name for name in rebuilt.graph._functions if rebuild._SUFFIX in name]
    assert names
    assert all(private.is_registered(name) for name in names)
    del concrete
    gc.collect()
    for sign, value in zip((1.0, -1.0), expected, strict=True):
        np.testing.assert_array_equal(rebuilt(sign * x, tf.constant(3)).numpy(), value)
    twice = again(rebuilt)
    del rebuilt
    gc.collect()
    assert not any(private.is_registered(name) for name in names)
    np.testing.assert_array_equal(twice(x, tf.constant(3)).numpy(), expected[0])


def test_rewritten_loop_body_does_not_meet_the_original():
    weight = tf.Variable(tf.eye(3))
    concrete = loop_step(weight)
    graph_def = concrete.graph.as_graph_def()
    changed = 0
    for function in graph_def.library.function:
        for node in function.node_def:
            if node.op == "Tanh":
                node.op, changed = "Neg", changed + 1  # like Tanh, its output is called y
    assert changed
    rebuilt = again(concrete, graph_def=graph_def)
    x = tf.constant([[1.0, 2, 3], [4, 5, 6]])
    np.testing.assert_array_equal(rebuilt(-x, tf.constant(3)).numpy(), -x.numpy())
    assert not np.array_equal(concrete(-x, tf.constant(3)).numpy(), -x.numpy())


def test_rebuilding_inside_a_trace_does_not_touch_the_trace():
    concrete = tf.function(lambda x: x * 3.0).get_concrete_function(tf.TensorSpec([], tf.float32))

    @tf.function
    def outer(x):
        return again(concrete)(x) + 1.0

    assert float(outer(tf.constant(2.0))) == 7.0


def test_xla_compiles_when_asked():
    concrete = tf.function(lambda x: tf.exp(x) * 2.0, jit_compile=True).get_concrete_function(tf.TensorSpec([2], tf.float32))
    assert is_jit_compiled(concrete)
    assert not is_jit_compiled(again(concrete))
    compiled = again(concrete, jit_compile=True)
    assert is_jit_compiled(compiled)
    np.testing.assert_array_equal(compiled(tf.ones([2])).numpy(), concrete(tf.ones([2])).numpy())
    # What XLA cannot compile, it says: so it is XLA that runs.
    strings = tf.function(lambda x: tf.strings.as_string(x)).get_concrete_function(tf.TensorSpec([2], tf.float32))
    with pytest.raises(tf.errors.InvalidArgumentError):
        again(strings, jit_compile=True)(tf.ones([2]))


def test_names_that_are_not_there():
    concrete = tf.function(lambda x: x * 3.0).get_concrete_function(tf.TensorSpec([], tf.float32))
    with pytest.raises(GraphError, match="names no node"):
        again(concrete, outputs=["nowhere:0"])
    with pytest.raises(GraphError, match="is used for 2"):
        again(concrete, inputs=[concrete.inputs[0].name] * 2)
    with pytest.raises(ArgumentError, match="hold 1 tensors, but 2 outputs"):
        again(concrete, outputs=[concrete.outputs[0].name] * 2)
    graph_def = concrete.graph.as_graph_def()
    graph_def.node[-1].input[0] = "nowhere"
    with pytest.raises(GraphError, match="TensorFlow refuses the graph"):
        again(concrete, graph_def=graph_def)
