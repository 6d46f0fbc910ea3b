"""Updates in a branch, as optimizers have them that scale the loss or add up gradients, run one after another, and mean the same."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import graphwright as gw
from graphwright.ir.text import from_text
from graphwright.ir.traits.effects import Purity
from graphwright.source.concrete_function import from_concrete_function
from graphwright.step.example_inputs import example_inputs
from graphwright.step.flatten import find_loop_costs, flat_step, flatten_graph
from graphwright.step.targets import trace
from graphwright.transform.order_updates import order_updates

pytestmark = pytest.mark.tensorflow
WIDTH, LAYERS = 64, 6
OPTIMIZERS = {
    "loss scaling": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(), dynamic_growth_steps=2),
    "gradients added up": lambda: keras.optimizers.Adam(gradient_accumulation_steps=2),
    "one in the other": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(gradient_accumulation_steps=2)),
    "clipped by the norm of all": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(momentum=0.9, global_clipnorm=1.0)),
}


def make(optimizer: str, *, precision: str = "float32") -> keras.Model:
    keras.utils.set_random_seed(7)
    dense = [keras.layers.Dense(WIDTH, activation="relu", dtype=precision) for _ in range(LAYERS)]
    model = keras.Sequential([keras.Input((WIDTH,)), *dense, keras.layers.Dense(1, dtype="float32")])
    model.compile(OPTIMIZERS[optimizer](), "mse")
    return model


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_temporaries_of_one_update_are_there_at_a_time(optimizer):
    traced = trace(make(optimizer), mode="train", batch=8)
    unordered, _ = flatten_graph(from_concrete_function(traced.function)[0], dict(enumerate(traced.shapes)))
    before, after = (max(costs.workspace.values()) for costs in (find_loop_costs(unordered), flat_step(traced).loops))
    largest = 4 * WIDTH * WIDTH
    throughout = LAYERS * {"loss scaling": 0, "one in the other": 2}.get(optimizer, 1)  # zeros; gradients
    assert largest <= after <= (throughout + 4) * largest
    assert before > (throughout + 2 * LAYERS) * largest


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_plan_keeps_its_budget_and_the_bits(optimizer):
    model = make(optimizer, precision="mixed_float16" if optimizer == "loss scaling" else "float32")
    traced = trace(model, mode="train", batch=1024)
    inputs = example_inputs(traced)
    fast = gw.optimize_memory(traced.function, 0.8, inputs=inputs, verify="run")
    assert fast.plan.peak_bytes <= fast.plan.budget_bytes
    # Grappler groups factors of the norm in another way in a branch that is a function than in one that is lowered.
    assert fast.plan.verification.startswith("equal within the tolerance" if "clipped" in optimizer else "equal bit for bit")


def test_where_gradients_overflow_nothing_is_updated():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(16, WIDTH)).astype("float32"), rng.normal(size=(16, 1)).astype("float32")
    plain, planned = (make("loss scaling") for _ in range(2))
    planned.optimizer.build(planned.trainable_variables)
    gw.optimize_memory(planned, "100%", inputs=(x, y))
    for factor in (1.0, 1e30, 1.0, 1.0):  # the second time the gradients are infinite
        before = [v.numpy() for v in planned.trainable_variables]
        for model in (plain, planned):
            model.train_on_batch(factor * x, y)
        moved = any((v.numpy() != old).any() for v, old in zip(planned.trainable_variables, before, strict=True))
        assert moved is (factor == 1.0)
        for one, other in zip(plain.variables, planned.variables, strict=True):
            np.testing.assert_array_equal(one.numpy(), other.numpy())
        for one, other in zip(plain.optimizer.variables, planned.optimizer.variables, strict=True):
            np.testing.assert_array_equal(one.numpy(), other.numpy())


BRANCH = """
graph "step"
inputs %p:0, %v:0, %w:0, %d:0
control_outputs %if
%p = Placeholder() : bool[]
%v = Placeholder() : resource[]
%w = Placeholder() : resource[]
%d = Placeholder() : float32[2048]
%if = If(%p:0, %v:0, %w:0, %d:0) {then_branch = @update}
function "update"
inputs %v:0, %w:0, %d:0
control_outputs %to_v, %to_w
%v = _Arg() : resource[]
%w = _Arg() : resource[]
%d = _Arg() : float32[2048]
%a = Neg(%d:0) on "/device:CPU:0" : float32[2048]
%b = Exp(%d:0) on "/device:CPU:0" : float32[2048]
%to_v = AssignSubVariableOp(%v:0, %a:0)
%to_w = AssignSubVariableOp(%w:0, %b:0)
"""


@pytest.mark.parametrize(
    ("was", "now", "changed"),
    [
        ("", "", 1),
        ("AssignSubVariableOp(%w:0, %b:0)", "Print(%b:0)", 0),  # one write
        ("control_outputs %to_v, %to_w\n", "", 0),  # what runs is not said
        ('Exp(%d:0) on "/device:CPU:0"', 'Exp(%d:0) on "/device:CPU:1"', 0),  # each device has an order of its own
        ("Exp(%d:0)", "CollectiveReduceV2(%d:0)", 0),  # it waits for others, which wait for it
        ('Exp(%d:0) on "/device:CPU:0" : float32[2048]', 'Exp(%d:0) on "/device:CPU:0" : float32[?]', 0),
    ],
)
def test_branches_that_stay_as_they_are(was, now, changed):
    assert was in BRANCH
    graph = from_text(BRANCH.replace(was, now, 1).lstrip() if was else BRANCH.lstrip())
    before = [node.control_inputs for node in graph.functions["update"].body]
    assert order_updates(graph, Purity(graph, {})) == changed
    assert (before == [node.control_inputs for node in graph.functions["update"].body]) is not changed
