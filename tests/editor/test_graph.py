"""`Graph`: made of what, look-up, nodes added, renamed and removed, collections, variables, walks, frames."""

from __future__ import annotations

import pytest
import tensorflow.compat.v1 as tf

import graphwright.editor as gde
from graphwright.errors import UnsupportedError
from graphwright.ir.text import to_text
from graphwright.ir.verify import verify
from tests.editor.graphs import Named, eight_nodes, run

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def graph():
    return eight_nodes()


def sum_and_product():
    """(a + b) * c."""
    with tf.Graph().as_default() as tf_graph:
        a, b, c = tf.constant(1, name="a"), tf.constant(2, name="b"), tf.constant(10, name="c")
        tf.multiply(tf.add(a, b, name="add"), c, name="mult")
    return gde.Graph(tf_graph)


def test_a_graph_is_made_of_several_things(graph):
    definition = graph.to_graph_def()
    for source in (definition, graph.to_tf_graph(), graph.ir):
        other = gde.Graph(source)
        assert other.to_graph_def() == definition
        assert [n.name for n in other.nodes] == list(graph.node_names)
    assert gde.Graph(graph.ir).ir is graph.ir
    assert gde.Graph().nodes == ()
    assert gde.Graph(name="mine").name == "mine"
    assert gde.Graph().name.startswith("GraphDef Editor Graph created ")
    with pytest.raises(TypeError, match=r"Expected a tf\.Graph"):
        gde.Graph("file.pb")
    with pytest.raises(ValueError, match="SignatureInfo"):
        gde.Graph(signature_info={})


def test_a_graph_def_keeps_its_order_and_needs_no_shapes(graph):
    definition = graph.to_graph_def(add_shapes=False)
    backwards = tf.GraphDef(versions=definition.versions, node=reversed(definition.node))
    again = gde.Graph(backwards)
    assert [n.name for n in again.nodes] == [n.name for n in reversed(graph.nodes)]
    assert again["foo/bar/h:0"].shape.as_list() == [2]
    assert again.to_graph_def(add_shapes=False) == backwards
    assert graph.as_graph_def() == definition
    assert "_output_shapes" in graph.to_graph_def().node[0].attr


def test_look_up(graph):
    node = graph["foo/c"]
    assert graph.get_node_by_name("foo/c") == graph.get_operation_by_name("foo/c") == node
    assert graph["foo/c:0"] == graph.get_tensor_by_name("foo/c:0") == graph.get_tensor_by_name("foo/c") == node.output(0)
    assert graph.contains_node("foo/c")
    assert not graph.contains_node("foo/c:0")
    assert graph.contains_tensor("foo/c")
    assert not graph.contains_tensor("foo/c:1")
    assert "foo/c" in graph
    assert len(graph) == 8
    assert graph.get_operations() == list(graph.nodes)
    assert len(graph.tensors) == 8
    refused = [
        (lambda: graph["nowhere"], "No node or tensor"),
        (lambda: graph["foo/c:1"], "No node or tensor"),
        (lambda: graph.get_node_by_name("nowhere"), "No node"),
        (lambda: graph.get_tensor_by_name("nowhere:0"), "not found in graph"),
        (lambda: graph.get_tensor_by_name("foo/c:1"), "has 1 outputs"),
        (lambda: graph.get_tensor_by_name("foo/c:x"), "Invalid output index"),
        (lambda: graph.get_tensor_by_name("nowhere:0", "Bad {}: {}"), "Bad nowhere:0"),
        (lambda: graph.contains_node(3), "not a string"),
    ]
    for look_up, complaint in refused:
        with pytest.raises(ValueError, match=complaint):
            look_up()
    with pytest.raises(TypeError, match="must be a string"):
        graph[3]


