"""Make an exported model smaller and simpler: freeze, fold batch norms, store weights in 16 bits, and list the changes.

Needs `pip install "graphwright[cpu]"`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import graphwright as gw
from graphwright.source.variable_values import variable_values


def main() -> None:
    keras.utils.set_random_seed(1)
    model = keras.applications.MobileNetV2((96, 96, 3), alpha=0.35, weights=None, classes=10)
    for layer in model.layers:  # statistics like those of a trained model; with the initial ones all images give the same scores
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.moving_variance.assign(layer.moving_variance * 0.05)
    images = np.random.default_rng(0).normal(size=(2, 96, 96, 3)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        original, edited = Path(folder, "original"), Path(folder, "edited")
        model.export(original, verbose=False)
        [input_name] = gw.load(original).signatures["serving_default"].inputs
        [output_name] = gw.load(original).signatures["serving_default"].outputs

        graph = gw.load(original)
        print("variables frozen:", gw.freeze_variables(graph, variable_values(graph)))
        print("chains folded:", len(gw.fold_batch_norms(graph).folded))
        print("nodes that only check or pass on, removed:", gw.remove_debug_ops(graph))
        gw.rename_inputs(graph, {input_name: "pixels"})
        gw.rename_outputs(graph, {output_name: "probabilities"})
        gw.change_batch_size(graph, 2)
        unchanged = gw.load(original)
        print("weights in 16 bits:", gw.convert_weights(graph))
        gw.write(graph, edited)
        change = gw.diff(unchanged, graph)
        print(f"{len(change.added)} nodes added, {len(change.removed)} removed, {len(change.interface)} changes at inputs and outputs")
        print("picture:", gw.draw(graph, Path(folder, "model.html")).name)

        theirs = tf.saved_model.load(original).signatures["serving_default"](**{input_name: tf.constant(images)})[output_name]
        ours = tf.saved_model.load(edited).signatures["serving_default"](pixels=tf.constant(images))["probabilities"]
        print("largest difference of a probability:", float(tf.reduce_max(tf.abs(theirs - ours))))


if __name__ == "__main__":
    main()
