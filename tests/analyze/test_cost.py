"""From a graph to tasks and buffers. Tensors of 4096 floats are 16 KiB: all of them count."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphwright.analyze.cost import SMALL_BYTES, TaskMap, build_cost_graph
from graphwright.analyze.time_model import estimated_time_s
from graphwright.errors import UnknownShapeError
from graphwright.ir.dtypes import DTYPES
from graphwright.ir.graph import Graph, Value
from graphwright.ir.text import from_text
from graphwright.ir.traits.effects import Purity
from graphwright.ops.machine import onednn_enabled
from graphwright.plan.model import Schedule
from graphwright.plan.simulate import ScheduleError, check, check_graph, simulate

KIB16 = 4 * 4096
F = "float32[4096]"
STATEFUL = dict.fromkeys(
    "Relu Neg Exp AddV2 AddN MatMul Conv2D _FusedConv2D Pad BiasAdd BiasAddGrad Conv2DBackpropFilter Fill Sum Cast Mean Pack Const "
    "Identity".split(),
    False,
)


def costs_of(lines: str) -> TaskMap:
    graph = from_text('graph "g"\n' + re.sub(r" F\b", f" {F}", lines))
    tasks = build_cost_graph(graph, Purity(graph, STATEFUL), estimated_time_s)
    check_graph(tasks.costs)
    return tasks


def task(tasks: TaskMap, name: str) -> int:
    return tasks.task_of[tasks.graph[name]]


def buffer(tasks: TaskMap, name: str) -> int:
    return tasks.buffer_of[tasks.graph.value(name)]


def names(tasks: TaskMap, buffers: tuple[int, ...]) -> list[str]:
    return [tasks.costs.buffers[b].name for b in buffers]


def test_tasks_buffers_and_what_is_resident():
    """x -> a -> b -> out; x is an input, c a large constant, k a small one."""
    tasks = costs_of("""
        inputs %x:0
        outputs %b:0
        %x = Placeholder() : F
        %c = Const() : F
        %k = Const() : float32[]
        %a = AddV2(%x:0, %c:0) : F
        %b = AddV2(%a:0, %k:0) : F
        """)
    assert [t.name for t in tasks.costs.tasks] == ["a", "b"]
    assert tasks.costs.resident_bytes == 2 * KIB16
    assert {v.name for v in tasks.resident} == {"x:0", "c:0"}
    assert [(b.name, b.nbytes, b.kept) for b in tasks.costs.buffers] == [("a:0", KIB16, False), ("b:0", KIB16, True)]
    assert tasks.costs.tasks[1].in_place == ((0, 1),)
    assert simulate(tasks.costs, Schedule((0, 1))).step_bytes == (3 * KIB16, 3 * KIB16)


def test_a_view_is_no_task_and_holds_the_buffer_behind_it():
    """a -> reshape -> identity -> b; the output is a view of a."""
    tasks = costs_of("""
        inputs %x:0
        outputs %i:0
        %x = Placeholder() : F
        %s = Const() : int32[2]
        %a = Relu(%x:0) : F
        %r = Reshape(%a:0, %s:0) : float32[64,64]
        %i = Identity(%r:0) : float32[64,64]
        %b = Neg(%i:0) : float32[64,64]
        %c = Sum(%b:0) : float32[]
        """)
    assert [t.name for t in tasks.costs.tasks] == ["a", "b", "c"]
    assert tasks.root_of[tasks.graph.value("i:0")] is tasks.graph.value("a:0")
    assert tasks.costs.buffers[buffer(tasks, "a:0")].kept
    assert names(tasks, tasks.costs.tasks[task(tasks, "b")].inputs) == ["a:0"]


def test_an_op_that_has_nothing_to_do_hands_on_its_input():
    """A cast to the same type and a sum over axes of size one are views; a real sum is not."""
    tasks = costs_of("""
        inputs %x:0
        %x = Placeholder() : F
        %axis = Const() : int32[1]
        %a = Relu(%x:0) : F
        %same = Cast(%a:0) : F
        %one = Sum(%same:0, %axis:0) : F
        %half = Cast(%a:0) : float16[4096]
        %reader = Neg(%one:0) : F
        """)
    assert [t.name for t in tasks.costs.tasks] == ["a", "half", "reader"]
    assert tasks.costs.tasks[1].in_place == ()


def test_in_place_pairs_need_equal_sizes_and_one_reader():
    tasks = costs_of("""
        inputs %x:0
        %x = Placeholder() : F
        %a = Relu(%x:0) : F
        %b = Relu(%x:0) : F
        %both = AddN(%a:0, %b:0) : F
        %twice = AddV2(%both:0, %both:0) : F
        %wide = AddV2(%both:0, %twice:0) : float32[2,4096]
        """)

    def pairs(name: str) -> list[tuple[str, str]]:
        return [(tasks.costs.buffers[i].name, tasks.costs.buffers[o].name) for i, o in tasks.costs.tasks[task(tasks, name)].in_place]

    assert pairs("a") == []  # an input of the graph is not ours to overwrite
    assert pairs("both") == [("a:0", "both:0"), ("b:0", "both:0")]
    assert pairs("twice") == []
    assert pairs("wide") == []


def test_small_nodes_are_no_tasks_but_carry_dependencies():
    """big -> (tiny, tinier) -> after: `after` waits for `big` through nodes that are no tasks."""
    tasks = costs_of("""
        inputs %x:0
        %x = Placeholder() : F
        %z = Const() : float32[]
        %big = Mean(%x:0) : float32[]
        %tiny = Neg(%big:0) : float32[]
        %tinier = Exp(%tiny:0) : float32[]
        %after = Fill(%z:0, %tinier:0) : F
        """)
    assert [t.name for t in tasks.costs.tasks] == ["big", "after"]
    assert tasks.costs.tasks[1].after == (0,)
    with pytest.raises(ScheduleError, match="must come first"):
        check(tasks.costs, Schedule((1, 0)))


VARIABLE = """
    inputs %x:0, %w:0
    outputs %l:0
    variable %w:0 = "w" : float32[4096] trainable
    %x = Placeholder() : F
    %w = Placeholder() : resource[]
    """


def test_a_read_is_killed_by_the_write_behind_its_last_reader():
    tasks = costs_of(
        VARIABLE
        + """
        %read = ReadVariableOp(%w:0) : F
        %a = AddV2(%x:0, %read:0) : F
        %l = Mean(%a:0) : float32[]
        %u = AssignSubVariableOp(%w:0, %a:0) ^read
        """
    )
    read = tasks.costs.buffers[buffer(tasks, "read:0")]
    assert (read.nbytes, read.producer, read.killed_by) == (0, None, task(tasks, "u"))
    assert tasks.costs.resident_bytes == 2 * KIB16
    a, u, loss = (task(tasks, n) for n in ("a", "u", "l"))
    assert not tasks.costs.tasks[u].recomputable
    with pytest.raises(ScheduleError, match="has killed it"):
        check(tasks.costs, Schedule((a, loss, u, a)))


@pytest.mark.parametrize("kept", [False, True])
def test_a_variable_is_copied_for_who_reads_it_as_it_was_before_the_write(kept: bool):
    tasks = costs_of(
        VARIABLE.replace("outputs %l:0", "outputs %l:0, %read:0" if kept else "outputs %l:0")
        + """
        %read = ReadVariableOp(%w:0) : F
        %b = Mean(%read:0) : float32[]
        %u = AssignSubVariableOp(%w:0, %x:0) ^read
        %a = AddV2(%x:0, %read:0) ^u : F
        %l = Mean(%a:0) : float32[]
        """
    )
    b, u, a, loss = (task(tasks, n) for n in ("b", "u", "a", "l"))
    [copy] = tasks.costs.tasks[u].outputs
    assert tasks.costs.buffers[copy].nbytes == KIB16
    assert tasks.costs.buffers[copy].kept == kept
    assert copy in tasks.costs.tasks[a].inputs
    assert copy not in tasks.costs.tasks[b].inputs
    steps = simulate(tasks.costs, Schedule((b, u, a, loss))).step_bytes
    behind = KIB16 if kept else 0  # the last step reads the sum alone
    assert [nbytes - tasks.costs.resident_bytes for nbytes in steps] == [4, KIB16, 2 * KIB16, KIB16 + behind + 4]


@pytest.mark.parametrize("writes", [True, False])
def test_a_gather_reads_the_variable_anew_and_never_runs_behind_a_write(writes):
    write = "%u = AssignSubVariableOp(%w:0, %l:0) ^g" if writes else ""
    tasks = costs_of(VARIABLE + f"%g = ResourceGather(%w:0, %x:0) : F\n%l = Neg(%g:0) : F\n{write}")
    g, after = task(tasks, "g"), task(tasks, "l")
    assert tasks.costs.tasks[g].recomputable
    check(tasks.costs, Schedule((g, after, g, *([task(tasks, "u")] if writes else []))))
    if writes:
        with pytest.raises(ScheduleError, match="has killed it"):
            check(tasks.costs, Schedule((g, after, task(tasks, "u"), g)))


def test_a_branch_reads_what_an_unknown_effect_may_write():
    """`Unknown` is an op nobody knows: it may write the variable that the branch reads inside."""
    tasks = costs_of(
        VARIABLE
        + """
        %if = If(%x:0, %w:0) {then_branch = @f, else_branch = @f} : F
        %l = Neg(%if:0) : F
        %u = Unknown(%w:0) ^if

        function "f"
        inputs %h:0
        outputs %r:0
        %h = _Arg() : resource[]
        %r = ReadVariableOp(%h:0) : F
        """
    )
    branch, unknown = task(tasks, "if"), task(tasks, "u")
    assert tasks.costs.tasks[branch].recomputable
    assert not tasks.costs.tasks[unknown].recomputable
    with pytest.raises(ScheduleError, match="has killed it"):
        check(tasks.costs, Schedule((branch, task(tasks, "l"), unknown, branch)))


BY_ROWS = {
    "a gather": "%rows = ResourceGather(%w:0, %i:0) : float32[8]\n%sum = Mean(%rows:0) : float32[]",
    "a sparse optimizer": "%rows = ResourceSparseApplyAdagradV2(%w:0, %w:0, %s:0, %s:0, %x:0, %i:0)",
    "a slice that is assigned": "%rows = ResourceStridedSliceAssign(%w:0, %i:0, %i:0, %i:0, %x:0)",
    "a gather in a branch": """%rows = If(%s:0, %w:0, %i:0) {then_branch = @f, else_branch = @f} : float32[8]

        function "f"
        inputs %h:0, %k:0
        outputs %r:0
        %h = _Arg() : resource[]
        %k = _Arg() : int32[8]
        %r = ResourceGather(%h:0, %k:0) : float32[8]""",
}


@pytest.mark.parametrize("by_rows", ["", *BY_ROWS.values()], ids=["none", *BY_ROWS])
def test_a_variable_that_is_accessed_by_rows_is_copied_by_reads_and_updates_of_the_whole(by_rows: str) -> None:
    tasks = costs_of(
        VARIABLE
        + """
        %i = Const() : int32[8]
        %s = Const() : float32[]
        %read = ReadVariableOp(%w:0) : F
        %a = AddV2(%x:0, %read:0) : F
        %l = Mean(%a:0) : float32[]
        %add = AssignAddVariableOp(%w:0, %a:0) ^read
        %new = AssignVariableOp(%w:0, %x:0) ^add
        """
        + by_rows
    )
    read = tasks.costs.buffers[buffer(tasks, "read:0")]
    add, new = (tasks.costs.tasks[task(tasks, name)] for name in ("add", "new"))
    assert new.workspace_bytes == 0  # its value is copied into a new buffer, for which the variable's own is freed
    if not by_rows:
        assert (read.nbytes, read.producer, add.workspace_bytes) == (0, None, 0)
        return
    assert (read.nbytes, read.producer, read.killed_by, add.workspace_bytes) == (KIB16, task(tasks, "read"), None, KIB16)
    a, loss = task(tasks, "a"), task(tasks, "l")
    assert tasks.costs.tasks[a].in_place == ((buffer(tasks, "read:0"), buffer(tasks, "a:0")),)
    with pytest.raises(ScheduleError, match="has killed it"):  # what was read after the update is something else
        check(tasks.costs, Schedule((read.producer, a, loss, task(tasks, "add"), read.producer)))


CONV = """
    inputs %x:0
    outputs %y:0{more}
    %x = Placeholder() : float32[1,32,32,4]
    %k = Const() : float32[3,3,4,4]
    %bias = Const() : float32[4]
    %conv = Conv2D(%x:0, %k:0) : float32[1,32,32,4]
    %add = BiasAdd(%conv:0, %bias:0) : float32[1,32,32,4]
    %y = Relu(%add:0) : float32[1,32,32,4]
    """


def test_a_convolution_and_its_bias_are_one_task():
    tasks = costs_of(CONV.format(more=""))
    assert [t.name for t in tasks.costs.tasks] == ["conv", "y"]
    assert [n.name for n in tasks.nodes[0]] == ["conv", "add"]
    assert names(tasks, tasks.costs.tasks[0].outputs) == ["add:0"]  # what is fused away takes no memory
    assert [t.name for t in costs_of(CONV.format(more=", %conv:0")).costs.tasks] == ["conv", "add", "y"]


def test_gradients_of_kernel_and_bias_are_one_task_where_neither_needs_the_other():
    lines = """
        inputs %x:0, %d:0
        outputs %kernel:0, %bias:0
        %x = Placeholder() : float32[1,32,32,4]
        %d = Placeholder() : float32[1,32,32,4]
        %s = Const() : int32[4]
        %kernel = Conv2DBackpropFilter(%x:0, %s:0, %d:0){waits} : float32[3,3,4,4]
        %bias = BiasAddGrad(%d:0) : float32[4]
        """
    together = costs_of(lines.format(waits=""))
    assert [[n.name for n in nodes] for nodes in together.nodes] == [["kernel", "bias"]]
    assert together.costs.tasks[0].workspace_bytes == 4 * 3 * 3 * 4 * 4
    apart = costs_of(lines.format(waits=" ^bias"))
    assert sorted(n.name for nodes in apart.nodes for n in nodes) == ["bias", "kernel"]
    assert len(apart.nodes) == 2


def test_each_gradient_of_a_kernel_takes_one_bias_gradient_of_what_both_read():
    """Two convolutions are added, each with a bias: one of the others' would lie between two steps."""
    tasks = costs_of("""
        inputs %x:0, %z:0, %d:0
        outputs %kernel:0, %bias:0, %other:0, %other_bias:0, %third_bias:0
        %x = Placeholder() : float32[1,32,32,4]
        %z = Placeholder() : float32[1,32,32,4]
        %d = Placeholder() : float32[1,32,32,4]
        %s = Const() : int32[4]
        %kernel = Conv2DBackpropFilter(%x:0, %s:0, %d:0) : float32[3,3,4,4]
        %other = Conv2DBackpropFilter(%z:0, %s:0, %d:0) : float32[3,3,4,4]
        %bias = BiasAddGrad(%d:0) : float32[4]
        %other_bias = BiasAddGrad(%d:0) : float32[4]
        %third_bias = BiasAddGrad(%d:0) : float32[4]
        """)
    assert [[n.name for n in nodes] for nodes in tasks.nodes] == [["kernel", "bias"], ["other", "other_bias"], ["third_bias"]]


