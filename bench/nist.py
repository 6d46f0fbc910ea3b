"""The nonlinear regression problems of NIST's Statistical Reference Datasets: the files of `bench/data/nist`, and their models."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FOLDER = Path(__file__).parent / "data" / "nist"
_PARAMETER = re.compile(r"\s*b\d+ =" + r"\s+(\S+)" * 4)
_SQUARES = re.compile(r"Residual Sum of Squares:\s+(\S+)")

Vector = NDArray[np.float64]
Model = Callable[[Any, Any, Any], Any]
"""Parameters, the predictor, and the module with `exp`, `cos` and `sin` (NumPy or `tf`) -> the response."""


def _sum_of_gaussians(b: Any, x: Any, m: Any) -> Any:
    return b[0] * m.exp(-b[1] * x) + b[2] * m.exp(-((x - b[3]) ** 2) / b[4] ** 2) + b[5] * m.exp(-((x - b[6]) ** 2) / b[7] ** 2)


def _three_exponentials(b: Any, x: Any, m: Any) -> Any:
    return b[0] * m.exp(-b[1] * x) + b[2] * m.exp(-b[3] * x) + b[4] * m.exp(-b[5] * x)


def _cubic_over_cubic(b: Any, x: Any, _: Any) -> Any:
    return (b[0] + b[1] * x + b[2] * x**2 + b[3] * x**3) / (1.0 + b[4] * x + b[5] * x**2 + b[6] * x**3)


def _exponential_over_line(b: Any, x: Any, m: Any) -> Any:
    return m.exp(-b[0] * x) / (b[1] + b[2] * x)


def _saturation(b: Any, x: Any, m: Any) -> Any:
    return b[0] * (1.0 - m.exp(-b[1] * x))


def _three_cycles(b: Any, x: Any, m: Any) -> Any:
    def cycle(period: Any, cosine: Any, sine: Any) -> Any:
        angle = 2.0 * math.pi * x / period
        return cosine * m.cos(angle) + sine * m.sin(angle)

    return b[0] + cycle(12.0, b[1], b[2]) + cycle(b[3], b[4], b[5]) + cycle(b[6], b[7], b[8])


MODELS: dict[str, Model] = {
    "Bennett5": lambda b, x, _: b[0] * (b[1] + x) ** (-1.0 / b[2]),
    "BoxBOD": _saturation,
    "Chwirut1": _exponential_over_line,
    "Chwirut2": _exponential_over_line,
    "DanWood": lambda b, x, _: b[0] * x ** b[1],
    "ENSO": _three_cycles,
    "Eckerle4": lambda b, x, m: b[0] / b[1] * m.exp(-0.5 * ((x - b[2]) / b[1]) ** 2),
    "Gauss1": _sum_of_gaussians,
    "Gauss2": _sum_of_gaussians,
    "Gauss3": _sum_of_gaussians,
    "Hahn1": _cubic_over_cubic,
    "Kirby2": lambda b, x, _: (b[0] + b[1] * x + b[2] * x**2) / (1.0 + b[3] * x + b[4] * x**2),
    "Lanczos1": _three_exponentials,
    "Lanczos2": _three_exponentials,
    "Lanczos3": _three_exponentials,
    "MGH09": lambda b, x, _: b[0] * (x**2 + x * b[1]) / (x**2 + x * b[2] + b[3]),
    "MGH10": lambda b, x, m: b[0] * m.exp(b[1] / (x + b[2])),
    "MGH17": lambda b, x, m: b[0] + b[1] * m.exp(-x * b[3]) + b[2] * m.exp(-x * b[4]),
    "Misra1a": _saturation,
    "Misra1b": lambda b, x, _: b[0] * (1.0 - (1.0 + b[1] * x / 2.0) ** -2.0),
    "Misra1c": lambda b, x, _: b[0] * (1.0 - (1.0 + 2.0 * b[1] * x) ** -0.5),
    "Misra1d": lambda b, x, _: b[0] * b[1] * x / (1.0 + b[1] * x),
    "Rat42": lambda b, x, m: b[0] / (1.0 + m.exp(b[1] - b[2] * x)),
    "Rat43": lambda b, x, m: b[0] / (1.0 + m.exp(b[1] - b[2] * x)) ** (1.0 / b[3]),
    "Thurber": _cubic_over_cubic,
}


@dataclass(frozen=True)
class Problem:
    """A data set with its certified solution.

    Attributes:
        name: as NIST calls it.
        starts: the two starts of the data set, (n,) each; the first is farther away.
        certified: the parameters, (n,), to 11 digits.
        deviations: their certified standard deviations, (n,).
        squares: the certified residual sum of squares.
        x: the predictor, (m,).
        y: the response, (m,).
    """

    name: str
    starts: tuple[Vector, Vector]
    certified: Vector
    deviations: Vector
    squares: float
    x: Vector
    y: Vector

    def residuals(self, b: Any, x: Any, y: Any, module: Any = np) -> Any:
        """Return model minus response, with NumPy or TensorFlow."""
        return MODELS[self.name](b, x, module) - y

    def digits(self, found: Vector) -> float:
        """Return the decimal digits that agree with the certified parameters: the fewest of all parameters, at most 11."""
        return _digits(found, self.certified)

    def deviation_digits(self, found: Vector) -> float:
        """Return the decimal digits that agree with the certified standard deviations."""
        return _digits(found, self.deviations)


def _digits(found: Vector, certified: Vector) -> float:
    if not np.isfinite(found).all():
        return -math.inf
    errors = np.abs(found - certified) / np.abs(certified)
    return float(min(11.0, -np.log10(np.max(np.maximum(errors, 1e-300)))))


def read_problem(name: str) -> Problem:
    """Read a file by its name without suffix."""
    text = (FOLDER / f"{name}.dat").read_text(encoding="ascii")
    table = np.array([[float(cell) for cell in match.groups()] for match in map(_PARAMETER.match, text.splitlines()) if match])
    squares = _SQUARES.search(text)
    assert squares is not None, f"{name}: no residual sum of squares"
    rows = [line.split() for line in text.rsplit("Data:", maxsplit=1)[1].splitlines()[1:] if line.strip()]
    y, x = np.array(rows, dtype=np.float64).T
    return Problem(name, (table[:, 0], table[:, 1]), table[:, 2], table[:, 3], float(squares[1]), x, y)


def all_problems() -> list[Problem]:
    """Return all problems by name."""
    return [read_problem(name) for name in sorted(MODELS)]
