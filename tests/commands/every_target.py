"""Whatever a user may have, by name: as `module:name` and as files; made once for the tests of targets and commands."""

import sys
from dataclasses import dataclass
from pathlib import Path

MODULE = """
import keras
import numpy as np
import tensorflow as tf

layers = keras.layers
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def uncompiled():
    image = keras.Input((8, 8, 3), name="image")
    hidden = layers.Conv2D(4, 3, use_bias=False, name="convolution")(image)
    hidden = layers.ReLU()(layers.BatchNormalization(name="normalization")(hidden))
    return keras.Model(image, layers.Dense(3, name="scores")(layers.GlobalAveragePooling2D()(hidden)), name="small")


def functional():
    model = uncompiled()
    model.compile("sgd", LOSS)
    return model


@keras.saving.register_keras_serializable("every_target")
class Subclassed(keras.Model):
    def __init__(self, **words):
        super().__init__(**words)
        self.convolution = layers.Conv2D(4, 3)
        self.scores = layers.Dense(3)

    def call(self, x):
        return self.scores(tf.reduce_mean(tf.nn.relu(self.convolution(x)), (1, 2)))


def unbuilt():
    model = Subclassed(name="subclassed")
    model.compile("sgd", LOSS)
    return model


def called():
    model = unbuilt()
    model(np.zeros((4, 8, 8, 3), "float32"))
    return model


def fitted():
    model = unbuilt()
    model.fit(np.zeros((4, 8, 8, 3), "float32"), np.zeros(4, "int32"), batch_size=4, verbose=0)
    return model


def two_inputs():
    first, second = keras.Input((5,)), keras.Input((5,))
    model = keras.Model([first, second], layers.Dense(2)(first + second))
    model.compile("sgd", "mse")
    return model


weight = tf.Variable(tf.ones((6, 6)))


def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.nn.tanh(x @ weight))
    weight.assign_sub(0.1 * tape.gradient(loss, weight))
    return loss


def untraced():
    return tf.function(step)


signed = tf.function(step, input_signature=[tf.TensorSpec((None, 6), name="x")])
concrete = tf.function(step).get_concrete_function(tf.TensorSpec((None, 6), name="x"))
fixed = tf.function(step).get_concrete_function(tf.TensorSpec((4, 6), name="x"))
number = 3


def broken():
    raise OSError("no such weights")
"""
IMAGE, ROW = "image=4,8,8,3", "x=4,6"


@dataclass(frozen=True)
class Given:
    """A target as the command line takes it, and its input's shape for a batch of 4."""

    text: str
    feed: str
    trains: bool = True


TARGETS = {
    "functional": Given("my_targets:functional", IMAGE),
    "uncompiled": Given("my_targets:uncompiled", IMAGE, trains=False),
    "class": Given("my_targets:Subclassed", "x=4,8,8,3", trains=False),
    "unbuilt": Given("my_targets:unbuilt", "x=4,8,8,3"),
    "called": Given("my_targets:called", "x=4,8,8,3"),
    "fitted": Given("my_targets:fitted", "x=4,8,8,3"),
    "two inputs": Given("my_targets:two_inputs", "x=4,5"),
    "untraced": Given("my_targets:untraced", ROW),
    "signature": Given("my_targets:signed", ROW),
    "concrete": Given("my_targets:concrete", ROW),
    ".keras": Given("functional.keras", IMAGE),
    ".keras, not compiled": Given("uncompiled.keras", IMAGE, trains=False),
    ".keras, subclassed": Given("fitted.keras", "x=4,8,8,3"),
    ".h5": Given("functional.h5", IMAGE),
    "export": Given("export", IMAGE),
    "export, folded": Given("folded", IMAGE),
    "export, renamed": Given("renamed", "picture=4,8,8,3"),
    "export, inlined": Given("inlined", IMAGE),
    "export, weights in 16 bits": Given("converted", IMAGE),
    "module": Given("module", ROW),
    ".pb": Given("graph.pb", ROW),
    ".pbtxt": Given("graph.pbtxt", ROW),
    "TF1 graph": Given("tf1.pb", ROW),
    "TF1 SavedModel": Given("tf1", ROW),
}


def make(folder: Path) -> None:
    """Write the module `my_targets` and the files into a folder, from which the module is imported."""
    import tensorflow as tf

    import graphwright as gw
    from graphwright.transform.inline_calls import inline_calls

    (folder / "my_targets.py").write_text(MODULE, encoding="utf-8")
    sys.path.insert(0, str(folder))
    my_targets = __import__("my_targets")
    model = my_targets.functional()
    model.save(folder / "functional.keras")
    model.save(folder / "functional.h5")
    model.export(folder / "export", verbose=False)
    my_targets.uncompiled().save(folder / "uncompiled.keras")
    my_targets.fitted().save(folder / "fitted.keras")
    jobs = {
        "folded": gw.fold_batch_norms,
        "renamed": lambda graph: gw.rename_inputs(graph, {"image": "picture"}),
        "inlined": inline_calls,
        "converted": gw.convert_weights,
    }
    for name, job in jobs.items():
        graph = gw.load(folder / "export")
        job(graph)
        gw.write(graph, folder / name)
    saved = tf.Module()
    saved.weight = tf.Variable(tf.ones((6, 2)))
    saved.scores = tf.function(lambda x: {"scores": x @ saved.weight}, input_signature=[tf.TensorSpec((None, 6), name="x")])
    tf.saved_model.save(saved, str(folder / "module"))
    graph = tf.Graph()
    with graph.as_default():
        tf.nn.relu(tf.compat.v1.placeholder(tf.float32, (None, 6), "x") @ tf.ones((6, 2)), name="scores")
    tf.io.write_graph(graph, str(folder), "graph.pb", as_text=False)
    tf.io.write_graph(graph, str(folder), "graph.pbtxt")
    graph = tf.Graph()
    with graph.as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, (None, 6), "x")
        scores = tf.nn.relu(x @ tf.compat.v1.get_variable("weight", (6, 2)), name="scores")
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.saved_model.simple_save(session, str(folder / "tf1"), {"x": x}, {"scores": scores})
        tf.io.write_graph(graph, str(folder), "tf1.pb", as_text=False)
