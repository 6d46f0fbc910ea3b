"""Equal steps are found equal, and each kind of wrong rewrite is found unequal."""

import math

import numpy as np
import pytest

from graphwright.errors import ArgumentError, UnsupportedError

tf = pytest.importorskip("tensorflow")
from graphwright.run.verify import verify  # noqa: E402
from graphwright.source.rebuild import rebuild_concrete_function  # noqa: E402


def rebuilt(concrete, edit=lambda graph_def: None):
    """A concrete function from the (edited) graph of another."""
    graph_def = concrete.graph.as_graph_def()
    edit(graph_def)
    captured = concrete.graph.captures
    return rebuild_concrete_function(
        graph_def,
        inputs=[tensor.name for tensor in concrete.inputs[: len(concrete.inputs) - len(captured)]],
        captures=[(external, internal.name) for external, internal in captured],
        outputs=[tensor.name for tensor in concrete.outputs],
        control_outputs=[operation.name for operation in concrete.graph.control_outputs],
        like=concrete,
    )


class Network:
    """Two dense layers with dropout and a moving mean, trained with momentum."""

    def __init__(self):
        self.generator = tf.random.Generator.from_seed(3)
        self.weights = [tf.Variable(tf.random.stateless_normal([6, 6], [1, k]) * 0.4, name=f"weight{k}") for k in range(2)]
        self.momenta = [tf.Variable(tf.zeros([6, 6]), name=f"momentum{k}") for k in range(2)]
        self.mean = tf.Variable(tf.zeros([6]), name="moving_mean")
        self.step_count = tf.Variable(0, dtype=tf.int64, name="step_count")

    def step(self, *, draws=1, mean_updates=1, count=1, faulty_momentum=False):
        @tf.function
        def train(x, y):
            with tf.GradientTape() as tape:
                hidden = tf.nn.relu(x @ self.weights[0])
                for _ in range(mean_updates):
                    self.mean.assign(0.9 * self.mean + 0.1 * tf.reduce_mean(hidden, 0))
                for _ in range(draws):
                    mask = tf.cast(self.generator.uniform(tf.shape(hidden)) > 0.3, tf.float32)
                loss = tf.reduce_mean(tf.square((hidden - self.mean) * mask @ self.weights[1] - y))
            for weight, momentum, gradient in zip(self.weights, self.momenta, tape.gradient(loss, self.weights), strict=True):
                momentum.assign(0.9 * momentum + gradient)
                weight.assign_sub(0.1 * (gradient if faulty_momentum else momentum))
            self.step_count.assign_add(count)
            return {"loss": loss, "pair": (loss * 2.0, None)}

        return train

    def state(self):
        return [variable.numpy() for variable in (*self.weights, *self.momenta, self.mean, self.step_count, self.generator.state)]


@pytest.fixture
def data():
    return tf.random.stateless_normal([5, 6], [7, 7]), tf.random.stateless_normal([5, 6], [8, 8])


@pytest.mark.parametrize("steps", [1, 3])
def test_rebuilt_step_is_equal_bit_for_bit(data, steps):
    network = Network()
    original = network.step()
    rewritten = rebuilt(original.get_concrete_function(*data))
    before = network.state()
    result = verify(original, rewritten, data, steps=steps)
    assert result
    assert result.bitwise
    assert result.max_abs == result.max_rel == 0.0
    assert result.first_difference == ""
    assert "7 variables" in result.how
    assert "equal bit for bit" in str(result)
    for left, right in zip(before, network.state(), strict=True):
        np.testing.assert_array_equal(left, right)
    original(*data)
    moved = [not np.array_equal(left, right) for left, right in zip(before, network.state(), strict=True)]
    assert all(moved), "the comparison says nothing when nothing moves"


@pytest.mark.parametrize(
    ("fault", "named", "steps"),
    [
        ({"draws": 2}, "output['loss'] (step 1)", 1),
        ({"mean_updates": 2}, "output['loss'] (step 1)", 1),
        ({"count": 2}, "variable step_count:0", 1),
        ({"faulty_momentum": True}, "output['loss'] (step 3)", 3),
    ],
)
def test_wrong_rewrites_are_found(data, fault, named, steps):
    network = Network()
    before = network.state()
    result = verify(network.step(), network.step(**fault), data, steps=steps)
    assert not result
    assert not result.bitwise
    assert result.first_difference.startswith(named)
    assert str(result).startswith("DIFFERENT: " + named)
    for left, right in zip(before, network.state(), strict=True):
        np.testing.assert_array_equal(left, right)


