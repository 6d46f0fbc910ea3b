"""The editor's benchmark runs, and compares what it says it compares."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf
from rich.console import Console

from bench import editor

pytestmark = pytest.mark.tensorflow


def test_the_graph_is_one_that_tensorflow_imports():
    graph_def = tf.compat.v1.GraphDef.FromString(editor.graph_bytes(1000))
    assert 1000 <= len(graph_def.node) <= 1010
    with tf.Graph().as_default():
        tf.graph_util.import_graph_def(graph_def, name="")
    assert editor.graph_bytes(1000) == graph_def.SerializeToString(deterministic=True)


@pytest.mark.slow
def test_every_step_is_timed_and_one_percent_is_rerouted(tmp_path):
    row = editor.measure(1000)
    assert set(row["seconds"]) == {*editor.STEPS, *editor.WORDS, "parse", "serialize", "tf.import_graph_def"}
    assert 8 <= row["rerouted"] <= 13
    assert all(seconds > 0 for seconds in row["seconds"].values())
    with (tmp_path / "table.txt").open("w") as file:
        editor.print_rows([row], Console(file=file, width=150))
    assert "x import" in (tmp_path / "table.txt").read_text()


@pytest.mark.slow
def test_the_row_of_functions_calls_one_per_node():
    graph_def = tf.compat.v1.GraphDef.FromString(editor.function_bytes(30))
    assert len(graph_def.library.function) == 30 == len({node.attr["f"].func.name for node in graph_def.node if "f" in node.attr})
    row = editor.measure(200, functions=True)
    assert (row["nodes"], row["rerouted"]) == (201, 2)


def test_ratios():
    seconds = {"load": 2.0, "reroute 1 %": 1.0, "write": 1.0, "parse": 0.5, "serialize": 0.5, "tf.import_graph_def": 8.0}
    words = {"gde load": 4.0, "gde reroute 1 %": 1.0, "gde write": 1.0}
    assert editor.ratios({"seconds": {**seconds, **words}}) == (4.0, 0.5, 0.75)


@pytest.mark.slow
def test_a_size_runs_in_a_process_of_its_own(tmp_path, capsys):
    assert editor.main(["--nodes", "200", "--functions", "0", "--json", str(tmp_path / "rows.json")]) == 0
    assert json.loads((tmp_path / "rows.json").read_text())[0]["nodes"] >= 200
