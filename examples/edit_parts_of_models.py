"""Cut a model between two tensors, use the first half elsewhere, and chain two models.

Needs `pip install "graphwright[cpu]"`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

import graphwright as gw


def main() -> None:
    v1 = tf.compat.v1
    weights = [np.random.default_rng(k).normal(size=(4, 4)).astype(np.float32) for k in range(2)]
    with tf.Graph().as_default() as training:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        features = tf.nn.relu(x @ tf.constant(weights[0]), name="features")
        y = tf.identity(features @ tf.constant(weights[1]), name="y")
        tf.gradients(tf.reduce_sum(y * y), x)

    model = gw.load(training)
    print("training nodes removed:", gw.strip_training(model, outputs=["y"]))
    head = gw.extract_submodel(model, {"x": "x"}, {"features": "features"})
    tail = gw.extract_submodel(model, {"features": "features"}, {"y": "y"})
    print("Relu made Elu in the first half:", gw.replace_op_type(head, "Relu", "Elu"))
    both = gw.merge_models(head, tail, connect={"features": "features"}, keep_outputs=True)

    with tempfile.TemporaryDirectory() as folder:
        gw.write(both, Path(folder, "both"))
        served = tf.saved_model.load(str(Path(folder, "both"))).signatures["serving_default"]
        inputs = np.random.default_rng(9).normal(size=(3, 4)).astype(np.float32)
        results = served(x=tf.constant(inputs))
    expected = tf.nn.elu(inputs @ weights[0]) @ weights[1]
    print("difference:", float(tf.reduce_max(tf.abs(results["y"] - expected))))


if __name__ == "__main__":
    main()
