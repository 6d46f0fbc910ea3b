"""`bench.reuse`: its sections are there, kernels are counted, and ratios come with bounds."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from bench.reuse import SECTIONS

tf = pytest.importorskip("tensorflow")

from bench.reuse_simplify import ratio  # noqa: E402 - behind the skip
from bench.reuse_ways import difference, flops_per_kernel, kernels, session_call  # noqa: E402

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize("name", SECTIONS)
def test_each_section_is_there(name):
    assert find_spec(f"bench.reuse_{name}") is not None


def test_kernels_and_their_flops_are_counted():
    x = tf.Variable(np.eye(3))
    step = tf.function(lambda: x @ x + tf.linalg.solve(x, x))
    step()
    assert kernels(step) == {"MatMul": 1, "MatrixSolve": 1}
    assert flops_per_kernel(step)["MatMul"] == 2 * 3**3


@pytest.mark.parametrize("reference", [False, True])
def test_a_session_computes_what_it_is_given(reference):
    start = np.arange(9.0).reshape(3, 3)
    assert difference(session_call(lambda w: w @ w, start, reference=reference)(), [start @ start]) == 0.0
    assert difference(start + 1.0, [start]) == 1.0 / 8.0


def test_a_ratio_has_bounds_around_its_median():
    base = np.ones(31)
    assert ratio(base * 2.0, base) == "2.00 (2.00 to 2.00)"
    spread = np.linspace(0.9, 1.1, 31)
    assert ratio(spread, base) == "1.00 (0.96 to 1.04)"  # of 31 the 10th and the 22nd: a fair coin leaves them once in 33
