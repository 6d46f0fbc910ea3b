"""What a measurement gives: a value, with the way it was obtained."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measurement:
    """Peak memory and time of one step, measured.

    Attributes:
        peak_bytes: resident bytes plus the largest growth above them during the step.
        resident_bytes: variables, captured constants and inputs, held during the whole step.
        time_s: median wall time of a step in seconds; nan when it was not asked for.
        how: how it was measured, in words.
    """

    peak_bytes: int
    resident_bytes: int
    time_s: float
    how: str
