"""Derivatives of the gradients of a checkpointed function.

How the residuals of a split function depend on its arguments is not known, so the function itself runs again, as it is written, under two
tapes. Nothing is saved there, and nothing may be random or stateful, or the derivatives would be those of another function.
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from graphwright.errors import UnsupportedError
from graphwright.ir.graph import Node
from graphwright.ir.traits.effects import Purity
from graphwright.ir.traits.values import COMPUTES_NOTHING
from graphwright.source.concrete_function import from_concrete_function
from graphwright.step.flatten import stateful_op_types

tf: Any = importlib.import_module("tensorflow")


@dataclass(frozen=True)
class Original:
    """The function that was checkpointed, with one set of shapes.

    Attributes:
        call: takes the tensors among the arguments, returns the results as a flat list of tensors.
        traced: the concrete function in which it was traced together with its gradients.
        closed_over: tensors that it reads without being given them.
        variables: likewise.
        differentiable: positions of the results that have an incoming gradient.
        present: of arguments, closed-over tensors and variables, in a row, those that have a gradient.
    """

    call: Callable[..., list[Any]]
    traced: Any
    closed_over: tuple[Any, ...]
    variables: tuple[Any, ...]
    differentiable: tuple[int, ...]
    present: tuple[int, ...]

    def second(self, arguments: Sequence[Any], incoming: Sequence[Any], upstream: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Gradients of the gradients.

        Args:
            incoming: gradients of the results.
            upstream: gradients of the gradients of what is `present`.

        Returns:
            Gradients by arguments, closed-over tensors and variables, and by `incoming`; None where there is none.

        Raises:
            UnsupportedError: the function is random or changes something.
        """
        if self._not_repeatable is not None:
            raise UnsupportedError(
                "gradients of the gradients of a checkpointed function were asked for",
                where=f"gw.checkpointed, operation {self._not_repeatable.name!r} ({self._not_repeatable.op_type})",
                cause="they need the function to run again, and it draws random numbers or changes a variable",
                remedy="use the function without gw.checkpointed where you need second derivatives, or gw.gradients inside a tf.function",
            )
        sources = [*arguments, *self.closed_over, *self.variables]
        watched = [tensor for tensor in (*arguments, *self.closed_over) if tensor.dtype.is_floating or tensor.dtype.is_complex]
        with tf.GradientTape() as outer:
            outer.watch([*watched, *incoming])
            with tf.GradientTape() as inner:
                inner.watch(watched)
                results = self.call(*arguments)
            ys = [results[k] for k in self.differentiable]
            gradients = inner.gradient(ys, [sources[k] for k in self.present], output_gradients=list(incoming))
        pairs = [(_values(g), _values(u)) for g, u in zip(gradients, upstream, strict=True) if g is not None]
        by = [*(sources[k] for k in self.present), *incoming]
        found = outer.gradient([g for g, _ in pairs], by, output_gradients=[u for _, u in pairs])
        by_source: list[Any] = [None] * len(sources)
        for k, gradient in zip(self.present, found, strict=False):
            by_source[k] = gradient
        return by_source, list(found[len(self.present) :])

    @cached_property
    def _not_repeatable(self) -> Node | None:
        graph, _ = from_concrete_function(self.traced, planned=False)
        purity = Purity(graph, stateful_op_types(graph))
        given = {value.producer for value in graph.inputs}
        changing = (node for node in graph.nodes if node not in given and node.op_type not in COMPUTES_NOTHING)
        return next((node for node in changing if not purity.is_pure(node)), None)


def _values(gradient: Any) -> Any:
    """What of a gradient is differentiable."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
