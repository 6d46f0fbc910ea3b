"""A figure with its origin."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

Found_co = TypeVar("Found_co", covariant=True)


class Obtained(NamedTuple, Generic[Found_co]):
    """A value, and how it was obtained; or a missing value, and why it is missing.

    >>> peak, how = Obtained(512, "simulated")
    >>> peak, how
    (512, 'simulated')
    """

    found: Found_co
    how: str
