"""The losses, weights and targets of all outputs of a model."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from graphwright.errors import ArgumentError
from graphwright.least_squares.keras.output_losses import OutputLoss, output_loss

tf: Any = importlib.import_module("tensorflow")


@dataclass(frozen=True)
class CompiledLosses:
    """The losses of all outputs (None for an output that is not trained) and their weights.

    The loss of an output is a sum over samples, times a *factor*: the output's weight over a *denominator*, which is summed over samples
    (and replicas) too.
    """

    names: tuple[str, ...]
    losses: tuple[OutputLoss | None, ...]
    weights: tuple[float, ...]

    @property
    def are_squares(self) -> bool:
        return all(loss is None or loss.is_square for loss in self.losses)

    @staticmethod
    def of(loss: Any, loss_weights: Any, outputs: Any, output_names: Sequence[str] | None) -> CompiledLosses:
        """Read the arguments of `compile`, for a structure of outputs and the names that Keras gives them, if any."""
        names = _names(outputs, output_names)
        losses = tuple(None if one is None else output_loss(one) for one in _by_output(loss, names, "loss", repeat=True))
        if not any(losses):
            raise ArgumentError("no output has a loss", argument="loss")
        weights = [1.0 if one is None else float(one) for one in _by_output(loss_weights, names, "loss_weights", repeat=True)]
        if min(weights) < 0.0:
            raise ArgumentError(f"a weight of {min(weights)}", argument="loss_weights", remedy="give weights of at least 0")
        return CompiledLosses(names, losses, tuple(weights))

    def targets(self, y: Any) -> list[Any]:
        """Return the targets by output; None for an output that is not trained."""
        targets = _by_output(y, self.names, "y", repeat=False)
        for name, loss, target in zip(self.names, self.losses, targets, strict=True):
            if loss is not None and target is None:
                raise ArgumentError(f"no target for output {name!r}", argument="y", remedy="give one, or leave out its loss")
        return targets

    def sample_weights(self, sample_weight: Any) -> list[Any]:
        """Return the sample weights by output; None where all samples count the same."""
        return _by_output(sample_weight, self.names, "sample_weight", repeat=True)

    def denominators(self, weights: Sequence[Any], samples: int, dtype: Any) -> list[Any]:
        """Return the denominator of each output for these samples; 0 for a sum, which has none."""
        denominators: list[Any] = []
        for loss, weight in zip(self.losses, weights, strict=True):
            if loss is None or loss.reduction == "sum":
                denominators.append(tf.zeros([], dtype))
            elif loss.reduction == "mean_with_sample_weight" and weight is not None:
                denominators.append(tf.reduce_sum(tf.cast(weight, dtype)))
            else:
                denominators.append(tf.constant(samples, dtype))
        return denominators

    def factors(self, denominators: Sequence[Any]) -> list[Any]:
        return [
            weight / tf.where(denominator > 0.0, denominator, tf.ones_like(denominator))
            for weight, denominator in zip(self.weights, denominators, strict=True)
        ]

    def total(self, targets: Sequence[Any], outputs: Sequence[Any], weights: Sequence[Any], factors: Sequence[Any], dtype: Any) -> Any:
        parts: list[Any] = []
        for loss, y_true, y_pred, weight, factor in zip(self.losses, targets, outputs, weights, factors, strict=True):
            if loss is None:
                continue
            elements = tf.cast(loss.elements(y_true, y_pred), dtype)
            if tf.is_tensor(weight):
                elements *= _spread(weight, elements.shape)
            parts.append(tf.reduce_sum(elements) * (factor / _elements_per_sample(weight, elements.shape, loss)))
        return tf.add_n(parts)

    def roots(self, targets: Sequence[Any], outputs: Sequence[Any], weights: Sequence[Any], factors: Sequence[Any], dtype: Any) -> Any:
        """Return the roots of all losses (samples, r)."""
        parts: list[Any] = []
        for loss, y_true, y_pred, weight, factor in zip(self.losses, targets, outputs, weights, factors, strict=True):
            if loss is None:
                continue
            root = tf.cast(loss.root(y_true, y_pred), dtype)
            root *= tf.sqrt(factor / _elements_per_sample(weight, root.shape[:-1], loss))
            if tf.is_tensor(weight):
                root *= tf.expand_dims(tf.sqrt(_spread(weight, root.shape[:-1])), -1)
            parts.append(tf.reshape(root, [root.shape[0], math.prod(root.shape[1:])]))
        return tf.concat(parts, axis=1)


def _spread(weight: Any, shape: Any) -> Any:
    """Reshape sample weights (samples, ...) for elements of this shape."""
    if weight.shape.rank == shape.rank + 1 and weight.shape[-1] == 1:
        weight = tf.squeeze(weight, axis=-1)
    if weight.shape.rank > shape.rank or any(a not in (1, b) for a, b in zip(weight.shape, shape, strict=False)):
        raise ArgumentError(
            f"sample weights of shape {tuple(weight.shape)} for losses of shape {tuple(shape)}",
            argument="sample_weight",
            remedy="give one weight per sample, or one per element of the loss",
        )
    return tf.reshape(weight, [*weight.shape, *[1] * (shape.rank - weight.shape.rank)])


def _elements_per_sample(weight: Any, shape: Any, loss: OutputLoss) -> int:
    """Return the divisor of a mean over the elements of a sample; 1 if their weights are summed into the denominator."""
    by_weights = loss.reduction == "mean_with_sample_weight" and tf.is_tensor(weight) and weight.shape.rank > 1
    return 1 if by_weights or loss.reduction == "sum" else math.prod(shape[1:])


def _names(outputs: Any, output_names: Sequence[str] | None) -> tuple[str, ...]:
    if isinstance(outputs, Mapping):
        return tuple(sorted(cast("Mapping[str, Any]", outputs)))
    count = len(tf.nest.flatten(outputs))
    if output_names is not None and len(output_names) == count:
        return tuple(output_names)
    return tuple(f"output_{i}" for i in range(count))


def _by_output(value: Any, names: Sequence[str], argument: str, *, repeat: bool) -> list[Any]:
    """Return one entry per output for a list, a dict by name, or a single value (for each output if `repeat`)."""
    if isinstance(value, Mapping) and not (argument == "loss" and "class_name" in value):
        entries = cast("Mapping[str, Any]", value)
        unknown = sorted(set(entries) - set(names))
        if unknown:
            raise ArgumentError(
                f"{argument} for {', '.join(map(repr, unknown))}",
                argument=argument,
                remedy=f"the outputs are {', '.join(names)}",
            )
        return [entries.get(name) for name in names]
    if isinstance(value, list | tuple):
        items = cast("Sequence[Any]", value)
        if len(items) != len(names):
            raise ArgumentError(
                f"{len(items)} entries in {argument} for {len(names)} outputs",
                argument=argument,
                remedy="give one per output",
            )
        return list(items)
    if len(names) > 1 and value is not None and not repeat:
        raise ArgumentError(f"one {argument} for {len(names)} outputs", argument=argument, remedy="give one per output")
    return [value] * len(names)
