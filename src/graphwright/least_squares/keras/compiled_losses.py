"""Which loss, weight and target belongs to which output of a model."""

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
    """The losses of all outputs and their weights.

    Attributes:
        names: of the outputs, in the order of `tf.nest.flatten`.
        losses: one per output; None for an output that is not trained.
        weights: one per output.
    """

    names: tuple[str, ...]
    losses: tuple[OutputLoss | None, ...]
    weights: tuple[float, ...]

    @property
    def are_squares(self) -> bool:
        """Whether all losses are mean squares of residuals."""
        return all(loss is None or loss.is_square for loss in self.losses)

    @staticmethod
    def of(loss: Any, loss_weights: Any, outputs: Any, output_names: Sequence[str] | None) -> CompiledLosses:
        """From what `compile` takes.

        Args:
            loss: a loss for all outputs, a list, or a dict by name; as in Keras.
            loss_weights: None, a list, or a dict by name.
            outputs: the structure of the model's outputs.
            output_names: what Keras calls them, if it does.

        Raises:
            ArgumentError: losses that do not match the outputs, or weights that are negative.
            UnsupportedError: a loss without residuals.
        """
        names = _names(outputs, output_names)
        given = _by_output(loss, names, "loss", repeat=True)
        losses = tuple(None if one is None else output_loss(one) for one in given)
        if not any(losses):
            raise ArgumentError("no output has a loss", argument="loss")
        weights = [1.0 if one is None else float(one) for one in _by_output(loss_weights, names, "loss_weights", repeat=True)]
        if min(weights) < 0.0:
            raise ArgumentError(f"a weight of {min(weights)}", argument="loss_weights", remedy="give weights of at least 0")
        return CompiledLosses(names, losses, tuple(weights))

    def targets(self, y: Any) -> list[Any]:
        """Targets by output; None for an output that is not trained.

        Raises:
            ArgumentError: an output that is trained has none.
        """
        found = _by_output(y, self.names, "y", repeat=False)
        for name, loss, target in zip(self.names, self.losses, found, strict=True):
            if loss is not None and target is None:
                raise ArgumentError(f"no target for output {name!r}", argument="y", remedy="give one, or leave out its loss")
        return found

    def sample_weights(self, sample_weight: Any) -> list[Any]:
        """Sample weights by output, None where all count the same."""
        return _by_output(sample_weight, self.names, "sample_weight", repeat=True)

    def denominators(self, weights: Sequence[Any], samples: int, dtype: Any) -> list[Any]:
        """By what each output's sum over these samples is to be divided, numbers of elements aside; numbers or scalars that add up."""
        found: list[Any] = []
        for loss, weight in zip(self.losses, weights, strict=True):
            if loss is None or loss.reduction == "sum":
                found.append(0.0)  # not divided
            elif loss.reduction == "mean_with_sample_weight" and weight is not None:
                found.append(tf.reduce_sum(tf.cast(weight, dtype)))
            else:
                found.append(float(samples))
        return found

    def factors(self, denominators: Sequence[Any]) -> list[Any]:
        """What the loss of each output is multiplied with, sample weights and numbers of elements aside: numbers or scalars."""
        found: list[Any] = []
        for denominator, factor in zip(denominators, self.weights, strict=True):
            if not tf.is_tensor(denominator):
                found.append(factor / denominator if denominator else factor)
            else:
                found.append(factor / tf.where(denominator > 0.0, denominator, tf.ones_like(denominator)))
        return found

    def total(self, targets: Sequence[Any], outputs: Sequence[Any], weights: Sequence[Any], factors: Sequence[Any], dtype: Any) -> Any:
        """The loss summed over these samples: a scalar."""
        parts: list[Any] = []
        for loss, y_true, y_pred, weight, factor in zip(self.losses, targets, outputs, weights, factors, strict=True):
            if loss is None:
                continue
            elements = tf.cast(loss.elements(y_true, y_pred), dtype)
            if tf.is_tensor(weight):
                elements *= _spread(weight, elements.shape)
            parts.append(tf.reduce_sum(elements) * (factor / _divisor(weight, elements.shape, loss)))
        return parts[0] if len(parts) == 1 else tf.add_n(parts)

    def roots(self, targets: Sequence[Any], outputs: Sequence[Any], weights: Sequence[Any], factors: Sequence[Any], dtype: Any) -> Any:
        """The roots of all losses (samples, r)."""
        parts: list[Any] = []
        for loss, y_true, y_pred, weight, factor in zip(self.losses, targets, outputs, weights, factors, strict=True):
            if loss is None:
                continue
            root = tf.cast(loss.root(y_true, y_pred), dtype)
            scale = factor / _divisor(weight, root.shape[:-1], loss)
            root *= tf.sqrt(scale) if tf.is_tensor(scale) else math.sqrt(scale)
            if tf.is_tensor(weight):
                root *= tf.expand_dims(tf.sqrt(_spread(weight, root.shape[:-1])), -1)
            parts.append(root if root.shape.rank == 2 else tf.reshape(root, [root.shape[0], math.prod(root.shape[1:])]))
        return parts[0] if len(parts) == 1 else tf.concat(parts, axis=1)


def _spread(weight: Any, shape: Any) -> Any:
    """Sample weights (samples, ...) for elements of this shape."""
    if weight.shape.rank == shape.rank + 1 and weight.shape[-1] == 1:
        weight = tf.squeeze(weight, axis=-1)
    if weight.shape.rank > shape.rank or any(a not in (1, b) for a, b in zip(weight.shape, shape, strict=False)):
        raise ArgumentError(
            f"sample weights of shape {tuple(weight.shape)} for losses of shape {tuple(shape)}",
            argument="sample_weight",
            remedy="give one weight per sample, or one per element of the loss",
        )
    missing = shape.rank - weight.shape.rank
    return tf.reshape(weight, [*weight.shape, *[1] * missing]) if missing else weight


def _divisor(weight: Any, shape: Any, loss: OutputLoss) -> int:
    """Elements per sample of this shape, where the loss is a mean over them."""
    by_weights = loss.reduction == "mean_with_sample_weight" and tf.is_tensor(weight) and weight.shape.rank > 1
    return 1 if by_weights or loss.reduction == "sum" else math.prod(shape[1:])  # the sum of such weights counts the elements


def _names(outputs: Any, output_names: Sequence[str] | None) -> tuple[str, ...]:
    """Names of the outputs in the order of `tf.nest.flatten`."""
    if isinstance(outputs, Mapping):
        return tuple(sorted(cast("Mapping[str, Any]", outputs)))
    count = len(tf.nest.flatten(outputs))
    if output_names is not None and len(output_names) == count:
        return tuple(output_names)
    return tuple(f"output_{i}" for i in range(count))


def _by_output(value: Any, names: Sequence[str], argument: str, *, repeat: bool) -> list[Any]:
    """One entry per output of a list, of a dict by name, or of a single value (for each output if `repeat`)."""
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
