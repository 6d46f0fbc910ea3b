"""What loops, branches and lists of tensors cost."""

from __future__ import annotations

from typing import Any

import pytest

from graphwright.analyze.cost import TaskMap, build_cost_graph
from graphwright.analyze.loops import LoopCosts, loop_costs
from graphwright.analyze.storages import PLACE_BYTES, allocated_bytes, element_bytes
from graphwright.analyze.time_model import estimated_time_s
from graphwright.errors import UnknownShapeError
from graphwright.ir.edit.prune import prune
from graphwright.ir.graph import Graph, Node
from graphwright.ir.traits.effects import Purity
from graphwright.plan.model import Schedule
from graphwright.plan.simulate import simulate
from graphwright.transform.fold_constants import fold_constants, fold_shapes
from graphwright.transform.inline_calls import inline_functions
from graphwright.transform.loop_invariants import forward_loop_invariants
from graphwright.transform.loop_order import run_iterations_in_order
from graphwright.transform.loop_shapes import bind_loop_shapes, relaxed_dimensions
from graphwright.transform.split_identities import split_identities

tf = pytest.importorskip("tensorflow")

from graphwright.source.attributes import constant_array  # noqa: E402
from graphwright.source.concrete_function import (  # noqa: E402
    Binding,
    evaluate_constants,
    from_concrete_function,
)
from graphwright.source.import_graph import infer_body_shapes, infer_shapes  # noqa: E402
from graphwright.step.flatten import stateful_op_types  # noqa: E402

BATCH, WIDTH, STEPS = 64, 128, 12
ELEMENT = element_bytes(BATCH * WIDTH * 4)


class Flat:
    """A traced step on its way to a plan."""

    def __init__(self, function: Any, feeds: dict[int, tuple[int | None, ...]] | None = None) -> None:
        graph, self.binding = from_concrete_function(function)
        self.graph: Graph = inline_functions(graph)
        split_identities(self.graph)
        prune(self.graph)
        self.purity = Purity(self.graph, stateful_op_types(self.graph))
        relaxed = relaxed_dimensions(self.graph)
        forward_loop_invariants(self.graph, self.purity)
        run_iterations_in_order(self.graph)
        prune(self.graph)
        infer_shapes(self.graph, feeds)
        while bind_loop_shapes(self.graph, relaxed) + fold_shapes(self.graph) + self._fold_constants():
            prune(self.graph)
            infer_shapes(self.graph, feeds)
        self.costs: LoopCosts = loop_costs(self.graph, constant_array, infer_body=infer_body_shapes)

    binding: Binding

    def _fold_constants(self) -> int:
        return fold_constants(self.graph, self.purity, evaluate_constants(self.graph))

    def tasks(self) -> TaskMap:
        return build_cost_graph(self.graph, self.purity, estimated_time_s, loops=self.costs)

    def loops(self) -> list[Node]:
        return [n for n in self.graph.nodes if n.op_type in ("While", "StatelessWhile")]


def gradient_step(forward: Any, *variables: Any) -> Any:
    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = forward(x)
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.01 * gradient)
        return loss

    return step


@pytest.fixture(scope="module")
def weight() -> Any:
    tf.random.set_seed(0)
    return tf.Variable(tf.random.normal((WIDTH, WIDTH), stddev=0.1))


def counted_loop(weight: Any, condition: Any, steps: int = STEPS) -> Any:
    return lambda x: tf.reduce_sum(tf.while_loop(condition, lambda i, h: (i + 1, tf.tanh(h @ weight)), (0, x))[1])


@pytest.mark.parametrize(
    ("condition", "count", "kind"),
    [
        (lambda i, h: i < STEPS, STEPS, "exact"),
        (lambda i, h: 2 * i <= 9, 5, "exact"),
        (lambda i, h: tf.logical_and(i < STEPS, tf.reduce_sum(h) < 1e9), STEPS, "at most"),
        (lambda i, h: tf.reduce_sum(h) < 1e9, 1, "unknown"),
    ],
)
def test_trip_counts(weight: Any, condition: Any, count: int, kind: str) -> None:
    x = tf.random.normal((BATCH, WIDTH))
    flat = Flat(tf.function(counted_loop(weight, condition)).get_concrete_function(x))
    (trip,) = flat.costs.trip_counts.values()
    assert (trip.count, trip.kind) == (count, kind)
    assert bool(flat.costs.notes) == (kind != "exact")


