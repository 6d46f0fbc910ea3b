"""What is written after an edit is loaded by a session, or was refused: main ops, descriptions of variables, savers."""

import numpy as np
import pytest
import tensorflow as tf

import graphwright as gw
from graphwright.errors import ArgumentError, GraphError
from graphwright.ir.edit import prune
from graphwright.source.files import load_callable
from graphwright.source.private_tensorflow import message_class
from graphwright.source.variable_values import variable_values
from graphwright.transform.convert_dtype import convert_weights
from graphwright.transform.fold_batch_norms import fold_batch_norms
from graphwright.transform.freeze_variables import freeze_variables
from graphwright.transform.strip_training import strip_training
from tests.ir.outlined import outlined

v1 = tf.compat.v1
FEEDS = {"x": [[1.0, 2.0]], "ids": [2]}


@pytest.fixture(scope="module", params=["group", "initializer", "tables"])
def model(request, tmp_path_factory):
    """A TF1 model with variables, a table and a main op: a group of initializers, that of one variable alone, that of the tables."""
    folder = str(tmp_path_factory.mktemp("model") / request.param)
    with tf.Graph().as_default(), v1.Session() as session:
        x, ids = v1.placeholder(tf.float32, [None, 2], name="x"), v1.placeholder(tf.int64, [None], name="ids")
        w, r = v1.get_variable("w", [2, 3], use_resource=True), v1.get_variable("r", [3], use_resource=False)
        local = v1.get_local_variable("local", initializer=tf.constant([3.0, 4.0, 5.0]), use_resource=True)
        y = tf.matmul(x, w) + r + local
        if request.param != "initializer":
            keys = tf.lookup.KeyValueTensorInitializer(tf.constant([1, 2], tf.int64), tf.constant([5.0, 7.0]))
            y += tf.lookup.StaticHashTable(keys, -1.0).lookup(ids)[:, None]
        y = tf.identity(y, name="y")
        made = {
            "group": lambda: tf.group(v1.local_variables_initializer(), v1.tables_initializer()),
            "initializer": lambda: local.initializer,
            "tables": lambda: tf.group(v1.tables_initializer(), local.initializer),
        }
        main_op = made[request.param]()
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer(), v1.tables_initializer()])
        builder = v1.saved_model.Builder(folder)
        signature = v1.saved_model.predict_signature_def({"x": x, "ids": ids}, {"y": y})
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature}, main_op=main_op)
        builder.save()
    return folder


def served(folder):
    with tf.Graph().as_default(), v1.Session() as session:
        v1.saved_model.load(session, ["serve"], str(folder))
        in_session = session.run("y:0", {f"{name}:0": value for name, value in FEEDS.items()})
    function = tf.saved_model.load(str(folder)).signatures["serving_default"]
    feeds = {"x": tf.constant(FEEDS["x"]), "ids": tf.constant(FEEDS["ids"], tf.int64)}
    np.testing.assert_array_equal(function(**feeds)["y"], in_session)
    return in_session


def frozen(folder):
    graph = gw.load(folder)
    freeze_variables(graph, {"local": np.array([3, 4, 5], np.float32), **variable_values(graph)})
    return graph


@pytest.mark.parametrize("edit", [lambda graph: None, fold_batch_norms, lambda graph: convert_weights(graph, "bfloat16")])
def test_a_frozen_model_with_a_main_op(model, edit, tmp_path):
    graph = frozen(model)
    edit(graph)
    gw.write(graph, tmp_path / "model")
    np.testing.assert_allclose(served(tmp_path / "model"), served(model), rtol=0.05)


def test_a_main_op_stays_for_what_else_it_does(model):
    """Only where it does nothing any more, the collection goes."""
    held = frozen(model).collections.get("saved_model_main_op")
    if "initializer" in model:
        assert held is None
        return
    (main_op,) = held.items
    assert [before.op_type for before in main_op.control_inputs] in (["LookupTableImportV2"], ["NoOp"])


def variable_defs(folder):
    saved = message_class("protobuf.saved_model", "SavedModel").FromString((folder / "saved_model.pb").read_bytes())
    listed = saved.meta_graphs[0].collection_def["variables"].bytes_list.value
    return [message_class("framework.variable", "VariableDef").FromString(item) for item in listed]


def test_a_description_that_misses_a_name_leaves_and_one_that_can_do_without_stays(model, tmp_path):
    graph = gw.load(model)
    reads = [node for node in graph if node.op_type == "ReadVariableOp" and node.inputs[0].name == "w:0"]
    for k, node in enumerate(reads):
        outlined([node], f"read_{k}")
    graph.collections["variables"].items[1].refs.pop("initial_value_name")
    gw.write(graph, tmp_path / "model")
    np.testing.assert_array_equal(served(tmp_path / "model"), served(model))
    (left,) = variable_defs(tmp_path / "model")
    assert (left.variable_name, left.initial_value_name, bool(left.initializer_name)) == ("r:0", "", True)


def test_variables_that_nothing_would_restore_are_refused(model, tmp_path):
    graph = gw.load(model)
    with pytest.raises(ArgumentError, match=r"reads 3 variables, and nothing would restore them: w, r, local"):
        strip_training(graph, keep_variables=False)
    prune(graph, collections=False)
    with pytest.raises(GraphError, match="3 variables are read by what is served, and nothing restores them"):
        gw.write(graph, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    graph = frozen(model)
    strip_training(graph, keep_variables=False)
    gw.write(graph, tmp_path / "model")
    np.testing.assert_allclose(served(tmp_path / "model"), served(model), rtol=1e-6)


def test_a_model_with_the_optimizer_state_of_keras_2_is_run_without_it(tmp_path):
    module = tf.Module()
    module.w, module.m = tf.Variable([1.0, 2.0]), tf.Variable([0.0, 0.0])
    module.f = tf.function(lambda x: {"y": x * module.w}, input_signature=[tf.TensorSpec((2,), name="x")])
    tf.saved_model.save(module, str(tmp_path / "model"), signatures=module.f)
    file = tmp_path / "model/saved_model.pb"
    saved = message_class("protobuf.saved_model", "SavedModel")()
    saved.ParseFromString(file.read_bytes())
    nodes = saved.meta_graphs[0].object_graph_def.nodes
    w, m = (next(c.node_id for c in nodes[0].children if c.local_name == name) for name in "wm")
    nodes[0].slot_variables.add(original_variable_node_id=w, slot_name="m", slot_variable_node_id=m)
    file.write_bytes(saved.SerializeToString())
    with pytest.raises(AttributeError, match="add_slot"):
        tf.saved_model.load(str(tmp_path / "model"))
    function = load_callable(gw.trust(tmp_path / "model"), runs=True)
    np.testing.assert_array_equal(function(x=tf.constant([3.0, 4.0]))["y"], [3.0, 8.0])