PADDED = """
    inputs %x:0, %w:0, %b:0
    outputs %y:0
    %x = Placeholder() : float32[1,32,32,4]
    %w = Placeholder() : float32[3,3,4,4]
    %b = Placeholder() : float32[4]
    %p = Const() : int32[4,2]
    %pad = Pad(%x:0, %p:0) : {dtype}[1,34,34,4]
    %conv = {conv} : {dtype}[1,32,32,4]
    {more}
    %y = Relu(%{last}:0) : {dtype}[1,32,32,4]
    """


@pytest.mark.skipif(not onednn_enabled(), reason="no kernel pads by itself")
@pytest.mark.parametrize(
    ("conv", "more", "together"),
    [
        ('Conv2D(%pad:0, %w:0) {padding = "VALID"}', "", "pad conv"),
        ('Conv2D(%pad:0, %w:0) {padding = "VALID"}', "%add = BiasAdd(%conv:0, %b:0) : float32[1,32,32,4]", "pad conv add"),
        ('_FusedConv2D(%pad:0, %w:0, %b:0) {padding = "VALID", fused_ops = ["BiasAdd", "Relu"]}', "", "pad conv"),
        ('_FusedConv2D(%pad:0, %w:0, %b:0) {padding = "VALID", fused_ops = ["BiasAdd", "Tanh"]}', "", "pad"),
        ('Conv2D(%pad:0, %w:0) {padding = "SAME"}', "", "pad"),
        ('Conv2D(%pad:0, %w:0) {padding = "VALID"}', "%add = Relu(%pad:0) : float32[1,34,34,4]", "pad"),
        ('Conv2D(%pad:0, %w:0) {padding = "VALID"}', "%add = Neg(%x:0) ^pad : float32[1,32,32,4]", "pad"),
    ],
)
def test_a_padding_is_one_task_with_the_convolution_whose_kernel_pads_by_itself(conv, more, together):
    last = "add" if "BiasAdd(" in more else "conv"
    tasks = costs_of(PADDED.format(conv=conv, more=more, last=last, dtype="float32"))
    assert [n.name for n in tasks.nodes[task(tasks, "pad")]] == together.split()
    assert ("pad:0" in [b.name for b in tasks.costs.buffers]) == (together == "pad")
    halves = costs_of(PADDED.format(conv=conv, more=more.replace("float32", "float16"), last=last, dtype="float16"))
    assert [n.name for n in halves.nodes[task(halves, "pad")]] == ["pad"]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("%a = Relu(%x:0) : float32[?,8]", r"depends on the input x\[\?,8\]"),
        ("%a = Where(%y:0) : int64[?,1]", "depends on data, and n"),
    ],
)
def test_an_unknown_size_names_the_node_and_the_input_to_bind(line, named):
    """`x` has an unknown dimension, `y` has none: what `Where` returns depends on its numbers."""
    with pytest.raises(UnknownShapeError, match=named) as caught:
        costs_of(f"""
            inputs %y:0, %x:0
            %y = Placeholder() : F
            %x = Placeholder() : {"float32[?,8]" if "x:0" in line else "float32[]"}
            {line}
            """)
    assert "node" in str(caught.value)
    assert "feeds=" in str(caught.value)


