"""Two processes on this machine, under `MultiWorkerMirroredStrategy`."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

_TASK: dict[str, Any] = {"samples": 2200, "batch": 512, "epochs": 3}
_TOLERANCE = 1e-4  # the mean of a batch is a mean of means, added up in another order, then steps of Adam


def test_two_workers_give_the_loss_curve_of_one(run_workers: Any, run_program: Any) -> None:
    alone = run_program("workers", index=0, ports=[], **_TASK)
    together = run_workers([_TASK | {"budget": 0.8}] * 2)
    assert [outcome.code for outcome in (alone, *together)] == [0, 0, 0], together[0].errors
    assert len(alone.losses) == 15
    for k, outcome in enumerate(together):
        assert outcome.losses == pytest.approx(alone.losses, rel=_TOLERANCE)
        for key, values in alone.lines[-1]["history"].items():
            assert outcome.lines[-1]["history"][key] == pytest.approx(values, rel=_TOLERANCE), key
        first = outcome.lines[-1]["plans"][0]
        assert first["verification"].startswith("equal by structure")
        assert first["peak"] <= first["budget"]
        assert first["recomputed"] > 0
        assert first["devices"] == {f"worker {k}": first["peak"]}


def test_a_worker_is_killed_again_and_again_and_nothing_is_lost(run_workers: Any, tmp_path: Path) -> None:
    task = _TASK | {"noise": True, "budget": 0.9}
    whole = run_workers([task, task])
    folder = tmp_path / "checkpoints"
    resumed = task | {"directory": str(folder)}
    # Batches are counted from 0, five in an epoch; checkpoints are written after every second one and after each epoch.
    moments: list[tuple[dict[str, Any], tuple[int, int]]] = [
        ({"killed_in_save": 1}, (0, 0)),  # only the other worker has the first checkpoint: it does not count
        ({"killed_in_save": 2}, (0, 0)),  # so all begins anew; half of the second checkpoint is written
        ({"killed_at": [1, 3]}, (0, 2)),  # from the first checkpoint on; batch (1, 2) is trained and lost
        ({}, (1, 0)),  # its newest checkpoint is damaged: both go on from the one before
    ]
    losses: list[dict[tuple[int, int], float]] = [{}, {}]
    runs: list[Any] = []
    for how, first in moments:
        if not how:
            damaged = max(folder.glob("step-*.process-1-*"))
            damaged.write_bytes(damaged.read_bytes()[:-50])
        runs = run_workers([resumed, resumed | how], patience_s=15.0)
        for k, outcome in enumerate(runs):
            assert next(iter(outcome.losses)) == first, outcome.errors
            losses[k] |= outcome.losses
        if how:
            assert runs[1].code == -signal.SIGKILL
            assert runs[0].code != 0  # it cannot go on alone
        halves = [path.name for path in folder.iterdir() if path.name.startswith(".")]
        assert len(halves) == ("killed_in_save" in how), halves
    assert [outcome.code for outcome in (*whole, *runs)] == [0] * 4, runs[0].errors
    for k in range(2):
        assert losses[k] == whole[k].losses  # bit for bit
        assert runs[k].lines[-1]["history"] == whole[k].lines[-1]["history"]
        assert runs[k].lines[-1]["weights"] == whole[k].lines[-1]["weights"]
        assert "is damaged in process 1" in runs[k].errors
    assert not list(folder.iterdir())