def test_flops_are_those_of_all_iterations(weight: Any) -> None:
    x = tf.random.normal((BATCH, WIDTH))
    flat = Flat(tf.function(counted_loop(weight, lambda i, h: i < STEPS)).get_concrete_function(x))
    (flops,) = flat.costs.flops.values()
    product, tanh, scalars = 2 * BATCH * WIDTH * WIDTH, BATCH * WIDTH, 20
    assert flops is not None
    assert STEPS * (product + tanh) <= flops <= STEPS * (product + tanh + scalars)


def test_a_loop_without_gradient_holds_two_states_and_no_list(weight: Any) -> None:
    x = tf.random.normal((BATCH, WIDTH))
    flat = Flat(tf.function(counted_loop(weight, lambda i, h: i < STEPS)).get_concrete_function(x))
    (loop,) = flat.loops()
    assert sum(flat.costs.variant_bytes[v] for v in loop.outputs if v.dtype.name == "variant") == 0
    assert ELEMENT <= sum(flat.costs.variant_bytes[v] for v in loop.outputs) <= ELEMENT + 100
    assert ELEMENT <= flat.costs.workspace[loop] <= 2 * ELEMENT + 100


def test_residuals_are_counted_once_per_iteration_and_weights_not_at_all(weight: Any) -> None:
    x = tf.random.normal((BATCH, WIDTH))
    step = gradient_step(counted_loop(weight, lambda i, h: i < STEPS), weight)
    flat = Flat(step.get_concrete_function(x))
    forward, backward = flat.loops()
    assert len([v for v in forward.outputs if v.dtype.name == "variant" and v.uses]) >= 3  # tanh, its input of the product, the weight
    total = sum(flat.costs.variant_bytes[v] for v in forward.outputs)
    assert STEPS * ELEMENT <= total <= (STEPS + 1) * ELEMENT + 1000  # the product's input is the former iteration's tanh
    assert [flat.costs.trip_counts[n].count for n in (forward, backward)] == [STEPS, STEPS]
    assert sum(flat.costs.variant_bytes[v] for v in backward.outputs if v.dtype.name == "variant") == 0


