"""The programs of the benchmark of GPUs, run on this machine's processor in the place of a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from bench.device import write_program
from bench.device_run import run_programs


def _step(weights: tf.Variable, *, wrong: bool = False) -> Any:
    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        loss = tf.reduce_sum(tf.tanh(x @ weights))
        weights.assign_sub(0.1 * tf.gradients(loss, weights)[0] * (2.0 if wrong else 1.0))
        return loss

    return step.get_concrete_function(tf.TensorSpec((4, 32)))


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.usefixtures("gpu_compiler")
def test_programs_are_run_and_compared_with_the_plain_one(tmp_path: Path):
    weights = tf.Variable(tf.random.stateless_normal((32, 32), (1, 2)))
    about = {"model": "net", "device": "cpu", "slop": [], "peak_bytes": 2**20, "time": 1.0}
    x = tf.random.stateless_normal((4, 32), (3, 4)).numpy()
    for program, wrong in (("plain", False), ("same", False), ("wrong", True)):
        write_program(_step(weights, wrong=wrong), ((4, 32),), tmp_path / f"{program}.json", about | {"program": program}, [x])

    table = run_programs(tmp_path, tmp_path / "rows", seconds=300.0)

    rows = {(row["program"], row["exact"]): row for row in json.loads((tmp_path / "rows").read_text())}
    assert set(rows) == {*((name, exact) for name in ("plain", "same", "wrong") for exact in (False, True)), ("plain, processor", True)}
    assert all(row["compiled_bytes"] > 4 * 32 * 32 and row["finite"] and row["arrays"] == 2 for row in rows.values())
    assert rows["same", False]["equal_arrays"] == rows["plain, processor", True]["equal_arrays"] == 2
    assert rows["wrong", False]["equal_arrays"] == 1
    assert rows["wrong", True]["largest"] > 1e-3
    assert rows["same", False]["step_s"] > 0
    assert "| net, wrong | 1.0 | 0.0 | not known | 1.00 |" in table