def test_names(graph):
    assert graph.unique_name("new") == "new"
    assert graph.unique_name("a") == "a_1"
    assert graph.unique_name("A") == "A_1"
    assert graph.add_node("a", "NoOp", uniquify_name=True).name == "a_1"
    assert graph.unique_name("a") == "a_2"
    for taken in ("a", "A"):
        with pytest.raises(ValueError, match="already contains a node"):
            graph.add_node(taken, "NoOp")
    graph.rename_node("a", "z")
    assert graph.unique_name("A") == "A"
    assert graph["z"].output(0).name == "z:0"
    assert list(graph.to_graph_def().node[2].input) == ["z", "foo/b"]
    with pytest.raises(ValueError, match="already has a node"):
        graph.rename_node("z", "foo/c")
    with pytest.raises(ValueError, match="No node"):
        graph.rename_node("a", "b")


def test_names_are_told_apart_whatever_their_case():
    graph = gde.Graph()
    assert [gde.make_const(graph, name, 1, uniquify_name=True).name for name in ("C", "c", "c", "C")] == ["C", "c_1", "c_2", "C_3"]
    graph.ir.add_node("NoOp", "Made_Elsewhere")
    assert graph.unique_name("made_elsewhere") == "made_elsewhere_1"
    graph.remove_node_by_name("c_1")
    assert graph.unique_name("c") == "c_1"


def test_removal(graph):
    before = to_text(graph.ir)
    with pytest.raises(ValueError, match=r"dangling references from nodes \['foo/bar/h'\]"):
        graph.remove_node_by_name("foo/bar/f")
    assert to_text(graph.ir) == before
    gone = graph["foo/bar/e"]
    graph.remove_node_by_name("foo/bar/e")
    assert (gone.graph, gone.name, len(graph)) == (None, "foo/bar/e", 7)
    assert gone not in graph["foo/c"].output(0).consumers()
    graph.add_node("foo/bar/e", "NoOp")
    verify(graph.ir)


def test_who_waited_for_a_removed_node_no_longer_does(graph):
    t = Named(graph)
    c, h = t.c.op, t.h.op
    gde.reroute_ts(t.a, t.c)
    graph.remove_node_by_name(c.name)
    assert h.control_inputs == ()
    run(graph, "foo/bar/h:0")


def test_nodes_may_be_removed_in_any_order(graph):
    for name in ("foo/c", "foo/bar/f", "foo/bar/g"):
        removed = graph[name]
        graph.remove_node_by_name(name, check_for_refs=False)
        assert removed.graph is None
        assert removed.name == name
        assert not graph.contains_node(name)
        assert name not in graph.node_names
    with pytest.raises(ValueError, match=r"'foo/bar/\w' still reads '.*', which was removed"):
        graph.to_graph_def()
    for name in ("foo/bar/e", "foo/bar/h"):
        graph.remove_node_by_name(name)
    assert [n.name for n in graph.nodes] == ["a", "foo/b", "foo/d"]
    assert len(graph.ir) == 3
    assert len(graph.to_graph_def().node) == 3


def test_a_removed_node_may_be_rerouted_away_later(graph):
    t = Named(graph)
    graph.remove_node_by_name("foo/c", check_for_refs=False)
    gde.reroute_ts(t.a, t.e.op.inputs[0])
    assert len(graph.to_graph_def().node) == 7
    assert run(graph, "foo/bar/g:0").tolist() == [2.0, 2.0]


def optimizer_graph():
    with tf.Graph().as_default() as tf_graph:
        labels = tf.placeholder(tf.float32, [None], name="labels")
        x = tf.get_variable("x", [1])
        with tf.name_scope("loss"):
            loss = tf.losses.mean_squared_error(labels, x)
        with tf.name_scope("adam"):
            tf.train.AdamOptimizer(1e-4).minimize(loss)
        tf.add_to_collection("numbers", 3)
    return tf_graph


def test_collections_hold_nodes_tensors_and_variables():
    graph = gde.Graph(optimizer_graph())
    assert {"losses", "variables", "trainable_variables", "train_op"} <= set(graph.get_all_collection_keys())
    loss = graph.get_tensor_by_name("loss/mean_squared_error/value:0")
    assert loss.collection_names == {"losses"}
    assert graph.get_collection_by_name("losses") == [loss]
    variable = graph.get_variable_by_name("x:0")
    assert variable.collection_names == {"variables", "trainable_variables"}
    assert graph.get_collection("trainable_variables") == [variable]
    assert graph["adam/Adam"].collection_names == {"train_op"}
    assert graph.get_collection("nowhere") == []
    with pytest.raises(ValueError, match="No collection"):
        graph.get_collection_by_name("nowhere")


