"""Parameters of every kind of target, what steps do with them, and what they forget."""

from __future__ import annotations

import json
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

import keras  # noqa: E402
from keras import layers  # noqa: E402

import graphwright as gw  # noqa: E402
from bench import zoo  # noqa: E402
from graphwright.errors import ArgumentError  # noqa: E402

pytestmark = pytest.mark.tensorflow

v1 = tf.compat.v1
TRAINED, MOVING = 410, 8
"""Elements of the small model below: what is trained, and its moving statistics."""


@pytest.fixture(scope="module")
def model() -> Any:
    made = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.Conv2D(4, 3, name="conv"),
            layers.BatchNormalization(name="norm"),
            layers.Dropout(0.5, name="drop"),
            layers.Flatten(name="flat"),
            layers.Dense(2, name="dense"),
        ],
        name="small",
    )
    made.compile("adam", "mse", metrics=["mae"])
    return made


@pytest.fixture(scope="module")
def trained(model: Any) -> gw.ParameterTable:
    """The table with the training step, for which Keras builds the optimizer."""
    return gw.count_parameters(model, batch=2)


# Reference models


FULL = [
    pytest.param(name, "full", marks=[pytest.mark.slow] + [pytest.mark.thorough] * (name != "unet"))
    for name in ("unet", "resnet50", "densenet121")
]


@pytest.mark.parametrize(("name", "size"), [("unet", "small"), ("resnet50", "small"), ("densenet121", "small"), *FULL])
def test_reference_models_have_as_many_parameters_as_keras_counts(name, size):
    model = zoo.make(name, size=size, batch=2).model
    table = gw.count_parameters(model)
    assert table.total == model.count_params()
    assert table.trainable == sum(int(tf.size(v.value)) for v in model.trainable_variables)
    assert table.total_bytes >= 4 * table.total
    if (name, size) == ("unet", "full"):
        assert table.trainable == table.total == 31_030_658


# Kinds of targets


def test_a_model_that_is_not_compiled_has_no_optimizer():
    made = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    table = gw.count_parameters(made)
    assert (table.trainable, table.non_trainable, table.optimizer_state) == (15, 0, 0)
    assert "not compiled" in table.how["optimizer state"]
    assert not table.step


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adafactor", "lion", "rmsprop"])
def test_the_state_of_an_optimizer_is_known_before_it_is_built(optimizer):
    made = keras.Sequential([keras.Input((40,)), layers.Dense(200), layers.Dense(3)])
    made.compile(keras.optimizers.get(optimizer), "mse")
    before = gw.count_parameters(made)
    assert not made.optimizer.built
    made.optimizer.build(made.trainable_variables)
    after = gw.count_parameters(made)
    assert before.optimizer_state == after.optimizer_state > 0
    assert sorted(p.shape for p in before.parameters) == sorted(p.shape for p in after.parameters)


def test_a_layer_that_is_not_built_is_named():
    with pytest.raises(ArgumentError, match=r"not built.*later") as raised:
        gw.count_parameters(keras.Sequential([layers.Dense(3, name="later")]))
    assert "model.build" in str(raised.value)


def test_shared_layers_count_once():
    shared = layers.Dense(4)
    image = keras.Input((4,))
    assert gw.count_parameters(keras.Model(image, shared(shared(image)))).trainable == 20


def test_the_layers_of_a_functional_model_inside_another_are_told_by_both_commands():
    inner = keras.Sequential([keras.Input((3,)), layers.Dense(4, name="first"), layers.Dense(4, name="second")], name="inner")
    x = keras.Input((3,))
    outer = keras.Model(x, layers.Dense(2, name="head")(keras.Sequential([inner], name="middle")(x)), name="outer")
    names = {"middle/inner/first", "middle/inner/second", "head"}
    assert {parameter.scope for parameter in gw.count_parameters(outer).parameters} == names
    assert names <= {layer.layer for layer in gw.inspect(outer, batch=2).layers}


def test_a_frozen_layer_is_not_trainable():
    made = keras.Sequential([keras.Input((4,)), layers.Dense(3), layers.Dense(2)])
    made.layers[0].trainable = False
    table = gw.count_parameters(made)
    assert (table.trainable, table.non_trainable) == (8, 15)


def test_files_of_a_model(model, trained, tmp_path):
    model.save(tmp_path / "model.keras")
    model.export(tmp_path / "exported", verbose=False)
    tf.saved_model.save(model, str(tmp_path / "saved"))
    tables = {name: gw.count_parameters(tmp_path / name) for name in ("model.keras", "exported", "saved")}
    assert {(t.trainable, t.non_trainable) for t in tables.values()} == {(TRAINED, MOVING)}
    assert tables["exported"].optimizer_state == 0
    assert tables["model.keras"].optimizer_state == tables["saved"].optimizer_state == trained.optimizer_state == 2 * TRAINED + 2


