"""`remember`: marks values that a residual function should store rather than recompute.

Rebuilding costs one more forward pass of the residual functions. If memory is left, the last blocks of a sequence can store a part of
it (`ReversibleSequence(..., kept_blocks=n)`): their inputs, and the tensors that their functions pass through `remember`, such as results
of convolutions and matrix products, whose gradients need the operation's inputs only. Elsewhere `remember` does nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

tf: Any = importlib.import_module("tensorflow")


class _Memory(Protocol):
    def meet(self, tensor: Any) -> Any: ...


_memory: ContextVar[_Memory | None] = ContextVar("graphwright_memory", default=None)


def remember(tensor: Any) -> Any:
    """Return the tensor. In a block that stores remembered tensors, the backward pass does not compute it again.

    Args:
        tensor: a value inside a residual function.

    >>> remember(3.0)
    3.0
    """
    memory = _memory.get()
    return tensor if memory is None else memory.meet(tensor)


class Recorder:
    """Collects remembered tensors in the forward pass."""

    def __init__(self) -> None:
        self.tensors: list[Any] = []

    def meet(self, tensor: Any) -> Any:
        self.tensors.append(tensor)
        return tensor


class Player:
    """Replaces computed tensors by remembered ones in the second call of a function.

    The tape's gradient ends at a remembered tensor; `pull` continues it through the operations that computed the tensor.
    """

    def __init__(self, tensors: Sequence[Any], tape: Any) -> None:
        self._tape = tape
        self._tensors = list(tensors)
        self._computed: list[Any] = []
        tape.watch(self._tensors)

    def meet(self, tensor: Any) -> Any:
        self._computed.append(tensor)
        return self._tensors[len(self._computed) - 1]

    def pull(self, targets: Any, gradients: Any, sources: Sequence[Any]) -> list[Any]:
        """Return the gradients of the sources, including those through remembered tensors."""
        remembered = self._tensors[: len(self._computed)]
        totals = self._tape.gradient(targets, [*sources, *remembered], output_gradients=gradients)
        for last in reversed(range(len(remembered))):
            gradient = totals.pop()
            if gradient is not None:
                more = self._tape.gradient(self._computed[last], [*sources, *remembered[:last]], output_gradients=gradient)
                totals = [_sum(a, b) for a, b in zip(totals, more, strict=True)]
        return totals


@contextmanager
def remembering(memory: _Memory | None) -> Generator[None]:
    """Let `remember` use this memory inside the context."""
    token = _memory.set(memory)
    try:
        yield
    finally:
        _memory.reset(token)


def _sum(a: Any, b: Any) -> Any:
    if a is None or b is None:
        return b if a is None else a
    return tf.convert_to_tensor(a) + tf.convert_to_tensor(b)
