"""Merged models with variables, tables and assets of both, served by TensorFlow from a folder far from their sources."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from graphwright.errors import ArgumentError, FileFormatError, UnsupportedError
from graphwright.ir.graph import Graph
from graphwright.ir.verify import verify
from graphwright.source.load import load
from graphwright.source.variable_values import variable_values
from graphwright.source.write import write
from graphwright.transform.freeze_variables import freeze_variables
from graphwright.transform.merge_models import merge_models
from tests.corpus.graphs import CORPUS
from tests.corpus.serving import assert_same, by_loading, by_session
from tests.transform.serving import built, random

pytestmark = pytest.mark.tensorflow
v1 = tf.compat.v1
X = random(2, 3, seed=9)
DEFAULT = "serving_default"


class Dense(tf.Module):
    """A variable called `w` and a captured constant."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.w = tf.Variable(random(3, 3, seed=seed), name="w")
        self.offset = tf.constant(random(3, seed=seed + 100))

    @tf.function(input_signature=[tf.TensorSpec([None, 3], name="x")])
    def call(self, x: Any) -> Any:
        return {"y": tf.nn.relu(x @ self.w + self.offset)}


def dense(seed: int, x: Any) -> Any:
    module = Dense(seed)
    return module.call(x)["y"].numpy()


def tf2(folder: Path, seed: int) -> Path:
    module = Dense(seed)
    tf.saved_model.save(module, str(folder), signatures=module.call)
    return folder


def tf1(folder: Path, seed: int, *, use_resource: bool = True) -> Path:
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 3], name="x")
        w = v1.get_variable("w", initializer=random(3, 3, seed=seed), use_resource=use_resource)
        y = tf.nn.relu(tf.matmul(x, w), name="y")
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(folder), {"x": x}, {"y": y})
    return folder


def tf1_with_references(folder: Path, seed: int) -> Path:
    return tf1(folder, seed, use_resource=False)


def frozen(folder: Path, seed: int) -> Path:
    graph = load(tf2(folder, seed))
    freeze_variables(graph, variable_values(graph))
    write(graph, folder, overwrite=True)
    return folder


Make = Callable[[Path, int], Path]
PAIRS = [
    (tf2, tf2),
    (tf1, tf1),
    (tf1_with_references, tf1),
    (tf1, tf2),
    (tf2, tf1),
    (frozen, tf2),
    (tf1, frozen),
]


def written_far_away(graph: Graph, folder: Path, *sources: Path) -> Path:
    """Write, then delete the sources, forget the graph's temporary folders, and move what was written."""
    verify(graph)
    write(graph, folder / "written")
    graph.package = None
    for source in sources:
        shutil.rmtree(source)
    shutil.move(folder / "written", folder / "elsewhere")
    return folder / "elsewhere"


