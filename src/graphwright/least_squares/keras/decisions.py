"""Which solver, which Jacobian, which chunks: decided by sizes, and said why."""

from dataclasses import dataclass

from graphwright.errors import ArgumentError, UnsupportedError
from graphwright.least_squares.arguments import check_chunks
from graphwright.least_squares.jacobians import JacobianMode, cheapest_mode
from graphwright.least_squares.linear_systems import MethodName
from graphwright.least_squares.methods import Method, choose_method

JACOBIAN_BYTES = 2**22
"""Jacobian that is in memory at a time, where the chunk size is left open; `SHARE_OF_SQUARE` of an n by n matrix if that is more."""
SHARE_OF_SQUARE = 1.0 / 48.0
KRYLOV_ITERATIONS = 50
"""Products per step of iterative solvers, at most."""
_COTANGENTS = 128
"""Rows at a time where the work of each row is that of the whole chunk."""
WORTH_ITERATING = 20.0
"""How many times the work of an iterative solution a Gram matrix must take before losses other than squares are solved for by iteration."""
_ON_REPLICAS = ("cholesky", "cg")


@dataclass(frozen=True)
class Decisions:
    """How the steps of batches of one shape are computed.

    Attributes:
        jacobian_mode: how Jacobians are found.
        chunk_size: samples (or, where samples depend on each other, residuals) whose Jacobian is in memory at a time; None for all.
        parameters: trainable numbers.
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
    """The size of a batch, and what is known of the model.

    Attributes:
        parameters: trainable numbers.
        samples: on one replica.
        residuals_per_sample: r.
        itemsize: bytes of a number in the linear solver.
        replicas: that share the batch.
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
        """Whether rows of the Jacobian can be found from one sample each."""
        return not (self.coupled or self.random or self.einsum)


def decide(problem: Problem, method: Method, chunk_size: int | None, mode: JacobianMode) -> Decisions:
    """What is left open, by sizes.

    Raises:
        ArgumentError: a choice that contradicts itself.
        UnsupportedError: a method that the problem does not allow.

    >>> print(decide(Problem(10_000, 2000, 1, 4, 1, False, False), "auto", None, "auto"))
    dual: 10000 parameters, but only 2000 residuals; 2000 residuals of 2000 samples; Jacobian per sample, all at once
    >>> print(decide(Problem(10_000, 2000, 10, 4, 1, False, False), "auto", None, "auto"))
    cholesky: the Gram matrix of 10000 parameters fits into memory; 20000 residuals of 2000 samples; Jacobian per sample, 20 at a time
    >>> decide(Problem(1500, 300, 9, 4, 1, False, False, squares=False), "auto", None, "auto").reason
    'a Gram matrix takes 32 times the work of 50 products with it'
    >>> decide(Problem(1_000_000, 512, 10, 4, 1, False, False), "auto", None, "auto").method
    'cg'
    """
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
    units = residuals if problem.coupled else problem.samples
    if problem.coupled and mode == "forward" and chunk_size is not None:
        raise ArgumentError(
            f"chunk_size={chunk_size} with forward Jacobians of samples that depend on each other",
            argument="chunk_size",
            cause="each tangent gives a column for all rows",
            remedy='jacobian_mode="reverse", or no chunks',
        )
    chunk = chunk_size if chunk_size is not None else _chunk(problem, chosen, mode)
    chunk = None if chunk is None or chunk >= units else chunk
    return Decisions(chosen, reason, _mode(problem, mode, chunk), chunk, problem.parameters, residuals, problem.samples)


def _solver(problem: Problem, residuals: int) -> tuple[MethodName, str]:
    """The solver that `"auto"` takes, and why."""
    size, itemsize = problem.parameters, problem.itemsize
    if problem.replicas == 1:
        chosen, reason = choose_method(size, residuals, itemsize, chunked=False)
        if chosen == "dual":
            return chosen, reason
    chosen, reason = choose_method(size, residuals, itemsize, chunked=True)
    if chosen == "qr" and problem.replicas > 1:
        return "cholesky", "its sums can be reduced over replicas"
    # Multiplications: of the lower half of a Gram matrix and of its Cholesky factor, to those of an iterative solution. Each product
    # takes a forward pass, taken to use each parameter once per sample, as dense layers do, its tangent and a backward pass of two.
    iterating = KRYLOV_ITERATIONS * 5.0 * problem.samples * size
    times = (residuals * size**2 / 2.0 + size**3 / 6.0) / iterating
    if chosen == "cholesky" and not problem.squares and times > WORTH_ITERATING:
        return "cg", f"a Gram matrix takes {times:.0f} times the work of {KRYLOV_ITERATIONS} products with it"
    return chosen, reason


def _chunk(problem: Problem, method: MethodName, mode: JacobianMode) -> int | None:
    """Samples (or residuals) at a time whose Jacobian is small enough; None where all rows are needed at once, or none."""
    if method in ("dual", "cg") or (problem.coupled and mode == "forward"):
        return None
    row = problem.parameters * problem.itemsize
    rows = max(1, JACOBIAN_BYTES // row, int(SHARE_OF_SQUARE * problem.parameters))
    if not problem.has_rows_of_samples:
        rows = min(rows, _COTANGENTS)
    return rows if problem.coupled else _evenly(problem.samples, max(1, rows // problem.residuals_per_sample))


def _evenly(samples: int, most: int) -> int:
    """The largest chunk of at most `most` samples that leaves no rest, which would be traced apart and double the graph.

    `most` itself where such a chunk would be less than half of it.

    >>> _evenly(300, 212), _evenly(300, 77), _evenly(307, 77)
    (150, 75, 77)
    """
    even = next(size for size in range(min(most, samples), 0, -1) if samples % size == 0)
    return even if 2 * even >= most or most >= samples else most


def _mode(problem: Problem, mode: JacobianMode, chunk: int | None) -> JacobianMode:
    if mode != "auto":
        return mode
    if problem.coupled and chunk is not None:
        return "reverse"
    each = problem.residuals_per_sample
    return cheapest_mode(problem.parameters, (chunk or problem.samples) * each, each if problem.has_rows_of_samples else None)
