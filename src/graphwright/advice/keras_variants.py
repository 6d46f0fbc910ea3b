"""The training step of a Keras model with other numbers or another optimizer. The model is restored."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from graphwright.errors import UnsupportedError
from graphwright.source.private_keras import all_layers
from graphwright.source.tensorflow_import import import_keras

BFLOAT16 = "mixed_bfloat16"
_SHORT = ("bfloat16", "float16")


@contextmanager
def mixed_precision(model: Any) -> Generator[None]:
    """Let the layers of a model compute in bfloat16 in this block; variables stay float32."""
    policy = import_keras().DTypePolicy(BFLOAT16)
    every = all_layers(model)
    short = next((layer.compute_dtype for layer in every if layer.compute_dtype in _SHORT), None)
    if short is not None:
        raise UnsupportedError(f"layers of the model compute in {short} already", where=f"model {model.name!r}")
    layers = [layer for layer in every if layer.dtype_policy.name == "float32"]
    before = [layer.dtype_policy for layer in layers]
    try:
        for layer in layers:
            layer.dtype_policy = policy
        yield
    finally:
        for layer, own in zip(layers, before, strict=True):
            layer.dtype_policy = own


@contextmanager
def other_optimizer(model: Any, optimizer: Any) -> Generator[None]:
    """Let the model train with another optimizer in this block."""
    before = model.optimizer
    try:
        model.optimizer = optimizer
        yield
    finally:
        model.optimizer = before


def leaner_optimizers(model: Any) -> Sequence[tuple[str, Any]]:
    """Return optimizers that keep less than the model's, as text and with its learning rate."""
    keras = import_keras()
    own = model.optimizer
    if own is None or not hasattr(own, "learning_rate"):
        return ()
    kept = {"SGD(momentum=0.9)": keras.optimizers.SGD(momentum=0.9), "Adafactor()": keras.optimizers.Adafactor()}
    return [(text, made) for text, made in kept.items() if type(made) is not type(own)]
