"""Half of the memory, on models that graphwright was not written for: peak and time of a plan with all verbs.

    python -m bench.half                        # all; models of keras-hub if it is installed
    python -m bench.half --models vit gru

Each row is a small training step as users write it. The budget is half of its measured peak, or, if weights, optimizer state and inputs
are more than that, these plus half of the rest (15 % for the head of a language model). Each peak is measured in a fresh process. Both
steps take turns as users run them, the plain one with Grappler: times are by the clock, and of the processor over all threads. Prints
Markdown.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from bench.shares import Step, gan, gpt2

MIB = 2**20
COLUMNS = ("model", "budget", "plan", "predicted", "measured", "share", "predicted time", "time", "processor time", "proof")


def two_tower(users: int = 20_000, items: int = 5_000, width: int = 64, batch: int = 4096) -> Step:
    """Retrieval: users and items each embedded and through a tower; every other item of the batch is a wrong answer."""
    import keras
    import numpy as np
    import tensorflow as tf
    from keras import layers

    keras.utils.set_random_seed(0)

    def tower(count: int) -> Any:
        inside = [layers.Dense(4 * width, activation="relu"), layers.Dropout(0.1), layers.Dense(2 * width, activation="relu")]
        return keras.Sequential([layers.Input((), dtype="int32"), layers.Embedding(count, width), *inside, layers.Dense(width)])

    towers = tower(users), tower(items)
    variables = [variable for one in towers for variable in one.trainable_variables]
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def train_step(user: Any, item: Any) -> Any:
        with tf.GradientTape() as tape:
            scores = tf.matmul(towers[0](user, training=True), towers[1](item, training=True), transpose_b=True)
            loss = loss_of(tf.range(tf.shape(user)[0]), scores)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    draw = np.random.default_rng(0).integers
    inputs = tuple(tf.constant(draw(0, count, batch).astype(np.int32)) for count in (users, items))
    return f"two towers of {width}, {users:,} users, {items:,} items, batch {batch}, Adam", train_step, inputs


def efficientnet(pixels: int = 96, batch: int = 32) -> Step:
    """EfficientNetV2B0 of Keras: depthwise convolutions, squeeze and excite, batch norm, dropped connections."""
    import keras

    model = keras.applications.EfficientNetV2B0(weights=None, input_shape=(pixels, pixels, 3), classes=10, classifier_activation=None)
    return classifier(f"EfficientNetV2B0, {pixels}x{pixels}, batch {batch}, Adam", model, pixels, batch)


def convnext(pixels: int = 64, batch: int = 16) -> Step:
    """ConvNeXtTiny of Keras: grouped convolutions, layer norm, dropped connections."""
    import keras

    model = keras.applications.ConvNeXtTiny(weights=None, input_shape=(pixels, pixels, 3), classes=10, classifier_activation=None)
    return classifier(f"ConvNeXtTiny, {pixels}x{pixels}, batch {batch}, Adam", model, pixels, batch)


def vit(pixels: int = 64, patch: int = 8, width: int = 128, depth: int = 6, batch: int = 64) -> Step:
    """A vision Transformer: patches, learned positions, pre-norm blocks with GELU and dropout, mean of the tokens."""
    import keras
    from keras import layers

    from bench.zoo import PositionEmbedding

    keras.utils.set_random_seed(0)
    image = layers.Input((pixels, pixels, 3))
    x = layers.Conv2D(width, patch, strides=patch)(image)
    x = layers.Reshape(((pixels // patch) ** 2, width))(x)
    x = layers.Dropout(0.1)(PositionEmbedding((pixels // patch) ** 2)(x))
    for _ in range(depth):
        h = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(4, width // 4, dropout=0.1)(h, h)])
        h = layers.Dropout(0.1)(layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x)))
        x = layers.Add()([x, layers.Dropout(0.1)(layers.Dense(width)(h))])
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    model = keras.Model(image, layers.Dense(10)(x))
    return classifier(f"ViT, {depth} layers of {width}, {(pixels // patch) ** 2} patches, batch {batch}, Adam", model, pixels, batch)


def graph_network(nodes: int = 4_000, edges: int = 32_000, width: int = 64, rounds: int = 4) -> Step:
    """Message passing: per edge a network of both ends, per node one of the sum of its messages; the loss is a value per node."""
    import keras
    import numpy as np
    import tensorflow as tf
    from keras import layers

    keras.utils.set_random_seed(0)

    def network(size: int) -> Any:
        inside = [layers.Dense(width, activation="relu"), layers.Dense(width), layers.LayerNormalization()]
        return keras.Sequential([layers.Input((size,)), *inside])

    encoder, decoder = network(16), keras.Sequential([layers.Input((width,)), layers.Dense(1)])
    blocks = [(network(2 * width), network(2 * width)) for _ in range(rounds)]
    variables = [v for one in (encoder, decoder, *(n for pair in blocks for n in pair)) for v in one.trainable_variables]
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(variables)

    @tf.function
    def train_step(features: Any, senders: Any, receivers: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            x = encoder(features, training=True)
            for edge, node in blocks:
                messages = edge(tf.concat([tf.gather(x, senders), tf.gather(x, receivers)], 1), training=True)
                x += node(tf.concat([x, tf.math.unsorted_segment_sum(messages, receivers, nodes)], 1), training=True)
            loss = tf.reduce_mean((decoder(x, training=True)[:, 0] - targets) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    rng = np.random.default_rng(0)
    ends = [tf.constant(rng.integers(0, nodes, edges).astype(np.int32)) for _ in range(2)]
    values = [tf.constant(rng.normal(size=shape).astype(np.float32)) for shape in ((nodes, 16), (nodes,))]
    return f"graph network, {rounds} rounds of {width}, {nodes:,} nodes, {edges:,} edges, Adam", train_step, (values[0], *ends, values[1])


def seq2seq(vocabulary: int = 4000, width: int = 128, source: int = 40, target: int = 30, batch: int = 256) -> Step:
    """An LSTM that reads, an LSTM that writes, dot-product attention of the second to the first, and a word per step."""
    import keras
    import numpy as np
    import tensorflow as tf
    from keras import layers

    keras.utils.set_random_seed(0)
    read, written = layers.Input((source,), dtype="int32"), layers.Input((target,), dtype="int32")
    options: dict[str, Any] = {"return_sequences": True, "return_state": True, "use_cudnn": False}
    memory, *state = layers.LSTM(width, **options)(layers.Embedding(vocabulary, width)(read))
    h, *_ = layers.LSTM(width, **options)(layers.Embedding(vocabulary, width)(written), initial_state=state)
    context = layers.Attention()([h, memory])
    joined = layers.Dense(width, activation="tanh")(layers.Concatenate()([h, context]))
    model = keras.Model([read, written], layers.Dense(vocabulary)(layers.Dropout(0.1)(joined)))
    rng = np.random.default_rng(0)
    x, y = (tf.constant(rng.integers(0, vocabulary, (batch, count)).astype(np.int32)) for count in (source, target + 1))
    step = _step(model, keras.losses.SparseCategoricalCrossentropy(from_logits=True), keras.optimizers.Adam(1e-3))
    description = f"LSTM {width} to LSTM with attention, {source} to {target} words of {vocabulary:,}, batch {batch}, Adam"
    return description, step, ((x, y[:, :-1]), y[:, 1:])


def gru() -> Step:
    """Two GRU layers of 512 over 128 steps, each a While loop."""
    from bench import zoo

    reference = zoo.make("gru2", size="full")
    return reference.description, reference.step, reference.inputs


def ddpm(pixels: int = 32, width: int = 32, batch: int = 32, times: int = 1000) -> Step:
    """A diffusion model's U-Net: residual blocks with group norm and the time, attention in the middle; the step draws noise and times."""
    import keras
    import numpy as np
    import tensorflow as tf
    from keras import layers

    keras.utils.set_random_seed(0)

    def block(x: Any, filters: int, time: Any) -> Any:
        short = x if x.shape[-1] == filters else layers.Conv2D(filters, 1)(x)
        h = layers.Conv2D(filters, 3, padding="same")(layers.Activation("swish")(layers.GroupNormalization(8)(x)))
        h = layers.Add()([h, layers.Reshape((1, 1, filters))(layers.Dense(filters)(time))])
        h = layers.Conv2D(filters, 3, padding="same")(layers.Dropout(0.1)(layers.Activation("swish")(layers.GroupNormalization(8)(h))))
        return layers.Add()([short, h])

    def attend(x: Any) -> Any:
        h = layers.Reshape((x.shape[1] * x.shape[2], x.shape[3]))(layers.GroupNormalization(8)(x))
        return layers.Add()([x, layers.Reshape(x.shape[1:])(layers.MultiHeadAttention(1, x.shape[3])(h, h))])

    image, moment = layers.Input((pixels, pixels, 3)), layers.Input((2 * width,))
    time = layers.Dense(4 * width)(layers.Dense(4 * width, activation="swish")(moment))
    x, kept = layers.Conv2D(width, 3, padding="same")(image), list[Any]()
    for scale in (1, 2, 4):
        kept.append(x := block(x, scale * width, time))
        x = layers.Conv2D(scale * width, 3, strides=2, padding="same")(x)
    x = block(attend(block(x, 4 * width, time)), 4 * width, time)
    for scale in (4, 2, 1):
        x = layers.Conv2D(scale * width, 3, padding="same")(layers.UpSampling2D(2)(x))
        x = block(layers.Concatenate()([x, kept.pop()]), scale * width, time)
    x = layers.Conv2D(3, 3, padding="same")(layers.Activation("swish")(layers.GroupNormalization(8)(x)))
    model = keras.Model([image, moment], x)
    optimizer = keras.optimizers.Adam(2e-4)
    optimizer.build(model.trainable_variables)
    remains = tf.constant(np.cumprod(1 - np.linspace(1e-4, 0.02, times)).astype(np.float32))
    angles = tf.constant(np.exp(-np.log(1e4) * np.arange(width) / width).astype(np.float32))

    @tf.function
    def train_step(images: Any) -> Any:
        t = tf.random.uniform((batch,), 0, times, dtype=tf.int32)
        noise = tf.random.normal(tf.shape(images))
        share = tf.gather(remains, t)[:, None, None, None]
        phase = tf.cast(t, tf.float32)[:, None] * angles
        with tf.GradientTape() as tape:
            noisy = tf.sqrt(share) * images + tf.sqrt(1 - share) * noise
            found = model([noisy, tf.concat([tf.sin(phase), tf.cos(phase)], 1)], training=True)
            loss = tf.reduce_mean((found - noise) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    images = np.tanh(np.random.default_rng(0).normal(size=(batch, pixels, pixels, 3))).astype(np.float32)
    return f"DDPM U-Net, {pixels}x{pixels}, width {width}, batch {batch}, Adam", train_step, (tf.constant(images),)


def classifier(description: str, model: Any, pixels: int, batch: int) -> Step:
    import keras
    import numpy as np
    import tensorflow as tf

    rng = np.random.default_rng(0)
    images = tf.constant(rng.uniform(0, 255 if "Net" in description else 1, (batch, pixels, pixels, 3)).astype(np.float32))
    labels = tf.constant(rng.integers(0, 10, batch).astype(np.int32))
    step = _step(model, keras.losses.SparseCategoricalCrossentropy(from_logits=True), keras.optimizers.Adam(1e-4))
    return description, step, (images, labels)


def lm_head(width: int = 64, batch: int = 8, tokens: int = 256, words: int = 50_257) -> Step:
    """The end of a language model: layer norm, logits of each of 2,048 tokens, and their loss."""
    import keras
    import numpy as np
    import tensorflow as tf
    from keras import layers

    keras.utils.set_random_seed(0)
    states = layers.Input((tokens, width))
    model = keras.Model(states, layers.Dense(words, use_bias=False)(layers.LayerNormalization()(states)))
    rng = np.random.default_rng(0)
    inputs = (
        tf.constant(rng.normal(size=(batch, tokens, width)).astype(np.float32)),
        tf.constant(rng.integers(0, words, (batch, tokens)).astype(np.int32)),
    )
    step = _step(model, keras.losses.SparseCategoricalCrossentropy(from_logits=True), keras.optimizers.SGD(0.1))
    return f"head of a language model, {batch * tokens:,} tokens of {width} by {words:,} words, SGD", step, inputs


def _step(model: Any, loss_of: Callable[[Any, Any], Any], optimizer: Any) -> Any:
    import tensorflow as tf

    optimizer.build(model.trainable_variables)

    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
        return loss

    return train_step


MODELS: dict[str, Callable[[], Step]] = {
    "gan": lambda: gan(batch=256),
    "two_tower": two_tower,
    "gpt2": gpt2,
    "efficientnet": efficientnet,
    "graph_network": graph_network,
    "vit": vit,
    "seq2seq": seq2seq,
    "gru": gru,
    "ddpm": ddpm,
    "convnext": convnext,
    "lm_head": lm_head,
}
"""By name, in small: some 100 to 400 MiB each."""
SHARES = {"lm_head": 0.15}
"""Of the activation peak, where another budget than half is asked for."""


def row(step: Step, share: float | None = None, *, rounds: int = 15, time_limit_s: float = 6.0) -> tuple[str, ...]:
    """Return the row of one model: peaks in MiB, times as ratios of the plain step's.

    Args:
        share: share of the activation peak in the budget, beside the resident bytes.
    """
    import graphwright as gw
    from bench.processor_time import ratios

    description, function, inputs = step
    plain = gw.measure(function, inputs, time=False)
    budget = plain.peak_bytes // 2
    if plain.resident_bytes > budget:
        budget = (plain.resident_bytes + plain.peak_bytes) // 2
    if share is not None:
        budget = plain.resident_bytes + int(share * (plain.peak_bytes - plain.resident_bytes))
    begin = f"{description}, {plain.peak_bytes / MIB:.0f} MiB", f"{100 * budget / plain.peak_bytes:.0f} % = {budget / MIB:.1f}"
    try:
        fast = gw.optimize_memory(function, budget, inputs=inputs, allow="all", cache_dir=None, time_limit_s=time_limit_s)
    except gw.InfeasibleError as error:
        least = (error.smallest_budget_bytes or 0) / MIB
        return (*begin, "infeasible", f"{least:.1f}", "", "", "", "", "", str(error))
    plan = fast.plan
    after = gw.measure(fast, inputs, time=False).peak_bytes
    clock, processor = ratios(lambda: function(*inputs), lambda: fast(*inputs), rounds)
    cells = [f"{plan.peak_bytes / MIB:.1f}", f"{after / MIB:.1f}", f"{100 * after / plain.peak_bytes:.0f} %"]
    cells += [f"{1 + plan.overhead:.2f}", f"{clock:.2f}", f"{processor:.2f}"]
    said = [words.split(":")[0] if words.startswith("equal") else words for words in plan.verification.split("; ") if "equal" in words]
    return (*begin, plan.rewritten or "recompute", *cells, "; ".join(said))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.half", description=(__doc__ or "").splitlines()[0])
    known = [name for name in MODELS if name != "gpt2" or find_spec("keras_hub") is not None]
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=known)
    options = parser.parse_args(arguments)
    print(f"| {' | '.join(COLUMNS)} |\n|---|---|---|{'---:|' * 6}---|")
    for name in options.models:
        print(f"| {' | '.join(row(MODELS[name](), SHARES.get(name)))} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