def test_state_that_no_output_shows_is_compared(data):
    """A mean updated twice after the loss, and a draw that is thrown away: only the variables tell."""
    mean, generator = tf.Variable(tf.zeros([6]), name="moving_mean"), tf.random.Generator.from_seed(1)

    def step(updates, draws):
        @tf.function
        def run(x):
            for _ in range(updates):
                mean.assign(0.9 * mean + 0.1 * tf.reduce_mean(x, 0))
            for _ in range(draws):
                generator.normal([2])
            return tf.reduce_sum(x)

        return run

    assert verify(step(1, 1), step(1, 1), data[0]).bitwise
    assert verify(step(1, 1), step(2, 1), data[0]).first_difference.startswith("variable moving_mean:0 differs at 6 of 6 places")
    assert verify(step(1, 1), step(1, 2), data[0]).first_difference.startswith("variable StateVar:0")


@pytest.mark.parametrize("seed", [None, 5])
def test_stateful_random_nodes_are_compared_and_a_copy_is_found(seed):
    @tf.function
    def original(x):
        mask = tf.cast(tf.random.uniform([64], seed=seed) > 0.5, tf.float32)
        return x * mask, tf.square(x) * mask

    x = tf.range(64.0)
    concrete = original.get_concrete_function(x)
    assert verify(original, rebuilt(concrete), x, steps=2).bitwise
    assert "seeded by their names" in verify(original, original, x).how

    def copy(graph_def, name):
        nodes = {node.name: node for node in graph_def.node}
        chain = ["random_uniform/RandomUniform", "random_uniform/sub", "random_uniform/mul", "random_uniform", "Greater", "Cast"]
        chain = [entry for entry in chain if entry in nodes]
        for entry in chain:
            clone = graph_def.node.add()
            clone.CopyFrom(nodes[entry])
            clone.name = name + entry
            clone.input[:] = [name + edge if edge in chain else edge for edge in clone.input]
        product = next(node for node in graph_def.node if node.op == "Mul" and "Square" in node.input)
        product.input[:] = [name + edge if edge in chain else edge for edge in product.input]

    for name in ("recomputed/", "again/"):
        result = verify(original, rebuilt(concrete, lambda graph_def, name=name: copy(graph_def, name)), x, steps=2)
        assert result.first_difference.startswith("output[1] (step 1)")


def test_nan_and_infinity_at_the_same_place_are_equal():
    values = tf.constant([math.nan, math.inf, -math.inf, 0.0, 1.0])
    assert verify(tf.function(lambda x: x * 1.0), tf.function(lambda x: x + 0.0), values).equal
    for place, other in [(0, 1.0), (1, -math.inf), (4, math.nan), (2, 5.0)]:
        changed = tf.tensor_scatter_nd_update(values, [[place]], [other])
        result = verify(tf.function(lambda x: x * 1.0), tf.function(lambda x, changed=changed: changed * 1.0), values, rtol=0.1)
        assert not result.equal, place
        assert result.max_abs == math.inf


def test_tolerance():
    x = tf.linspace(1.0, 2.0, 7)
    one, other = tf.function(lambda x: x * 3.0), tf.function(lambda x: x * 3.00003)
    assert not verify(one, other, x).equal
    assert not verify(one, other, x, rtol=1e-6).equal
    close = verify(one, other, x, rtol=1e-4)
    assert close.equal
    assert not close.bitwise
    assert 0.9e-5 < close.max_rel < 1.1e-5
    assert "within the tolerance" in str(close)
    assert verify(one, other, x, grappler=True).equal
    assert not verify(one, tf.function(lambda x: x * 3.01), x, grappler=True).equal
    # Integers have no rounding, so no tolerance.
    count = tf.range(1000, 1005)
    assert not verify(tf.function(lambda x: x + 0), tf.function(lambda x: x + 1), count, rtol=0.1, atol=5).equal


def test_step_that_does_not_repeat_itself_gets_the_tolerance():
    """Reductions whose order is left to threads do this; here a host function stands in for one."""
    calls = []

    def jitter(x):
        calls.append(1)
        return np.float32(x * (1 + 1e-6 * len(calls)))

    step = tf.function(lambda x: tf.numpy_function(jitter, [x], tf.float32))
    result = verify(step, step, tf.constant(1.0))
    assert result.equal
    assert not result.bitwise
    assert "not give the same bits twice" in result.how


