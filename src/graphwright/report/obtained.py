"""A figure and how it was obtained, as one value: who finds it says so, and hands on both."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

Found_co = TypeVar("Found_co", covariant=True)


class Obtained(NamedTuple, Generic[Found_co]):
    """What was found, and in words how; of what was not found, why.

    >>> peak, how = Obtained(512, "simulated")
    >>> peak, how
    (512, 'simulated')
    """

    found: Found_co
    how: str
