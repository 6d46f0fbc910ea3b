"""Memory-saving gradients compiled by XLA, for `python -m bench.train gradients --xla`.

Only the gradients of each model are compiled (`jit_compile=True`, default flags). Their memory is read from XLA's buffer assignment.
Processor time is measured in one process in which the compiled functions take turns; ratios are formed within a round.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench import gradient_models

MIB = 1 << 20
MODES = ("plain", "gradients", "checkpointed", "blocks")
_TITLES = {
    "plain": "`tf.gradients`",
    "gradients": '`gw.gradients`, "memory"',
    "checkpointed": '`gw.checkpointed`, "memory"',
    "blocks": '`gw.checkpointed`, "inputs", around each 4 layers',
}


@dataclass
class XlaRow:
    """The gradients of one model in one mode.

    Attributes:
        temporary_bytes: XLA's buffers besides arguments, results and constants.
        peak_bytes: all of XLA's buffers.
        time_ratio: processor time over that of plain gradients, the median over rounds.
        difference: largest difference of a gradient, relative to the largest entry of all gradients.
    """

    mode: str
    temporary_bytes: int
    peak_bytes: int
    time_ratio: float
    difference: float


@dataclass(frozen=True)
class _Model:
    """A loss of the inputs, the same loss in blocks with separate gradients, or None; `states` change at each call."""

    description: str
    weights: Sequence[Any]
    inputs: tuple[Any, ...]
    loss: Callable[..., Any]
    blocks: Callable[..., Any] | None = None
    states: Sequence[Any] = ()


def _dense() -> _Model:
    import tensorflow as tf

    import graphwright as gw

    layers, width, batch = 24, 128, 16_384
    weights = [tf.Variable(tf.random.stateless_normal((width, width), (k, 7)) / width**0.5) for k in range(layers)]

    def through(some: Sequence[Any]) -> Callable[[Any], Any]:
        def run(x: Any) -> Any:
            for w in some:
                x = tf.tanh(x @ w)
            return x

        return run

    parts = [gw.checkpointed(through(weights[k : k + 4]), checkpoints="inputs") for k in range(0, layers, 4)]

    def in_blocks(x: Any) -> Any:
        for part in parts:
            x = part(x)
        return tf.reduce_mean(x**2)

    x = tf.random.stateless_normal((batch, width), (1, 2))
    description = f"{layers} dense layers of {width}, batch {batch:,}"
    return _Model(description, weights, (x,), lambda x: tf.reduce_mean(through(weights)(x) ** 2), in_blocks)


def _of_keras(model: Any, loss: Callable[[Any, Any], Any], inputs: tuple[Any, Any], description: str) -> _Model:
    import tensorflow as tf

    def loss_of(x: Any, y: Any) -> Any:
        return loss(y, model(x, training=True))

    weights = [v.value for v in model.trainable_variables]
    states = [v.value for v in model.variables if all(v.value is not w for w in weights)]  # those of random generators among them
    return _Model(description, weights, tuple(map(tf.convert_to_tensor, inputs)), loss_of, states=states)


def _resnet() -> _Model:
    model, loss, inputs, description = gradient_models.MODELS["resnet11"][0]("small", 64)
    return _of_keras(model, loss, inputs, f"{description}, batch 64")


def _transformer() -> _Model:
    from bench import zoo

    reference = zoo.make("transformer", size="small", batch=16)
    return _of_keras(reference.model, reference.loss, reference.inputs, "small Transformer, batch 16")


MODELS: dict[str, Callable[[], _Model]] = {"dense": _dense, "resnet11": _resnet, "transformer": _transformer}


def measure_xla(name: str, rounds: int) -> dict[str, Any]:
    """All modes of a model, as the results file holds them."""
    from graphwright.run.xla_memory import xla_memory

    model = MODELS[name]()
    functions = _functions(model)
    expected: list[Any] = []
    differences: dict[str, float] = {}
    start = [state.numpy() for state in model.states]
    for mode, function in functions.items():  # compiled here
        for state, value in zip(model.states, start, strict=True):
            state.assign(value)
        found = _arrays(function(*model.inputs))
        expected = expected or found
        top = max(float(abs(g).max()) for g in expected)
        differences[mode] = max(float(abs(a - b).max()) for a, b in zip(expected, found, strict=True)) / top
    ratios = _time_ratios(functions, model.inputs, rounds)
    rows: list[dict[str, Any]] = []
    for mode, function in functions.items():
        memory = xla_memory(function.get_concrete_function(*model.inputs), [tuple(x.shape) for x in model.inputs])
        rows.append(asdict(XlaRow(mode, memory.temporary_bytes, memory.peak_bytes, ratios[mode], differences[mode])))
    return {"model": name, "description": model.description, "rounds": rounds, "rows": rows}


def _functions(model: _Model) -> dict[str, Any]:
    import tensorflow as tf

    import graphwright as gw

    def by_tape(loss: Callable[..., Any]) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            with tf.GradientTape() as tape:
                value = loss(*inputs)
            return tape.gradient(value, model.weights)

        return run

    found: dict[str, Callable[..., Any]] = {
        "plain": lambda *inputs: tf.gradients(model.loss(*inputs), model.weights),
        "gradients": lambda *inputs: gw.gradients(model.loss(*inputs), model.weights, checkpoints="memory"),
        "checkpointed": by_tape(gw.checkpointed(model.loss)),
    }
    if model.blocks is not None:
        found["blocks"] = by_tape(model.blocks)
    return {mode: tf.function(function, jit_compile=True, autograph=False) for mode, function in found.items()}


def _arrays(gradients: Any) -> list[Any]:
    import tensorflow as tf

    return [tf.convert_to_tensor(gradient).numpy() for gradient in gradients]


def _time_ratios(functions: Mapping[str, Any], inputs: tuple[Any, ...], rounds: int) -> dict[str, float]:
    ratios: dict[str, list[float]] = {mode: [] for mode in functions}
    for _ in range(rounds):
        times: dict[str, float] = {}
        for mode, function in functions.items():
            start = time.process_time()
            _arrays(function(*inputs))
            times[mode] = time.process_time() - start
        for mode, value in times.items():
            ratios[mode].append(value / times["plain"])
    return {mode: statistics.median(values) for mode, values in ratios.items()}


def as_markdown(cases: Sequence[Mapping[str, Any]]) -> str:
    """The table for the documentation."""
    titles = ["model", "gradients", "temporaries, MiB", "of plain", "all, MiB", "processor time", "largest difference"]
    lines = ["| " + " | ".join(titles) + " |", "|---|---|" + "---:|" * 5]
    for case in cases:
        plain = case["rows"][0]["temporary_bytes"]
        for k, row in enumerate(case["rows"]):
            cells = [
                case["description"] if k == 0 else "",
                _TITLES[row["mode"]],
                f"{row['temporary_bytes'] / MIB:,.0f}",
                f"{100 * row['temporary_bytes'] / plain:.0f} %",
                f"{row['peak_bytes'] / MIB:,.0f}",
                f"{row['time_ratio']:.2f}x",
                f"{row['difference']:.0e}" if k else "",
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
