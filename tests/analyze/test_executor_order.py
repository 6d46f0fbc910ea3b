"""The simulated executor: order of kernels, loops and branches of TF1, buffers with reference counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from graphwright.analyze.executor import simulate_executor
from graphwright.analyze.executor_memory import PeakState
from graphwright.analyze.storages import PLACE_BYTES, allocated_bytes
from graphwright.errors import UnknownShapeError
from graphwright.ir.graph import DTYPES, Graph, Node, Value, Variable

F32, I32, BOOL, RESOURCE, VARIANT = (DTYPES[name] for name in ("float32", "int32", "bool", "resource", "variant"))
KIB = 1024
SHAPE = (64 * KIB,)  # 256 KiB, of which malloc makes 260
BLOCK = allocated_bytes(4 * SHAPE[0])


def make(graph: Graph, op_type: str, name: str, *inputs: Value, shape: tuple[int | None, ...] | None = SHAPE, **options: object) -> Value:
    dtype = options.pop("dtype", F32)
    return graph.add_node(op_type, name, inputs=inputs, output_types=[(dtype, shape)], **options).outputs[0]  # type: ignore[arg-type, list-item]


def run(graph: Graph, *, threads: int = 1, resident: int = 0, time_of: Callable[[Node], float] = lambda _: 1.0) -> PeakState:
    numbers: dict[str, object] = {"zero": 0, "one": 1, "three": 3, "thousand": 1000, "no": False, "yes": True}
    return simulate_executor(
        graph,
        time_of=time_of,
        workspace_of=lambda _: 0,
        constant=lambda value: np.array(numbers[value.producer.name]) if value.producer.name in numbers else None,
        resident_bytes=resident,
        threads=threads,
    )


def relevant(state: PeakState, names: Sequence[str]) -> list[str]:
    return [name for name in state.order if name in names]


# Order


def test_of_two_readers_the_one_added_last_runs_first_and_depth_first() -> None:
    """x -> a -> a2 -> a3, x -> b -> b2: b and all that follows from it come before a."""
    graph = Graph()
    x = make(graph, "_Arg", "x")
    a = make(graph, "Exp", "a", x)
    b = make(graph, "Exp", "b", x)
    make(graph, "Exp", "b2", b)
    make(graph, "Exp", "a3", make(graph, "Exp", "a2", a))
    assert run(graph).order == ("x", "b", "b2", "a", "a2", "a3")


def test_cheap_kernels_go_first_in_the_order_of_the_edges() -> None:
    graph = Graph()
    x = make(graph, "_Arg", "x")
    a = make(graph, "Exp", "a", x)
    make(graph, "Identity", "i", x)
    make(graph, "Reshape", "r", x, make(graph, "Const", "shape", shape=(1,), dtype=I32))
    assert relevant(run(graph), ["a", "i", "r"]) == ["i", "r", "a"]
    assert a.producer.name == "a"


def test_control_edges_are_followed_after_data_edges() -> None:
    graph = Graph()
    x = make(graph, "_Arg", "x")
    waits = graph.add_node("Exp", "waits", inputs=[make(graph, "Const", "c")], control_inputs=[x.producer], output_types=[(F32, SHAPE)])
    make(graph, "Exp", "reads", x)
    assert relevant(run(graph), ["reads", "waits"]) == ["waits", "reads"]  # the last edge's reader runs at once
    assert waits.control_inputs


def test_a_second_thread_takes_the_oldest_task_and_both_hold_their_tensors() -> None:
    """Two chains of two; one thread needs input and output of one kernel at a time, two threads twice that."""
    graph = Graph()
    x = make(graph, "_Arg", "x", shape=(1,))
    for chain in "ab":
        first = make(graph, "MatMul", f"{chain}1", x)
        make(graph, "Sum", f"{chain}2", first, shape=(1,))
    one, two = run(graph), run(graph, threads=2)
    assert relevant(one, ["a1", "a2", "b1", "b2"]) == ["b1", "b2", "a1", "a2"]
    assert BLOCK <= one.peak_bytes < 1.01 * BLOCK
    assert 2 * BLOCK <= two.peak_bytes < 2.01 * BLOCK


# Buffers


def test_a_buffer_lives_until_its_last_reader_is_done() -> None:
    """x -> a -> b -> c: two at a time, as MatMul forwards nothing."""
    graph = Graph()
    value = make(graph, "_Arg", "x", shape=(1,))
    for name in "abc":
        value = make(graph, "MatMul", name, value)
    assert 2 * BLOCK <= run(graph).peak_bytes < 2.01 * BLOCK


def test_an_input_that_nobody_else_holds_is_written_over() -> None:
    graph = Graph()
    value = make(graph, "MatMul", "m", make(graph, "_Arg", "x", shape=(1,)))
    for name in ("e1", "e2"):
        value = make(graph, "Exp", name, value)
    state = run(graph)
    assert BLOCK <= state.peak_bytes < 1.01 * BLOCK
    late = [graph["e1"]]
    graph.add_node("Sum", "s", inputs=graph["m"].outputs, control_inputs=late, output_types=[(F32, (1,))])
    assert run(graph).peak_bytes >= 2 * BLOCK


def test_what_the_step_returns_stays_and_is_named_as_it_was_at_the_peak() -> None:
    graph = Graph()
    x = make(graph, "_Arg", "x", shape=(1,))
    a = make(graph, "Exp", "a", make(graph, "MatMul", "m", x))
    graph.add_node("_Retval", "r", inputs=[a])
    make(graph, "MatMul", "later", a)
    state = run(graph, resident=10)
    assert [holding.value.name for holding in state.live] == ["a:0", "later:0"]
    assert 2 * BLOCK + 10 <= state.peak_bytes < 2.01 * BLOCK


def _variable(graph: Graph) -> Value:
    handle = make(graph, "_Arg", "v", shape=(), dtype=RESOURCE)
    graph.variables[handle] = Variable("v", F32, SHAPE, True)
    return handle


def test_an_assigned_tensor_takes_the_place_of_the_variable() -> None:
    graph = Graph()
    handle = _variable(graph)
    new = make(graph, "MatMul", "new", make(graph, "ReadVariableOp", "read", handle))
    assign = graph.add_node("AssignVariableOp", "assign", inputs=[handle, new])
    after = graph.add_node("MatMul", "after", inputs=[new], control_inputs=[assign], output_types=[(F32, SHAPE)])
    state = run(graph, resident=4 * SHAPE[0])
    assert relevant(state, ["new", "assign", "after"]) == ["new", "assign", "after"]
    assert 2 * BLOCK - 8 * KIB < state.peak_bytes < 2.05 * BLOCK  # the old value is gone when `after` runs
    assert after.control_inputs == (assign,)


def test_a_variable_that_is_still_read_is_copied_before_it_changes() -> None:
    graph = Graph()
    handle = _variable(graph)
    read = make(graph, "ReadVariableOp", "read", handle)
    delta = make(graph, "_Arg", "delta")
    update = graph.add_node("AssignAddVariableOp", "update", inputs=[handle, delta], control_inputs=[read.producer])
    free = run(graph, resident=100).peak_bytes
    graph.add_node("Sum", "late", inputs=[read], control_inputs=[update], output_types=[(F32, (1,))])
    assert free == 100
    assert run(graph, resident=100).peak_bytes >= 100 + BLOCK


@pytest.mark.parametrize("by_rows", ["ResourceGather", "ResourceScatterSub"])
@pytest.mark.parametrize(
    ("access", "copies"),
    [("ReadVariableOp", 1), ("AssignAddVariableOp", 1), ("ResourceApplyGradientDescent", 1), ("AssignVariableOp", 0), ("VariableShape", 0)],
)
def test_a_variable_that_is_accessed_by_rows_is_copied_by_other_accesses(by_rows: str, access: str, copies: int) -> None:
    """Also before the first access by rows: an earlier run has had one."""
    graph = Graph()
    handle = _variable(graph)
    given = [make(graph, "_Arg", "delta")] if access in ("AssignAddVariableOp", "ResourceApplyGradientDescent", "AssignVariableOp") else []
    outputs = [(F32, SHAPE)] if access == "ReadVariableOp" else [(I32, (1,))] if access == "VariableShape" else []
    first = graph.add_node(access, "access", inputs=[handle, *given], output_types=outputs)
    assert run(graph, resident=100).peak_bytes < 100 + 8 * KIB
    rows = graph.add_node(
        by_rows, "rows", inputs=[handle], control_inputs=[first], output_types=[(F32, (8,))] if "Gather" in by_rows else []
    )
    graph.add_node("Pack", "used", inputs=rows.outputs, output_types=[(F32, (1, 8))])
    assert 4 * copies * SHAPE[0] <= run(graph, resident=100).peak_bytes - 100 < copies * BLOCK + 8 * KIB


def test_a_sum_in_a_temporary_variable_takes_one_buffer() -> None:
    """What Grappler makes of an AddN of two where memory is short."""
    graph = Graph()
    terms = [make(graph, "MatMul", name, make(graph, "_Arg", f"x{name}", shape=(1,))) for name in "ab"]
    zeros = make(graph, "Const", "zeros")
    total = make(graph, "Assign", "start", make(graph, "TemporaryVariable", "total"), zeros)
    added = [make(graph, "AssignAdd", f"add_{t.producer.name}", total, t).producer for t in terms]
    make(graph, "MatMul", "reader", make(graph, "DestroyTemporaryVariable", "sum", total, control_inputs=added), shape=(1,))
    state = run(graph)
    assert 3 * BLOCK <= state.peak_bytes < 3.01 * BLOCK  # both terms and their sum
    assert state.order[-1] == "reader"


@pytest.mark.parametrize(("op_type", "shape", "blocks"), [("MatMul", (None, 4), 2), ("Add", None, 3)])
def test_an_unknown_size_is_stated_unless_it_is_that_of_the_inputs(op_type: str, shape: tuple[int | None, ...] | None, blocks: int) -> None:
    graph = Graph()
    terms = [make(graph, "MatMul", name, make(graph, "_Arg", f"x{name}")) for name in "ab"]
    make(graph, op_type, "m", *terms, shape=shape)
    state = run(graph)
    assert 2 * BLOCK <= state.peak_bytes < (blocks + 0.01) * BLOCK
    stated = "of 1 values the size is not known and not counted, the first is m:0 (MatMul), float32[?,4]"
    assert state.notes == ((stated,) if op_type == "MatMul" else ())


# Control flow of TF1


def _loop(graph: Graph, parallel: int = 10) -> Value:
    """for k in range(3): state = state @ state; keeping a list of all states."""
    frame = {"frame_name": b"loop", "parallel_iterations": parallel}
    constant = {**frame, "is_constant": True}

    def enter(name: str, value: Value, dtype: object, shape: tuple[int, ...]) -> tuple[Node, Node]:
        entered = make(graph, "Enter", f"enter_{name}", value, dtype=dtype, shape=shape, attrs=frame)
        merge = graph.add_node("Merge", f"merge_{name}", inputs=[entered, entered], output_types=[(dtype, shape), (I32, ())])  # type: ignore[list-item]
        return entered.producer, merge

    start = make(graph, "_Arg", "start")
    handle = make(graph, "EmptyTensorList", "list", dtype=VARIANT, shape=())
    _, count = enter("count", make(graph, "Const", "zero", shape=(), dtype=I32), I32, ())
    _, state = enter("state", start, F32, SHAPE)
    _, kept = enter("kept", handle, VARIANT, ())
    limit, one = (
        make(graph, "Enter", f"enter_{name}", make(graph, "Const", name, shape=(), dtype=I32), dtype=I32, shape=(), attrs=constant)
        for name in ("three", "one")
    )
    less = make(graph, "Less", "less", count.outputs[0], limit, dtype=BOOL, shape=())
    goes_on = make(graph, "LoopCond", "cond", less, dtype=BOOL, shape=())

    def switch(merge: Node, name: str) -> tuple[Value, Value]:
        kind = (merge.outputs[0].dtype, merge.outputs[0].shape)
        node = graph.add_node("Switch", f"switch_{name}", inputs=[merge.outputs[0], goes_on], output_types=[kind, kind])
        return node.outputs[0], node.outputs[1]

    _, counted = switch(count, "count")
    out, going = switch(state, "state")
    all_states, list_in = switch(kept, "kept")
    following = {
        "count": make(graph, "AddV2", "add", counted, one, dtype=I32, shape=()),
        "state": make(graph, "MatMul", "body", going),
        "kept": make(graph, "TensorListPushBack", "push", list_in, going, dtype=VARIANT, shape=()),
    }
    for name, merge in (("count", count), ("state", state), ("kept", kept)):
        value = following[name]
        graph.replace_input(merge, 1, make(graph, "NextIteration", f"next_{name}", value, dtype=value.dtype, shape=value.shape or ()))
    make(graph, "Exit", "exit_kept", all_states, dtype=VARIANT, shape=())
    return make(graph, "Exit", "exit", out)


@pytest.mark.parametrize("parallel", [1, 10])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_loop_runs_as_often_as_its_count_says_and_lists_hold_their_elements(parallel: int, threads: int) -> None:
    graph = Graph()
    graph.add_node("_Retval", "r", inputs=[_loop(graph, parallel)])
    graph.add_node("_Retval", "r2", inputs=[graph["exit_kept"].outputs[0]])
    state = run(graph, threads=threads)
    assert state.order.count("body") == 3
    assert state.order.count("exit") == 1
    assert 3 * BLOCK <= state.peak_bytes < 3.01 * BLOCK  # the start is resident; three products, of which the list holds two
    assert not state.notes


def test_exits_that_were_dead_in_earlier_rounds_tell_nobody_when_the_loop_ends() -> None:
    """A reader of the loop that waits for something later still runs, and runs alive."""
    graph = Graph()
    out = _loop(graph, parallel=1)
    later = make(graph, "MatMul", "later", make(graph, "MatMul", "sooner", graph["exit_kept"].outputs[0], shape=(1,)), shape=(1,))
    make(graph, "MatMul", "reader", out, control_inputs=[later.producer])
    assert run(graph).order[-1] == "reader"


@pytest.mark.parametrize(
    ("kind", "places", "elements"),
    [("rows", 1000, 1000), ("reserved", 1000, 0), ("pushed", 64, 40), ("shared", 64 + 40 + 1, 41)],
)
def test_a_list_takes_a_place_for_each_element(kind: str, places: int, elements: int) -> None:
    """A list that grows takes twice the places each time that they are too few; one that another node reads too is copied first."""
    graph = Graph()
    options: dict[str, object] = {"dtype": VARIANT, "shape": ()}
    if kind == "rows":
        last = make(graph, "TensorListFromTensor", "list", make(graph, "Const", "all", shape=(1000, 48)), **options)
    elif kind == "reserved":
        number = make(graph, "Const", "thousand", shape=(), dtype=I32)
        last = make(graph, "TensorListReserve", "list", number, number, **options)
    else:
        last = make(graph, "EmptyTensorList", "list", **options)
        for k in range(40):
            row = make(graph, "RandomUniform", f"row{k}", shape=(48,))
            last = make(graph, "TensorListPushBack", f"push{k}", last, row, **options)
    if kind == "shared":
        row = make(graph, "RandomUniform", "one_more", shape=(48,))
        graph.add_node("_Retval", "r2", inputs=[last])
        last = make(graph, "TensorListPushBack", "push", last, row, **options)
    graph.add_node("_Retval", "r", inputs=[last])
    expected = elements * allocated_bytes(4 * 48) + places * PLACE_BYTES
    assert expected <= run(graph).peak_bytes <= expected + 1000 * (kind == "shared") + 5 * KIB


def test_a_branch_that_is_not_taken_does_not_run() -> None:
    for taken in ("yes", "no"):
        graph = Graph()
        condition = make(graph, "Const", taken, dtype=BOOL, shape=())
        node = graph.add_node("Switch", "switch", inputs=[make(graph, "_Arg", "x"), condition], output_types=[(F32, SHAPE)] * 2)
        make(graph, "Sum", "end", _merged(graph, node), shape=(1,))
        state = run(graph)
        assert relevant(state, ["0", "1"]) == [str(int(taken == "yes"))]
        assert "end" in state.order


def _merged(graph: Graph, switch: Node, large: int | None = None) -> Value:
    """A product behind each output of a switch, and what the one that runs makes; only one is large, or all."""
    branches = [make(graph, "MatMul", str(k), v, shape=SHAPE if large in (None, k) else (1,)) for k, v in enumerate(switch.outputs)]
    return graph.add_node("Merge", "merge", inputs=branches, output_types=[(F32, None if large else SHAPE), (I32, ())]).outputs[0]


@pytest.mark.parametrize(("number", "taken"), [("zero", 0), ("one", 1), ("three", 2)])
def test_of_several_branches_the_one_with_the_number_runs_and_the_last_for_what_is_no_number_of_one(number: str, taken: int) -> None:
    graph = Graph()
    index = make(graph, "Const", number, dtype=I32, shape=())
    _merged(graph, graph.add_node("_SwitchN", "switch", inputs=[make(graph, "_Arg", "x"), index], output_types=[(F32, SHAPE)] * 3))
    assert relevant(run(graph), ["0", "1", "2"]) == [str(taken)]


@pytest.mark.parametrize("large", [0, 1, 2])
def test_of_branches_that_depend_on_data_the_one_with_the_largest_peak_counts(large: int) -> None:
    graph = Graph()
    x, index = make(graph, "_Arg", "x", shape=(1,)), make(graph, "_Arg", "index", dtype=I32, shape=())
    _merged(graph, graph.add_node("_SwitchN", "switch", inputs=[x, index], output_types=[(F32, (1,))] * 3), large)
    state = run(graph)
    assert relevant(state, ["0", "1", "2"]) == [str(large)]
    assert BLOCK <= state.peak_bytes < 1.01 * BLOCK


def test_a_loop_whose_condition_is_not_known_ends_as_one_call_says_and_is_an_error_where_it_keeps_its_states() -> None:
    graph = Graph()
    _loop(graph)
    graph.replace_input(graph["less"], 0, make(graph, "Sum", "data", graph["merge_state"].outputs[0], dtype=I32, shape=()))
    with pytest.raises(UnknownShapeError, match="the number of rounds of loop 'loop'"):
        run(graph)
    graph.example["loop"] = 5
    assert run(graph).order.count("body") == 5
    graph.example.clear()
    graph.set_op_type(graph["push"], "Identity")
    state = run(graph)
    assert 1 < state.order.count("body") < 10
    assert any("its memory does not depend on it" in note for note in state.notes)


def test_a_loop_that_may_end_early_runs_as_often_as_its_counter_allows() -> None:
    graph = Graph()
    _loop(graph)
    by_data = make(graph, "Sum", "data", graph["merge_state"].outputs[0], dtype=BOOL, shape=())
    both = make(graph, "LogicalAnd", "both", graph["less"].outputs[0], by_data, dtype=BOOL, shape=())
    graph.replace_input(graph["cond"], 0, both)
    state = run(graph)
    assert state.order.count("body") == 3
    assert any("as many rounds as there can be are counted, 3" in note for note in state.notes)


def test_a_call_that_is_not_inlined_is_noted() -> None:
    graph = Graph()
    make(graph, "PartitionedCall", "call", make(graph, "_Arg", "x"))
    assert any("'call'" in note for note in run(graph).notes)
