"""Models whose weights are larger than a protobuf: variables stay out of the graph, and constants are refused in time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from graphwright.errors import UnsupportedError
from graphwright.source import join_checkpoints, protobuf_files
from graphwright.source.load import load
from graphwright.source.variable_values import variable_values
from graphwright.source.write import write
from graphwright.transform.freeze_variables import freeze_variables
from graphwright.transform.merge_models import merge_models
from graphwright.transform.preprocessing import add_postprocessing
from tests.transform.test_merge_models import Dense, tf1, tf2

pytestmark = pytest.mark.tensorflow
LIMIT = 60_000
"""In place of 2 GB."""


def wide(folder: Path) -> Path:
    module = tf.Module()
    module.w = w = tf.Variable(tf.reshape(tf.range(LIMIT, dtype=tf.float32), [3, -1]), name="wide")
    module.b = b = tf.Variable(tf.zeros([LIMIT // 3]), name="bias")
    module.call = tf.function(lambda x: {"y": x @ w + b}, input_signature=[tf.TensorSpec([None, 3], name="x")])
    tf.saved_model.save(module, str(folder), signatures=module.call)
    return folder


@pytest.fixture
def limit(monkeypatch):
    monkeypatch.setattr(protobuf_files, "PROTOBUF_LIMIT_BYTES", LIMIT)


@pytest.mark.usefixtures("limit")
def test_variables_are_edited_and_written_without_being_read(tmp_path):
    folder = wide(tmp_path / "model")
    graph = load(folder)
    [data] = (folder / "variables").glob("*data*")
    assert data.stat().st_size > LIMIT
    data.write_bytes(b"whatever is in here is not read")
    negative = load(tf.function(lambda y: -y).get_concrete_function(tf.TensorSpec([None, LIMIT // 3], name="y")))
    negative.package = None
    add_postprocessing(graph, negative)
    write(graph, tmp_path / "written")
    assert (tmp_path / "written" / "variables" / data.name).read_bytes() == data.read_bytes()


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize("name", ["written", "written.pb"])
def test_frozen_it_says_which_and_what_to_do(name, tmp_path):
    graph = load(wide(tmp_path / "model"))
    freeze_variables(graph, variable_values(graph))
    with pytest.raises(UnsupportedError, match=r"larger than the 60000 bytes.*largest are wide \(240,0.. bytes\), bias") as caught:
        write(graph, tmp_path / name)
    assert "leave them variables" in caught.value.remedy
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model"]


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize("make", [tf1, tf2])
def test_merged_piece_by_piece(make, monkeypatch, tmp_path):
    monkeypatch.setattr(join_checkpoints, "_PIECE_BYTES", 40)
    merged = merge_models(load(make(tmp_path / "a", 1)), load(wide(tmp_path / "b")), connect={"x": "y"})
    assert len(list((merged.package.folder / "variables").glob("*data*"))) >= 3
    write(merged, tmp_path / "written")
    values = variable_values(load(tmp_path / "written"))
    assert {name: value.nbytes for name, value in values.items()} == {"w": 36, "second/wide": 4 * LIMIT, "second/bias": 4 * LIMIT // 3}
    np.testing.assert_array_equal(values["w"], Dense(1).w)
    np.testing.assert_array_equal(values["second/wide"].ravel(), np.arange(LIMIT))
