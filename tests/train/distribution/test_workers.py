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
    for outcome in together:
        assert outcome.losses == pytest.approx(alone.losses, rel=_TOLERANCE)
        for key, values in alone.lines[-1]["history"].items():
            assert outcome.lines[-1]["history"][key] == pytest.approx(values, rel=_TOLERANCE), key
        first = outcome.lines[-1]["plans"][0]
        assert first["verification"].startswith("equal bit for bit")
        assert first["peak"] <= first["budget"]
        assert first["recomputed"] > 0


def test_a_worker_is_killed_and_nothing_is_lost(run_workers: Any, tmp_path: Path) -> None:
    task = _TASK | {"noise": True, "budget": 0.9}
    whole = run_workers([task, task])
    resumed = task | {"directory": str(tmp_path / "checkpoints")}
    # Batches are counted from 0: the checkpoint is from after batch 1 of epoch 1, and batch 2 is trained and lost.
    broken = run_workers([resumed, resumed | {"killed_at": [1, 3]}], patience_s=90.0)
    assert broken[1].code == -signal.SIGKILL
    assert broken[0].code != 0  # it cannot go on alone
    again = run_workers([resumed, resumed])
    assert [outcome.code for outcome in (*whole, *again)] == [0] * 4, again[0].errors
    for k in range(2):
        assert list(again[k].losses) == [(1, 2), (1, 3), (1, 4), (2, 0), (2, 1), (2, 2), (2, 3), (2, 4)]
        before = {at: loss for at, loss in broken[k].losses.items() if at not in again[k].losses}
        assert before | again[k].losses == whole[k].losses  # bit for bit
        assert again[k].lines[-1]["history"] == whole[k].lines[-1]["history"]
        assert again[k].lines[-1]["weights"] == whole[k].lines[-1]["weights"]
    assert not list((tmp_path / "checkpoints").iterdir())
