"""A table of names with unique suffixes and suggestions for misspelled names."""

from collections.abc import Container
from difflib import get_close_matches
from itertools import islice
from typing import TypeVar

_T = TypeVar("_T")
_LENGTHS_APART = 4
_MOST_COMPARED = 2000


def free_name(name: str, taken: Container[str], first: int = 1) -> str:
    """Return the name itself where it is free, else with the first free suffix `_1`, `_2`, ..., tried from `first` on."""
    candidate, k = name, first
    while candidate in taken:
        candidate = f"{name}_{k}"
        k += 1
    return candidate


class NameTable(dict[str, _T]):
    """Items by name."""

    def __init__(self, items: dict[str, _T] | None = None) -> None:
        super().__init__(items or {})
        self._first_suffix: dict[str, int] = {}  # all smaller suffixes of a name are taken

    def unique(self, name: str) -> str:
        if name not in self:
            return name
        unique = free_name(name, self, self._first_suffix.get(name, 1))
        self._first_suffix[name] = int(unique.rpartition("_")[2])
        return unique

    def release(self, name: str) -> None:
        del self[name]
        base, _, suffix = name.rpartition("_")
        if base in self._first_suffix and suffix.isascii() and suffix.isdecimal() and suffix[0] != "0":
            self._first_suffix[base] = min(self._first_suffix[base], int(suffix))

    def forget_suffixes(self) -> None:
        self._first_suffix.clear()

    def like(self, name: str) -> list[str]:
        """Return up to three names that may have been meant: with the same last part, or with a similar spelling."""
        end = name.rpartition("/")[2]
        same_end = list(islice((n for n in self if n.rpartition("/")[2] == end), 3))
        if same_end:
            return same_end
        # Comparing texts is slow, so only part of a large table is compared.
        alike = islice((n for n in self if abs(len(n) - len(name)) <= _LENGTHS_APART), _MOST_COMPARED)
        return get_close_matches(name, alike)
