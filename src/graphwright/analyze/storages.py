"""States of values when loops are executed on storages in place of numbers (see `graphwright.analyze.loops`)."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from graphwright.ir.dtypes import DType, Numbers, Shape
from graphwright.ir.graph import Node, Value

SMALL_BYTES = 4096
"""What touches less is never planned (see `graphwright.analyze.cost`)."""
Scalar = int | float | bool
PLACE_BYTES = 32
"""Of a tensor in a list of TensorFlow's, beside the tensor's own."""
_HEADER_BYTES, _PAGE_BYTES, _MAPPED_FROM_BYTES = 80, 4096, 32768  # the last as `graphwright.run.meter` asks malloc for it


@dataclass(eq=False, slots=True)
class Storage:
    """A buffer. `owner` is the value of the outer graph to which its bytes count; None for resident buffers, and for buffers that a
    function does not return.
    """

    nbytes: int
    owner: Value | None = None
    resident: bool = False


@dataclass(frozen=True, slots=True)
class Dense:
    """A tensor.

    Attributes:
        storage: its bytes, perhaps shared by other tensors.
        shape: its dimensions.
        number: of a scalar that could be computed.
        sizes: the least and the largest values of a few integers; good for sizes only.
        exact: for a shape that is an upper bound because it depends on data, the dimensions that do not.
    """

    storage: Storage
    shape: Shape
    number: Scalar | None = None
    sizes: Numbers | None = None
    exact: Shape = None


@dataclass(frozen=True, slots=True)
class TensorList:
    """A list of tensors; an element that was never set is None."""

    items: tuple[Dense | None, ...]
    dtype: DType | None = None


State = Dense | TensorList


@dataclass(slots=True)
class Frame:
    """The effects of one execution of a function."""

    created: dict[Storage, Value] = field(default_factory=dict[Storage, Value])
    workspace: int = 0
    executed: defaultdict[Node, float] = field(default_factory=lambda: defaultdict[Node, float](float))

    def add_runs(self, runs: Mapping[Node, float], times: float = 1.0) -> None:
        for node, often in runs.items():
            self.executed[node] += often * times


def without_number(state: State) -> State:
    return replace(state, number=None, sizes=None) if isinstance(state, Dense) else state


def storages_of(states: Iterable[State], *, resident: bool = False) -> set[Storage]:
    """Return the storages that states hold; residents only if asked for."""
    storages: set[Storage] = set()
    for state in states:
        if isinstance(state, Dense):
            storages.add(state.storage)
        else:
            storages.update(s.storage for s in state.items if s is not None)
    return storages if resident else {s for s in storages if not s.resident}


def total_bytes(storages: Iterable[Storage]) -> int:
    """Return the bytes of storages that are not resident."""
    return sum(s.nbytes for s in storages if not s.resident)


def number_of(state: State) -> Scalar | None:
    return state.number if isinstance(state, Dense) else None


def allocated_bytes(nbytes: int) -> int:
    """Return the bytes that a tensor takes of the process: malloc adds a header and TensorFlow an alignment; mapped blocks are whole pages.

    >>> allocated_bytes(100), allocated_bytes(131072)
    (192, 135168)
    """
    if not nbytes:
        return 0
    padded = nbytes + _HEADER_BYTES
    return -(-padded // _PAGE_BYTES) * _PAGE_BYTES if padded >= _MAPPED_FROM_BYTES else -(-padded // 64) * 64


def element_bytes(nbytes: int) -> int:
    """Return the bytes of a tensor in the body of a loop, where few of many scalars exist at once.

    >>> element_bytes(4), element_bytes(1024), element_bytes(32768)
    (4, 1152, 36864)
    """
    return allocated_bytes(nbytes) if nbytes > _HEADER_BYTES else nbytes
