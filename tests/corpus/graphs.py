"""Graphs of every origin, built by code: what each one is for stands in its docstring.

A builder writes a file or folder and says how it is fed: per signature, the inputs of one call. A `GraphDef` is fed by the
names of its tensors and says which tensors are fetched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1


@dataclass(frozen=True)
class Case:
    """A file or folder, and what to ask it."""

    path: Path
    feeds: dict[str, dict[str, np.ndarray[Any, Any]]] = field(default_factory=dict)
    fetches: tuple[str, ...] = ()


Builder = Callable[[Path], Case]
CORPUS: dict[str, Builder] = {}
SLOW: set[str] = set()


def corpus(build: Builder) -> Builder:
    CORPUS[build.__name__] = build
    return build


def _random(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


# Keras models, exported


def _exported(model: Any, folder: Path, *inputs: np.ndarray[Any, Any]) -> Case:
    model.export(folder / "model", format="tf_saved_model", verbose=False)
    arguments = tf.saved_model.load(folder / "model").signatures["serving_default"].structured_input_signature[1]
    return Case(folder / "model", {"serving_default": dict(zip(sorted(arguments), inputs, strict=True))})


def _block(x: Any, filters: int) -> Any:
    from keras import layers

    y = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
    y = layers.BatchNormalization()(y)
    y = layers.ReLU()(y)
    y = layers.DepthwiseConv2D(3, padding="same")(y)
    return layers.Add()([layers.Conv2D(filters, 1)(x), y])


@corpus
def keras_convolutions(folder: Path) -> Case:
    """Residual blocks with batch norms and depthwise convolutions, as in keras.applications."""
    import keras

    x = keras.Input((16, 16, 3))
    y = keras.layers.GlobalAveragePooling2D()(_block(_block(x, 4), 6))
    return _exported(keras.Model(x, keras.layers.Dense(5, "softmax")(y)), folder, _random(2, 16, 16, 3))


@corpus
def keras_recurrent(folder: Path) -> Case:
    """An LSTM: a loop of control flow v2 with lists of tensors."""
    import keras

    model = keras.Sequential([keras.Input((6, 4)), keras.layers.LSTM(5), keras.layers.Dense(2)])
    return _exported(model, folder, _random(3, 6, 4))


@corpus
def keras_attention(folder: Path) -> Case:
    """Multi-head attention with an embedding and layer norm."""
    import keras

    x = keras.Input((7,), dtype="int32")
    y = keras.layers.Embedding(20, 8)(x)
    y = keras.layers.LayerNormalization()(y + keras.layers.MultiHeadAttention(2, 4)(y, y))
    return _exported(keras.Model(x, keras.layers.Dense(3)(y)), folder, np.arange(14, dtype=np.int32).reshape(2, 7))


@corpus
def keras_mixed_precision(folder: Path) -> Case:
    """A model that computes in bfloat16 on float32 variables."""
    import keras

    x = keras.Input((8,))
    y = keras.layers.Dense(6, "relu", dtype="mixed_bfloat16")(x)
    return _exported(keras.Model(x, keras.layers.Dense(2, dtype="float32")(y)), folder, _random(4, 8))


@corpus
def keras_text_vectorization(folder: Path) -> Case:
    """Strings in: TextVectorization has a lookup table in it."""
    import keras

    layer = keras.layers.TextVectorization(max_tokens=20, output_sequence_length=5)
    layer.adapt(["a cat sat", "a dog ran", "the cat ran"])
    x = keras.Input((), dtype="string")
    model = keras.Model(x, keras.layers.Embedding(20, 3)(layer(x)))
    return _exported(model, folder, np.array([b"a cat ran", b"no such word"]))


@corpus
def keras_string_lookup(folder: Path) -> Case:
    """StringLookup and its inverse."""
    import keras

    x = keras.Input((3,), dtype="string")
    indices = keras.layers.StringLookup(vocabulary=["red", "green", "blue"])(x)
    model = keras.Model(x, keras.layers.StringLookup(vocabulary=["red", "green", "blue"], invert=True)(indices))
    return _exported(model, folder, np.array([[b"red", b"blue", b"pink"]]))


@corpus
def keras_normalization(folder: Path) -> Case:
    """Numbers scaled and cut into buckets."""
    import keras

    scale = keras.layers.Normalization()
    scale.adapt(_random(50, 3))
    x = keras.Input((3,))
    model = keras.Model(x, {"scaled": scale(x), "bucket": keras.layers.Discretization([-1.0, 0.0, 1.0])(x)})
    return _exported(model, folder, _random(4, 3))


@corpus
def keras_file(folder: Path) -> Case:
    """A `.keras` file, which Keras reads."""
    import keras

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "relu"), keras.layers.Dense(2)])
    model.save(folder / "model.keras")
    return Case(folder / "model.keras", {"serving_default": {"": _random(5, 4)}})


# Modules of TF2


def _saved(module: Any, folder: Path, feeds: dict[str, dict[str, np.ndarray[Any, Any]]], signatures: Any = None) -> Case:
    tf.saved_model.save(module, str(folder / "model"), signatures=signatures)
    return Case(folder / "model", feeds)


@corpus
def module_with_several_signatures(folder: Path) -> Case:
    """Signatures that share variables and a captured constant."""

    class Module(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = tf.Variable(_random(3, 2), name="weight")
            self.offset = tf.constant([1.0, -1.0])

        @tf.function(input_signature=[tf.TensorSpec([None, 3], name="x")])
        def encode(self, x: Any) -> Any:
            return {"code": x @ self.weight + self.offset}

        @tf.function(input_signature=[tf.TensorSpec([None, 2], name="code"), tf.TensorSpec([], name="scale")])
        def decode(self, code: Any, scale: Any) -> Any:
            return {"x": scale * (code - self.offset) @ tf.transpose(self.weight), "norm": tf.norm(code)}

    module = Module()
    signatures = {"serving_default": module.encode, "encode": module.encode, "decode": module.decode}
    x, code = {"x": _random(4, 3)}, {"code": _random(4, 2), "scale": np.float32(2.0)}
    return _saved(module, folder, {"serving_default": x, "encode": x, "decode": code}, signatures)


@corpus
def table_from_a_file(folder: Path) -> Case:
    """A lookup table whose words lie in an asset."""
    (folder / "words.txt").write_text("zero\none\ntwo\n")

    class Module(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.file = tf.saved_model.Asset(str(folder / "words.txt"))
            self.table = tf.lookup.StaticHashTable(
                tf.lookup.TextFileInitializer(
                    self.file, tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER
                ),
                -1,
            )

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="word")])
        def look_up(self, word: Any) -> Any:
            return {"number": self.table.lookup(word)}

    module = Module()
    return _saved(module, folder, {"serving_default": {"word": np.array([b"two", b"three"])}}, module.look_up)


@corpus
def mutable_state(folder: Path) -> Case:
    """A counter that each call changes, and random numbers that depend on their seed alone."""

    class Module(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = tf.Variable(0, trainable=False)

        @tf.function(input_signature=[tf.TensorSpec([2], tf.int32, name="seed")])
        def call(self, seed: Any) -> Any:
            return {"calls": self.calls.assign_add(1), "noise": tf.random.stateless_normal([3], seed)}

    module = Module()
    return _saved(module, folder, {"serving_default": {"seed": np.array([1, 2], np.int32)}}, module.call)


def _function_case(function: Any, folder: Path, **feeds: np.ndarray[Any, Any]) -> Case:
    module = tf.Module()
    module.call = function
    return _saved(module, folder, {"serving_default": feeds}, function)


@corpus
def branches_and_loops(folder: Path) -> Case:
    """While, If and Case of control flow v2, one inside the other."""

    @tf.function(input_signature=[tf.TensorSpec([None], name="x")])
    def call(x: Any) -> Any:
        def body(k: Any, h: Any) -> Any:
            return k + 1, tf.cond(k % 2 == 0, lambda: h * 2.0, lambda: h + tf.reduce_max(h))

        y = tf.while_loop(lambda k, _: k < 5, body, (0, x))[1]
        return {"y": tf.switch_case(tf.size(x) % 3, [lambda: y, lambda: -y, lambda: tf.nn.relu(y)])}

    return _function_case(call, folder, x=_random(4))


@corpus
def ragged_strings(folder: Path) -> Case:
    """Ragged tensors and strings."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def call(text: Any) -> Any:
        words = tf.strings.split(text)
        longest = words.to_tensor(b"-")
        joined = tf.strings.reduce_join(words, axis=1, separator="_")
        return {"words": longest, "joined": joined, "lengths": words.row_lengths(), "upper": tf.strings.upper(text)}

    return _function_case(call, folder, text=np.array([b"a bc d", b"ef"]))


