"""Training: steps that fit the memory, and solvers beside gradient descent.

Names are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphwright.train.damped_least_squares.result import LeastSquaresResult as LeastSquaresResult
    from graphwright.train.damped_least_squares.solve import LeastSquares as LeastSquares
    from graphwright.train.damped_least_squares.solve import least_squares as least_squares

_HOME = {
    "LeastSquares": "graphwright.train.damped_least_squares.solve",
    "LeastSquaresResult": "graphwright.train.damped_least_squares.result",
    "least_squares": "graphwright.train.damped_least_squares.solve",
}
"""Public name -> module that defines it."""


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'graphwright.train' has no attribute {name!r}")
    try:
        value = getattr(import_module(_HOME[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "tensorflow":
            raise
        from graphwright.source.tensorflow_import import import_tensorflow

        import_tensorflow()  # raises the error that says what to install
        raise
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_HOME)