def served_both_ways(path: Path, feeds: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What a session answers; a loaded function may run kernels that Grappler fused in another way, which round differently."""
    by_the_session = by_session(path, feeds)
    assert_same(by_the_session, by_loading(path, feeds), rtol=1e-6)
    return by_the_session


@pytest.mark.parametrize(("make_first", "make_second"), PAIRS)
def test_variables_with_the_same_name_keep_their_own_values(make_first: Make, make_second: Make, tmp_path: Path):
    first, second = make_first(tmp_path / "first", 1), make_second(tmp_path / "second", 2)
    apart = [by_session(path, {DEFAULT: {"x": X}})[DEFAULT]["y"] for path in (first, second)]
    chained_apart = by_session(second, {DEFAULT: {"x": apart[0]}})[DEFAULT]["y"]
    assert not np.array_equal(apart[0], apart[1])

    chained = merge_models(load(first), load(second), connect={"x": "y"}, keep_outputs=True)
    beside = merge_models(load(first), load(second))
    both = merge_models(load(first), load(second), keep_signatures=True)
    write(beside, tmp_path / "beside")
    write(both, tmp_path / "both")

    path = written_far_away(chained, tmp_path, first, second)
    assert list(chained.signatures[DEFAULT].inputs) == ["x"]
    answer = served_both_ways(path, {DEFAULT: {"x": X}})
    assert_same(answer, {DEFAULT: {"y": apart[0], "second_y": chained_apart}})

    answer = served_both_ways(tmp_path / "beside", {DEFAULT: {"x": X, "second_x": X}})
    assert_same(answer, {DEFAULT: {"y": apart[0], "second_y": apart[1]}})

    answer = served_both_ways(tmp_path / "both", {DEFAULT: {"x": X}, f"second_{DEFAULT}": {"x": X}})
    assert_same(answer, {DEFAULT: {"y": apart[0]}, f"second_{DEFAULT}": {"y": apart[1]}})


def test_the_second_model_is_a_child_of_the_first(tmp_path):
    merged = merge_models(load(tf2(tmp_path / "a", 1)), load(tf2(tmp_path / "b", 2)), scope="tail")
    loaded = tf.saved_model.load(written_far_away(merged, tmp_path))
    np.testing.assert_array_equal(loaded.w, random(3, 3, seed=1))
    np.testing.assert_array_equal(loaded.tail.w, random(3, 3, seed=2))
    np.testing.assert_array_equal(loaded.tail.call(X)["y"], dense(2, X))
    loaded.tail.w.assign(tf.zeros([3, 3]))
    feeds = {"x": tf.constant(X), "second_x": tf.constant(X), "tail_x": tf.constant(X)}
    function = loaded.signatures[DEFAULT]
    answer = function(**{key: feeds[key] for key in function.structured_input_signature[1]})
    np.testing.assert_array_equal(answer["tail_y"][0], np.maximum(random(3, seed=102), 0))


def test_three_models_and_one_with_itself(tmp_path):
    one, two = tf2(tmp_path / "1", 1), tf2(tmp_path / "2", 2)
    merged = merge_models(merge_models(load(one), load(two), connect={"x": "y"}), load(one), connect={"x": "y"})
    expected = X
    for seed in (1, 2, 1):
        expected = dense(seed, expected)
    answer = served_both_ways(written_far_away(merged, tmp_path, one, two), {DEFAULT: {"x": X}})
    np.testing.assert_allclose(answer[DEFAULT]["y"], expected, rtol=1e-6)


def test_live_functions(tmp_path):
    modules = Dense(1), Dense(2)
    merged = merge_models(*(load(module.call) for module in modules), connect={"x": "y"})
    answer = served_both_ways(written_far_away(merged, tmp_path), {DEFAULT: {"x": X}})
    np.testing.assert_allclose(answer[DEFAULT]["y"], modules[1].call(modules[0].call(X)["y"])["y"], rtol=1e-6)


def table(folder: Path, words: list[str]) -> Path:
    folder.mkdir()
    (folder / "words.txt").write_text("\n".join(words) + "\n")
    initializer = tf.lookup.TextFileInitializer(
        str(folder / "words.txt"), tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER
    )
    module = tf.Module()
    module.table = tf.lookup.StaticHashTable(initializer, -1)
    module.call = tf.function(
        lambda word: {"number": module.table.lookup(word)}, input_signature=[tf.TensorSpec([None], tf.string, name="word")]
    )
    tf.saved_model.save(module, str(folder / "model"), signatures=module.call)
    (folder / "words.txt").unlink()
    return folder / "model"


def test_tables_whose_files_have_the_same_name(tmp_path):
    first, second = table(tmp_path / "a", ["red", "blue"]), table(tmp_path / "b", ["blue", "green", "red"])
    merged = merge_models(load(first), load(second))
    path = written_far_away(merged, tmp_path, first, second)
    word = np.array([b"red", b"green"])
    answer = served_both_ways(path, {DEFAULT: {"word": word, "second_word": word}})[DEFAULT]
    assert answer["number"].tolist() == [0, -1]
    assert answer["second_number"].tolist() == [2, 1]
    assert len(list((path / "assets").iterdir())) == 2


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("tf1_table", "tf1_table"),
        ("tf1_gradient_of_a_loop", "tf1_variables"),
        ("module_with_several_signatures", "tf1_two_meta_graphs"),
        ("keras_string_lookup", "training_step"),
        ("mutable_state", "custom_gradient"),
        ("tf1_gradient_of_a_loop", "keras_recurrent"),
    ],
)
def test_signatures_of_both_answer_as_before(first, second, tmp_path):
    cases: list[Any] = []
    for name, part in ((first, "a"), (second, "b")):
        (tmp_path / part).mkdir()
        cases.append(CORPUS[name](tmp_path / part))
    merged = merge_models(*(load(case.path) for case in cases), keep_signatures=True)
    expected = by_session(cases[0].path, cases[0].feeds)
    feeds = dict(cases[0].feeds)
    for key, answer in by_session(cases[1].path, cases[1].feeds).items():
        name = f"second_{key}" if key in expected else key
        expected[name], feeds[name] = answer, cases[1].feeds[key]
    path = written_far_away(merged, tmp_path, *(case.path for case in cases))
    assert_same(by_session(path, feeds), expected)
    assert_same(by_loading(path, feeds), expected)


@pytest.mark.parametrize(("make_first", "make_second"), [(tf2, tf2), (tf1_with_references, tf1), (tf1, tf2)])
def test_a_session_saves_and_restores_both(make_first: Make, make_second: Make, tmp_path: Path):
    merged = merge_models(load(make_first(tmp_path / "a", 1)), load(make_second(tmp_path / "b", 2)))
    path = written_far_away(merged, tmp_path)
    feeds = {DEFAULT: {"x": X, "second_x": X}}
    expected = by_session(path, feeds)
    with tf.Graph().as_default(), v1.Session() as session:
        meta_graph = v1.saved_model.load(session, ["serve"], str(path))
        saver = meta_graph.saver_def
        saved = session.run(saver.save_tensor_name, {saver.filename_tensor_name: str(tmp_path / "again")})
        assert saved == str(tmp_path / "again").encode()
    shutil.rmtree(path / "variables")
    (path / "variables").mkdir()
    for file in tmp_path.glob("again.*"):
        shutil.copy(file, path / "variables" / file.name.replace("again", "variables"))
    assert_same(by_session(path, feeds), expected)
    assert_same(by_loading(path, feeds), expected)


def test_reference_variables_do_not_fit_into_tf2(tmp_path):
    first, second = tf1_with_references(tmp_path / "a", 1), tf2(tmp_path / "b", 2)
    for pair in ((first, second), (second, first)):
        with pytest.raises(UnsupportedError, match="'w' is a reference variable of TF1") as caught:
            merge_models(*map(load, pair))
        assert "freeze_variables" in caught.value.remedy
    graph = load(first)
    freeze_variables(graph, variable_values(graph))
    merged = merge_models(graph, load(second), connect={"x": "y"})
    expected = dense(2, np.maximum(X @ random(3, 3, seed=1), 0))
    answer = served_both_ways(written_far_away(merged, tmp_path), {DEFAULT: {"x": X}})
    np.testing.assert_allclose(answer[DEFAULT]["y"], expected, rtol=1e-5)


def test_variables_without_values_are_refused(tmp_path):
    def build():
        tf.add(v1.placeholder(tf.float32, [3], name="x"), v1.get_variable("v", [3], use_resource=True), name="y")

    bare = built(build, inputs={"x": "x:0"}, outputs={"y": "y:0"})
    model = load(tf2(tmp_path / "a", 1))
    for pair in ((bare, model), (model, bare)):
        with pytest.raises(ArgumentError, match="variable 'v', whose value would be lost"):
            merge_models(*pair)


@pytest.mark.parametrize("damage", ["index", "data"])
def test_damaged_checkpoints(damage, tmp_path):
    first, second = load(tf2(tmp_path / "a", 1)), load(tf2(tmp_path / "b", 2))
    [file] = (tmp_path / "b" / "variables").glob(f"*{damage}*")
    if damage == "data":
        file.unlink()
    else:
        file.write_bytes(b"\x00" * 100)
    with pytest.raises(FileFormatError, match=r"checkpoint (cannot be read|lacks)"):
        merge_models(first, second)


def test_a_part_of_that_name(tmp_path):
    module = Dense(1)
    module.second = tf.Variable(1.0)
    tf.saved_model.save(module, str(tmp_path / "a"), signatures=module.call)
    with pytest.raises(ArgumentError, match="a part called 'second' already"):
        merge_models(load(tmp_path / "a"), load(tf2(tmp_path / "b", 2)))
    assert "tail/w" in variable_values(merge_models(load(tmp_path / "a"), load(tmp_path / "b"), scope="tail"))


@pytest.mark.parametrize("scope", ["..", "a/../b", "/a", "a b", ""])
def test_a_scope_is_a_name(scope, tmp_path):
    model = load(tf2(tmp_path / "a", 1))
    with pytest.raises(ArgumentError, match="cannot be a scope"):
        merge_models(model, model, scope=scope)
