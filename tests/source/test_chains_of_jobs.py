"""Jobs on SavedModels one after the other, through files: variables keep their values, and frozen files hold nothing twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

import graphwright as gw
from graphwright.source.load import load
from graphwright.source.write import write
from graphwright.transform.inline_calls import inline_calls

pytestmark = pytest.mark.tensorflow
v1 = tf.compat.v1
ROWS = np.random.default_rng(3).normal(size=(2, 4)).astype(np.float32)
SPEC = [tf.TensorSpec((None, 4), name="x")]


class Part(tf.Module):
    def __init__(self, value):
        super().__init__()
        self.kernel = {"k/l.m": tf.Variable(value * tf.ones((4, 4)), name="kernel")}


class Namesakes(tf.Module):
    """Variables without names, variables of one name in a list, parts of one class, and tables without names."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = tf.Variable(2 * tf.ones((4, 4))), tf.Variable(3 * tf.ones(4))
        self.listed = [tf.Variable(k * tf.ones(4), name="w") for k in (2.0, 3.0, 5.0)]
        self.left, self.right = Part(1.0), Part(5.0)
        keys = tf.constant([0, 1], tf.int64)
        made = [tf.lookup.KeyValueTensorInitializer(keys, tf.constant(values)) for values in ([1.0, 2.0], [10.0, 20.0])]
        self.tables = [tf.lookup.StaticHashTable(one, -1.0) for one in made]

    @tf.function(input_signature=SPEC)
    def serve(self, x):
        key = tf.cast(x > 0, tf.int64)
        unnamed = x @ self.weight + self.bias
        listed = (x - self.listed[0]) * self.listed[1] + self.listed[2]
        parts = x @ self.left.kernel["k/l.m"] - 2 * (x @ self.right.kernel["k/l.m"])
        return {"y": unnamed + listed + parts + self.tables[0].lookup(key) - self.tables[1].lookup(key)}


class Dense(tf.Module):
    def __init__(self):
        super().__init__()
        self.weight = tf.Variable(tf.ones((4, 4)))

    @tf.function(input_signature=SPEC)
    def serve(self, x):
        return {"y": x @ self.weight}


class TwoWays(tf.Module):
    """Two signatures of one kernel, which is a variable, or constants of two functions."""

    def __init__(self, *, constant=False):
        super().__init__()
        self.kernel = np.random.default_rng(5).normal(size=(400, 4, 8)).astype(np.float32)
        self.read = (lambda: tf.constant(self.kernel)) if constant else tf.Variable(self.kernel).read_value
        self.variable = None if constant else self.read.__self__

    @tf.function(input_signature=SPEC)
    def serve(self, x):
        return {"y": tf.einsum("bi,rio->bro", x, self.read())}

    @tf.function(input_signature=SPEC)
    def halve(self, x):
        return {"half": tf.einsum("bi,rio->bro", x, self.read()) / 2}


def saved(module: Any, path: Path, **signatures: Any) -> Path:
    tf.saved_model.save(module, str(path), signatures=signatures or module.serve)
    return path


def served(path: Path, key: str = "serving_default") -> Any:
    """By `tf.saved_model.load` and by a session, which agree."""
    (result,) = tf.saved_model.load(str(path)).signatures[key](x=tf.constant(ROWS)).values()
    with v1.Session(graph=tf.Graph()) as session:
        signature = v1.saved_model.load(session, ["serve"], str(path)).signature_def[key]
        (output,) = signature.outputs.values()
        again = session.run(output.name, {signature.inputs["x"].name: ROWS})
    np.testing.assert_allclose(result.numpy(), again, rtol=1e-5, atol=1e-6)
    return again


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def inlined(model: Any, out: Path) -> None:
    graph = load(model)
    inline_calls(graph)
    write(graph, out)


def twice_renamed(model: Any, out: Path) -> None:
    inlined(model, out.parent / "between")
    gw.rename_outputs(out.parent / "between", {next(iter(load(model).signatures["serving_default"].outputs)): "z"}, out=out)


def merged(model: Any, out: Path) -> None:
    inlined(model, out.parent / "first")
    gw.merge_models(out.parent / "first", model, keep_signatures=True, out=out)