def test_small_nodes_that_wait_for_many_tasks_do_not_multiply_the_edges():
    """300 tasks -> one small barrier -> 300 tasks: edges from each to each would be 90000."""
    graph = Graph("wide")
    big, scalar = (DTYPES["float32"], (4096,)), (DTYPES["float32"], ())
    x = graph.add_node("Placeholder", "x", output_types=[big]).outputs[0]
    graph.inputs = [x]
    first = [graph.add_node("Mean", f"a{k}", inputs=[x], output_types=[scalar]).outputs[0] for k in range(300)]
    barrier = graph.add_node("Pack", "barrier", inputs=first, output_types=[(DTYPES["float32"], (300,))]).outputs[0]
    assert barrier.nbytes is not None
    assert barrier.nbytes < SMALL_BYTES
    for k in range(300):
        graph.add_node("Fill", f"b{k}", inputs=[x, barrier], output_types=[big])
    tasks = build_cost_graph(graph, Purity(graph, STATEFUL), estimated_time_s)
    check_graph(tasks.costs)
    assert sum(len(t.after) + len(t.inputs) for t in tasks.costs.tasks) < 3000


@given(st.data())
def test_random_graphs_give_sound_cost_graphs(data):
    """Whatever the graph, the original order is allowed, and every data dependency between tasks is one of the model."""
    graph = Graph("random")
    values: list[Value] = [graph.add_node("Placeholder", "x", output_types=[(DTYPES["float32"], (4096,))]).outputs[0]]
    graph.inputs = values
    for k in range(data.draw(st.integers(1, 15))):
        op = data.draw(st.sampled_from(["AddV2", "Relu", "Identity", "Mean", "Fill", "Mystery"]))
        inputs = [data.draw(st.sampled_from(values)) for _ in range(2 if op in ("AddV2", "Fill") else 1)]
        shape = (4096,) if op == "Fill" else () if op == "Mean" else inputs[0].shape
        controls = [data.draw(st.sampled_from(graph.nodes))] if data.draw(st.booleans()) else []
        values = [
            *values,
            *graph.add_node(op, f"n{k}", inputs=inputs, control_inputs=controls, output_types=[(inputs[0].dtype, shape)]).outputs,
        ]
    graph.outputs = [data.draw(st.sampled_from(values))]
    tasks = build_cost_graph(graph, Purity(graph, STATEFUL), estimated_time_s)
    check_graph(tasks.costs)
    for t, nodes in enumerate(tasks.nodes):
        for node in nodes:
            for value in node.inputs:
                root = tasks.root_of[value]
                if root in tasks.buffer_of:
                    assert tasks.buffer_of[root] in tasks.costs.tasks[t].inputs
                assert root in tasks.buffer_of or root in tasks.resident or (root.nbytes or 0) < SMALL_BYTES