def test_a_frozen_graph_has_constants_that_are_weights(model):
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    function = tf.function(lambda x: model(x, training=False)).get_concrete_function(tf.TensorSpec([None, 8, 8, 3]))
    table = gw.count_parameters(convert_variables_to_constants_v2(function).graph.as_graph_def())
    assert (table.trainable, table.constant, table.total) == (0, TRAINED + MOVING, TRAINED + MOVING)
    assert "weight operand" in table.how["constant"]


def test_captured_tensors_are_constants():
    kernel = tf.ones([4, 4])
    table = gw.count_parameters(tf.function(lambda x: x @ kernel + 2.0), feeds={"x": (None, 4)})
    assert (table.trainable, table.constant) == (0, 16)


def test_quantized_weights_are_told():
    made = keras.Sequential([keras.Input((6,)), layers.Dense(4)])
    made.layers[0].quantize("int8")
    table = gw.count_parameters(made)
    assert [(p.dtype, p.elements) for p in table.quantized] == [("int8", 24)]
    assert table.by_dtype["int8"].total_bytes == 24


def test_embeddings_and_tables_are_listed_apart():
    made = keras.Sequential([keras.Input((5,), dtype="int32"), layers.Embedding(100, 8), layers.Flatten(), layers.Dense(4)])
    assert [p.elements for p in gw.count_parameters(made).embeddings] == [800]
    with tf.Graph().as_default() as graph:
        vectors = v1.get_variable("vectors", [100, 8], partitioner=v1.fixed_size_partitioner(4), use_resource=True)
        tf.nn.embedding_lookup(list(vectors), tf.constant([1, 2]))
        pairs = tf.lookup.KeyValueTensorInitializer(tf.constant(["a", "b"]), tf.constant([1, 2], tf.int64))
        tf.lookup.StaticHashTable(pairs, -1).lookup(tf.constant(["a"]))
    table = gw.count_parameters(graph)
    assert [(p.elements, p.part_of) for p in table.embeddings] == [(200, "vectors")] * 4
    assert [(t.key_dtype, t.value_dtype, t.entries) for t in table.tables] == [("string", "int64", 2)]
    assert table.trainable == 800


def test_a_variable_of_unknown_shape_is_in_no_figure():
    with tf.Graph().as_default() as graph:
        v1.get_variable("known", [3], use_resource=True)
        tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=tf.TensorShape(None), shared_name="open")
    table = gw.count_parameters(graph)
    assert table.total == 3
    assert [p.name for p in table.unknown] == ["open"]
    assert "not known" in str(table)


# What a step does


def test_the_step_of_a_model(trained):
    effects = {s.variable.rsplit("/", 1)[1]: s.effect for s in trained.side_effects if "mean_absolute" not in s.variable}
    assert effects == {
        "moving_mean": "moving average",
        "moving_variance": "moving average",
        "seed_generator_state": "random state",
        "total": "running total",
        "count": "running total",
    }
    assert (trained.optimizer_state, trained.other_state) == (2 * TRAINED + 2, 6)
    assert trained.warnings == ()
    assert "small/conv/kernel" in trained.writes
    assert any(name.endswith("/iteration") for name in trained.writes)


def test_dataflow_tells_what_keras_says(model, trained):
    from graphwright.step.targets import trace

    table = gw.count_parameters(trace(model, batch=2).function)
    assert (table.trainable, table.non_trainable, table.optimizer_state) == (
        trained.trainable,
        trained.non_trainable,
        trained.optimizer_state,
    )
    count = gw.inspect(model, batch=2).parameters
    assert (count.trainable, count.optimizer_state) == (table.count.trainable, table.count.optimizer_state)
    assert count.non_trainable == table.count.non_trainable


def test_accesses_in_branches_loops_and_calls():
    weight, bias = tf.Variable(tf.ones([4, 4]), name="weight"), tf.Variable(tf.ones([4]), name="bias")
    steps = tf.Variable(0, trainable=False, name="steps")
    average = tf.Variable(tf.ones([4, 4]), trainable=False, name="average")
    momentum = tf.Variable(tf.zeros([4, 4]), trainable=False, name="momentum")
    frozen = tf.Variable(tf.ones([4]), name="frozen")
    random = tf.random.Generator.from_seed(1)

    @tf.function
    def layer(x):
        return x @ weight + bias

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            y = layer(x + random.normal([4])) * frozen
            loss = tf.reduce_mean(y * y)
        gradients = tape.gradient(loss, [weight, bias])
        momentum.assign(0.9 * momentum + gradients[0])
        weight.assign_sub(0.1 * momentum)
        if loss > 0:
            bias.assign_sub(0.1 * gradients[1])
        for _ in tf.range(3):
            steps.assign_add(1)
        average.assign(0.99 * average + 0.01 * weight)
        return loss

    table = gw.count_parameters(step, feeds={"x": (None, 4)})
    kinds = {p.name: p.kind for p in table.parameters if p.name != "StateVar"}
    assert kinds == {
        "weight": "trainable",
        "bias": "trainable",
        "frozen": "trainable",
        "steps": "other state",
        "average": "non-trainable",
        "momentum": "optimizer state",
    }
    assert {s.variable: s.effect for s in table.side_effects} == {
        "StateVar": "random state",
        "steps": "counter",
        "average": "moving average of a variable",
    }
    assert table.writes["bias"][0].startswith("cond/")
    assert table.writes["steps"][0].startswith("while/")
    assert [(w.kind, w.names) for w in table.warnings] == [("not trained", ("frozen",))]


