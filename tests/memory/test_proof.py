"""The proof by structure: it holds for what plans do to a graph, and each single fault breaks it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import graphwright as gw
from graphwright.analyze import effect_order
from graphwright.ir.attributes import FunctionReference
from graphwright.ir.constants import tensor_attribute
from graphwright.ir.edit.clone import copy_graph
from graphwright.ir.graph import DTYPES, Graph, Node
from graphwright.ir.traits.effects import Purity
from graphwright.memory.planning import map_tasks
from graphwright.plan.model import CostGraph, Schedule
from graphwright.plan.simulate import simulate
from graphwright.plan.solve import solve
from graphwright.step.flatten import FlatStep, flatten, stateful_op_types
from graphwright.transform.branch_order import order_branches
from graphwright.transform.loop_ends import wait_for_loop_ends
from graphwright.transform.proof import Original, Proof
from graphwright.transform.rematerialize import apply_schedule


def _step() -> Any:
    """A step with random numbers of both kinds, a loop and a branch that read and write variables, and reads around an update."""
    weight = tf.Variable(tf.ones((32, 32)) * 0.1)
    count, average, other = tf.Variable(0), tf.Variable(tf.zeros((32,))), tf.Variable(0.0)

    @tf.function
    def step(x: Any) -> Any:
        before = tf.identity(average)
        with tf.GradientTape() as tape:
            y = x
            for k in range(6):
                y = tf.nn.dropout(tf.tanh(y @ weight), 0.3)
                y = y - tf.random.stateless_normal(tf.shape(y), (k, 1)) * 0.1
            _, z = tf.while_loop(lambda i, z: i < 3, lambda i, z: (i + 1, tf.nn.dropout(tf.tanh(z @ weight), 0.2)), (0, y))
            loss = tf.reduce_mean(z * z)
        gradient = tape.gradient(loss, weight)

        def update() -> Any:
            other.assign(tf.reduce_sum(gradient) - other)
            return tf.random.uniform(()) - tf.random.normal(())

        noise = tf.cond(loss > 0.0, update, lambda: tf.constant(0.0))
        average.assign(average * 0.9 + tf.reduce_mean(y, 0) * 0.1)
        count.assign_add(1)
        weight.assign_sub(0.1 * gradient)
        after = tf.identity(average)
        return loss, noise, before - after, tf.reduce_sum(weight)

    return step


@pytest.fixture(scope="module")
def concrete() -> Any:
    step = _step()
    function = step.get_concrete_function(tf.TensorSpec((256, 32), tf.float32))
    function.owner = step  # the variables live as long
    return function


@functools.cache
def _schedule(costs: CostGraph) -> Schedule:
    peak = simulate(costs, Schedule(costs.order)).peak_bytes
    return solve(costs, int(0.7 * peak), time_limit_s=0.2).schedule


class _Planned:
    """A flat step after a plan was applied to it, as a graph."""

    def __init__(self, function: Any) -> None:
        self.flat: FlatStep = flatten(function)
        self.original = Original(self.flat.graph, self.flat.purity)
        tasks = map_tasks(self.flat)
        apply_schedule(tasks, _schedule(tasks.costs))
        order_branches(self.graph)
        wait_for_loop_ends(self.graph)

    @property
    def graph(self) -> Graph:
        return self.flat.graph

    def prove(self) -> Proof:
        return self.original.compare(self.graph, Purity(self.graph, stateful_op_types(self.graph)))

    def body(self, kind: str) -> Graph:
        """The body of a loop or of a branch that is not empty."""
        node = next(n for n in self.graph.nodes if n.op_type == kind)
        name: Any = node.attrs["body" if kind == "While" else "then_branch"]
        return self.graph.functions[name.name].body


def _find(graph: Graph, op_type: str, number: int = 0) -> Node:
    return [n for n in graph.nodes if n.op_type == op_type][number]


def _copy(graph: Graph, node: Node) -> Node:
    return graph.add_node(
        node.op_type,
        graph.unique_name(f"{node.name}/copy"),
        inputs=node.inputs,
        control_inputs=node.control_inputs,
        attrs=dict(node.attrs),
        output_types=[(v.dtype, v.shape) for v in node.outputs],
    )


def _draw_anew(graph: Graph) -> None:
    drawn = _find(graph, "RandomUniform")
    reader = drawn.outputs[0].uses[0]
    graph.replace_input(reader.node, reader.index, _copy(graph, drawn).outputs[0])


def _run_twice(graph: Graph) -> None:
    graph.control_outputs = [*graph.control_outputs, _copy(graph, _find(graph, "AssignAddVariableOp"))]


def _swap_inputs(graph: Graph) -> None:
    node = _find(graph, "Sub")
    graph.replace_inputs(node, node.inputs[::-1])


def _merge_draws(graph: Graph) -> None:
    first, second = (_find(graph, "RandomUniform", k) for k in range(2))
    graph.replace_uses(second.outputs[0], first.outputs[0])


def _read_after_the_update(graph: Graph) -> None:
    """Let an output be made of the value before the update where it was made of the one behind it."""
    update = _find(graph, "AssignSubVariableOp")
    reads = [n for n in graph.nodes if n.op_type == "ReadVariableOp" and n.inputs[0] is update.inputs[0]]
    early, late = reads[0], reads[-1]
    graph.replace_uses(late.outputs[0], early.outputs[0])


def _let_a_read_slip(graph: Graph) -> None:
    """Take away what holds the second read of the average behind its update."""
    update = _find(graph, "AssignVariableOp")
    read = [n for n in graph.nodes if n.op_type == "ReadVariableOp" and n.inputs[0] is update.inputs[0]][-1]
    for control in read.control_inputs:
        graph.remove_control_input(read, control)


def _let_a_write_slip(graph: Graph) -> None:
    """Take away what holds an update behind the reads of the old value."""
    update = _find(graph, "AssignSubVariableOp")
    for control in update.control_inputs:
        graph.remove_control_input(update, control)
    for consumer in update.control_consumers:
        graph.remove_control_input(consumer, update)


def _leave_an_update_out(graph: Graph) -> None:
    update = _find(graph, "AssignAddVariableOp")
    graph.control_outputs = [n for n in graph.control_outputs if n is not update]
    for consumer in update.control_consumers:
        graph.remove_control_input(consumer, update)


def _change_an_attribute(graph: Graph) -> None:
    graph.set_attr(_find(graph, "MatMul"), "transpose_a", True)


def _change_a_constant(graph: Graph) -> None:
    used = (n for n in graph.nodes if n.op_type == "Const" and n.outputs[0].shape == () and n.outputs[0].dtype.name == "float32")
    graph.set_attr(next(used), "value", tensor_attribute(np.array(0.123, np.float32)))


def _exchange_branches(graph: Graph) -> None:
    node = _find(graph, "If")
    left, right = node.attrs["then_branch"], node.attrs["else_branch"]
    graph.set_attr(node, "then_branch", right)
    graph.set_attr(node, "else_branch", left)


def _exchange_outputs(graph: Graph) -> None:
    graph.outputs = [graph.outputs[1], graph.outputs[0], *graph.outputs[2:]]


_FAULTS: list[Callable[[Graph], None]] = [
    _draw_anew,
    _run_twice,
    _swap_inputs,
    _merge_draws,
    _read_after_the_update,
    _let_a_read_slip,
    _let_a_write_slip,
    _leave_an_update_out,
    _change_an_attribute,
    _change_a_constant,
    _exchange_branches,
    _exchange_outputs,
]


def test_a_plan_with_recomputations_loops_and_branches_is_proved(concrete: Any) -> None:
    planned = _Planned(concrete)
    assert any(n.name.startswith("recomputed/") for n in planned.graph.nodes)
    proof = planned.prove()
    assert proof.equal, proof.difference
    assert proof.effects >= 6 + 4
    assert str(proof).startswith("equal by structure")


@pytest.mark.parametrize("fault", _FAULTS, ids=lambda fault: fault.__name__.strip("_"))
def test_each_fault_is_found(concrete: Any, fault: Callable[[Graph], None]) -> None:
    planned = _Planned(concrete)
    fault(planned.graph)
    proof = planned.prove()
    assert not proof.equal
    assert "not proved" in str(proof)


def _swap_in_body(body: Graph) -> None:
    node = next(n for n in body.nodes if n.op_type in ("MatMul", "Sub"))
    body.replace_inputs(node, node.inputs[::-1])


def _write_twice_in_body(body: Graph) -> None:
    body.control_outputs = [*body.control_outputs, _copy(body, _find(body, "AssignVariableOp"))]


def _read_late_in_body(body: Graph) -> None:
    write = _find(body, "AssignVariableOp")
    read = next(n for n in body.nodes if n.op_type == "ReadVariableOp" and n.inputs[0] is write.inputs[0])
    late = _copy(body, read)
    reader = read.outputs[0].uses[0]
    body.replace_input(reader.node, reader.index, late.outputs[0])
    for control in write.control_inputs:
        body.remove_control_input(write, control)
    body.replace_input(write, 1, next(v for n in body.nodes if n.op_type == "Sum" for v in n.outputs))
    body.add_control_input(late, write)


def _merge_draws_in_body(body: Graph) -> None:
    first, second = (next(n for n in body.nodes if n.op_type == kind) for kind in ("RandomUniform", "RandomStandardNormal"))
    body.replace_uses(second.outputs[0], first.outputs[0])


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("While", _swap_in_body),
        ("While", _draw_anew),
        ("If", _swap_in_body),
        ("If", _draw_anew),
        ("If", _write_twice_in_body),
        ("If", _read_late_in_body),
        ("If", _merge_draws_in_body),
    ],
    ids=lambda part: getattr(part, "__name__", part).strip("_"),
)
def test_each_fault_in_a_loop_or_a_branch_is_found(concrete: Any, kind: str, fault: Callable[[Graph], None]) -> None:
    planned = _Planned(concrete)
    fault(planned.body(kind))
    assert not planned.prove().equal


def test_more_order_and_other_names_are_no_difference(concrete: Any) -> None:
    planned = _Planned(concrete)
    graph = planned.graph
    for k, node in enumerate([n for n in graph.nodes if n.op_type in ("Tanh", "MatMul", "Mul")]):
        graph.rename(node, f"other_{k}")
    assert planned.prove().equal
    first, second = _find(graph, "AssignAddVariableOp"), _find(graph, "AssignSubVariableOp")
    graph.add_control_input(second, first)
    assert planned.prove().equal


def test_waiting_for_a_dead_branch_of_tf1_is_found() -> None:
    """A Switch of TF1 makes one side dead, and what waits for a dead node never runs."""
    count = tf.Variable(0)

    @tf.function
    def step(x: Any, flag: Any) -> Any:
        _, taken = tf.raw_ops.Switch(data=x, pred=flag)
        inside = tf.tanh(taken)
        skipped, _ = tf.raw_ops.Switch(data=x, pred=flag)
        merged, _ = tf.raw_ops.Merge(inputs=[tf.exp(skipped), inside])
        count.assign_add(1)
        return merged * 2.0

    function = step.get_concrete_function(tf.TensorSpec((8,), tf.float32), tf.TensorSpec((), tf.bool))
    flat = flatten(function)
    graph = flat.graph
    original = Original(graph, flat.purity)
    update, inside, after = _find(graph, "AssignAddVariableOp"), _find(graph, "Tanh"), _find(graph, "Mul")

    def prove() -> Proof:
        return original.compare(graph, Purity(graph, stateful_op_types(graph)))

    graph.add_control_input(update, after)  # behind the Merge: it always runs
    assert prove().equal
    graph.add_control_input(update, inside)
    assert prove().difference == f"{update.name!r} runs on another condition"
    graph.remove_control_input(update, inside)
    merge = _find(graph, "Merge")
    graph.replace_inputs(merge, merge.inputs[::-1])
    assert not prove().equal  # which side came is an output of the node


def _exchanged(function: Any, first: str, second: str) -> Proof:
    """The proof where a node of one kind runs behind one of another kind that waited for it."""
    flat = flatten(function)
    graph = flat.graph
    original = Original(graph, flat.purity)
    assert original.compare(graph, flat.purity).equal
    before, after = _find(graph, first), _find(graph, second)
    for node in (before, after):
        for control in node.control_inputs:
            graph.remove_control_input(node, control)
    graph.add_control_input(before, after)
    proof = original.compare(graph, Purity(graph, stateful_op_types(graph)))
    assert "cycle" not in proof.difference
    return proof


def test_an_assertion_stays_before_the_writes_that_it_guards() -> None:
    count = tf.Variable(0)

    @tf.function
    def step(x: Any) -> Any:
        with tf.control_dependencies([tf.raw_ops.Assert(condition=x > 0.0, data=[x])]):
            return count.assign_add(1)

    flat = flatten(step.get_concrete_function(tf.TensorSpec((), tf.float32)))
    graph = flat.graph
    original = Original(graph, flat.purity)
    guard = _find(graph, "Assert")
    for waiting in guard.control_consumers:
        if waiting.op_type != "NoOp":  # it still runs
            graph.remove_control_input(waiting, guard)
    proof = original.compare(graph, flat.purity)
    assert "may run too early or too late" in proof.difference


def test_tables_of_one_shared_name_are_one() -> None:
    @tf.function
    def step(key: Any) -> Any:
        one, other = (
            tf.raw_ops.MutableHashTableV2(key_dtype=tf.int64, value_dtype=tf.int64, shared_name="t", container="") for _ in range(2)
        )
        done, default = tf.raw_ops.LookupTableInsertV2(table_handle=one, keys=key, values=key), tf.constant(0, tf.int64)
        with tf.control_dependencies([done]):
            return tf.raw_ops.LookupTableFindV2(table_handle=other, keys=key, default_value=default)

    function = step.get_concrete_function(tf.TensorSpec((1,), tf.int64))
    assert not _exchanged(function, "LookupTableInsertV2", "LookupTableFindV2").equal


def test_a_loop_that_exchanges_its_variables_hides_which_is_which() -> None:
    left, right = tf.Variable(1.0), tf.Variable(2.0)

    @tf.function
    def step(x: Any) -> Any:
        _, handle, _ = tf.while_loop(lambda i, a, b: i < 1, lambda i, a, b: (i + 1, b, a), (0, left.handle, right.handle))
        value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)
        with tf.control_dependencies([value]):
            right.assign(x)
        return value

    function = step.get_concrete_function(tf.TensorSpec((), tf.float32))
    assert not _exchanged(function, "ReadVariableOp", "AssignVariableOp").equal


@pytest.mark.parametrize("shape", [(), (0,)])
def test_a_choice_is_taken_as_made_for_a_single_condition_alone(shape: tuple[int, ...]) -> None:
    @tf.function
    def step(n: Any, x: Any, y: Any) -> Any:
        return tf.where(tf.equal(tf.bitwise.bitwise_and(n * (n + 1), 1), 0), x, y)

    scalar = tf.TensorSpec((), tf.float32)
    function = step.get_concrete_function(tf.TensorSpec(shape, tf.int32), scalar, scalar)
    flat = flatten(function)
    original = Original(flat.graph, flat.purity)
    flat.graph.outputs = [flat.graph.inputs[1]]
    assert original.compare(flat.graph, flat.purity).equal == (shape == ())


def test_a_cycle_is_no_proof(concrete: Any) -> None:
    planned = _Planned(concrete)
    product = _find(planned.graph, "MatMul")
    planned.graph.add_control_input(product, _find(planned.graph, "AssignSubVariableOp"))
    assert "cycle" in planned.prove().difference


def test_time_is_linear_in_writes_and_nodes() -> None:
    """A chain of 3,000 variables that are each read and written: no step of the proof looks at pairs."""
    visits = 0
    swept = effect_order.EffectOrder._sweep

    def counted(self: Any, order: Any, bits: Any, neighbors: Any) -> Any:
        def seen(node: Node) -> Any:
            nonlocal visits
            visits += 1
            return neighbors(node)

        return swept(self, order, bits, seen)

    graph = Graph()
    f32 = [(DTYPES["float32"], ())]
    handles = [graph.add_node("Placeholder", f"v{k}", output_types=[(DTYPES["resource"], ())]).outputs[0] for k in range(3000)]
    graph.inputs = handles
    writes: list[Node] = []
    for k, handle in enumerate(handles):
        read = graph.add_node("ReadVariableOp", f"read{k}", inputs=[handle], control_inputs=writes[-1:], output_types=f32)
        changed = graph.add_node("Neg", f"neg{k}", inputs=read.outputs, output_types=f32)
        writes.append(graph.add_node("AssignVariableOp", f"write{k}", inputs=[handle, changed.outputs[0]]))
    graph.control_outputs = writes
    purity = Purity(graph, {"Placeholder": False, "Neg": False, "AssignVariableOp": True})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(effect_order.EffectOrder, "_sweep", counted)
        assert Original(graph, purity).compare(graph, purity).equal
    assert visits == 2 * 2 * len(graph)  # two graphs, forward and backward


def _compiled(step: Callable[..., Any], *specs: Any) -> Any:
    return tf.function(step).get_concrete_function(*specs)


_SCALAR = tf.TensorSpec((), tf.float32)


def test_what_writes_into_its_input_runs_once_and_is_refused() -> None:
    rows, row = tf.TensorSpec((4, 2), tf.float32), tf.TensorSpec((1, 2), tf.float32)
    for write in (tf.raw_ops.InplaceAdd, tf.raw_ops.InplaceSub, tf.raw_ops.InplaceUpdate):
        flat = flatten(_compiled(lambda x, v, write=write: write(x=x, i=[0], v=v), rows, row))
        assert not flat.purity.is_pure(next(n for n in flat.graph.nodes if n.op_type.startswith("Inplace")))
        with pytest.raises(gw.UnsupportedError, match="writes into a tensor"):
            Original(flat.graph, flat.purity)


def test_what_reads_a_data_set_may_touch_what_the_functions_of_that_captured() -> None:
    step_size = tf.Variable(1.0)

    def step(data: Any) -> Any:
        first = tf.raw_ops.DatasetToSingleElement(dataset=data, output_types=[tf.float32], output_shapes=[()])[0]
        with tf.control_dependencies([first]):
            return first, tf.raw_ops.ReadVariableOp(resource=step_size.handle, dtype=tf.float32)

    assert not _exchanged(_compiled(step, tf.TensorSpec((), tf.variant)), "DatasetToSingleElement", "ReadVariableOp").equal


def test_two_batches_of_one_iterator_keep_their_order() -> None:
    iterator = iter(tf.data.Dataset.range(9))

    def step() -> Any:
        return next(iterator) * 10, next(iterator)

    flat = flatten(_compiled(step))
    graph = flat.graph
    original = Original(graph, flat.purity)
    first, second = (_find(graph, "IteratorGetNext", k) for k in range(2))
    assert first in second.control_inputs
    graph.remove_control_input(second, first)
    assert "may run too early or too late" in original.compare(graph, flat.purity).difference


def test_a_handle_that_a_branch_chose_may_be_any() -> None:
    left, right = tf.Variable(1.0), tf.Variable(2.0)

    def step(x: Any) -> Any:
        handle = tf.cond(x > 0.0, lambda: left.handle, lambda: right.handle)
        value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)
        with tf.control_dependencies([value]):
            right.assign(x)
        return value

    assert not _exchanged(_compiled(step, _SCALAR), "ReadVariableOp", "AssignVariableOp").equal


def test_a_variable_that_a_loop_gets_twice_is_one() -> None:
    weight = tf.Variable(1.0)

    def step(x: Any) -> Any:
        def body(i: Any, first: Any, second: Any, total: Any) -> Any:
            value = tf.raw_ops.ReadVariableOp(resource=second, dtype=tf.float32)
            with tf.control_dependencies([value]):
                tf.raw_ops.AssignVariableOp(resource=first, value=total)
            return i + 1, first, second, total + value

        return tf.while_loop(lambda i, *_: i < 3, body, (0, weight.handle, weight.handle, x))[3]

    flat = flatten(_compiled(step, _SCALAR))
    original = Original(flat.graph, flat.purity)
    loop: Any = _find(flat.graph, "While")
    body = flat.graph.functions[loop.attrs["body"].name].body
    write, read = _find(body, "AssignVariableOp"), _find(body, "ReadVariableOp")
    for control in write.control_inputs:
        body.remove_control_input(write, control)
    body.add_control_input(read, write)
    assert not original.compare(flat.graph, flat.purity).equal


def _with_attribute(name: str, value: Any) -> Proof:
    """The proof where an attribute of a leaky ReLU, which is 0.0, gets another value."""
    flat = flatten(_compiled(lambda x: tf.raw_ops.LeakyRelu(features=x, alpha=0.0), _SCALAR))
    node = _find(flat.graph, "LeakyRelu")
    flat.graph.set_attr(node, "alpha", float("nan") if value != value else 0.0)
    original = Original(flat.graph, flat.purity)
    flat.graph.set_attr(node, name, value)
    return original.compare(flat.graph, flat.purity)


def test_float_attributes_are_compared_by_their_bits() -> None:
    assert not _with_attribute("alpha", -0.0).equal
    assert _with_attribute("alpha", float("nan")).equal


def _with_branches(inside: Callable[[Any], Any], *, ordered: bool = False) -> FlatStep:
    """A step with two branches on one condition, one behind the other where that is wanted."""

    def step(x: Any) -> Any:
        first = tf.cond(x > 0.0, lambda: inside(x), lambda: tf.sin(x))
        with tf.control_dependencies([first] if ordered else []):
            return first, tf.cond(x > 0.0, lambda: tf.exp(inside(x)), lambda: tf.sin(x))

    return flatten(_compiled(step, _SCALAR))


def _branches(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op_type in ("If", "StatelessIf")]


@pytest.mark.parametrize("names", [("f", "f_1"), ("f__graphwright_1", "f__graphwright_2")])
def test_functions_of_one_stem_are_two(names: tuple[str, str]) -> None:
    """The first function lets the read slip that the second holds behind the update."""
    count = tf.Variable(0.0)
    flat = _with_branches(count.assign_add)
    graph = flat.graph
    first, second = _branches(graph)
    held: Any = first.attrs["then_branch"]
    loose, ordered = (copy_graph(graph).graph.functions[held.name] for _ in names)
    read = _find(loose.body, "ReadVariableOp")
    for control in read.control_inputs:
        loose.body.remove_control_input(read, control)
    graph.functions |= dict(zip(names, (loose, ordered), strict=True))
    graph.set_attr(first, "then_branch", FunctionReference(names[0]))
    graph.set_attr(second, "then_branch", FunctionReference(names[1]))
    purity = Purity(graph, stateful_op_types(graph))
    original = Original(graph, purity)
    assert original.compare(graph, purity).equal
    graph.set_attr(second, "then_branch", FunctionReference(names[0]))
    assert not original.compare(graph, purity).equal


def test_attributes_of_a_function_reference_count() -> None:
    flat = _with_branches(tf.tanh)
    original = Original(flat.graph, flat.purity)
    node = _branches(flat.graph)[0]
    branch: Any = node.attrs["then_branch"]
    proto = tf.compat.v1.AttrValue().func
    proto.name = branch.name
    proto.attr["T"].type = tf.float32.as_datatype_enum
    flat.graph.set_attr(node, "then_branch", FunctionReference(branch.name, proto.SerializeToString()))
    assert not original.compare(flat.graph, flat.purity).equal


def test_two_calls_of_a_function_that_draws_share_its_counter() -> None:
    flat = _with_branches(lambda x: x + tf.random.uniform((), seed=1), ordered=True)
    graph = flat.graph
    first, second = _branches(graph)
    for name in ("then_branch", "else_branch"):
        graph.set_attr(second, name, first.attrs[name])
    purity = Purity(graph, stateful_op_types(graph))
    original = Original(graph, purity)
    for node in graph.nodes:
        for control in node.control_inputs if node.op_type != "NoOp" else ():  # it gathers what runs
            graph.remove_control_input(node, control)
    assert "may run too early or too late" in original.compare(graph, purity).difference


def test_a_fractional_pool_draws_its_regions_once() -> None:
    def step(x: Any) -> Any:
        return tf.raw_ops.FractionalMaxPool(value=x, pooling_ratio=[1.0, 1.4, 1.4, 1.0])[0]

    flat = flatten(_compiled(step, tf.TensorSpec((1, 16, 16, 1), tf.float32)))
    graph = flat.graph
    pool = _find(graph, "FractionalMaxPool")
    original = Original(graph, flat.purity)
    graph.outputs = [_copy(graph, pool).outputs[0]]
    assert not original.compare(graph, flat.purity).equal


def test_a_file_is_read_behind_its_writing(tmp_path: Path) -> None:
    def step(text: Any) -> Any:
        name = tf.constant(str(tmp_path / "file"))
        written = tf.raw_ops.WriteFile(filename=name, contents=text)
        with tf.control_dependencies([written]):
            return tf.raw_ops.ReadFile(filename=name)

    assert not _exchanged(_compiled(step, tf.TensorSpec((), tf.string)), "WriteFile", "ReadFile").equal


def test_a_function_without_control_outputs_runs_all_that_has_effects() -> None:
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)

    def update() -> Any:
        table.insert([1], [2])
        return 1.0

    flat = flatten(_compiled(lambda x: tf.cond(x > 0.0, update, lambda: 0.0), _SCALAR))
    name: Any = _branches(flat.graph)[0].attrs["then_branch"]
    body = flat.graph.functions[name.name].body
    insert = _find(body, "LookupTableInsertV2")
    body.control_outputs = []
    for node in insert.control_consumers:
        body.remove_control_input(node, insert)
    original = Original(flat.graph, flat.purity)
    body.remove_nodes([insert])
    assert not original.compare(flat.graph, flat.purity).equal