def _scalars_pushed(x: Any) -> Any:
    """The gradient keeps the sums, and the factors of the products."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.while_loop(lambda i, h: i < 500, lambda i, h: (i + 1, h * tf.sin(h)), (0, tf.reduce_sum(x)))[1]
    return tape.gradient(y, x)


def _scalars_set(x: Any) -> Any:
    sums = tf.TensorArray(tf.float32, 500)
    return tf.while_loop(lambda i, a: i < 500, lambda i, a: (i + 1, a.write(i, tf.reduce_sum(x))), (0, sums))[1].stack()


def _scalars_mapped(x: Any) -> Any:
    return tf.map_fn(lambda row: tf.reduce_max(row) + 1.0, tf.tile(x, (125, 1)))


@pytest.mark.parametrize(("function", "lists"), [(_scalars_pushed, 2), (_scalars_set, 1), (_scalars_mapped, 2)])
def test_a_scalar_in_a_list_takes_what_malloc_makes_of_it_and_a_place(function: Any, lists: int) -> None:
    flat = Flat(tf.function(function).get_concrete_function(tf.TensorSpec((4, 4))))
    total = sum(flat.costs.variant_bytes.values())
    scalar = allocated_bytes(4) + PLACE_BYTES
    assert scalar == 160
    assert (lists * 500 - 2) * scalar <= total <= (lists * 500 + 20) * scalar + 500 * PLACE_BYTES


def test_a_list_whose_elements_a_loop_pushes_is_never_made_again(weight: Any) -> None:
    def total(x: Any) -> Any:
        rows = tf.TensorArray(tf.float32, STEPS).unstack(x)
        body = lambda i, h: (i + 1, h + tf.tanh(rows.read(i) @ weight))  # noqa: E731
        return tf.reduce_sum(tf.while_loop(lambda i, h: i < STEPS, body, (0, tf.zeros((BATCH, WIDTH))))[1])

    flat = Flat(gradient_step(total, weight).get_concrete_function(tf.zeros((STEPS, BATCH, WIDTH))))
    [made] = [n for n in flat.graph.nodes if n.op_type == "TensorListFromTensor" and n in flat.costs.kept]
    assert not flat.tasks().costs.tasks[flat.tasks().task_of[made]].recomputable


def test_a_loop_never_runs_again_behind_the_update_of_what_it_reads(weight: Any) -> None:
    x = tf.random.normal((BATCH, WIDTH))
    flat = Flat(gradient_step(counted_loop(weight, lambda i, h: i < STEPS), weight).get_concrete_function(x))
    tasks = flat.tasks()
    loop = flat.loops()[0]
    update = next(t for n, t in tasks.task_of.items() if n.op_type == "AssignSubVariableOp")
    task = tasks.costs.tasks[tasks.task_of[loop]]
    assert task.recomputable
    assert update in {tasks.costs.buffers[b].killed_by for b in task.inputs}


def test_open_dimensions_are_bound_inside_loops(weight: Any) -> None:
    step = gradient_step(counted_loop(weight, lambda i, h: i < STEPS), weight)
    static = Flat(step.get_concrete_function(tf.TensorSpec((BATCH, WIDTH))))
    fed = Flat(step.get_concrete_function(tf.TensorSpec((None, WIDTH))), {0: (BATCH, WIDTH)})
    sums = [sum(f.costs.variant_bytes.values()) for f in (static, fed)]
    assert sums[0] <= sums[1] <= sums[0] + 2000  # lists of shapes, which are constants in the other
    peaks = [simulate(f.tasks().costs, Schedule(f.tasks().costs.order)).peak_bytes for f in (static, fed)]
    assert peaks[1] == pytest.approx(peaks[0], rel=0.03)


def test_a_shape_that_depends_on_data_inside_a_loop_is_an_error() -> None:
    @tf.function
    def step(x: Any) -> Any:
        def body(i: Any, h: Any) -> Any:
            return i + 1, h + tf.reduce_sum(tf.exp(tf.ones((tf.cast(tf.reduce_max(x), tf.int32),))))

        return tf.while_loop(lambda i, h: i < 3, body, (0, 0.0))[1]

    with pytest.raises(UnknownShapeError, match="is not known"):
        Flat(step.get_concrete_function(tf.random.normal((8, 8))))


def test_rows_found_in_data_inside_a_loop_count_with_as_many_as_there_can_be() -> None:
    @tf.function
    def step(x: Any) -> Any:
        return tf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, h + tf.reduce_sum(tf.boolean_mask(x, x > h))), (0, 0.0))[1]

    flat = Flat(step.get_concrete_function(tf.random.normal((64, 64))))
    assert flat.costs.workspace[flat.loops()[0]] >= 64 * 64 * (4 + 8)  # all elements, and where they are
    assert {v.producer.op_type for f in flat.graph.functions.values() for v in f.body.at_most} >= {"Where", "GatherV2"}
    assert {v.shape for f in flat.graph.functions.values() for n in f.body.nodes if n.op_type == "Where" for v in n.outputs} == {(4096, 1)}


def test_a_reshaped_tensor_brings_its_own_shape_into_a_branch() -> None:
    """The branch reads rows by numbers that came as a matrix, of a table whose size is handed on as a vector."""
    x = tf.random.normal((64, 40))

    @tf.function
    def step(numbers: Any, flag: Any) -> Any:
        flat, sizes = tf.reshape(numbers, [-1]), tf.constant([100, 40])

        def found() -> Any:
            hits = tf.scatter_nd(flat[:, None], tf.ones_like(flat), sizes[:1])
            return tf.gather(x, tf.where(hits > 0)[:, 0] % 64) * 2.0

        return tf.reduce_sum(tf.cond(flag, found, lambda: tf.gather(x, flat)))

    flat = Flat(step.get_concrete_function(tf.TensorSpec((4, 16), tf.int32), tf.TensorSpec((), tf.bool)))
    branches = [n for f in flat.graph.functions.values() for n in f.body.nodes]
    assert {n.outputs[0].shape for n in branches if n.op_type == "ScatterNd"} == {(100,)}
    assert {n.outputs[0].shape for n in branches if n.op_type == "Mul"} == {(100, 40)}
    assert {n.inputs[1].shape for n in branches if n.op_type == "GatherV2"} == {(100,), (64,)}
