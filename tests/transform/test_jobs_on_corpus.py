"""Every job on the graphs of every origin: written again, they serve the same numbers, through a session and through a loader."""

from __future__ import annotations

import functools

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import graphwright as gw
from graphwright.errors import ArgumentError, GraphError, UnsupportedError
from graphwright.ir.text import to_text
from graphwright.ir.verify import verify
from graphwright.source.variable_values import variable_values
from graphwright.transform.inline_calls import inline_calls
from tests.corpus.graphs import CORPUS, SLOW
from tests.corpus.serving import by_import, by_loading, by_session

pytestmark = pytest.mark.tensorflow


def freeze(graph):
    gw.freeze_variables(graph, variable_values(graph))


def for_serving(graph):
    freeze(graph)
    gw.fold_batch_norms(graph)
    gw.remove_debug_ops(graph)
    gw.strip_training(graph)
    gw.convert_weights(graph, "float16", smallest=4)


def free_batch(graph):
    gw.change_batch_size(graph, None)


JOBS = {
    "inline": inline_calls,
    "freeze": freeze,
    "debug": gw.remove_debug_ops,
    "strip": gw.strip_training,
    "batch": free_batch,
    "all": for_serving,
}
WRITES_ITS_VARIABLES = {"mutable_state", "training_step"}
QUICK = {
    ("table_from_a_file", "inline"),
    ("tf1_loop", "debug"),
    ("tf1_loop", "all"),
    ("tf1_table", "all"),
    ("ragged_strings", "all"),
    ("tf1_sparse_signature", "all"),
}
TOLD_BY_ALL = ("freeze", "debug", "strip")  # which `all` does too: by themselves in the thorough run


def _marks(name, job):
    if (name, job) in QUICK:
        return []
    return [pytest.mark.slow, pytest.mark.thorough] if job in TOLD_BY_ALL else [pytest.mark.slow]


CASES = [pytest.param(name, job, marks=_marks(name, job)) for name in CORPUS if name not in SLOW for job in JOBS]


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Each graph is built once for all jobs."""
    return functools.cache(lambda name: CORPUS[name](tmp_path_factory.mktemp(name)))


@pytest.mark.parametrize(("name", "job"), CASES)
def test_numbers_stay(name, job, build, tmp_path):
    case = build(name)
    graph = gw.load(case.path)
    if case.fetches and not graph.outputs:
        graph.outputs = [graph.value(name) for name in case.fetches]
    original = graph.package.folder if case.path.suffix == ".keras" else case.path
    before = to_text(graph)
    try:
        JOBS[job](graph)
    except UnsupportedError:
        assert name in WRITES_ITS_VARIABLES
        assert to_text(graph) == before
        return
    except ArgumentError:
        assert (name, job) == ("graph_as_text", "batch")  # its input is a number
        return
    except GraphError:
        assert (name, job) == ("mutable_state", "batch")  # a seed that is computed
        assert to_text(graph) == before
        return
    verify(graph)
    out = tmp_path / f"out{case.path.suffix if case.fetches else ''}"
    gw.write(graph, out)
    if case.fetches:
        pairs = [(by_import(out, case.feeds[""], case.fetches), by_import(original, case.feeds[""], case.fetches))]
    else:
        pairs = [(serve(out, case.feeds), serve(original, case.feeds)) for serve in (by_session, by_loading)]
    for ours, theirs in pairs:
        assert {key: set(answers) for key, answers in ours.items()} == {key: set(answers) for key, answers in theirs.items()}
        for key, answers in theirs.items():
            for output, value in answers.items():
                close(np.asarray(ours[key][output]), np.asarray(value), 2e-2 if job == "all" else 1e-5)


def close(ours, theirs, tolerance):
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    if theirs.dtype.kind in "fcV":
        ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance * np.abs(theirs).max(initial=0.0))
    else:
        assert ours.tolist() == theirs.tolist()
