"""The solver, the Jacobian mode and the chunks of a batch: chosen by sizes, with reasons."""

from dataclasses import dataclass

from graphwright.errors import ArgumentError, UnsupportedError
from graphwright.least_squares.arguments import check_chunks
from graphwright.least_squares.jacobians import JacobianMode, cheapest_mode
from graphwright.least_squares.linear_systems import Method, MethodName, choose_method

JACOBIAN_BYTES = 2**22
"""Default size of the Jacobian in memory at a time; `SHARE_OF_SQUARE` of an n by n matrix if that is more."""
SHARE_OF_SQUARE = 1.0 / 48.0
KRYLOV_ITERATIONS = 50
"""Default limit of products per step of iterative solvers."""
_COTANGENTS = 128
"""Rows at a time where the work of each row is as large as for the whole chunk."""
WORTH_ITERATING = 20.0
"""For losses other than squares, `"cg"` is chosen if a Gram matrix takes this many times the work of an iterative solution."""
_ON_REPLICAS = ("cholesky", "cg")


@dataclass(frozen=True)
class Decisions:
    """How the steps of batches of one shape are computed.

    Attributes:
        chunk_size: samples (or, where samples depend on each other, residuals) whose Jacobian is in memory at a time; None for all.
        parameters: number of trainable elements.
        residuals: of the batch, on one replica.
        samples: of the batch, on one replica.
    """

    method: MethodName
    reason: str
    jacobian_mode: JacobianMode
    chunk_size: int | None
    parameters: int
    residuals: int
    samples: int

    def __str__(self) -> str:
        text = f"{self.method}: {self.reason}; {self.residuals} residuals of {self.samples} samples"
        if self.method == "cg":
            return text + ", no Jacobian is formed"
        unit = "all at once" if self.chunk_size is None else f"{self.chunk_size} at a time"
        return f"{text}; Jacobian {self.jacobian_mode.replace('_', ' ')}, {unit}"


@dataclass(frozen=True)
class Problem:
    """The sizes of a batch on one replica, and the properties of the model that matter.

    Attributes:
        itemsize: bytes of a number in the linear solver.
        coupled: whether samples depend on each other.
        random: whether layers draw random numbers.
        einsum: whether layers multiply by `einsum`, whose vectorized gradient writes beyond its memory (TensorFlow 2.21, oneDNN).
        squares: whether the loss is a sum of squares, which exact steps may bring to zero.
    """

    parameters: int
    samples: int
    residuals_per_sample: int
    itemsize: int
    replicas: int
    coupled: bool
    random: bool
    squares: bool = True
    einsum: bool = False

    @property
    def has_rows_of_samples(self) -> bool:
        return not (self.coupled or self.random or self.einsum)


def decide(problem: Problem, method: Method, chunk_size: int | None, mode: JacobianMode) -> Decisions:
    """Choose what the user left open, by sizes."""
    residuals = problem.samples * problem.residuals_per_sample
    chosen, reason = (method, "as asked") if method != "auto" else _solver(problem, residuals)
    if problem.replicas > 1 and chosen not in _ON_REPLICAS:
        raise UnsupportedError(
            f"the method {chosen!r} on {problem.replicas} replicas",
            argument="method",
            cause="it needs all rows of the Jacobian in one place",
            remedy=f"use {' or '.join(map(repr, _ON_REPLICAS))}, whose sums are reduced over replicas",
        )
    check_chunks(chosen, chunk_size)
    if mode == "per_sample" and not problem.has_rows_of_samples:
        kind = "depend on each other" if problem.coupled else "share random numbers" if problem.random else "pass through EinsumDense"
        raise UnsupportedError(
            f"per-sample Jacobians of samples that {kind}", argument="jacobian_mode", remedy='leave it at "auto", or "reverse"'
        )
    if problem.coupled and mode == "forward" and chunk_size is not None:
        raise ArgumentError(
            f"chunk_size={chunk_size} with forward Jacobians of samples that depend on each other",
            argument="chunk_size",
            cause="each tangent gives a column for all rows",
            remedy='jacobian_mode="reverse", or no chunks',
        )
    chunk = chunk_size if chunk_size is not None else _chunk(problem, chosen, mode)
    if chunk is not None and chunk >= (residuals if problem.coupled else problem.samples):
        chunk = None
    if mode == "auto":
        mode = _mode(problem, chunk)
    return Decisions(chosen, reason, mode, chunk, problem.parameters, residuals, problem.samples)


def _solver(problem: Problem, residuals: int) -> tuple[MethodName, str]:
    size, itemsize = problem.parameters, problem.itemsize
    if problem.replicas == 1:
        chosen, reason = choose_method(size, residuals, itemsize, chunked=False)
        if chosen == "dual":
            return chosen, reason
    chosen, reason = choose_method(size, residuals, itemsize, chunked=True)
    if chosen == "qr" and problem.replicas > 1:
        return "cholesky", "its sums can be reduced over replicas"
    # Multiplications of half a Gram matrix and of its Cholesky factor, over those of an iterative solution. A product takes a forward
    # pass, its tangent and a backward pass of two; a pass is taken to use each parameter once per sample, as dense layers do.
    iterating = KRYLOV_ITERATIONS * 5.0 * problem.samples * size
    times = (residuals * size**2 / 2.0 + size**3 / 6.0) / iterating
    if chosen == "cholesky" and not problem.squares and times > WORTH_ITERATING:
        return "cg", f"a Gram matrix takes {times:.0f} times the work of {KRYLOV_ITERATIONS} products with it"
    return chosen, reason


def _chunk(problem: Problem, method: MethodName, mode: JacobianMode) -> int | None:
    if method in ("dual", "cg") or (problem.coupled and mode == "forward"):
        return None
    row = problem.parameters * problem.itemsize
    rows = max(1, JACOBIAN_BYTES // row, int(SHARE_OF_SQUARE * problem.parameters))
    if not problem.has_rows_of_samples:
        rows = min(rows, _COTANGENTS)
    return rows if problem.coupled else _evenly(problem.samples, max(1, rows // problem.residuals_per_sample))


def _evenly(samples: int, most: int) -> int:
    """Return the largest chunk of at most `most` samples that leaves no rest, unless it is less than half of `most`.

    A rest is traced separately and doubles the graph.
    """
    even = next(size for size in range(min(most, samples), 0, -1) if samples % size == 0)
    return even if 2 * even >= most or most >= samples else most


def _mode(problem: Problem, chunk: int | None) -> JacobianMode:
    if problem.coupled and chunk is not None:
        return "reverse"
    each = problem.residuals_per_sample
    return cheapest_mode(problem.parameters, (chunk or problem.samples) * each, each if problem.has_rows_of_samples else None)