@corpus
def fake_quantized(folder: Path) -> Case:
    """Quantization that training simulates, and real 8-bit kernels."""

    @tf.function(input_signature=[tf.TensorSpec([None, 4], name="x")])
    def call(x: Any) -> Any:
        quantized = tf.quantization.fake_quant_with_min_max_args(x, -3.0, 3.0, num_bits=4)
        channels = tf.quantization.fake_quant_with_min_max_vars_per_channel(x, [-1.0] * 4, [1.0] * 4)
        q, low, high = tf.quantization.quantize(x, -2.0, 2.0, tf.quint8)
        return {"fake": quantized, "channels": channels, "real": tf.quantization.dequantize(q, low, high)}

    return _function_case(call, folder, x=_random(3, 4))


@corpus
def training_step(folder: Path) -> Case:
    """A step with gradients and an optimizer's slots; the loss goes down with each call."""

    class Module(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = tf.Variable(_random(3, 1))
            self.momentum = tf.Variable(tf.zeros((3, 1)), trainable=False)

        @tf.function(input_signature=[tf.TensorSpec([None, 3], name="x"), tf.TensorSpec([None, 1], name="y")])
        def step(self, x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x @ self.weight - y) ** 2)
            gradient = tape.gradient(loss, self.weight)
            self.momentum.assign(0.9 * self.momentum + gradient)
            self.weight.assign_sub(0.05 * self.momentum)
            return {"loss": loss}

    module = Module()
    return _saved(module, folder, {"serving_default": {"x": _random(8, 3), "y": _random(8, 1, seed=1)}}, module.step)


