"""Memory-saving gradients, reversible layers and Levenberg-Marquardt on two replicas."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.slow


def test_they_give_on_two_replicas_what_they_give_on_one(run_program: Any) -> None:
    outcome = run_program("other_tools", checks=["gradients", "checkpointed", "reversible", "levenberg_marquardt"])
    assert outcome.code == 0, outcome.errors
    found = outcome.lines[-1]
    assert found["gradients"]["difference"] < 1e-5  # float32, in another order
    assert found["checkpointed"]["difference"] < 1e-5
    assert found["reversible"]["together"] == pytest.approx(found["reversible"]["alone"], rel=1e-5)
    assert found["levenberg_marquardt"]["together"] == pytest.approx(found["levenberg_marquardt"]["alone"], rel=1e-9)
    assert found["levenberg_marquardt"]["together"][-1] < 0.5 * found["levenberg_marquardt"]["together"][0]