def test_collections_change(graph):
    t = Named(graph)
    t.c.op.add_to_collection("nodes")
    t.c.op.add_to_collection("nodes")
    graph.add_to_collection("nodes", t.d.op)
    t.c.add_to_collection("tensors")
    assert graph.get_collection_by_name("nodes") == [t.c.op, t.d.op]
    assert t.c.op.collection_names == {"nodes"}
    definition = tf.MetaGraphDef().collection_def["x"]
    definition.node_list.value.extend(["a", "foo/b:0"])
    graph.add_collection_from_collection_def("mixed", definition)
    with pytest.raises(TypeError, match="cannot be Nodes and Tensors"):
        graph.get_collection_by_name("mixed")
    with pytest.raises(ValueError, match="already exists"):
        graph.add_collection_from_collection_def("mixed", definition)
    t.d.op.remove_from_collections()
    assert graph.get_collection_by_name("nodes") == [t.c.op]
    graph.remove_node_by_name("foo/c", check_for_refs=False)
    assert graph.get_collection("nodes") == []


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (lambda g: g.add_node("n", "Negg").set_inputs([g["a"].output(0)]), "Negg"),
        (lambda g: g["foo/bar/h"].change_op_type("OfMyLibrary"), "OfMyLibrary"),
        (lambda g: g.rename_node("foo/bar/h", "__original__h"), "__original__h"),
        (lambda g: g.add_node("_internal", "NoOp"), "_internal"),
    ],
)
def test_what_tensorflow_does_not_take_is_refused_where_it_is_written(graph, word, message, tmp_path):
    word(graph)
    assert message in str(graph.to_graph_def())
    with pytest.raises((ValueError, UnsupportedError), match=message):
        graph.to_saved_model(str(tmp_path / "model"))


def test_collections_of_plain_items_are_passed_on(graph):
    definition = tf.MetaGraphDef().collection_def["x"]
    definition.int64_list.value.extend([1, 2])
    graph.add_collection_from_collection_def("numbers", definition)
    assert graph.get_collection_by_name("numbers") == definition
    with pytest.raises(ValueError, match="Unknown collection"):
        graph.add_collection_from_collection_def("empty", tf.MetaGraphDef().collection_def["y"])
    assert gde.Graph(graph.to_graph_def(), collections={"numbers": definition}).get_all_collection_keys() == ["numbers"]


@pytest.mark.parametrize("use_resource", [True, False])
def test_variables_follow_renames_and_become_variables_again(use_resource):
    with tf.Graph().as_default() as tf_graph:
        tf.identity(2.0 * tf.Variable([1.5], name="w", use_resource=use_resource), name="out")
    graph = gde.Graph(tf_graph)
    variable = graph.get_variable_by_name("w:0")
    assert list(graph.variable_names) == ["w:0"]
    assert (variable.initializer_name, variable.trainable) == ("w/Assign", True)
    assert variable.initial_value_name.endswith("initial_value:0")
    assert str(variable) == "Var[w:0]"
    graph.rename_node("w", "weights")
    graph.rename_node("w/Assign", "set")
    assert (variable.name, variable.initializer_name) == ("weights:0", "set")
    assert variable.to_proto().is_resource == use_resource
    assert run(graph, "out:0", initialize=True).tolist() == [3.0]
    copied = gde.Graph(graph.to_graph_def())
    assert not copied.variable_names
    again = copied.add_variable_from_variable_def(variable.to_proto())
    again.add_to_collection("variables")
    assert again.is_same_variable(variable)
    assert run(copied, "out:0", initialize=True).tolist() == [3.0]
    with pytest.raises(ValueError, match="already in collection"):
        again.add_to_collection("variables")
    with pytest.raises(ValueError, match="already has a variable"):
        copied.add_variable_from_variable_def(variable.to_proto().SerializeToString())
    assert copied.add_variable_from_variable_def(variable.to_proto().SerializeToString(), skip_if_present=True) is again
    wrong = variable.to_proto()
    wrong.initializer_name = "nowhere"
    with pytest.raises(ValueError, match="conflicts"):
        copied.add_variable_from_variable_def(wrong)
    wrong.variable_name = "other:0"
    with pytest.raises(ValueError, match="Initializer name"):
        copied.add_variable_from_variable_def(wrong)
    assert copied.add_variable("third").name == "third"
    with pytest.raises(ValueError, match="already in use"):
        copied.add_variable("third")
    with pytest.raises(KeyError):
        copied.get_variable_by_name("nowhere")


