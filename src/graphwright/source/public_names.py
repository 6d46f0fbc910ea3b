"""Names of a package that are loaded when they are first used, so that importing the package is quick and works without TensorFlow."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def public_names(
    package: str, home: Mapping[str, str], others: Sequence[str] = ()
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package.

    Args:
        package: its full name.
        home: public name -> module that defines it.
        others: further names that `dir` shows; what is not an attribute by itself is a module within the package.

    >>> load, names = public_names("graphwright", {"Graph": "graphwright.ir.graph"}, ["train"])
    >>> load("Graph"), names()
    (<class 'graphwright.ir.graph.Graph'>, ['Graph', 'train'])
    """

    def load(name: str) -> object:
        if name not in home:
            if name in others:
                return import_module(f"{package}.{name}")
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            value: object = getattr(import_module(home[name]), name)
        except ModuleNotFoundError as error:
            if error.name != "tensorflow":
                raise
            from graphwright.source.tensorflow_import import import_tensorflow

            import_tensorflow()  # raises the error that says what to install
            raise
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted([*home, *others])

    return load, names
