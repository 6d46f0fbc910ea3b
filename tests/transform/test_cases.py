"""Runs `tests/cases/<transform>.txt`: each case is a title, a graph before, and the graph that must come out.

A second run must change nothing. Where TensorFlow can execute the graphs (no variables to feed), it does, and both
give the same bits on the same random inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

import graphwright as gw
from graphwright.ir.edit.prune import prune
from graphwright.ir.graph import Graph
from graphwright.ir.text import from_text, to_text
from graphwright.ir.traits.effects import Purity
from graphwright.ir.verify import verify
from graphwright.source.concrete_function import evaluate_constants
from graphwright.source.graph_def import to_graph_def
from graphwright.step.flatten import stateful_op_types
from graphwright.transform.fold_constants import fold_constants, fold_shapes
from graphwright.transform.split_identities import split_identities

pytestmark = pytest.mark.tensorflow

RULES = [
    gw.Rule(lambda x, y: x + -y, lambda x, y: x - y, name="subtract"),
    gw.Rule(lambda x: x * 1.0, lambda x: x, name="times one"),
]
TRANSFORMS: dict[str, Callable[[Graph], int]] = {
    "dead_code": prune,
    "fold_constants": lambda graph: fold_constants(graph, Purity(graph, stateful_op_types(graph)), evaluate_constants(graph)),
    "fold_shapes": fold_shapes,
    "rewrite": lambda graph: len(gw.rewrite(graph, RULES).applied),
    "simplify": lambda graph: sum(gw.simplify(graph).found.values()),
    "split_identities": split_identities,
}
CASES_FOLDER = Path(__file__).parent.parent / "cases"


def read_cases(path: Path) -> list[tuple[str, str, str]]:
    """Title, graph before, graph after, for each case of a file."""
    cases: list[tuple[str, str, str]] = []
    for block in ("\n" + path.read_text()).split("\n== ")[1:]:
        title, _, rest = block.partition("\n-- before\n")
        before, separator, after = rest.partition("\n-- after\n")
        assert separator, f"{path.name}: the case {title!r} lacks a line `-- before` or `-- after`"
        cases.append((title, before, after))
    return cases


ALL_CASES = [
    pytest.param(path.stem, *case, id=f"{path.stem}: {case[0]}") for path in sorted(CASES_FOLDER.glob("*.txt")) for case in read_cases(path)
]


@pytest.mark.parametrize(("name", "title", "before", "after"), ALL_CASES)
def test_case(name, title, before, after):
    graph, expected = from_text(before), from_text(after)
    verify(graph)
    changed = TRANSFORMS[name](graph)
    verify(graph)
    assert to_text(graph) == to_text(expected)
    assert bool(changed) == (to_text(from_text(before)) != to_text(graph))
    assert TRANSFORMS[name](graph) == 0
    assert to_text(graph) == to_text(expected)
    if any(v.dtype.name == "resource" for v in graph.inputs):
        return
    for ours, theirs in zip(execute(from_text(before)), execute(graph), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


def execute(graph: Graph) -> list[Any]:
    random = np.random.default_rng(7)
    feeds: dict[str, Any] = {}
    for value in graph.inputs:
        shape = [2 if d is None else d for d in value.shape or ()]
        feeds[value.name] = (random.normal(size=shape) * 9).astype(value.dtype.name)
    tf_graph: Any = tf.Graph()
    with tf_graph.as_default():
        tf.graph_util.import_graph_def(to_graph_def(graph), name="")
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf.compat.v1.Session(graph=tf_graph, config=config) as session:
        results = session.run({k: v.name for k, v in enumerate(graph.outputs)}, feeds)
        session.run([n.name for n in graph.control_outputs], feeds)
    return list(results.values())


def test_every_case_file_has_its_transform():
    assert {path.stem for path in CASES_FOLDER.glob("*.txt")} == set(TRANSFORMS)
