"""Every private name of TensorFlow that the package uses is there and does what it is used for."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from traceback import walk_tb

import numpy as np
import pytest
import tensorflow as tf

from graphwright.ir.graph import DTYPES
from graphwright.source import private_tensorflow as private
from graphwright.source.op_types import is_stateful
from graphwright.source.rebuild import variable_behind


def test_registering_functions_and_making_concrete_ones():
    """Fails loudly when a TensorFlow moves what rebuilding stands on."""
    function_def = tf.function(lambda x: x + 1.0).get_concrete_function(tf.TensorSpec([], tf.float32)).function_def
    function_def.signature.name = "probe_of_private_machinery"
    function = private.register_function(function_def)
    assert private.is_registered(function_def.signature.name)
    func_graph = private.new_func_graph("probe")
    private.add_function(func_graph, function)
    with func_graph.as_default():
        graph = tf.Graph()
        with graph.as_default():
            tf.compat.v1.placeholder(tf.resource, [], name="handle")
        private.import_nodes(graph.as_graph_def())
    variable, inner = tf.Variable(tf.ones([2, 5])), func_graph.get_tensor_by_name("handle:0")
    private.copy_handle_data(variable.handle, inner)
    assert variable_behind(variable.handle) == (tf.TensorShape([2, 5]), tf.float32)
    assert variable_behind(iter(tf.data.Dataset.range(1))._iterator_resource) is None
    with func_graph.as_default():
        assert tf.raw_ops.ReadVariableOp(resource=inner, dtype=tf.float32).shape == [2, 5]
    private.add_capture(func_graph, variable.handle, inner)
    assert [(a is variable.handle, b is inner) for a, b in func_graph.captures] == [(True, True)]
    concrete = private.concrete_function_from(func_graph, private.function_type(func_graph, 0, None), jit_compile=False, noinline=False)
    private.set_keywords(concrete, [])
    assert concrete.captured_inputs[0] is variable.handle
    del function, func_graph, concrete
    gc.collect()
    assert not private.is_registered(function_def.signature.name)


def test_what_is_behind_a_handle():
    with private.new_func_graph("probe").as_default():
        handle = tf.compat.v1.placeholder(tf.resource, [])
        private.set_handle_data(handle, DTYPES["float32"], (2, None))
        assert tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32).shape.as_list() == [2, None]
        assert variable_behind(handle) == (tf.TensorShape([2, None]), tf.float32)
        assert private.handle_data_of(handle).shape_and_type[0].dtype == tf.float32.as_datatype_enum
        elements = tf.compat.v1.placeholder(tf.variant, [])
        private.set_handle_data(elements, DTYPES["float32"], (3,))
        item = tf.raw_ops.TensorListGetItem(input_handle=elements, index=0, element_shape=-1, element_dtype=tf.float32)
        assert item.shape.as_list() == [3]


def test_traces_of_a_function():
    function = tf.function(lambda x: x + 1.0)
    assert private.traces_of(function) == []
    concrete = function.get_concrete_function(tf.TensorSpec([], tf.float32))
    assert [trace.name for trace in private.traces_of(function)] == [concrete.name]
    assert private.traces_of(lambda: None) == []


def test_the_registry_of_ops():
    assert {"MatMul", "NoOp"} <= set(private.registered_ops())
    assert [a.name for a in private.op_definition("MatMul").input_arg] == ["a", "b"]
    assert private.op_definition("NoSuchOp") is None
    assert (is_stateful("RandomUniform"), is_stateful("MatMul"), is_stateful("NoSuchOp")) == (True, False, None)


def test_a_tape_does_not_record():
    x = tf.constant(2.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        assert private.is_recorded()
        with private.not_recorded():
            assert not private.is_recorded()
            y = x * x
    assert tape.gradient(y, x) is None


def test_tracing_for_xla_is_noticed():
    seen = []

    def double(x):
        seen.append(private.is_traced_for_xla())
        return x + x

    assert [float(tf.function(double, jit_compile=compiled)(tf.constant(2.0))) for compiled in (False, True)] == [4.0, 4.0]
    assert seen == [False, True]
    assert not private.is_traced_for_xla()


def test_rerouting_operations_of_a_live_graph():
    graph = tf.Graph()
    with graph.as_default():
        one, other = tf.constant(1.0, name="one"), tf.constant(2.0, name="other")
        doubled = one + one
        private.set_input(doubled.op, 1, other)
        private.add_control_inputs(doubled.op, [tf.no_op("before")])
    assert [tensor.name for tensor in doubled.op.inputs] == ["one:0", "other:0"]
    assert [operation.name for operation in doubled.op.control_inputs] == ["before"]
    with tf.compat.v1.Session(graph=graph) as session:
        assert session.run(doubled) == 3.0
    private.remove_control_inputs(doubled.op)
    assert not doubled.op.control_inputs


def test_an_operation_knows_what_it_is_the_gradient_of():
    with tf.Graph().as_default() as graph:
        x = tf.constant(2.0, name="x")
        tf.gradients(tf.square(x, name="square"), x, name="grad")
        gradient = graph.get_operation_by_name("grad/square_grad/Mul_1")
    assert private.original_operation(gradient).name == "square"
    assert private.original_operation(x.op) is None
    private.set_original_operation(gradient, x.op)
    assert private.original_operation(gradient) is x.op


def test_a_tape_watches_a_variable():
    variable = tf.Variable(2.0, trainable=False)
    with tf.GradientTape() as tape:
        assert not private.is_watched([variable.handle])
        tape.watch(variable)
        assert private.is_watched([variable.handle])


def test_a_forward_accumulator_follows_a_tensor():
    x, other = tf.constant(2.0), tf.constant(3.0)
    assert not private.has_tangents([x])
    with tf.autodiff.ForwardAccumulator(x, tf.constant(1.0)):
        assert private.has_tangents([other, x * x])
        assert not private.has_tangents([other])


def test_a_function_runs_without_its_graph():
    variable = tf.Variable(3.0)
    concrete = tf.function(lambda x: tf.cond(x > 0.0, lambda: x * variable, lambda: x)).get_concrete_function(tf.TensorSpec([], tf.float32))
    run = private.runtime_function(concrete)
    del concrete
    gc.collect()
    assert [float(run([tf.constant(x)])[0]) for x in (2.0, -1.0)] == [6.0, -1.0]
    failing = tf.function(lambda x: tf.debugging.check_numerics(x, "a message")).get_concrete_function(tf.TensorSpec([], tf.float32))
    run = private.runtime_function(failing)
    del failing
    gc.collect()
    with pytest.raises(tf.errors.InvalidArgumentError, match="a message"):
        run([tf.constant(np.nan, tf.float32)])


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["0", "1", ""])
def test_whether_onednn_is_used_is_told_as_tensorflow_does(asked):
    code = (
        "from graphwright.ops.machine import onednn_enabled; told = onednn_enabled()\n"
        "from tensorflow.python.util import _pywrap_util_port as port; assert told == port.IsMklEnabled(), told"
    )
    environment = {key: value for key, value in os.environ.items() if key != "TF_ENABLE_ONEDNN_OPTS"}
    subprocess.run([sys.executable, "-c", code], env=environment | ({"TF_ENABLE_ONEDNN_OPTS": asked} if asked else {}), check=True)


def test_arguments_are_bound_and_constants_evaluated():
    function = tf.function(lambda x, rate=0.5: tf.shape(tf.reshape(x, [-1]))[:1] + 1)
    bound = private.bind_arguments(function, (), {"x": 1})
    assert (bound.args, bound.kwargs) == ((1, 0.5), {})
    with pytest.raises(TypeError, match="missing a required argument"):
        private.bind_arguments(function, (), {})
    concrete = function.get_concrete_function(tf.TensorSpec((2, 3)))
    assert private.bind_arguments(concrete, (tf.ones([2, 3]), 0.5), {}).args[0].shape == (2, 3)
    graph = concrete.graph
    assert private.constant_of(graph.outputs[0]).tolist() == [7]
    assert private.constant_of(graph.inputs[0]) is None


def test_classes_of_messages():
    assert private.message_class("protobuf.saver", "SaverDef")(max_to_keep=3).max_to_keep == 3
    assert "hlo_module" in private.message_class("xla.service.hlo", "HloProto", below="compiler").DESCRIPTOR.fields_by_name
    space = private.message_class("profiler.protobuf.xplane", "XSpace", below="tsl")()
    space.planes.add(name="host")
    assert [plane.name for plane in private.read_xspace(space.SerializeToString()).planes] == ["host"]


def test_options_of_calls_belong_to_the_thread_and_are_put_back():
    before = private.call_options()
    config = tf.compat.v1.ConfigProto.FromString(before.config_proto_serialized)
    private.set_call_options(private.new_call_options(config, "SINGLE_THREADED_EXECUTOR"))
    try:
        assert private.call_options().executor_type == "SINGLE_THREADED_EXECUTOR"
        assert float(tf.function(lambda x: x + 1.0)(1.0)) == 2.0
    finally:
        private.set_call_options(before)
    assert private.call_options() is before


def test_a_cancelled_call_prepares_its_function_and_runs_nothing():
    count = tf.Variable(0.0)
    step = tf.function(lambda: count.assign_add(1.0)).get_concrete_function()
    with private.collected_graphs() as graphs:
        private.call_cancelled(step, [])
    assert float(count) == 0.0
    records = [tf.compat.v1.RunMetadata.FunctionGraphs.FromString(data) for data in graphs]
    assert any(node.op == "AssignAddVariableOp" for record in records for graph in record.partition_graphs for node in graph.node)


def test_a_trace_by_the_user_is_seen():
    assert not private.is_summary_traced()
    tf.summary.trace_on(graph=True)
    try:
        assert private.is_summary_traced()
    finally:
        tf.summary.trace_off()
    assert not private.is_summary_traced()


def test_a_flat_call_leaves_captures_out():
    weight = tf.Variable(2.0)
    step = tf.function(lambda x, flag: {"y": x * weight}).get_concrete_function(tf.TensorSpec([2]), True)
    assert private.call_flat(step, [tf.ones([2])])["y"].numpy().tolist() == [2.0, 2.0]
    assert len(private.captures_of(step)) == 1


def test_the_program_that_xla_compiles():
    step = tf.function(lambda x: tf.sin(x)).get_concrete_function(tf.TensorSpec((4,)))
    assert private.compiled_by_xla(step, [tf.TensorSpec((4,))], "stablehlo").startswith(("module", "#loc"))
    program = private.compiled_by_xla(step, [tf.TensorSpec((4,))])
    module = private.message_class("xla.service.hlo", "HloProto", below="compiler").FromString(program).hlo_module
    assert [computation.name for computation in module.computations]


def test_collections_have_messages():
    assert private.collection_message("variables").__name__ == "VariableDef"
    assert private.collection_message("mine") is None


def test_specs_are_encoded():
    encoded = private.encoded_structure(((), {"x": tf.TensorSpec([2], tf.int32, "x")}))
    assert encoded.tuple_value.values[1].dict_value.fields["x"].tensor_spec_value.dtype == tf.int32.as_datatype_enum


def test_grappler_rewrites_a_graph():
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [4])
        y = tf.identity(tf.pow(x, 2.0), "y")
        meta_graph = tf.compat.v1.train.export_meta_graph(graph=graph)
    meta_graph.collection_def["train_op"].node_list.value.append(y.op.name)
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.min_graph_nodes = -1
    assert [node.op for node in private.optimized_by_grappler(meta_graph, config).node if node.op in ("Pow", "Square")] == ["Square"]


def test_eager_execution_where_graphs_are_built():
    with tf.Graph().as_default():
        assert not tf.executing_eagerly()
        with private.eager_mode():
            assert tf.executing_eagerly()
        assert not tf.executing_eagerly()


def test_the_strategy_that_stands_for_none():
    assert private.is_default_strategy(tf.distribute.get_strategy())
    assert not private.is_default_strategy(tf.distribute.OneDeviceStrategy("CPU:0"))


def test_a_variable_without_value():
    variable = private.variable_without_value("a name: any", DTYPES["float32"], (1 << 20, 1 << 20), trainable=False)
    assert (variable.path, variable.shape.as_list(), variable.trainable) == ("a name: any", [1 << 20, 1 << 20], False)
    assert private.type_behind(variable.handle) == (DTYPES["float32"], (1 << 20, 1 << 20))


def test_a_call_of_a_function_is_found_among_the_calls() -> None:
    @tf.function
    def fails(x):
        tf.debugging.assert_equal(x, 1)
        return x

    try:
        fails(tf.constant(2))
    except tf.errors.InvalidArgumentError as error:
        function, args, kwargs = private.call_in(frame for frame, _ in walk_tb(error.__traceback__))
    assert (function is fails, args[0].numpy(), kwargs) == (True, 2, {})
    assert private.call_in([]) is None


def test_a_variable_of_its_own_in_a_loop_and_in_its_gradient() -> None:
    own, w = private.own_variable(tf.constant(1.0)), tf.Variable(2.0)
    seen: list[bool] = []

    @tf.custom_gradient
    def square(x):
        def gradient(dy):
            seen.append(private.is_gradient_of_loop())
            return 2.0 * x * dy

        zero = 0.0 * tf.ensure_shape(tf.raw_ops.ReadVariableOp(resource=own.handle, dtype=tf.float32), [])
        return x * x + zero, gradient

    @tf.function
    def step():
        total = 0.0
        for _ in tf.range(3):
            total += square(w)
        return total

    with tf.GradientTape() as tape:
        y = step()
    assert float(tape.gradient(y, w)) == 12.0
    assert set(seen) == {True}
    assert not private.is_gradient_of_loop()
    tf.raw_ops.AssignVariableOp(resource=own.handle, value=tf.constant(3.0))
    assert float(tf.raw_ops.ReadVariableOp(resource=own.handle, dtype=tf.float32)) == 3.0


def test_the_body_of_a_vectorized_loop_is_told_from_other_scopes():
    seen = []

    def body(x):
        seen.append(private.is_vectorized())
        tf.function(lambda: seen.append(private.is_vectorized()))()
        return x

    tf.vectorized_map(body, tf.constant([1.0, 2.0]))
    with tf.name_scope("loop_body"):
        tf.function(body)(tf.constant(1.0))
    tf.map_fn(body, tf.constant([1.0]))
    assert seen[:2] == [True, True]
    assert set(seen[2:]) == {False}
    assert not private.is_vectorized()
