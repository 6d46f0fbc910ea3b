"""The result of a measurement, with the way it was obtained."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass, field

from graphwright.plain import Result


@dataclass(frozen=True, slots=True)
class Measurement(Result):
    """Peak memory and time of one step, measured.

    >>> print(Measurement(3 * 2**20, 2**20, 0.5, "by hand"))
    peak 3.0 MiB, of which 1.0 MiB are resident; 0.5 s a step
    <BLANKLINE>
    How they were obtained
      by hand

    Attributes:
        peak_bytes: resident bytes plus the largest growth above them during the step.
        resident_bytes: variables, captured constants and inputs, held during the whole step.
        time_s: median wall time of a step in seconds; nan when it was not asked for.
        how: how it was measured, in words.
        times_s: when the figures below changed, from the first allocation of a step on; empty where the allocator tells no times.
        bytes_in_use: what was given out from then on, resident bytes included. Scratch that kernels asked for and may not have written
            counts, so the most of it may lie above `peak_bytes`.
    """

    peak_bytes: int
    resident_bytes: int
    time_s: float
    how: str
    times_s: tuple[float, ...] = field(default=(), repr=False)
    bytes_in_use: tuple[int, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        time = "" if math.isnan(self.time_s) else f"; {self.time_s:.3g} s a step"
        figures = f"peak {self.peak_bytes / 2**20:,.1f} MiB, of which {self.resident_bytes / 2**20:,.1f} MiB are resident{time}"
        return f"{figures}\n\nHow they were obtained\n{textwrap.fill(self.how, 80, initial_indent='  ', subsequent_indent='  ')}"
