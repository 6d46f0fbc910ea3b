"""Let a served model take JPEG bytes and return words, under the input and output names that its clients know.

Needs `pip install "graphwright[cpu]"`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import graphwright as gw

LABELS = ["cat", "dog", "eel"]


def export_model(folder: Path) -> None:
    """A classifier of 32 x 32 pixels, as `keras.Model.export` writes it."""
    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential(
        [layers.Input((32, 32, 3), name="image"), layers.Conv2D(8, 3), layers.GlobalAveragePooling2D(), layers.Dense(3, name="scores")]
    )
    model.export(folder, verbose=False)


def decode_graph(name: str) -> Any:
    """A placeholder with the input's name, and a node `<input>_preprocessed` with the model's former input."""
    with tf.Graph().as_default() as graph:
        data = tf.compat.v1.placeholder(tf.string, [None], name=name)

        def decode(one: Any) -> Any:
            return tf.image.resize(tf.io.decode_jpeg(one, channels=3), [32, 32]) / 255.0

        tf.identity(tf.map_fn(decode, data, fn_output_signature=tf.TensorSpec([32, 32, 3])), name=f"{name}_preprocessed")
    return graph


def label_graph(name: str) -> Any:
    """A placeholder with the output's name, and a node `<output>_postprocessed`."""
    with tf.Graph().as_default() as graph:
        scores = tf.compat.v1.placeholder(tf.float32, [None, len(LABELS)], name=name)
        tf.gather(tf.constant(LABELS), tf.argmax(scores, axis=1), name=f"{name}_postprocessed")
    return graph


def main() -> None:
    picture = np.random.default_rng(0).integers(0, 255, (48, 64, 3)).astype(np.uint8)
    jpeg = tf.io.encode_jpeg(picture)
    with tempfile.TemporaryDirectory() as folder:
        original, edited = Path(folder, "original"), Path(folder, "edited")
        export_model(original)

        graph = gw.load(original)
        [input_name] = graph.signatures["serving_default"].inputs
        [output_name] = graph.signatures["serving_default"].outputs
        gw.add_preprocessing(graph, gw.load(decode_graph(input_name)))
        gw.add_postprocessing(graph, gw.load(label_graph(output_name)))
        gw.write(graph, edited)

        pixels = tf.image.resize(tf.io.decode_jpeg(jpeg), [32, 32])[None] / 255.0
        scores = tf.saved_model.load(original).signatures["serving_default"](**{input_name: pixels})[output_name]
        labels = tf.saved_model.load(edited).signatures["serving_default"](**{input_name: tf.stack([jpeg])})[output_name]
    print("scores of the original:", scores.numpy())
    print("label of the edited model:", labels.numpy())
    assert labels.numpy().tolist() == [LABELS[int(tf.argmax(scores[0]))].encode()]


if __name__ == "__main__":
    main()
