"""What TensorFlow itself answers to a case: through `tf.saved_model.load`, and through a session as `saved_model_cli run` does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import text_format

v1 = tf.compat.v1
Answers = dict[str, dict[str, np.ndarray[Any, Any]]]


def by_loading(path: Path, feeds: dict[str, dict[str, Any]]) -> Answers:
    loaded = tf.saved_model.load(str(path), tags=["serve"])
    answers: Answers = {}
    for key, given in feeds.items():
        signature = loaded.signatures[key]
        specs = signature.structured_input_signature[1]
        names = {name: next((n for n in (name, name.replace("_", "/", 1)) if n in given), "") for name in specs}
        arguments = {name: tf.constant(given[names[name]], spec.dtype) for name, spec in specs.items()}
        answers[key] = {name: value.numpy() for name, value in signature(**arguments).items()}
    return answers


def by_session(path: Path, feeds: dict[str, dict[str, Any]], tags: tuple[str, ...] = ("serve",)) -> Answers:
    answers: Answers = {}
    with tf.Graph().as_default(), v1.Session() as session:
        meta_graph = v1.saved_model.load(session, list(tags), str(path))
        for key, given in feeds.items():
            signature = meta_graph.signature_def[key]
            fed: dict[str, Any] = {}
            for name, info in signature.inputs.items():
                if info.WhichOneof("encoding") == "coo_sparse":
                    sparse = info.coo_sparse
                    fed[sparse.indices_tensor_name] = given[f"{name}/indices"]
                    fed[sparse.values_tensor_name] = given[f"{name}/values"]
                    fed[sparse.dense_shape_tensor_name] = given[f"{name}/dense_shape"]
                else:
                    fed[info.name] = given[name if name in given else ""]
            names = {name: info.name for name, info in signature.outputs.items()}
            answers[key] = session.run(names, fed)
    return answers


def by_import(path: Path, feeds: dict[str, Any], fetches: tuple[str, ...]) -> Answers:
    graph_def = v1.GraphDef()
    if path.suffix == ".pbtxt":
        text_format.Parse(path.read_text(), graph_def)
    else:
        graph_def.ParseFromString(path.read_bytes())
    with tf.Graph().as_default(), v1.Session() as session:
        tf.graph_util.import_graph_def(graph_def, name="")
        return {"": dict(zip(fetches, session.run(fetches, feeds), strict=True))}


def assert_same(ours: Answers, theirs: Answers, *, rtol: float = 0.0) -> None:
    """Bitwise equal, or floats within a tolerance."""
    assert set(ours) == set(theirs)
    for key, answers in theirs.items():
        assert set(ours[key]) == set(answers)
        for name, value in answers.items():
            a, b = np.asarray(ours[key][name]), np.asarray(value)
            assert a.dtype == b.dtype
            assert a.shape == b.shape
            if rtol and a.dtype.kind == "f":
                np.testing.assert_allclose(a, b, rtol=rtol, err_msg=f"{key}: {name}")
                continue
            assert a.tolist() == b.tolist() if a.dtype == object else a.tobytes() == b.tobytes(), f"{key}: {name}"
