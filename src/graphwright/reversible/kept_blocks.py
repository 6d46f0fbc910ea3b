"""How many of a RevNet's last units may store tensors to save time, under one peak for every depth.

Rebuilding takes at most a few streams of the first stage, whose images are the largest. Later stages need less. While they run, memory
is left for tensors of their units, which are freed before the first stage is rebuilt. The budget is a number of streams of the first
stage: it grows with the images and the batch, not with the depth.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class _Unit:
    """A kind of unit; sizes in streams of its stage.

    Attributes:
        working: memory of its backward pass: four streams and their gradients, and the inside of one function. Determined by
            `graphwright.predict_peak(..., order="executor")` and by measurement.
        remembered: results of all convolutions but the last, of both functions.
        saved: share of the convolutions' FLOPs that remembered tensors save; stored inputs save the rest.
        budget: memory that may be in use, in streams of the first stage. A network of 38 layers fills it, so the peak of a deeper
            network is the same.
    """

    working: float
    remembered: float
    saved: float
    budget: float


_INPUTS = 2
_BASIC = _Unit(working=8, remembered=2, saved=1 / 2, budget=26)
_BOTTLENECK = _Unit(working=7, remembered=1, saved=13 / 17, budget=11)


def blocks_that_fit(units: Sequence[int], sizes: Sequence[float], stem: float, *, bottleneck: bool) -> tuple[int, int]:
    """Return how many of the last units can store their inputs, and how many their remembered tensors.

    Args:
        units: of each stage.
        sizes: elements of a stream of one image, for each stage.
        stem: likewise after the stem.
        bottleneck: whether functions have three convolutions.

    >>> [blocks_that_fit([n] * 3, [16, 8, 4], 16, bottleneck=False) for n in (3, 9, 27)]
    [(9, 9), (15, 15), (21, 21)]
    >>> [blocks_that_fit([n] * 3, [64, 32, 16], 16, bottleneck=True) for n in (2, 6, 9)]
    [(3, 6), (0, 13), (0, 16)]
    """
    kind = _BOTTLENECK if bottleneck else _BASIC
    before = [stem, *sizes[:-1]]
    # The first unit of a stage stores its inputs in any case, except in the first stage if the stem has its width.
    always_stored = [_INPUTS * sum(before[stem == sizes[0] : stage + 1]) for stage in range(len(sizes))]

    def fits(inputs: int, remembering: int) -> bool:
        stored, start = 0.0, 0
        for stage, (count, size) in enumerate(zip(units, sizes, strict=True)):
            start += count
            later = sum(units) - start  # units of later stages
            streams = min(max(inputs - later, 0), count) * _INPUTS + min(max(remembering - later, 0), count) * kind.remembered
            stored += streams * size
            if stored and stored + always_stored[stage] + kind.working * size > kind.budget * sizes[0]:
                return False
        return True

    best, inputs = (0.0, 0, 0), sum(units)
    for remembering in range(sum(units) + 1):
        while inputs and not fits(inputs, remembering):
            inputs -= 1
        if not fits(inputs, remembering):
            break
        counted = min(inputs, remembering)
        best = max(best, (remembering * kind.saved + counted * (1 - kind.saved), counted, remembering))
    return best[1], best[2]
