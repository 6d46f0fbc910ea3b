"""`remember`: what a residual function would rather keep than compute again.

Rebuilding costs one more forward pass of the residual functions. Where there is room, a sequence lets its last blocks
keep a part of it (`ReversibleSequence(..., kept_blocks=n)`): their inputs, and what their functions pass through `remember`. A
result of a convolution or a product is worth it, since its gradient needs the operation's inputs only, so that the
operation itself does not run again. Elsewhere `remember` does nothing.
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
    """The tensor; in a block that keeps what its functions remember, the backward pass does not compute it again.

    Args:
        tensor: a value inside a residual function.

    >>> remember(3.0)
    3.0
    """
    memory = _memory.get()
    return tensor if memory is None else memory.meet(tensor)


class Recorder:
    """The forward pass of a function: notes what is to be remembered."""

    def __init__(self) -> None:
        self.tensors: list[Any] = []

    def meet(self, tensor: Any) -> Any:
        self.tensors.append(tensor)
        return tensor


class Player:
    """The second call of a function: puts what was noted in the place of what is computed.

    The gradient then ends at what was noted; `pull` carries it on from there into what computed it the first time.
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
        """Gradients of the sources, through everything that was remembered."""
        known = self._tensors[: len(self._computed)]
        found = self._tape.gradient(targets, [*sources, *known], output_gradients=gradients)
        for last in reversed(range(len(known))):
            of_known = found.pop()
            if of_known is not None:
                more = self._tape.gradient(self._computed[last], [*sources, *known[:last]], output_gradients=of_known)
                found = [_sum(a, b) for a, b in zip(found, more, strict=True)]
        return found


@contextmanager
def remembering(memory: _Memory | None) -> Generator[None]:
    """What `remember` speaks to inside."""
    token = _memory.set(memory)
    try:
        yield
    finally:
        _memory.reset(token)


def _sum(a: Any, b: Any) -> Any:
    if a is None or b is None:
        return b if a is None else a
    return tf.convert_to_tensor(a) + tf.convert_to_tensor(b)
