"""Each graph of the corpus: loaded and written it serves the same bits, and is the same field by field."""

from __future__ import annotations

import difflib
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.protobuf import saved_model_pb2

from graphwright.ir.verify import verify
from graphwright.source.load import load
from graphwright.source.package import Package
from graphwright.source.write import write
from tests.corpus.graphs import CORPUS, SLOW
from tests.corpus.serving import assert_same, by_import, by_loading, by_session

LIKE_OTHERS = ("application_ResNet50", "application_Xception")


def marks_of(name: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] * (name in SLOW) + [pytest.mark.thorough] * (name in LIKE_OTHERS)


CASES = [pytest.param(name, marks=marks_of(name)) for name in CORPUS]


def normalized(message: Any) -> Any:
    """Without what two equal files may write differently: `x:0` for `x`, and the bytes of maps inside of collections."""
    copy = type(message)()
    copy.CopyFrom(message)
    graphs = [copy] if isinstance(copy, tf.compat.v1.GraphDef) else [m.graph_def for m in copy.meta_graphs]
    for graph in graphs:
        for node in graph.node:
            inputs = [text.removesuffix(":0") for text in node.input]
            del node.input[:]
            node.input.extend(inputs)
    return copy


def read(path: Path) -> Any:
    if path.suffix in (".pb", ".pbtxt"):
        graph_def = tf.compat.v1.GraphDef()
        if path.suffix == ".pbtxt":
            text_format.Parse(path.read_text(), graph_def)
        else:
            graph_def.ParseFromString(path.read_bytes())
        return graph_def
    return saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())


@pytest.mark.parametrize("name", CASES)
def test_round_trip(name, tmp_path):
    case = CORPUS[name](tmp_path)
    graph = load(case.path)
    verify(graph)
    written = tmp_path / f"written{case.path.suffix if case.fetches else ''}"
    write(graph, written)
    original = case.path
    if case.path.suffix == ".keras":
        assert isinstance(graph.package, Package)
        assert graph.package.folder is not None
        original = graph.package.folder
    before, after = normalized(read(original)), normalized(read(written))
    assert before == after, "\n".join(
        islice(difflib.unified_diff(str(before).splitlines(), str(after).splitlines(), lineterm="", n=6), 200)
    )
    if case.fetches:
        assert_same(by_import(written, case.feeds[""], case.fetches), by_import(original, case.feeds[""], case.fetches))
        return
    assert_same(by_session(written, case.feeds), by_session(original, case.feeds))
    assert_same(by_loading(written, case.feeds), by_loading(original, case.feeds))


def test_there_are_enough():
    assert len(set(CORPUS) - SLOW) >= 20
