"""`repair_for_workers`: Keras' own training in several processes."""

from __future__ import annotations

from typing import Any

from graphwright.step.keras_model import spans_workers, strategy_of
from graphwright.step.keras_step import keras_step, train_with


def repair_for_workers(model: Any) -> Any:
    """Make `fit`, `train_on_batch` and `evaluate` of a compiled Keras model work under `MultiWorkerMirroredStrategy`.

    Keras 3 fails before the first step (keras-team/keras#20585). `optimize_memory` and `LMModel` repair their models themselves. Use this
    for other models, such as those with reversible layers.

    Args:
        model: a compiled Keras model. Under another strategy, or in one process, it is not changed.

    Returns:
        The model.

    Raises:
        ArgumentError: it is not compiled.
        UnsupportedError: it runs eagerly, is to be compiled by XLA, or was made under a strategy that Keras 3 does not support.

    >>> import keras
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> repair_for_workers(model) is model
    True
    """
    if spans_workers(strategy_of(model)):
        train_with(model, lambda: keras_step(model, "train"))
    return model
