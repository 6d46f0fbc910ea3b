"""Which solver, which Jacobian, which chunks: decided by sizes, and said why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

from graphwright.errors import ArgumentError, UnsupportedError
from graphwright.train.damped_least_squares.jacobians import JacobianMode, cheapest_mode
from graphwright.train.damped_least_squares.linear_systems import (
    CgSystem,
    CholeskySystem,
    DualSystem,
    LinearSystem,
    LsmrSystem,
    MethodName,
    QrSystem,
)
from graphwright.train.damped_least_squares.solve import Method, choose_method

JACOBIAN_BYTES = 2**23
"""Jacobian that is in memory at a time, where the chunk size is left open."""
_COTANGENTS = 128
"""Rows at a time where the work of each row is that of the whole chunk."""
_ON_REPLICAS = ("cholesky", "cg")


@dataclass(frozen=True)
class Decisions:
    """How the steps of batches of one shape are computed.

    Attributes:
        method: the linear solver.
        reason: why that one.
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
        """In a sentence or two."""
        text = f"{self.method}: {self.reason}; {self.residuals} residuals of {self.samples} samples"
        if self.method in ("cg", "lsmr"):
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
    """

    parameters: int
    samples: int
    residuals_per_sample: int
    itemsize: int
    replicas: int
    coupled: bool
    random: bool


def decide(problem: Problem, method: Method, chunk_size: int | None, mode: JacobianMode) -> Decisions:
    """What is left open, by sizes.

    Raises:
        ArgumentError: a choice that contradicts itself.
        UnsupportedError: a method that the problem does not allow.

    >>> print(decide(Problem(10_000, 2000, 1, 4, 1, False, False), "auto", None, "auto"))
    dual: 10000 parameters, but only 2000 residuals; 2000 residuals of 2000 samples; Jacobian per sample, all at once
    >>> print(decide(Problem(10_000, 2000, 10, 4, 1, False, False), "auto", None, "auto"))
    cholesky: the Gram matrix of 10000 parameters fits into memory; 20000 residuals of 2000 samples; Jacobian per sample, 20 at a time
    >>> decide(Problem(1_000_000, 512, 10, 4, 1, False, False), "auto", None, "auto").method
    'cg'
    """
    residuals = problem.samples * problem.residuals_per_sample
    chosen, reason = (method, "as asked") if method != "auto" else _solver(problem, residuals)
    if problem.replicas > 1 and chosen not in _ON_REPLICAS:
        raise UnsupportedError(
            f"the method {chosen!r} on {problem.replicas} replicas",
            where="argument 'method'",
            cause="it needs all rows of the Jacobian in one place",
            remedy=f"use {' or '.join(map(repr, _ON_REPLICAS))}, whose sums are reduced over replicas",
        )
    if chunk_size is not None and chosen in ("dual", "lsmr"):
        raise ArgumentError(
            f"chunk_size={chunk_size} with {chosen!r}",
            where="argument 'chunk_size'",
            cause="it needs all rows at once",
            remedy='"cholesky" or "cg"',
        )
    if mode == "per_sample" and (problem.coupled or problem.random):
        kind = "depend on each other" if problem.coupled else "share random numbers"
        raise UnsupportedError(
            f"per-sample Jacobians of samples that {kind}", where="argument 'jacobian_mode'", remedy='leave it at "auto", or "reverse"'
        )
    units = residuals if problem.coupled else problem.samples
    chunk = chunk_size if chunk_size is not None else _chunk(problem, chosen)
    chunk = None if chunk is None or chunk >= units else chunk
    return Decisions(chosen, reason, _mode(problem, mode, chunk), chunk, problem.parameters, residuals, problem.samples)


def _solver(problem: Problem, residuals: int) -> tuple[MethodName, str]:
    size, itemsize = problem.parameters, problem.itemsize
    if problem.replicas == 1:
        chosen, reason = choose_method(size, residuals, itemsize, chunked=False)
        if chosen == "dual":
            return chosen, reason
    chosen, reason = choose_method(size, residuals, itemsize, chunked=True)
    if chosen == "qr" and problem.replicas > 1:
        return "cholesky", "its sums can be reduced over replicas"
    return chosen, reason


def _chunk(problem: Problem, method: MethodName) -> int | None:
    if method in ("dual", "lsmr", "cg"):
        return None
    row = problem.parameters * problem.itemsize
    rows = max(1, JACOBIAN_BYTES // row)
    if problem.coupled:
        return min(rows, _COTANGENTS)
    if problem.random:
        rows = min(rows, _COTANGENTS)
    return max(1, rows // problem.residuals_per_sample)


def _mode(problem: Problem, mode: JacobianMode, chunk: int | None) -> JacobianMode:
    """The Jacobian's mode for chunks of this size."""
    if mode != "auto":
        return mode
    each = problem.residuals_per_sample
    samples = chunk or problem.samples
    if problem.coupled:
        return "reverse" if chunk is not None else cheapest_mode(problem.parameters, samples * each, None)
    return cheapest_mode(problem.parameters, samples * each, None if problem.random else each)


def linear_system(decisions: Decisions, rows: Any, krylov_tolerance: float, krylov_iterations: int) -> LinearSystem:
    """The solver that was decided on, for these rows."""
    dense: dict[str, Callable[[Any], LinearSystem]] = {"qr": QrSystem, "cholesky": CholeskySystem, "dual": DualSystem}
    if decisions.method in dense:
        return dense[decisions.method](rows)
    kind = CgSystem if decisions.method == "cg" else LsmrSystem
    return kind(rows, tolerance=krylov_tolerance, max_iterations=krylov_iterations)


def check_choice(name: str, value: str, choices: Any) -> None:
    """Raise unless an argument is one of the choices of a `Literal`."""
    if value not in get_args(choices):
        raise ArgumentError(f"{name}={value!r}", where=f"argument {name!r}", remedy=f"one of {', '.join(get_args(choices))}")
