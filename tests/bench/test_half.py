"""The benchmark of half of the memory."""

import pytest

from bench.half import row, two_tower


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.tensorflow
def test_a_plan_for_half_of_the_measured_peak_keeps_it():
    name, budget, plan, predicted, measured, *_, proof = row(two_tower(users=500, items=300, width=16, batch=1024), rounds=1)
    assert name.startswith("two towers of 16")
    assert plan.endswith("parts, one after another")
    most = float(budget.split("= ")[1])
    assert max(float(predicted), float(measured)) <= most
    assert proof == "equal by structure; equal but for the order of sums over the batch"
