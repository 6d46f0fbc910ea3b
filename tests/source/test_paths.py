"""What `load` and `write` say of paths that they cannot or should not use."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from graphwright.errors import ArgumentError
from graphwright.ir.graph import Graph
from graphwright.source.load import load
from graphwright.source.write import write

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def graph() -> Graph:
    spec = tf.TensorSpec([2], tf.float32, name="x")
    return load(tf.function(lambda x: {"y": x + x}).get_concrete_function(spec))


@pytest.mark.parametrize("path", ["gs://bucket/model", "s3://bucket/model.pb", "hdfs://host/model", Path("gs://bucket/model")])
def test_what_is_not_on_this_machine_is_refused_by_name(graph, path):
    for use in (lambda: load(path), lambda: write(graph, path), lambda: write(graph, path, overwrite=True)):
        with pytest.raises(ArgumentError, match="is not a file of this machine"):
            use()
    assert not Path("gs:").exists()


def test_a_folder_that_holds_something_else_is_not_replaced(graph, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "text.tex").write_text("two years")
    with pytest.raises(ArgumentError, match="something else than a SavedModel"):
        write(graph, tmp_path / "thesis", overwrite=True)
    assert [p.name for p in (tmp_path / "thesis").iterdir()] == ["text.tex"]
    assert [p.name for p in tmp_path.iterdir()] == ["thesis"]
    (tmp_path / "empty").mkdir()
    write(graph, tmp_path / "empty", overwrite=True)
    write(graph, tmp_path / "empty", overwrite=True)
    assert tf.saved_model.load(str(tmp_path / "empty")).signatures["serving_default"](x=[1.0, 2.0])["y"].numpy().tolist() == [2.0, 4.0]