def visited(walk, **arguments):
    names = []
    walk(lambda node: names.append(node.name), **arguments)
    return names


def test_breadth_first():
    graph = sum_and_product()
    assert visited(graph.breadth_first_visitor) == ["a", "b", "c", "add", "mult"]
    assert visited(graph.breadth_first_visitor, starting_nodes=[graph["a"]]) == ["a", "add", "mult"]
    assert visited(graph.breadth_first_visitor, starting_nodes=[graph["c"]]) == ["c", "mult"]
    assert visited(graph.breadth_first_visitor, starting_nodes=[graph["a"]], max_depth=1) == ["a", "add"]
    assert visited(graph.breadth_first_visitor, visited_nodes={graph["c"], graph["add"]}) == ["a", "b"]
    backward = graph.backwards_breadth_first_visitor
    assert visited(backward, starting_nodes=[graph["mult"]]) == ["mult", "add", "c", "a", "b"]
    assert visited(backward, starting_nodes=[graph["add"]]) == ["add", "a", "b"]
    with pytest.raises(ValueError, match="starting_nodes"):
        backward(print)


def test_a_visitor_may_end_the_walk():
    class Stop(gde.GraphVisitor):
        def __init__(self):
            self.seen = []

        def visit_node(self, n):
            self.seen.append(n.name)
            return n.name == "b"

    graph, stop = sum_and_product(), Stop()
    assert graph.breadth_first_visitor(stop)
    assert stop.seen == ["a", "b"]
    assert not graph.breadth_first_visitor(lambda n: None)
    assert graph.backwards_breadth_first_visitor(Stop(), starting_nodes=[graph["add"]])
    with pytest.raises(NotImplementedError):
        gde.GraphVisitor()(graph["a"])


def tf1_loop():
    """The sum of 1..max, in a loop of TF1, then doubled."""
    tf.disable_control_flow_v2()
    try:
        with tf.Graph().as_default() as tf_graph:
            most = tf.placeholder(tf.int32, (), name="most")
            _, total = tf.while_loop(lambda i, _: i <= most, lambda i, s: (i + 1, s + i), [tf.constant(1), tf.constant(0)], name="loop")
            tf.multiply(total, 2, name="double")
    finally:
        tf.enable_control_flow_v2()
    return gde.Graph(tf_graph)


def test_frames():
    graph = tf1_loop()
    [name] = graph.get_frame_names()
    inside = {n.op_type for n in graph.frame_name_to_nodes(name)}
    assert {"Enter", "Merge", "Switch", "NextIteration", "LoopCond"} <= inside
    assert not inside & {"Exit", "Placeholder", "Mul"}
    assert graph.node_to_frame_names(graph["double"]) == ()
    assert graph.node_to_frame_names(graph["loop/LoopCond"]) == (name,)
    with pytest.raises(KeyError):
        graph.frame_name_to_nodes("nowhere")
    graph.rename_node("double", "twice")
    assert graph.node_to_frame_names(graph["twice"]) == ()
    assert run(graph, "twice:0", {"most:0": 10}) == 110


def test_shapes_inferred_anew():
    graph = sum_and_product()
    graph["a"].output(0).shape = [7]
    graph.infer_shapes_and_dtypes()
    assert graph["a:0"].shape.as_list() == []
    graph["c"].output(0).shape = [7]
    graph.infer_shapes_and_dtypes([graph["a"]])
    assert graph["c:0"].shape.as_list() == [7]
