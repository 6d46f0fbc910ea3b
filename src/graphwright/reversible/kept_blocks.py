"""How many of a RevNet's last units may keep what saves time, under one peak for every depth.

Rebuilding takes at most a few streams of the first stage, whose images are the largest. Later stages need less, so while they are at
work there is room for what their units keep, all of which is gone before the first stage is rebuilt. The budget is a number
of streams of the first stage: it grows with the images and the batch, not with the depth.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class _Unit:
    """A kind of unit; sizes in streams of its stage.

    Attributes:
        working: what its backward pass needs at most: four streams and their gradients, and the inside of one function.
            Read off `graphwright.predict_peak(..., order="executor")` and measured.
        remembered: what its two functions remember: the results of all convolutions but the last.
        saved: the share of its convolutions' FLOPs that need not run again then; to keep both inputs saves the rest.
        budget: streams of the first stage. What is above `working` buys time. Small enough that
            a network of 38 layers fills it: the peak of a deeper one is the same.
    """

    working: float
    remembered: float
    saved: float
    budget: float


_INPUTS = 2
_BASIC = _Unit(working=8, remembered=2, saved=1 / 2, budget=26)
_BOTTLENECK = _Unit(working=7, remembered=1, saved=13 / 17, budget=11)


def blocks_that_fit(units: Sequence[int], sizes: Sequence[float], stem: float, *, bottleneck: bool) -> tuple[int, int]:
    """How many of the last units can keep their inputs, and how many what their functions remember.

    Args:
        units: of each stage.
        sizes: floats of a stream of an image, of each stage.
        stem: likewise behind the stem.
        bottleneck: whether functions have three convolutions.

    >>> [blocks_that_fit([n] * 3, [16, 8, 4], 16, bottleneck=False) for n in (3, 9, 27)]
    [(9, 9), (15, 15), (21, 21)]
    >>> [blocks_that_fit([n] * 3, [64, 32, 16], 16, bottleneck=True) for n in (2, 6, 9)]
    [(3, 6), (0, 13), (0, 16)]
    """
    kind = _BOTTLENECK if bottleneck else _BASIC
    before = [stem, *sizes[:-1]]  # the first unit of a stage keeps its inputs in any case, but where the stem fits the first stage
    kept_anyway = [_INPUTS * sum(before[stem == sizes[0] : stage + 1]) for stage in range(len(sizes))]

    def fits(inputs: int, remembering: int) -> bool:
        kept, start = 0.0, 0
        for stage, (count, size) in enumerate(zip(units, sizes, strict=True)):
            start += count
            behind = sum(units) - start  # units of later stages
            keeping = min(max(inputs - behind, 0), count) * _INPUTS + min(max(remembering - behind, 0), count) * kind.remembered
            kept += keeping * size
            if kept and kept + kept_anyway[stage] + kind.working * size > kind.budget * sizes[0]:
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