def moving_average(variable: Any, value: Any) -> Any:
    return (
        v1.assign_sub(variable, (variable - value) * 0.1)
        if variable.dtype._is_ref_dtype
        else variable.assign_sub((variable.read_value() - value) * 0.1, read_value=False)
    )


def graph_of_tf1(*, resource: bool, run_updates: bool) -> tuple[Any, Any, Any]:
    """A convolution with batch norm and Adam as TF1 users write them; the graph, its train op and its loss."""
    with tf.Graph().as_default() as graph, v1.variable_scope("net", use_resource=resource):
        x = v1.placeholder(tf.float32, [None, 8, 8, 3], name="x")
        kernel, scale = v1.get_variable("kernel", [3, 3, 3, 4]), v1.get_variable("scale", [4])
        offset = v1.get_variable("offset", [4])
        mean, variance = (v1.get_variable(n, [4], trainable=False) for n in ("mean", "variance"))
        y, batch_mean, batch_variance = v1.nn.fused_batch_norm(tf.nn.conv2d(x, kernel, 1, "SAME"), scale, offset, is_training=True)
        for variable, statistic in ((mean, batch_mean), (variance, batch_variance)):
            v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, moving_average(variable, statistic))
        loss = tf.reduce_mean(y * y + y)
        v1.metrics.mean(loss)
        updates = v1.get_collection(v1.GraphKeys.UPDATE_OPS) if run_updates else []
        with tf.control_dependencies(updates):
            train = v1.train.AdamOptimizer().minimize(loss, global_step=v1.train.get_or_create_global_step())
        v1.add_to_collection("mine", kernel)
    return graph, train, loss


@pytest.mark.parametrize("resource", [True, False], ids=["resource", "reference"])
def test_update_ops_that_the_train_op_does_not_run(resource):
    graph, train, loss = graph_of_tf1(resource=resource, run_updates=False)
    table = gw.count_parameters(graph, outputs=[train, loss])
    assert [w.kind for w in table.warnings] == ["update ops not run"]
    assert len(table.warnings[0].names) == 2
    graph, train, loss = graph_of_tf1(resource=resource, run_updates=True)
    table = gw.count_parameters(graph, outputs=[train, loss])
    assert table.warnings == ()
    assert {s.variable for s in table.side_effects} == {"net/mean", "net/variance", "net/global_step"}


@pytest.mark.parametrize("resource", [True, False], ids=["resource", "reference"])
def test_kinds_and_collections_of_a_tf1_graph(resource):
    graph, train, _ = graph_of_tf1(resource=resource, run_updates=True)
    table = gw.count_parameters(graph, outputs=train)
    assert (table.trainable, table.non_trainable) == (116, 8)
    assert (table.optimizer_state, table.other_state) == (2 * 116 + 2, 3)  # two powers of beta; the step, total and count of the metric
    assert table.collections["mine"].items == ("net/kernel",)
    assert "user's own" in table.collections["mine"].meaning
    assert table.collections["update_ops"].meaning.startswith("UPDATE_OPS")
    assert len(table.collections["trainable_variables"].items) == 3


def test_a_saved_model_of_tf1(tmp_path):
    graph, _, loss = graph_of_tf1(resource=False, run_updates=True)
    with v1.Session(graph=graph) as session, graph.as_default():
        session.run(v1.global_variables_initializer())
        builder = v1.saved_model.Builder(str(tmp_path / "model"))
        signature = v1.saved_model.signature_def_utils.predict_signature_def({"x": graph.get_tensor_by_name("net/x:0")}, {"y": loss})
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature})
        builder.save()
    table = gw.count_parameters(tmp_path / "model")
    assert (table.trainable, table.non_trainable, table.optimizer_state) == (116, 8, 2 * 116 + 2)


def test_a_graph_that_says_nothing_of_training():
    graph, _, loss = graph_of_tf1(resource=True, run_updates=True)
    table = gw.count_parameters(v1.graph_util.extract_sub_graph(graph.as_graph_def(), [loss.op.name]))
    assert table.trainable == 116
    assert "are unknown" in table.how["trainable"]


