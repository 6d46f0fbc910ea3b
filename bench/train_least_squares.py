"""Nonlinear least squares: NIST's certified problems, large models, memory.

    python -m bench.train least_squares                     # everything; about ten minutes on two cores
    python -m bench.train least_squares --parts nist        # the 25 certified problems alone
    python -m bench.train least_squares --parts standard    # the 35 problems of Moré, Garbow and Hillstrom, starts times 1, 10, 100
    python -m bench.train least_squares --parts memory      # chunks, 10,000 and a million parameters
    python -m bench.train least_squares --parts memory --methods cg dual      # these cases alone; others keep their results
    python -m bench.train least_squares --from-json         # the tables again, from the kept results

**NIST**: each problem from both starts, every solver with one configuration for all: ours with its defaults; SciPy's `lm` (MINPACK) and
`trf` with tolerances of 1e-15, parameters scaled by the Jacobian, as many evaluations as ours may use, derivatives by complex steps, so as
exact as ours; the same two as they come, by finite differences; tf-levenberg-marquardt, made for Keras models, with the curve as a model
of its own and its defaults, in double precision, up to 200 steps. Digits are those of the worst parameter against the certified values.
*Wrong* counts fits that are said to have converged with fewer than 4 digits. Times are of one fit after the first (tracing and compiling is
a column of its own), solvers in turns; of tf-levenberg-marquardt, which runs eagerly and traces anew for each model, the median step times
the number of steps.

That package comes by `pip install --no-deps tf-levenberg-marquardt==1.0.3`: it asks for the distribution `tensorflow`, which pip would
install over `tensorflow-cpu`. Where it is missing, so are its rows.

**Standard problems**: the 35 functions of Moré, Garbow and Hillstrom from 1, 10 and 100 times their starts, ours with its defaults,
SciPy's three methods with tolerances and scale as above, and our derivatives. *Elsewhere* counts fits said to have converged at no known
minimum.

**Memory**: peaks of whole fits of a few steps, by `graphwright.measure`, each in a fresh process; data and parameters count.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import scipy.optimize
import tensorflow as tf

from bench.more_garbow_hillstrom import FACTORS, PROBLEMS
from bench.nist import Problem, all_problems
from graphwright.errors import ArgumentError
from graphwright.least_squares.solve import LeastSquares

RESULTS = Path(__file__).parent / "results" / "train_least_squares.json"
PARTS = ("nist", "standard", "memory")
GOOD, WRONG = 6.0, 4.0
MIB = 1 << 20
ITERATIONS = 1000
PACKAGE = "tf-levenberg-marquardt"
PACKAGE_STEPS = 200


@dataclass
class Fit:
    """One fit of one problem by one solver.

    Attributes:
        digits: decimal digits of the worst parameter.
        converged: whether the solver says so.
        time_s: of one fit, the median of several.
        step_ratio: time per iteration over that of ours, which took turns with it.
        prepare_s: what only the first fit takes beyond that: tracing, compiling.
    """

    problem: str
    start: int
    solver: str
    digits: float
    converged: bool
    status: str
    iterations: int
    evaluations: int
    time_s: float
    step_ratio: float | None
    prepare_s: float


Outcome = tuple[np.ndarray, bool, str, int, int]
"""Parameters, whether said to have converged, the status, iterations, evaluations of the residuals."""


def ours(problem: Problem, *, jit_compile: bool) -> Callable[[np.ndarray], Outcome]:
    x, y = tf.constant(problem.x), tf.constant(problem.y)
    solver = LeastSquares(lambda b: problem.residuals(b, x, y, tf), max_iterations=ITERATIONS, jit_compile=jit_compile)

    def fit(start: np.ndarray) -> Outcome:
        found = solver(start)
        return found.params.numpy(), found.converged, found.status, found.iterations, found.evaluations

    return fit


def scipy_solver(problem: Problem, method: str, *, defaults: bool = False) -> Callable[[np.ndarray], Outcome]:
    exact = {"x_scale": "jac", "xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15, "max_nfev": 3 * ITERATIONS}

    def residuals(b: np.ndarray) -> np.ndarray:
        return problem.residuals(b, problem.x, problem.y)

    def jacobian(b: np.ndarray) -> np.ndarray:
        columns = [residuals(b + 1e-30j * unit).imag / 1e-30 for unit in np.eye(len(b))]
        return np.stack(columns, axis=1)

    def fit(start: np.ndarray) -> Outcome:
        try:
            given: dict[str, Any] = {} if defaults else exact | {"jac": jacobian}
            found = scipy.optimize.least_squares(residuals, start, method=method, **given)
        except ValueError as error:  # residuals that are not finite end it
            return np.full(len(start), np.nan), False, str(error), 0, 0
        return found.x, bool(found.success), found.message, int(found.njev or 0), int(found.nfev)

    return fit


def tf_levenberg_marquardt(problem: Problem) -> Callable[[np.ndarray], tuple[float, Outcome]] | None:
    """The PyPI package, with its time without tracing, or None where it is not installed."""
    try:
        import tf_levenberg_marquardt as lm
    except ModuleNotFoundError:
        return None
    import keras

    class Curve(keras.Model):
        def __init__(self) -> None:
            super().__init__(dtype="float64")
            self.b = self.add_weight(shape=(len(problem.certified),), dtype="float64", name="b")
            self.built = True

        def call(self, inputs: Any, training: bool | None = None) -> Any:
            del training
            return problem.residuals(self.b, inputs[:, 0], 0.0, tf)[:, tf.newaxis]

    inputs, targets = tf.constant(problem.x[:, np.newaxis]), tf.constant(problem.y[:, np.newaxis])

    def fit(start: np.ndarray) -> tuple[float, Outcome]:
        model = Curve()
        model.b.assign(start)
        trainer = lm.training.Trainer(
            model, keras.optimizers.SGD(learning_rate=1.0), lm.loss.MeanSquaredError(), jacobian_max_num_rows=10**6
        )
        trainer.backup_variables()
        attempts, before = 0, np.inf
        times: list[float] = []
        try:
            while len(times) < PACKAGE_STEPS:
                begin = time.perf_counter()
                loss, _, tried, stop = trainer.train_step(inputs, targets)
                times.append(time.perf_counter() - begin)
                attempts += int(tried)
                if bool(stop) or float(loss) == before:
                    break
                before = float(loss)
        except (tf.errors.InvalidArgumentError, ValueError) as error:
            return 0.0, (np.full(len(start), np.nan), False, type(error).__name__, 0, attempts)
        # It has no notion of convergence: it stops when its damping is at its largest, or is told to.
        return statistics.median(times) * len(times), (model.b.numpy(), False, "no statement", len(times), attempts)

    return fit


SOLVERS = ("ours", "ours, XLA", "scipy lm", "scipy trf", "scipy lm, defaults", "scipy trf, defaults", PACKAGE)


def run_nist(
    repeats: int, *, problems: Sequence[str], solvers: Sequence[str], kept: list[dict[str, Any]], keep: Callable[[list[Fit]], None]
) -> None:
    """All problems from both starts by ours and these solvers, in turns; `keep` is called after each problem with all fits so far."""
    known = {(fit.problem, fit.start, fit.solver): fit for fit in (Fit(**entry) for entry in kept)}
    for problem in all_problems():
        if problems and problem.name not in problems:
            continue
        turns: dict[str, Callable[[np.ndarray], Outcome]] = {"ours": ours(problem, jit_compile=False)}
        if "ours, XLA" in solvers:
            turns["ours, XLA"] = ours(problem, jit_compile=True)
        for method in ("lm", "trf"):
            for name, defaults in ((f"scipy {method}", False), (f"scipy {method}, defaults", True)):
                if name in solvers:
                    turns[name] = scipy_solver(problem, method, defaults=defaults)
        package = tf_levenberg_marquardt(problem) if PACKAGE in solvers else None
        for number, start in enumerate(problem.starts, 1):
            times: dict[str, list[float]] = {name: [] for name in turns}
            first: dict[str, float] = {}
            outcomes: dict[str, Outcome] = {}
            for turn in range(repeats + 1):
                for name, solve in turns.items():
                    took, outcomes[name] = timed(solve, start)
                    if turn:
                        times[name].append(took)
                    else:
                        first[name] = took
            if package is not None:
                _, (took, outcomes[PACKAGE]) = timed(package, start)
                times[PACKAGE], first[PACKAGE] = [took], took
            step_of_ours = statistics.median(times["ours"]) / outcomes["ours"][3]
            for name, (found, converged, status, iterations, evaluations) in outcomes.items():
                median = statistics.median(times[name])
                known[problem.name, number, name] = Fit(
                    problem.name,
                    number,
                    name,
                    max(problem.digits(found), -99.0),
                    converged,
                    status,
                    iterations,
                    evaluations,
                    median,
                    median / iterations / step_of_ours if iterations else None,
                    max(first[name] - median, 0.0) if number == 1 else 0.0,
                )
                print(known[problem.name, number, name], flush=True)
        keep(list(known.values()))


@dataclass
class Run:
    """One standard problem from one start by one solver.

    Attributes:
        factor: the start is so many times the standard one.
        squares: the sum at the end; NaN where the start cannot be evaluated.
        found: whether that is a known minimum.
        jacobians: evaluated.
        evaluations: of the residuals, beside those for Jacobians.
    """

    problem: str
    factor: float
    solver: str
    squares: float
    found: bool
    converged: bool
    status: str
    jacobians: int
    evaluations: int


SCIPY = ("lm", "trf", "dogbox")


def run_standard(problems: Sequence[str], keep: Callable[[list[Run]], None]) -> None:
    """The standard problems from all starts by ours and SciPy's three methods; `keep` is called after each problem with all runs so far."""
    runs: list[Run] = []
    for name, problem in PROBLEMS.items():
        if problems and name not in problems:
            continue
        solver = LeastSquares(problem.residuals, max_iterations=ITERATIONS)
        residuals = tf.function(problem.residuals, autograph=False)
        spec = tf.TensorSpec([len(problem.start)], tf.float64)

        def jacobian(x: Any, residuals: Any = residuals) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                values = residuals(x)
            return tape.jacobian(values, x)

        at, slope = residuals.get_concrete_function(spec), tf.function(jacobian, autograph=False).get_concrete_function(spec)
        for factor in FACTORS:
            start = problem.start_times(factor)
            try:
                fit = solver(start)
                squares, ended = 2.0 * fit.cost, (fit.converged, fit.status, fit.jacobian_evaluations, fit.evaluations)
            except ArgumentError:
                squares, ended = math.nan, (False, "start refused", 0, 1)
            runs.append(Run(name, factor, "ours", squares, problem.is_minimum(squares), *ended))
            for method in SCIPY:
                squares, ended = standard_by_scipy(at, slope, start, method)
                runs.append(Run(name, factor, f"scipy {method}", squares, problem.is_minimum(squares), *ended))
        for run in runs[-len(FACTORS) * (1 + len(SCIPY)) :]:
            print(run, flush=True)
        keep(runs)


