"""Buffers of a simulated execution, and what is known of its memory in the end."""

from __future__ import annotations

from dataclasses import dataclass, field

from graphwright.analyze.storages import Scalar
from graphwright.ir.graph import Node, Value

_HEADER_BYTES, _PAGE_BYTES, _MAPPED_FROM_BYTES = 80, 4096, 32768  # the last as `graphwright.run.meter` asks malloc for it


def allocated_bytes(nbytes: int) -> int:
    """Bytes that a tensor takes of the process: malloc adds a header and TensorFlow an alignment, and a mapped block is whole pages.

    >>> allocated_bytes(100), allocated_bytes(131072)
    (192, 135168)
    """
    if not nbytes:
        return 0
    padded = nbytes + _HEADER_BYTES
    return -(-padded // _PAGE_BYTES) * _PAGE_BYTES if padded >= _MAPPED_FROM_BYTES else -(-padded // 64) * 64


@dataclass(eq=False, slots=True)
class Buffer:
    """Bytes with a count of holders. `items` are the elements of a list, which is a buffer without bytes of its own."""

    value: Value | None
    nbytes: int
    born: int
    refs: int = 1
    died: int = -1
    number: Scalar | None = None
    items: list[Buffer | None] | None = None
    forwarded: list[tuple[int, Value]] = field(default_factory=list["tuple[int, Value]"])  # whose bytes they became, and when

    def value_at(self, clock: int) -> Value | None:
        """The value whose bytes they were."""
        return next((value for when, value in reversed(self.forwarded) if when <= clock), self.value)


@dataclass(frozen=True, slots=True)
class PeakState:
    """The memory of one execution.

    Attributes:
        peak_bytes: the most that was held at once, resident bytes included.
        peak_node: the node that was starting then.
        live: the buffers that were held then, with the value whose bytes they are; largest first. Resident ones are left out
            unless the step has made them.
        workspace_bytes: what kernels needed then beyond their outputs.
        resident_bytes: there from the start.
        freed_resident_bytes: of those, what had been freed by then.
        order: names of the nodes in the order in which their kernels started.
        notes: what is not exact, in words.
    """

    peak_bytes: int
    peak_node: Node | None
    live: tuple[tuple[Value, int], ...]
    workspace_bytes: int
    resident_bytes: int
    freed_resident_bytes: int
    order: tuple[str, ...]
    notes: tuple[str, ...] = ()
