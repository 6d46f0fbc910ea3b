"""`optimize_memory` of graphs that a session runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from typer.testing import CliRunner

import graphwright as gw
from graphwright.commands.cli import app
from graphwright.errors import ArgumentError, UnsupportedError
from tests.tf1_graphs import OUTPUTS, branched, embedding, exported, logistic, looped, residual, steps_of, v1

IMAGES = np.random.default_rng(0).random((8, 16, 16, 3), "float32")
NAMES = OUTPUTS


def optimized(target: Any, budget: Any, x: Any, **options: Any) -> Any:
    return gw.optimize_memory(target, budget, outputs=NAMES, feeds={"x": x.shape}, cache_dir=None, time_limit_s=2.0, **options)


def test_a_session_trains_the_same_in_less_memory() -> None:
    graph = residual()
    before = len(graph.get_operations())
    fast = optimized(graph, 0.75, IMAGES)
    assert fast.plan.peak_bytes <= 0.75 * fast.plan.original_peak_bytes
    assert fast.plan.verification.startswith("equal")
    assert [fetch.name for fetch in fast.fetches] == ["optimized/net/train", "optimized/net/loss:0"]
    assert len(graph.get_operations()) < before + 10
    for one, other in zip(steps_of(graph, NAMES, IMAGES), steps_of(graph, fast.fetches, IMAGES), strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(ArgumentError, match="runs in a session"):
        fast()
    with pytest.raises(tf.errors.InvalidArgumentError, match="8,16,16,3"):
        steps_of(graph, fast.fetches, IMAGES[:4])


@pytest.mark.parametrize(("make", "shape"), [(logistic, (8, 64)), (embedding, (8, 4)), (branched, (8, 32)), (looped, (8, 16))])
def test_other_graphs_train_the_same(make: Any, shape: tuple[int, ...]) -> None:
    graph, x = make(), np.random.default_rng(0).random(shape, "float32")
    fast = optimized(graph, "1GiB", x)
    for one, other in zip(steps_of(graph, NAMES, x), steps_of(graph, fast.fetches, x), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_file_gives_a_graph_with_the_step(tmp_path: Path) -> None:
    path, written = tmp_path / "step.meta", tmp_path / "fast.meta"
    exported(residual(), path)
    with pytest.raises(ArgumentError, match="runs code of the file"):
        optimized(path, 0.75, IMAGES)
    options = ("--budget", "75%", "--outputs", "net/train,net/loss:0", "--feed", "x=8,16,16,3", "--trust", "--output", str(written))
    done = CliRunner().invoke(app, ["optimize", str(path), *options])
    assert done.exit_code == 0, done.output
    with tf.Graph().as_default() as graph:
        v1.train.import_meta_graph(str(written))
    fetches = [f"optimized/{name}" for name in NAMES]
    for one, other in zip(steps_of(residual(), NAMES, IMAGES), steps_of(graph, fetches, IMAGES), strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_a_graph_cannot_have() -> None:
    with pytest.raises(UnsupportedError, match="without a handle") as raised:
        optimized(logistic(handles=False), 0.9, np.ones((8, 64)))
    assert "enable_resource_variables" in raised.value.remedy
    with pytest.raises(ArgumentError, match="values in a session"):
        optimized(logistic(), 0.9, np.ones((8, 64)), verify="run")
