"""Each training tool on two replicas, and in two processes: the loss curve of one device at the same global batch."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.slow

_TOOLS = {"optimize_memory", "gradients", "checkpointed", "reversible", "reversible_fit", "levenberg_marquardt"}
_TOLERANCE = 1e-12  # float64; sums are added up in another order


@pytest.fixture(scope="module")
def alone(run_program: Any) -> dict[str, Any]:
    outcome = run_program("curves", on="alone")
    assert outcome.code == 0, outcome.errors
    return outcome.lines[-1]


def _check(found: dict[str, Any], alone: dict[str, Any], by_xla: set[str]) -> None:
    assert set(found) == _TOOLS | {f"{tool} by XLA" for tool in by_xla}
    for tool, curve in found.items():
        expected = alone[tool.removesuffix(" by XLA")]["losses"]
        assert len(expected) == 10
        assert expected[-1] < 0.9 * expected[0]
        assert curve["losses"] == pytest.approx(expected, rel=_TOLERANCE), tool
        assert curve.get("planned", True), tool


@pytest.mark.thorough
def test_two_replicas(run_program: Any, alone: dict[str, Any]) -> None:
    outcome = run_program("curves", on="replicas")
    assert outcome.code == 0, outcome.errors
    found = outcome.lines[-1]
    _check(found, alone, {"gradients", "checkpointed", "reversible", "levenberg_marquardt"})


def test_two_workers(run_workers: Any, alone: dict[str, Any]) -> None:
    outcomes = run_workers([{"on": "workers"}] * 2, program="curves")
    for outcome in outcomes:
        assert outcome.code == 0, outcome.errors
        _check(outcome.lines[-1], alone, {"reversible"})