def test_sums_of_three_terms_that_an_optimizer_makes_steps_of():
    """Such a sum may be added in any order, and where it is nearly zero, Adam makes a whole step of its rounding."""
    draw = np.random.default_rng(0)
    first, second = (tf.constant(draw.normal(size=64).astype(np.float32)) for _ in range(2))
    weight, moment = tf.Variable(draw.normal(size=64).astype(np.float32)), tf.Variable(tf.zeros(64))

    def step_of(order, change=0.0):
        @tf.function
        def step():
            terms = [weight * first, weight * second, -weight * (first + second)]
            slope = tf.add_n([terms[k] for k in order])
            moment.assign(0.9 * moment + 0.1 * slope**2)
            weight.assign_sub(0.01 * slope / (tf.sqrt(moment) + 1e-12) + change)

        return step

    result = verify(step_of((0, 1, 2)), step_of((2, 0, 1)), (), steps=2)
    assert result.equal, str(result)
    assert not result.bitwise
    assert "order that free buffers allow" in result.how
    assert not verify(step_of((0, 1, 2)), step_of((2, 0, 1), change=2.0), (), steps=2).equal


def test_half_precision_strings_and_empty_outputs():
    half = tf.Variable(tf.ones([3], tf.bfloat16), name="half")
    text = tf.Variable(["a", "b"], name="text")

    def step(word, factor):
        @tf.function
        def run(x):
            half.assign(half * tf.cast(factor, tf.bfloat16))
            text.assign(tf.strings.join([text, [word, word]]))

        return run

    x = tf.zeros([])
    assert verify(step("c", 2.0), step("c", 2.0), x, steps=2).bitwise
    assert verify(step("c", 2.0), step("c", 3.0), x).first_difference.startswith("variable half:0 differs at 3 of 3")
    assert verify(step("c", 2.0), step("d", 2.0), x).first_difference == "variable text:0 differs in 2 of 2 strings"
    assert text.numpy().tolist() == [b"a", b"b"]


def test_other_structure_shape_and_dtype_are_differences():
    x = tf.ones([2])
    one = tf.function(lambda x: {"a": x})
    assert "another structure" in verify(one, tf.function(lambda x: {"b": x}), x).first_difference
    assert verify(one, tf.function(lambda x: {"a": x[:1]}), x).first_difference == "output['a'] (step 1) is float32[2] and float32[1]"
    assert "float64[2]" in verify(one, tf.function(lambda x: {"a": tf.cast(x, tf.float64)}), x).first_difference


def test_variables_match_by_identity():
    mine, other = tf.Variable(2.0, name="mine"), tf.Variable(2.0, name="other")
    result = verify(tf.function(lambda x: x * mine), tf.function(lambda x: x * other), tf.constant(1.0))
    assert result.first_difference == "variable other:0 is used by the rewritten step only"


def test_variables_are_restored_when_a_step_raises():
    total = tf.Variable(1.0)

    @tf.function
    def failing(x):
        with tf.control_dependencies([total.assign_add(5.0)]):
            tf.debugging.assert_positive(x)
        return x

    fine = tf.function(lambda x: total.assign_add(x))
    for pair in ((fine, failing), (failing, fine)):
        with pytest.raises(tf.errors.InvalidArgumentError):
            verify(*pair, tf.constant(-1.0))
        assert float(total) == 1.0


def test_variable_given_as_argument_is_restored():
    variable = tf.Variable(1.0, name="given")
    add = tf.function(lambda v, amount: v.assign_add(amount))
    assert verify(add, add, (variable, tf.constant(2.0)), steps=2).bitwise
    assert float(variable) == 1.0


def test_bad_input():
    x = tf.constant(1.0)
    step = tf.function(lambda x: x)
    with pytest.raises(ArgumentError, match="steps=0"):
        verify(step, step, x, steps=0)
    with pytest.raises(ArgumentError, match="cannot be traced"):
        verify(step, lambda x: x, x)
    with pytest.raises(ArgumentError, match="do not fit"):
        verify(step.get_concrete_function(x), step, (x, x))


def test_iterators_are_refused_and_constant_tables_are_not():
    iterator = iter(tf.data.Dataset.range(10))
    step = tf.function(lambda x: x + next(iterator))
    with pytest.raises(UnsupportedError, match="IteratorGetNext"):
        verify(step, step, tf.constant(1, tf.int64))
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1, 2], [10, 20]), -1)
    look_up = tf.function(lambda x: table.lookup(x))
    assert verify(look_up, look_up, tf.constant([1, 3])).bitwise