def test_a_batch_norm_whose_statistics_nobody_keeps():
    kernel = tf.Variable(tf.ones([4, 4]))

    def step(x, keep):
        with tf.GradientTape() as tape:
            y = x @ kernel
            mean, variance = tf.nn.moments(y, [0])
            y = tf.nn.batch_normalization(y, mean, variance, None, None, 1e-3)
            loss = tf.reduce_mean(y * y + y)
        kernel.assign_sub(tape.gradient(loss, kernel))
        if keep is not None:
            keep.assign(0.9 * keep + 0.1 * variance)
        return loss

    moving = tf.Variable(tf.ones([4]), trainable=False)
    found = [gw.count_parameters(tf.function(lambda x, k=k: step(x, k)), feeds={"x": (8, 4)}) for k in (None, moving)]
    assert [[w.kind for w in table.warnings] for table in found] == [["moving statistics not assigned"], []]


def test_writes_without_order():
    def warnings(*, ordered: bool) -> list[str]:
        with tf.Graph().as_default() as graph:
            variable = v1.get_variable("v", [2], use_resource=True)
            first = variable.assign([1.0, 2.0], read_value=False)
            with tf.control_dependencies([first] if ordered else []):
                second = variable.assign([3.0, 4.0], read_value=False)
        return [w.kind for w in gw.count_parameters(graph, outputs=[first, second]).warnings]

    assert warnings(ordered=False) == ["written without order", "never read"]
    assert warnings(ordered=True) == ["never read"]


# The table


def test_sums_by_scope_and_dtype_agree(trained):
    scopes = {scope.rstrip("_0123456789") for scope in trained.at_depth(1).by_layer}
    assert scopes == {"conv", "norm", "dense", "seed_generator", "loss", "mean_absolute_error", "adam"}
    for groups in (trained.by_layer, trained.at_depth(None).by_layer, trained.by_dtype):
        assert sum(s.total_bytes for s in groups.values()) == trained.total_bytes
        assert sum(s.weights for s in groups.values()) == trained.total == TRAINED + MOVING


def test_text_and_json(trained):
    text = str(trained)
    assert max(map(len, text.splitlines())) <= 80
    assert "418 parameters" in text
    written = json.loads(json.dumps(trained.to_json()))
    assert (written["trainable_elements"], written["total_elements"]) == (TRAINED, TRAINED + MOVING)
    assert len(written["parameters"]) == len(trained.parameters)
    assert written["side_effects"][0].keys() == {"variable", "effect", "node"}


@pytest.mark.parametrize(
    ("arguments", "words"), [({"depth": 0}, "depth=0"), ({"batch": 3}, "without its fetches"), ({"outputs": "no"}, "no node")]
)
def test_arguments_are_checked(arguments, words):
    graph, *_ = graph_of_tf1(resource=True, run_updates=True)
    with pytest.raises(ArgumentError, match=words):
        gw.count_parameters(graph, **arguments)


def regression_of_tf1(optimizer: Any, *, resource: bool = True) -> Any:
    """A net whose last layer has no operation that exists for gradients only, with a frozen factor and a metric; no collections."""
    graph = v1.Graph()
    with graph.as_default(), v1.variable_scope("", use_resource=resource):
        x, y = v1.placeholder(tf.float32, [4, 8], "x"), v1.placeholder(tf.float32, [4, 2], "y")
        hidden, last = v1.get_variable("hidden", [8, 2]), v1.get_variable("last", [2, 2])
        frozen = v1.get_variable("frozen", [2], trainable=False)
        loss = tf.reduce_mean((tf.tanh(x @ hidden) @ last * frozen - y) ** 2, name="loss")
        optimizer.minimize(loss, name="train")
    return graph.as_graph_def()


@pytest.mark.parametrize("resource", [True, False], ids=["resource", "reference"])
@pytest.mark.parametrize("outputs", [None, ["train"], ["loss"]], ids=["nothing", "train", "loss"])
@pytest.mark.parametrize(
    ("optimizer", "slots"),
    [
        (lambda: v1.train.AdamOptimizer(0.1), 2 * 20 + 2),
        (lambda: v1.train.MomentumOptimizer(0.1, 0.9), 20),
        (lambda: v1.train.GradientDescentOptimizer(0.1), 0),
    ],
    ids=["adam", "momentum", "descent"],
)
def test_slots_of_a_tf1_graph_are_told_by_the_updates(resource, outputs, optimizer, slots):
    """Without collections, whatever is fetched: the first input of an update is a weight, what only updates read is a slot."""
    table = gw.count_parameters(regression_of_tf1(optimizer(), resource=resource), outputs=outputs)
    assert (table.trainable, table.non_trainable, table.optimizer_state) == (20, 2, slots)
