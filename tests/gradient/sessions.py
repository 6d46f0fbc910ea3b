"""Graphs of TF1 for the tests of gradients: run them, compare gradients, measure a step's peak."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import graphwright as gw
from graphwright.run.step_stats import read_memory

v1: Any = tf.compat.v1


def session(graph: Any) -> Any:
    """A session with one inter-op thread, in which all variables have their first values."""
    opened = v1.Session(graph=graph, config=v1.ConfigProto(inter_op_parallelism_threads=1))
    with graph.as_default():
        opened.run(v1.global_variables_initializer())
    return opened


def recomputed(graph: Any) -> list[str]:
    """Names of the operations that are clones."""
    return [op.name for op in graph.get_operations() if op.name.startswith("recomputed/")]


def both(
    build: Callable[[], tuple[Any, Any]], checkpoints: Any, *, feeds: dict[str, Any] | None = None, least: int = 1, **kwargs: Any
) -> tuple[list[Any], list[Any], Any]:
    """Plain and saving gradients of the same graph from the same run; at least `least` operations are computed again."""
    graph = tf.Graph()
    with graph.as_default():
        v1.set_random_seed(7)
        ys, xs = build()
        plain = tf.gradients(ys, xs, **{k: v for k, v in kwargs.items() if k != "feeds"})
        options = {"time_limit_s": 0.3, **kwargs}
        found = gw.gradients(ys, xs, checkpoints=checkpoints(graph) if callable(checkpoints) else checkpoints, **options)
        assert [type(g) for g in found] == [type(g) for g in plain]
        dense = [[tf.convert_to_tensor(g) for g in side if g is not None] for side in (plain, found)]
    assert len(recomputed(graph)) >= least
    with session(graph) as opened:
        one, other = opened.run(dense, {f"{name}:0": value for name, value in (feeds or {}).items()})
    return one, other, graph


def assert_equal(one: Sequence[Any], other: Sequence[Any], tolerance: float = 1e-10) -> None:
    """Gradients agree, relative to the largest entry of all."""
    assert len(one) == len(other) > 0
    top = max(float(np.abs(a).max()) for a in one)
    assert top > 0
    for a, b in zip(one, other, strict=True):
        assert a.shape == b.shape
        assert float(np.abs(np.asarray(a, np.float64) - b).max()) <= tolerance * top


def peak_mib(graph: Any, fetches: Any) -> float:
    """What the allocators gave out at most during a step, variables left out."""
    with session(graph) as opened:
        opened.run(fetches)
        metadata = v1.RunMetadata()
        opened.run(fetches, options=v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE), run_metadata=metadata)
    return sum(track.peak_bytes - track.resident_bytes for track in read_memory(metadata.step_stats, 0)) / 2**20