def standard_by_scipy(residuals: Any, jacobian: Any, start: np.ndarray, method: str) -> tuple[float, tuple[bool, str, int, int]]:
    """The sum of squares; whether it is said to have converged, the status, Jacobians, evaluations. Both functions are TensorFlow's."""

    def at(x: np.ndarray) -> np.ndarray:
        return residuals(tf.constant(x)).numpy()

    def slope(x: np.ndarray) -> np.ndarray:
        return jacobian(tf.constant(x)).numpy()

    options: dict[str, Any] = {"x_scale": "jac", "xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15, "max_nfev": 3 * ITERATIONS}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            found = scipy.optimize.least_squares(at, start, jac=slope, method=method, **options)
        except (ValueError, np.linalg.LinAlgError) as error:  # numbers that are not finite end it
            return math.nan, (False, str(error), 0, 0)
    return 2.0 * float(found.cost), (bool(found.success), str(found.message), int(found.njev or 0), int(found.nfev))


def standard_table(runs: Sequence[Run]) -> str:
    """One line per solver, then one per problem and start on which they differ, or which takes ours long."""
    solvers = list(dict.fromkeys(run.solver for run in runs))
    starts = list(dict.fromkeys((run.problem, run.factor) for run in runs))
    by_key = {(run.problem, run.factor, run.solver): run for run in runs}
    by_all = [start for start in starts if all(by_key[*start, solver].found for solver in solvers)]
    counted = f"Jacobians, median and most of the {len(by_all)} that all find | evaluations, median and most"
    lines = [
        f"| solver | at a known minimum, of {len(starts)} | and said so | elsewhere, said to converge | {counted} |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for solver in solvers:
        own = [by_key[*start, solver] for start in starts]
        common = [by_key[*start, solver] for start in by_all]
        found, said = sum(run.found for run in own), sum(run.found and run.converged for run in own)
        cells = [solver, str(found), str(said), str(sum(run.converged and not run.found for run in own))]
        counts = [run.jacobians for run in common], [run.evaluations for run in common]
        cells += [f"{statistics.median(count or [0]):.0f}, {max(count, default=0)}" for count in counts]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "| problem | start | " + " | ".join(f"{solver}: evaluations" for solver in solvers) + " |"]
    lines.append("|---|---:|" + "---:|" * len(solvers))
    for name, factor in starts:
        own = [by_key[name, factor, solver] for solver in solvers]
        if len({(run.found, run.converged) for run in own}) > 1 or own[0].evaluations > 300:
            lines.append(f"| {name} | {factor:g} | " + " | ".join(map(_told, own)) + " |")
    return "\n".join(lines)


def _told(run: Run) -> str:
    if run.found:
        return f"{run.evaluations}" if run.converged else f"{run.evaluations}, unsaid"
    return "**elsewhere**" if run.converged else "not found"


def timed(solve: Callable[[np.ndarray], Any], start: np.ndarray) -> tuple[float, Any]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        begin = time.perf_counter()
        outcome = solve(start.copy())
        return time.perf_counter() - begin, outcome


@dataclass
class Peak:
    """The memory of a fit of a few steps.

    Attributes:
        parameters: n.
        residuals: m.
        chunk_size: samples at a time; None for all.
        jacobian_bytes: what the whole Jacobian would take.
        square_bytes: what an n by n matrix takes.
        accepted: steps that were taken; those need most, two linearizations at a time.
    """

    method: str
    parameters: int
    residuals: int
    chunk_size: int | None
    jacobian_bytes: int
    square_bytes: int
    peak_bytes: int
    time_s: float
    cost_before: float
    cost_after: float
    accepted: int = 0


def network(inputs: int, hidden: int) -> tuple[Callable[..., Any], dict[str, np.ndarray]]:
    """A network of two hidden layers as a function of its parameters, and their start."""
    rng = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) / rows**0.5).astype(np.float32)

    params = {"w1": matrix(inputs, hidden), "w2": matrix(hidden, hidden), "w3": matrix(hidden, 1)}
    params |= {"b1": np.zeros(hidden, np.float32), "b2": np.zeros(hidden, np.float32)}

    def residuals(p: Any, x: Any, y: Any) -> Any:
        middle = tf.tanh(tf.tanh(x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"])
        return middle @ p["w3"] - y

    return residuals, params


CASES: tuple[tuple[str, int, int, int | None], ...] = (
    ("cholesky", 28, 8000, None),
    ("cholesky", 28, 8000, 1000),
    ("cholesky", 28, 8000, 100),
    ("cholesky", 28, 32000, 100),
    ("cholesky", 92, 2000, 100),
    ("dual", 300, 500, None),
    ("cg", 980, 1000, 250),
)
"""Method, hidden units, samples, chunk size."""
STEPS = 2


def measured_fit(method: str, hidden: int, samples: int, chunk_size: int | None) -> Peak:
    """The peak of a fit of a few steps, and the time with tracing."""
    import graphwright as gw

    residuals, params = network(16, hidden)
    x, y = large_data(samples)
    solver = LeastSquares(
        residuals,
        method=method,
        chunk_size=chunk_size,
        max_iterations=STEPS,
        first_damping=1.0,
        krylov_iterations=10,
        krylov_tolerance=0.05,
    )
    start = time.perf_counter()
    found = solver(params, x, y)
    took = time.perf_counter() - start
    step, arguments = solver.trace(params, x, y)
    measured = gw.measure(step, arguments, steps=1, time=False)
    count = sum(part.size for part in params.values())
    before = float(0.5 * tf.reduce_sum(tf.square(residuals(params, x, y))))
    return Peak(
        method,
        count,
        samples,
        chunk_size,
        4 * count * samples,
        4 * count**2,
        measured.peak_bytes,
        took,
        before,
        found.cost,
        found.accepted_steps,
    )


def key_of(peak: Peak) -> tuple[Any, ...]:
    """What tells one case from another."""
    return peak.method, peak.parameters, peak.residuals, peak.chunk_size


def large_data(samples: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((samples, 16)).astype(np.float32)
    return tf.constant(x), tf.constant(np.sin(x.sum(axis=1, keepdims=True)))


def nist_table(fits: Sequence[Fit]) -> str:
    """One line per problem: digits from both starts, and what ours took."""
    solvers = [solver for solver in SOLVERS if any(fit.solver == solver for fit in fits)]
    by_key = {(fit.problem, fit.start, fit.solver): fit for fit in fits}
    head = ["problem", *(f"{solver}: digits" for solver in solvers), "iterations", "evaluations", "says"]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 2) + "---|"]
    for name in sorted({fit.problem for fit in fits}):
        cells = [" / ".join(_digits(by_key.get((name, start, solver))) for start in (1, 2)) for solver in solvers]
        mine = [by_key[name, start, "ours"] for start in (1, 2)]
        cells += [" / ".join(str(getattr(fit, what)) for fit in mine) for what in ("iterations", "evaluations", "status")]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _digits(fit: Fit | None) -> str:
    if fit is None:
        return "not run"
    text = f"{fit.digits:.1f}" if fit.digits >= 1.0 else "0"
    return f"**{text}, wrong**" if fit.converged and fit.digits < WRONG else text


def summary_table(fits: Sequence[Fit]) -> str:
    """One line per solver."""
    head = ["solver", "6 digits from start 1", "from start 2", "said to converge, wrong", "iterations, median"]
    head += ["time per iteration, against ours", "first fit beyond the second, median"]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    for solver in SOLVERS:
        own = [fit for fit in fits if fit.solver == solver]
        if not own:
            continue
        good = [sum(fit.digits >= GOOD for fit in own if fit.start == start) for start in (1, 2)]
        counts = [sum(fit.start == start for fit in own) for start in (1, 2)]
        wrong = sum(fit.converged and fit.digits < WRONG for fit in own)
        cells = [f"{good[0]} of {counts[0]}", f"{good[1]} of {counts[1]}", str(wrong)]
        counted = [fit for fit in own if fit.iterations]  # MINPACK does not count them where it differentiates itself
        cells.append(f"{statistics.median([fit.iterations for fit in counted]):.0f}" if counted else "-")
        cells.append(f"{statistics.median([fit.step_ratio or math.nan for fit in counted]):.2f}" if counted else "-")
        cells.append("-" if solver == PACKAGE else f"{statistics.median([fit.prepare_s for fit in own if fit.start == 1]):.2f} s")
        lines.append(f"| {solver} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def memory_table(peaks: Sequence[Peak]) -> str:
    """One line per case."""
    lines = [
        "| method | parameters | residuals | at a time | Jacobian, MiB | n by n matrix, MiB | peak, MiB |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for peak in peaks:
        sizes = [f"{size / MIB:,.1f}" for size in (peak.jacobian_bytes, peak.square_bytes, peak.peak_bytes)]
        cells = [peak.method, f"{peak.parameters:,}", f"{peak.residuals:,}", str(peak.chunk_size or "all"), *sizes]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the parts, keep the results, print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="bench.train least_squares"
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--repeats", type=int, default=5, help="timed fits of each problem")
    parser.add_argument("--problems", nargs="+", default=[], help="only these of NIST's or of the standard problems")
    parser.add_argument("--solvers", nargs="+", choices=SOLVERS, default=SOLVERS, help="only these, beside ours; others keep their results")
    parser.add_argument("--methods", nargs="+", default=[], help="only these methods of the memory part")
    parser.add_argument("--from-json", action="store_true", help="print the tables of the kept results")
    parser.add_argument("--output", type=Path, default=RESULTS)
    chosen = parser.parse_args(argv)
    kept: dict[str, Any] = json.loads(chosen.output.read_text(encoding="utf-8")) if chosen.output.exists() else {}

    def keep(part: str, results: Sequence[Any]) -> None:
        kept[part] = [asdict(result) for result in results]
        kept["machine"] = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[1]:.1f}, TensorFlow {tf.__version__}"
        chosen.output.parent.mkdir(exist_ok=True)
        chosen.output.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")

    if not chosen.from_json:
        if "nist" in chosen.parts:
            earlier = kept.get("nist", [])
            run_nist(chosen.repeats, problems=chosen.problems, solvers=chosen.solvers, kept=earlier, keep=lambda fits: keep("nist", fits))
        if "standard" in chosen.parts:
            run_standard(chosen.problems, lambda runs: keep("standard", runs))
        if "memory" in chosen.parts:
            peaks = {key_of(Peak(**peak)): Peak(**peak) for peak in kept.get("memory", [])}
            for case in CASES:
                if not chosen.methods or case[0] in chosen.methods:
                    peak = measured_fit(*case)
                    peaks[key_of(peak)] = peak
                    print(peak, flush=True)
                    keep("memory", list(peaks.values()))
    if "nist" in kept:
        fits = [Fit(**fit) for fit in kept["nist"]]
        print(f"\n{summary_table(fits)}\n\n{nist_table(fits)}")
    if "standard" in kept:
        print(f"\n{standard_table([Run(**run) for run in kept['standard']])}")
    if "memory" in kept:
        print(f"\n{memory_table([Peak(**peak) for peak in kept['memory']])}")
    print(f"\n{kept.get('machine', '')}")
    if importlib.util.find_spec(PACKAGE.replace("-", "_")) is None:
        print(f"\n{PACKAGE} is not installed, so no new figures of it: pip install --no-deps {PACKAGE}==1.0.3")


if __name__ == "__main__":
    main()
