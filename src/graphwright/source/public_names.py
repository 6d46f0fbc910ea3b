"""Public names of a package that are loaded on first use, so that importing it is quick and works without TensorFlow. The package lists
them as imports for type checkers: `from module import name as name`, in its block `if TYPE_CHECKING`.
"""

import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from graphwright.source.tensorflow_import import explaining_missing_tensorflow

_IMPORT = re.compile(r"^    from (\S+) import (\w+) as \2$", re.MULTILINE)


def public_names(package: str, others: Sequence[str] = ()) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package; `dir` also shows `others`. A name imported from the package itself is a module."""
    module: Any = sys.modules[package]
    home = {name: where for where, name in _IMPORT.findall(module.__spec__.loader.get_source(package))}

    def load(name: str) -> object:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with explaining_missing_tensorflow():
            value: object = import_module(f"{package}.{name}") if home[name] == package else getattr(import_module(home[name]), name)
        setattr(module, name, value)
        return value

    def names() -> list[str]:
        return sorted([*home, *others])

    return load, names
