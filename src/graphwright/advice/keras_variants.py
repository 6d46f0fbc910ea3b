"""The training step of a Keras model with other numbers or another optimizer. The model is restored."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from graphwright.errors import UnsupportedError
from graphwright.source.private_keras import all_layers
from graphwright.source.tensorflow_import import import_keras

BFLOAT16 = "mixed_bfloat16"
_SHORT = ("bfloat16", "float16")


@contextmanager
def mixed_precision(model: Any) -> Generator[None]:
    """Let the layers of a model compute in bfloat16 in this block; variables stay float32."""
    policy, layers = import_keras().DTypePolicy(BFLOAT16), all_layers(model)
    short = next((layer.compute_dtype for layer in layers if layer.compute_dtype in _SHORT), None)
    if short is not None:
        raise UnsupportedError(f"layers of the model compute in {short} already", where=f"model {model.name!r}")
    with _changed("dtype_policy", policy, [layer for layer in layers if layer.dtype_policy.name == "float32"]):
        yield


def other_optimizer(model: Any, optimizer: Any) -> AbstractContextManager[None]:
    """Let the model train with another optimizer in this block."""
    return _changed("optimizer", optimizer, [model])


@contextmanager
def _changed(name: str, value: Any, owners: Sequence[Any]) -> Generator[None]:
    before = [getattr(owner, name) for owner in owners]
    try:
        for owner in owners:
            setattr(owner, name, value)
        yield
    finally:
        for owner, own in zip(owners, before, strict=True):
            setattr(owner, name, own)


def leaner_optimizers(model: Any) -> Sequence[tuple[str, Any]]:
    """Return optimizers that keep less than the model's, as text and with its learning rate."""
    keras = import_keras()
    own = model.optimizer
    if own is None or not hasattr(own, "learning_rate"):
        return ()
    candidates = {"SGD(momentum=0.9)": keras.optimizers.SGD(momentum=0.9), "Adafactor()": keras.optimizers.Adafactor()}
    return [(text, optimizer) for text, optimizer in candidates.items() if type(optimizer) is not type(own)]
