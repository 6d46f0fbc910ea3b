"""The least-squares problems of J. J. Moré, B. S. Garbow, K. E. Hillstrom: Testing Unconstrained Optimization Software (1981).

All 35 functions of the paper (ACM TOMS 7(1), 17-41), in its order, as TensorFlow functions of one vector. The paper tries each from its
start and from 10 and 100 times the start; if the start is zero, from 10 and 100 in every element, as MINPACK's tests do.

A minimum is a sum of squares. Minima that the paper gives to few digits have been computed to more. Infima that are only
approached as parameters go to infinity (Bard, Kowalik and Osborne) are not listed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

FACTORS = (1.0, 10.0, 100.0)

Residuals = Callable[[Any], Any]


@dataclass(frozen=True)
class Problem:
    """One function with its start and its minima.

    Attributes:
        name: as in the paper.
        residuals: parameters (n,) -> residuals (m,).
        start: the standard start (n,).
        minima: sums of squares at the known minima, the global one first.
    """

    name: str
    residuals: Residuals
    start: tuple[float, ...]
    minima: tuple[float, ...] = (0.0,)

    def start_times(self, factor: float) -> NDArray[np.float64]:
        """Return the start, scaled away from zero."""
        start = np.array(self.start)
        return start * factor if start.any() or factor == 1.0 else np.full_like(start, factor)

    def is_minimum(self, squares: float) -> bool:
        """Return whether a sum of squares is a known minimum, to 1e-6 of it or of 1e-5."""
        return any(abs(squares - known) <= 1e-6 * max(known, 1e-5) for known in self.minima)


def _indices(count: int) -> NDArray[np.float64]:
    return np.arange(1.0, count + 1.0)


def _rosenbrock(x: Any) -> Any:
    even, odd = x[1::2], x[::2]
    return tf.concat([10.0 * (even - odd**2), 1.0 - odd], axis=0)


def _freudenstein_and_roth(x: Any) -> Any:
    return tf.stack([x[0] - 13.0 + ((5.0 - x[1]) * x[1] - 2.0) * x[1], x[0] - 29.0 + ((x[1] + 1.0) * x[1] - 14.0) * x[1]])


def _powell_badly_scaled(x: Any) -> Any:
    return tf.stack([1e4 * x[0] * x[1] - 1.0, tf.exp(-x[0]) + tf.exp(-x[1]) - 1.0001])


def _brown_badly_scaled(x: Any) -> Any:
    return tf.stack([x[0] - 1e6, x[1] - 2e-6, x[0] * x[1] - 2.0])


def _beale(x: Any) -> Any:
    return np.array([1.5, 2.25, 2.625]) - x[0] * (1.0 - tf.stack([x[1], x[1] ** 2, x[1] ** 3]))


def _jennrich_and_sampson(x: Any) -> Any:
    i = _indices(10)
    return 2.0 + 2.0 * i - (tf.exp(i * x[0]) + tf.exp(i * x[1]))


def _helical_valley(x: Any) -> Any:
    turns = tf.atan(x[1] / x[0]) / (2.0 * math.pi) + tf.where(x[0] < 0.0, tf.constant(0.5, x.dtype), tf.constant(0.0, x.dtype))
    return tf.stack([10.0 * (x[2] - 10.0 * turns), 10.0 * (tf.sqrt(x[0] ** 2 + x[1] ** 2) - 1.0), x[2]])


BARD = np.array([0.14, 0.18, 0.22, 0.25, 0.29, 0.32, 0.35, 0.39, 0.37, 0.58, 0.73, 0.96, 1.34, 2.10, 4.39])


def _bard(x: Any) -> Any:
    u = _indices(15)
    return BARD - (x[0] + u / ((16.0 - u) * x[1] + np.minimum(u, 16.0 - u) * x[2]))


GAUSSIAN = np.array([9e-4, 44e-4, 0.0175, 0.054, 0.1295, 0.242, 0.3521, 0.3989, 0.3521, 0.242, 0.1295, 0.054, 0.0175, 44e-4, 9e-4])


def _gaussian(x: Any) -> Any:
    return x[0] * tf.exp(-0.5 * x[1] * (0.5 * (8.0 - _indices(15)) - x[2]) ** 2) - GAUSSIAN


MEYER = np.array([34780, 28610, 23650, 19630, 16370, 13720, 11540, 9744, 8261, 7030, 6005, 5147, 4427, 3820, 3307, 2872], np.float64)


def _meyer(x: Any) -> Any:
    return x[0] * tf.exp(x[1] / (45.0 + 5.0 * _indices(16) + x[2])) - MEYER


def _gulf(x: Any) -> Any:
    t = _indices(99) / 100.0
    return tf.exp(-(tf.abs(25.0 + (-50.0 * np.log(t)) ** (2.0 / 3.0) - x[1]) ** x[2]) / x[0]) - t


def _box(x: Any) -> Any:
    t = 0.1 * _indices(10)
    return tf.exp(-t * x[0]) - tf.exp(-t * x[1]) - x[2] * (np.exp(-t) - np.exp(-10.0 * t))


def _powell_singular(x: Any) -> Any:
    a, b, c, d = x[::4], x[1::4], x[2::4], x[3::4]
    return tf.concat([a + 10.0 * b, math.sqrt(5.0) * (c - d), (b - 2.0 * c) ** 2, math.sqrt(10.0) * (a - d) ** 2], axis=0)


def _wood(x: Any) -> Any:
    valleys = [10.0 * (x[1] - x[0] ** 2), 1.0 - x[0], math.sqrt(90.0) * (x[3] - x[2] ** 2), 1.0 - x[2]]
    return tf.stack([*valleys, math.sqrt(10.0) * (x[1] + x[3] - 2.0), (x[1] - x[3]) / math.sqrt(10.0)])


KOWALIK = np.array([0.1957, 0.1947, 0.1735, 0.1600, 0.0844, 0.0627, 0.0456, 0.0342, 0.0323, 0.0235, 0.0246])
KOWALIK_U = np.array([4.0, 2.0, 1.0, 0.5, 0.25, 0.167, 0.125, 0.1, 0.0833, 0.0714, 0.0625])


def _kowalik_and_osborne(x: Any) -> Any:
    u = KOWALIK_U
    return KOWALIK - x[0] * (u**2 + u * x[1]) / (u**2 + u * x[2] + x[3])


def _brown_and_dennis(x: Any) -> Any:
    t = _indices(20) / 5.0
    return (x[0] + t * x[1] - np.exp(t)) ** 2 + (x[2] + x[3] * np.sin(t) - np.cos(t)) ** 2


OSBORNE_1 = 1e-3 * np.array(
    (
        "844 908 932 936 925 908 881 850 818 784 751 718 685 658 628 603 580 558 538 522 506 490 478 467 457 448 438 431 424 420 414 "
        "411 406"
    ).split(),
    np.float64,
)


def _osborne_1(x: Any) -> Any:
    t = 10.0 * (_indices(33) - 1.0)
    return OSBORNE_1 - (x[0] + x[1] * tf.exp(-t * x[3]) + x[2] * tf.exp(-t * x[4]))


def _biggs(x: Any) -> Any:
    t = 0.1 * _indices(13)
    y = np.exp(-t) - 5.0 * np.exp(-10.0 * t) + 3.0 * np.exp(-4.0 * t)
    return x[2] * tf.exp(-t * x[0]) - x[3] * tf.exp(-t * x[1]) + x[5] * tf.exp(-t * x[4]) - y


OSBORNE_2 = 1e-3 * np.array(
    (
        "1366 1191 1112 1013 991 885 831 847 786 725 746 679 608 655 616 606 602 626 651 724 649 649 694 644 624 661 612 558 533 495 "
        "500 423 395 375 372 391 396 405 428 429 523 562 607 653 672 708 633 668 645 632 591 559 597 625 739 710 729 720 636 581 428 "
        "292 162 98 54"
    ).split(),
    np.float64,
)


def _osborne_2(x: Any) -> Any:
    t = 0.1 * (_indices(65) - 1.0)
    bells = [x[k] * tf.exp(-((t - x[k + 7]) ** 2) * x[k + 4]) for k in (1, 2, 3)]
    return OSBORNE_2 - (x[0] * tf.exp(-t * x[4]) + tf.add_n(bells))


def _watson(x: Any) -> Any:
    t, powers = _indices(29)[:, None] / 29.0, np.arange(int(x.shape[0]))
    slopes = powers[1:] * t ** (powers[1:] - 1)
    polynomial = tf.linalg.matvec(tf.constant(slopes), x[1:]) - tf.linalg.matvec(tf.constant(t**powers), x) ** 2 - 1.0
    return tf.concat([polynomial, [x[0], x[1] - x[0] ** 2 - 1.0]], axis=0)


def _penalty_1(x: Any) -> Any:
    return tf.concat([math.sqrt(1e-5) * (x - 1.0), [tf.reduce_sum(x**2) - 0.25]], axis=0)


def _penalty_2(x: Any) -> Any:
    n, root = int(x.shape[0]), math.sqrt(1e-5)
    y = np.exp(_indices(n)[1:] / 10.0) + np.exp(_indices(n)[:-1] / 10.0)
    pairs = root * (tf.exp(x[1:] / 10.0) + tf.exp(x[:-1] / 10.0) - y)
    singles = root * (tf.exp(x[1:] / 10.0) - math.exp(-0.1))
    return tf.concat([[x[0] - 0.2], pairs, singles, [tf.reduce_sum((n + 1.0 - _indices(n)) * x**2) - 1.0]], axis=0)


def _variably_dimensioned(x: Any) -> Any:
    total = tf.reduce_sum(_indices(int(x.shape[0])) * (x - 1.0))
    return tf.concat([x - 1.0, [total, total**2]], axis=0)


def _trigonometric(x: Any) -> Any:
    n = int(x.shape[0])
    return n - tf.reduce_sum(tf.cos(x)) + _indices(n) * (1.0 - tf.cos(x)) - tf.sin(x)


def _brown_almost_linear(x: Any) -> Any:
    linear = x + tf.reduce_sum(x) - (int(x.shape[0]) + 1.0)
    return tf.concat([linear[:-1], [tf.reduce_prod(x) - 1.0]], axis=0)


def _boundary_value(x: Any) -> Any:
    n = int(x.shape[0])
    h, t = 1.0 / (n + 1), _indices(n) / (n + 1)
    padded = tf.pad(x, [[1, 1]])
    return 2.0 * x - padded[:-2] - padded[2:] + 0.5 * h**2 * (x + t + 1.0) ** 3


def _integral_equation(x: Any) -> Any:
    n = int(x.shape[0])
    t = _indices(n) / (n + 1)
    kernel = np.minimum(t[:, None] * (1.0 - t), (1.0 - t[:, None]) * t)
    return x + 0.5 / (n + 1) * tf.linalg.matvec(tf.constant(kernel), (x + t + 1.0) ** 3)


def _broyden_tridiagonal(x: Any) -> Any:
    padded = tf.pad(x, [[1, 1]])
    return (3.0 - 2.0 * x) * x - padded[:-2] - 2.0 * padded[2:] + 1.0


def _broyden_banded(x: Any) -> Any:
    n = int(x.shape[0])
    apart = np.arange(n)[:, None] - np.arange(n)
    band = ((apart <= 5) & (apart >= -1) & (apart != 0)).astype(np.float64)
    return x * (2.0 + 5.0 * x**2) + 1.0 - tf.linalg.matvec(tf.constant(band), x * (1.0 + x))


def _linear_full_rank(x: Any) -> Any:
    return tf.pad(x, [[0, 5]]) - 0.2 * tf.reduce_sum(x) - 1.0


def _linear_rank_1(x: Any) -> Any:
    return _indices(10) * tf.reduce_sum(_indices(5) * x) - 1.0


def _linear_rank_1_with_zeros(x: Any) -> Any:
    rows = np.concatenate([[0.0], _indices(8), [0.0]])
    return rows * tf.reduce_sum(_indices(5)[1:-1] * x[1:-1]) - 1.0


def _chebyquad(x: Any) -> Any:
    shifted = 2.0 * x - 1.0
    polynomials = [tf.ones_like(x), shifted]
    for _ in range(2, 9):
        polynomials.append(2.0 * shifted * polynomials[-1] - polynomials[-2])
    integrals = [0.0 if i % 2 else -1.0 / (i * i - 1.0) for i in range(1, 9)]
    return tf.stack([tf.reduce_mean(values) for values in polynomials[1:]]) - np.array(integrals)


_TENTHS = _indices(10) / 10.0
_INNER = _indices(10) / 11.0

PROBLEMS: dict[str, Problem] = {
    problem.name: problem
    for problem in (
        Problem("Rosenbrock", _rosenbrock, (-1.2, 1.0)),
        Problem("Freudenstein and Roth", _freudenstein_and_roth, (0.5, -2.0), (0.0, 48.98425367924)),
        Problem("Powell badly scaled", _powell_badly_scaled, (0.0, 1.0)),
        Problem("Brown badly scaled", _brown_badly_scaled, (1.0, 1.0)),
        Problem("Beale", _beale, (1.0, 1.0)),
        Problem("Jennrich and Sampson", _jennrich_and_sampson, (0.3, 0.4), (124.362182355615,)),
        Problem("helical valley", _helical_valley, (-1.0, 0.0, 0.0)),
        Problem("Bard", _bard, (1.0, 1.0, 1.0), (8.21487730657899e-3,)),
        Problem("Gaussian", _gaussian, (0.4, 1.0, 0.0), (1.12793276961871e-8,)),
        Problem("Meyer", _meyer, (0.02, 4000.0, 250.0), (87.9458551709,)),
        Problem("Gulf", _gulf, (5.0, 2.5, 0.15)),
        Problem("Box", _box, (0.0, 10.0, 20.0)),
        Problem("Powell singular", _powell_singular, (3.0, -1.0, 0.0, 1.0)),
        Problem("Wood", _wood, (-3.0, -1.0, -3.0, -1.0)),
        Problem("Kowalik and Osborne", _kowalik_and_osborne, (0.25, 0.39, 0.415, 0.39), (3.0750560384924e-4,)),
        Problem("Brown and Dennis", _brown_and_dennis, (25.0, 5.0, -5.0, -1.0), (85822.2016263563,)),
        Problem("Osborne 1", _osborne_1, (0.5, 1.5, -1.0, 0.01, 0.02), (5.46489469748e-5,)),
        Problem("Biggs", _biggs, (1.0, 2.0, 1.0, 1.0, 1.0, 1.0), (0.0, 5.6556499e-3)),
        Problem("Osborne 2", _osborne_2, (1.3, 0.65, 0.65, 0.7, 0.6, 3.0, 5.0, 7.0, 2.0, 4.5, 5.5), (4.0137736294e-2,)),
        Problem("Watson", _watson, (0.0,) * 6, (2.28767005355e-3,)),
        Problem("extended Rosenbrock", _rosenbrock, (-1.2, 1.0) * 5),
        Problem("extended Powell singular", _powell_singular, (3.0, -1.0, 0.0, 1.0) * 3),
        Problem("penalty 1", _penalty_1, tuple(_indices(10)), (7.0876515e-5,)),
        Problem("penalty 2", _penalty_2, (0.5,) * 10, (2.9366054e-4,)),
        Problem("variably dimensioned", _variably_dimensioned, tuple(1.0 - _TENTHS)),
        Problem("trigonometric", _trigonometric, (0.1,) * 10, (0.0, 2.79505612188e-5)),
        Problem("Brown almost linear", _brown_almost_linear, (0.5,) * 10, (0.0, 1.0)),
        Problem("discrete boundary value", _boundary_value, tuple(_INNER * (_INNER - 1.0))),
        Problem("discrete integral equation", _integral_equation, tuple(_INNER * (_INNER - 1.0))),
        Problem("Broyden tridiagonal", _broyden_tridiagonal, (-1.0,) * 10),
        Problem("Broyden banded", _broyden_banded, (-1.0,) * 10),
        Problem("linear, full rank", _linear_full_rank, (1.0,) * 5, (5.0,)),
        Problem("linear, rank 1", _linear_rank_1, (1.0,) * 5, (15.0 / 7.0,)),
        Problem("linear, rank 1 with zeros", _linear_rank_1_with_zeros, (1.0,) * 5, (62.0 / 17.0,)),
        Problem("Chebyquad", _chebyquad, tuple(_indices(8) / 9.0), (3.51687372568e-3,)),
    )
}