@corpus
def custom_gradient(folder: Path) -> Case:
    """A registered gradient is part of the library."""

    @tf.custom_gradient
    def clipped(x: Any) -> Any:
        return tf.identity(x), lambda dy: tf.clip_by_norm(dy, 0.5)

    @tf.function(input_signature=[tf.TensorSpec([3], name="x")])
    def call(x: Any) -> Any:
        return {"y": clipped(x) * 2.0}

    module = tf.Module()
    module.call = call
    tf.saved_model.save(
        module, str(folder / "model"), signatures=call, options=tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    )
    return Case(folder / "model", {"serving_default": {"x": _random(3)}})


@corpus
def images_from_bytes(folder: Path) -> Case:
    """JPEG bytes in, through map_fn."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="jpeg")])
    def call(jpeg: Any) -> Any:
        def decode(data: Any) -> Any:
            return tf.image.resize(tf.cast(tf.io.decode_jpeg(data, channels=3), tf.float32), (4, 4))

        return {"pixels": tf.map_fn(decode, jpeg, fn_output_signature=tf.float32)}

    picture = tf.io.encode_jpeg(np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)).numpy()
    return _function_case(call, folder, jpeg=np.array([picture, picture]))


# TF1


def _session_model(folder: Path, build: Callable[[], tuple[dict[str, Any], dict[str, Any]]], feeds: dict[str, Any], **options: Any) -> Case:
    with tf.Graph().as_default(), v1.Session() as session:
        inputs, outputs = build()
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        v1.saved_model.simple_save(session, str(folder / "model"), inputs, outputs, **options)
    return Case(folder / "model", {"serving_default": feeds})


@corpus
def tf1_variables(folder: Path) -> Case:
    """Reference variables, collections, a saver and an optimizer."""

    def build() -> Any:
        x = v1.placeholder(tf.float32, [None, 3], name="x")
        weight = v1.get_variable("weight", initializer=_random(3, 2), use_resource=False)
        bias = v1.get_variable("bias", initializer=np.zeros(2, np.float32), use_resource=True)
        y = tf.nn.bias_add(tf.matmul(x, weight), bias, name="y")
        v1.train.MomentumOptimizer(0.1, 0.9).minimize(tf.reduce_sum(y * y), global_step=v1.train.get_or_create_global_step())
        return {"x": x}, {"y": y}

    return _session_model(folder, build, {"x": _random(4, 3)})


@corpus
def tf1_loop(folder: Path) -> Case:
    """A loop and a branch of TF1: frames, back edges, Switch and Merge, with their contexts as collections."""

    def build() -> Any:
        v1.disable_control_flow_v2()
        x = v1.placeholder(tf.float32, [3], name="x")
        scale = v1.get_variable("scale", initializer=np.float32(1.5), use_resource=True)

        def body(k: Any, h: Any) -> Any:
            return k + 1, v1.cond(k > 1, lambda: h * scale, lambda: h + 1.0)

        y = v1.while_loop(lambda k, _: k < 4, body, [0, x])[1]
        v1.enable_control_flow_v2()
        return {"x": x}, {"y": tf.identity(y, name="y")}

    return _session_model(folder, build, {"x": _random(3)})


@corpus
def tf1_gradient_of_a_loop(folder: Path) -> Case:
    """The gradient of a TF1 loop: stacks, two frames, nested contexts."""

    def build() -> Any:
        v1.disable_control_flow_v2()
        x = v1.placeholder(tf.float32, [2], name="x")
        y = v1.while_loop(lambda k, _: k < 3, lambda k, h: (k + 1, h * h), [0, x], back_prop=True)[1]
        (gradient,) = v1.gradients(tf.reduce_sum(y), [x])
        v1.enable_control_flow_v2()
        return {"x": x}, {"gradient": tf.identity(gradient, name="gradient")}

    return _session_model(folder, build, {"x": np.array([0.5, 1.1], np.float32)})


@corpus
def tf1_table(folder: Path) -> Case:
    """A table that an op initializes from an asset."""
    (folder / "words.txt").write_text("red\ngreen\nblue\n")
    with tf.Graph().as_default(), v1.Session() as session:
        word = v1.placeholder(tf.string, [None], name="word")
        path = tf.constant(str(folder / "words.txt"), name="path")
        v1.add_to_collection(v1.GraphKeys.ASSET_FILEPATHS, path)
        initializer = tf.lookup.TextFileInitializer(
            path, tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER
        )
        number = tf.lookup.StaticHashTable(initializer, -1).lookup(word)
        session.run(v1.tables_initializer())
        builder = v1.saved_model.Builder(str(folder / "model"))
        signature = v1.saved_model.predict_signature_def({"word": word}, {"number": number})
        builder.add_meta_graph_and_variables(
            session,
            ["serve"],
            {"serving_default": signature},
            assets_collection=v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS),
            main_op=v1.tables_initializer(),
        )
        builder.save()
    return Case(folder / "model", {"serving_default": {"word": np.array([b"blue", b"pink"])}})


@corpus
def tf1_two_meta_graphs(folder: Path) -> Case:
    """A graph to train and a graph to serve that share their variables."""
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 2], name="x")
        y = tf.matmul(x, v1.get_variable("w", initializer=_random(2, 2), use_resource=True), name="y")
        session.run(v1.global_variables_initializer())
        builder = v1.saved_model.Builder(str(folder / "model"))
        signatures = {"serving_default": v1.saved_model.predict_signature_def({"x": x}, {"y": y})}
        builder.add_meta_graph_and_variables(session, ["train"], signatures)
        builder.add_meta_graph(["serve"], signatures)
        builder.save()
    return Case(folder / "model", {"serving_default": {"x": _random(3, 2)}})


@corpus
def tf1_sparse_signature(folder: Path) -> Case:
    """A signature that takes a sparse tensor."""
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.sparse_placeholder(tf.float32, [2, 3], name="x")
        y = v1.placeholder(tf.float32, [3, 2], name="y")
        product = tf.sparse.sparse_dense_matmul(x, y)
        builder = v1.saved_model.Builder(str(folder / "model"))
        infos = {"x": v1.saved_model.build_tensor_info(x), "y": v1.saved_model.build_tensor_info(y)}
        out = {"product": v1.saved_model.build_tensor_info(product)}
        signature = v1.saved_model.build_signature_def(infos, out, "tensorflow/serving/predict")
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature})
        builder.save()
    feeds = {
        "x/indices": np.array([[0, 1], [1, 2]]),
        "x/values": np.array([2.0, 3.0], np.float32),
        "x/dense_shape": np.array([2, 3]),
        "y": _random(3, 2),
    }
    return Case(folder / "model", {"serving_default": feeds})


# GraphDefs


def _frozen(folder: Path, name: str, build: Callable[[], None], feeds: dict[str, Any], *fetches: str) -> Case:
    with tf.Graph().as_default() as graph:
        build()
    as_text = name.endswith(".pbtxt")
    tf.io.write_graph(graph.as_graph_def(add_shapes=not as_text), str(folder), name, as_text=as_text)
    return Case(folder / name, {"": feeds}, fetches)


@corpus
def frozen_graph(folder: Path) -> Case:
    """A binary GraphDef with shapes, devices, control inputs, colocation and several outputs."""

    def build() -> None:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        with tf.device("/CPU:0"):
            y = tf.matmul(x, tf.constant(_random(4, 4), name="w"), name="y")
        with v1.colocate_with(y.op), tf.control_dependencies([v1.assert_less(y, 1e6)]):
            a, b = tf.split(y, 2, axis=1)
        tf.nn.top_k(a * b, 2, name="best")

    return _frozen(folder, "graph.pb", build, {"x:0": _random(3, 4)}, "best:0", "best:1")


@corpus
def graph_as_text(folder: Path) -> Case:
    """A GraphDef as text, with a loop of TF1."""

    def build() -> None:
        v1.disable_control_flow_v2()
        x = v1.placeholder(tf.int32, [], name="x")
        tf.identity(v1.while_loop(lambda k: k < 100, lambda k: k * 2 + 1, [x]), name="y")
        v1.enable_control_flow_v2()

    return _frozen(folder, "graph.pbtxt", build, {"x:0": np.int32(3)}, "y:0")


@corpus
def graph_with_functions(folder: Path) -> Case:
    """A GraphDef with a library: calls, a loop of control flow v2, and the gradient of a call."""

    def build() -> None:
        @tf.function
        def square(x: Any) -> Any:
            return x * x

        x = v1.placeholder(tf.float32, [3], name="x")
        y = tf.while_loop(lambda k, _: k < 3, lambda k, h: (k + 1, square(h) + 1.0), [0, x])[1]
        tf.identity(tf.gradients(y, x)[0], name="gradient")

    return _frozen(folder, "graph.pb", build, {"x:0": np.array([0.1, 0.2, 0.3], np.float32)}, "gradient:0")


def _application(name: str, size: int) -> Builder:
    def build(folder: Path) -> Case:
        import keras

        make = getattr(keras.applications, name)
        return _exported(make(weights=None, input_shape=(size, size, 3), classes=10), folder, _random(1, size, size, 3))

    build.__name__ = f"application_{name}"
    return build


for _name, _size in (
    ("MobileNetV2", 64),
    ("ResNet50", 64),
    ("EfficientNetB0", 64),
    ("Xception", 96),
):
    SLOW.add(corpus(_application(_name, _size)).__name__)