FIRST = {
    "inline": inlined,
    "twice": twice_renamed,
    "simplify": lambda model, out: gw.simplify(model, out=out),
    "extract": lambda model, out: gw.extract_submodel(model, {"x": "x"}, {"y": "y"}, out=out),
    "merge": merged,
}


@pytest.fixture(scope="module")
def namesakes(tmp_path_factory):
    model = Namesakes()
    return saved(model, tmp_path_factory.mktemp("namesakes") / "model"), model.serve(tf.constant(ROWS))["y"]


@pytest.mark.parametrize("first", [name if name in ("twice", "merge") else pytest.param(name, marks=pytest.mark.slow) for name in FIRST])
def test_what_shares_a_name_keeps_its_value_through_files(first, namesakes, tmp_path):
    model, expected = namesakes
    FIRST[first](model, tmp_path / "one")
    gw.freeze_variables(tmp_path / "one", out=tmp_path / "two")
    gw.strip_training(tmp_path / "two", out=tmp_path / "three")
    for name in ("one", "three"):
        np.testing.assert_allclose(served(tmp_path / name), expected, rtol=1e-5)


def test_frozen_weights_lie_in_the_file_once(tmp_path):
    module = TwoWays()
    model = saved(module, tmp_path / "model", serving_default=module.serve, half=module.halve)
    kept = gw.freeze_variables(model, out=tmp_path / "frozen")
    assert kept == 1
    assert size_of(tmp_path / "frozen") <= 1.05 * size_of(model)
    assert (tmp_path / "frozen" / "saved_model.pb").read_bytes().count(module.kernel.tobytes()) == 1
    assert tf.train.list_variables(str(tmp_path / "frozen" / "variables" / "variables"))[1:] == []  # nothing but the object graph
    for key in ("serving_default", "half"):
        np.testing.assert_allclose(served(tmp_path / "frozen", key), served(model, key), rtol=1e-5)
    assert len(tf.saved_model.load(str(tmp_path / "frozen")).signatures) == 2


def test_folded_weights_lie_in_the_file_once_and_what_cannot_fold_stays(tmp_path):
    keras = pytest.importorskip("keras")
    model = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Conv2D(128, 5), keras.layers.BatchNormalization()])
    model.export(tmp_path / "model", verbose=False)
    report = gw.fold_batch_norms(tmp_path / "model", out=tmp_path / "folded")
    assert len(report.folded) == 2  # one of each signature
    assert size_of(tmp_path / "folded") < 0.6 * size_of(tmp_path / "model")  # Keras exports each variable twice
    gw.freeze_variables(tmp_path / "model", out=tmp_path / "frozen")
    gw.fold_batch_norms(tmp_path / "frozen", out=tmp_path / "later")  # the constants of the frozen file are gone
    gw.convert_weights(tmp_path / "later", "float16", out=tmp_path / "half")  # and these are casts now
    image = tf.constant(np.random.default_rng(2).normal(size=(1, 8, 8, 3)).astype(np.float32))
    first, *others = (
        tf.saved_model.load(str(tmp_path / name)).signatures["serve"](image)["output_0"].numpy() for name in ("model", "later", "half")
    )
    for other, tolerance in zip(others, (1e-4, 1e-2), strict=True):
        np.testing.assert_allclose(other, first, atol=tolerance)
    plain = saved(Dense(), tmp_path / "plain")
    assert not gw.fold_batch_norms(plain, out=tmp_path / "stays").folded
    assert gw.count_parameters(tmp_path / "stays").trainable == 16
    np.testing.assert_allclose(served(tmp_path / "stays"), served(plain), rtol=1e-6)


def test_a_frozen_model_of_tf1_has_no_checkpoint(tmp_path):
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        y = x @ v1.get_variable("w", [4, 3], use_resource=False) + v1.get_variable("b", [3], use_resource=True)
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(tmp_path / "model"), {"x": x}, {"y": y})
    gw.freeze_variables(tmp_path / "model", out=tmp_path / "frozen")
    assert not list((tmp_path / "frozen" / "variables").iterdir())
    np.testing.assert_allclose(served(tmp_path / "frozen"), served(tmp_path / "model"), rtol=1e-5)
