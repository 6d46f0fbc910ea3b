"""Reference training steps within memory budgets, compared with `tf.recompute_grad` and `keras.RematScope`.

    python -m bench.memory                                   # every model, full size; takes hours on two cores
    python -m bench.memory --size small                      # every model, small; minutes
    python -m bench.memory --models unet resnet50 --quick    # fewer steps to measure
    python -m bench.memory --ours --budgets 0.5 0.3          # only graphwright, with the verbs that change no bits and with all verbs
    python -m bench.memory --models resnet50 --times         # only the times of the file's rows, again
    python -m bench.memory --from-json FILE                  # the tables again, as Markdown

For each model: the unmodified step, `tf.recompute_grad` around hand-made blocks (see `bench.zoo`), `keras.RematScope`, and
`graphwright.optimize_memory` at each budget, at half of the activation peak, and at the memory that
`tf.recompute_grad` needed. Each peak is measured in a fresh process, times in one process in which all steps take turns,
and every step is compared with the unmodified one: loss and all variables, after three steps in a row.

Each model runs in its own process: if it dies, its row says so and the others continue. Results are written after
each row; a complete model is not run again with the same settings, unless --again is given.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from rich.console import Console

from bench.memory_table import LEGEND, MIB, ModelRows, Results, Row, as_markdown, print_table

MODEL_NAMES = ("unet", "resnet50", "densenet121", "transformer", "transformer_bfloat16", "mlp1000", "lstm")
BUDGETS = (0.8, 0.6, 0.5, 0.4, 0.3)
ACTIVATION_SHARES = {"mlp1000": (0.5, 0.1)}  # of the activation peak; others: a half
VERIFIED_STEPS = 3
UNMODIFIED = "unmodified"
OURS, ALL_VERBS = "graphwright", 'graphwright, allow="all"'


class Benchmark:
    """Runs one model and keeps its rows in the file."""

    def __init__(self, name: str, path: Path, settings: dict[str, Any], console: Console, *, again: bool = False) -> None:
        import keras
        import tensorflow as tf

        from bench import zoo

        self.name, self.path, self.settings, self.console = name, path, settings, console
        quick = bool(settings["quick"])
        full = settings["size"] == "full"
        self.measured_steps = 1 if quick else 2 if full else 3
        self.timed_rounds = 7 if settings.get("ours") else 2 if quick else 3 if full else 7
        self.reference = zoo.make(name, size=settings["size"], batch=settings["batch"])
        self.results = Results.read(path)
        self.results.about = _about(tf.__version__, keras.__version__)
        self.entry = self.results.models[name] if again else ModelRows(self.reference.description, settings)
        self.results.models[name] = self.entry
        self.timed: dict[str, tuple[Row, Any]] = {}

    def run(self) -> None:
        """All rows, in the order of the table."""
        unmodified = self._row(Row(UNMODIFIED), lambda row: self._measure(row, self.reference.step))
        if unmodified.measured_bytes is None or unmodified.resident_bytes is None:
            return
        peak, resident = unmodified.measured_bytes, unmodified.resident_bytes
        if self.settings.get("ours"):
            for share in self.settings["budgets"]:
                for step in (OURS, ALL_VERBS):
                    self._ours(f"{share:.0%}".replace("%", " %"), int(share * peak), unmodified, step)
            self._finish()
            return
        baseline = self._row(Row("tf.recompute_grad"), self._recompute_grad)
        self._row(Row("keras.RematScope"), self._remat_scope)
        for share in self.settings["budgets"]:
            self._ours(f"{share:.0%}".replace("%", " %"), int(share * peak), unmodified)
        for share in ACTIVATION_SHARES.get(self.name, (0.5,)):
            self._ours(f"{share:.0%} act.".replace("%", " %"), int(resident + share * (peak - resident)), unmodified)
        if baseline.measured_bytes is not None:
            self._ours("as recompute_grad", baseline.measured_bytes, unmodified)
        self._finish()

    def _finish(self) -> None:
        self._times()
        self.entry.complete = True
        self.results.write(self.path)

    def time_again(self) -> None:
        """Measure the times of the file's rows again; all else stays."""
        for row in self.entry.rows:
            if row.measured_bytes is None:
                continue
            self.console.print(f"{self.name}: {row.step} {row.budget}", style="dim")
            if row.step == UNMODIFIED:
                step: Any = self.reference.step
            elif row.budget_bytes is None:
                step = self.reference.with_variant("recompute_grad").step
            else:
                step = self._optimized(row.budget_bytes, row.step)
            self.timed[f"{row.step} {row.budget}"] = (row, step)
        self._times()
        self.results.write(self.path)

    def _optimized(self, budget_bytes: int, how: str) -> Any:
        import graphwright as gw
        from graphwright.memory.verbs import BIT_FOR_BIT

        allow = "all" if how == ALL_VERBS else BIT_FOR_BIT
        return gw.optimize_memory(self.reference.step, budget_bytes, inputs=self.reference.inputs, allow=allow, cache_dir=None)

    def _row(self, row: Row, fill: Callable[[Row], None]) -> Row:
        """Fill a row; an error becomes its text."""
        self.console.print(f"{self.name}: {row.step} {row.budget}", style="dim")
        try:
            fill(row)
            row.status = row.status or "ok"
        except Exception as error:  # noqa: BLE001 - a table with a row that says what failed is the purpose
            row.status = row.status or "failed"
            message = _first_words(str(error))
            row.note = message if message.startswith(type(error).__name__) else f"{type(error).__name__}: {message}"
        self.entry.rows.append(row)
        self.results.write(self.path)
        return row

    def _measure(self, row: Row, step: Any) -> None:
        import graphwright as gw

        measured = gw.measure(step, self.reference.inputs, steps=self.measured_steps, time=False)
        row.measured_bytes, row.resident_bytes, row.how = measured.peak_bytes, measured.resident_bytes, measured.how
        self.timed[f"{row.step} {row.budget}"] = (row, step)

    def _verify(self, row: Row, step: Any) -> None:
        import graphwright as gw

        found = gw.verify(
            self.reference.step,
            step,
            self.reference.inputs,
            steps=1 if self.settings["quick"] else VERIFIED_STEPS,
            other_sums=row.step == ALL_VERBS,
        )
        row.equal = found.equal
        if not found.equal:
            row.note = _first_words(found.first_difference)
        elif not found.bitwise:
            row.note = f"largest difference {found.max_abs:.1g}"

    def _recompute_grad(self, row: Row) -> None:
        step = self.reference.with_variant("recompute_grad").step
        self._measure(row, step)
        self._verify(row, step)

    def _remat_scope(self, row: Row) -> None:
        from bench import zoo

        row.status = "raises"  # unless the next lines succeed
        other = zoo.make(self.name, size=self.settings["size"], batch=self.settings["batch"], variant="keras_remat")
        other.step.get_concrete_function(*other.inputs)
        row.status = ""
        # It has separate variables, so it can be measured but not compared.
        self._measure(row, other.step)
        row.note = "not compared"

    def _ours(self, budget: str, budget_bytes: int, unmodified: Row, step: str = OURS) -> None:
        row = Row(step, budget, budget_bytes)
        self._row(row, lambda row: self._plan(row, unmodified))

    def _plan(self, row: Row, unmodified: Row) -> None:
        import graphwright as gw

        assert row.budget_bytes is not None
        try:
            fast = self._optimized(row.budget_bytes, row.step)
        except gw.InfeasibleError as error:
            row.status = "infeasible"
            row.note = f"the smallest known to work is {error.smallest_budget_bytes / MIB:,.1f} MiB"
            return
        plan = fast.plan
        unmodified.predicted_bytes = plan.original_peak_bytes
        row.predicted_bytes, row.recomputed_flops, row.planning_time_s = plan.peak_bytes, plan.recomputed_flops, plan.planning_time_s
        row.planned_time_ratio = 1 + plan.overhead
        self._measure(row, fast)
        self._verify(row, fast)
        bound = f"no plan takes less than {1 + plan.least_overhead:.2f} (minimum cuts)" if plan.least_overhead >= 0.005 else ""
        row.note = "; ".join(said for said in (plan.rewritten, row.note, bound) if said)

    def _times(self) -> None:
        from graphwright.run.measure import measure_many

        self.console.print(f"{self.name}: {len(self.timed)} steps take turns", style="dim")
        steps = {key: step for key, (_, step) in self.timed.items()}
        try:
            timings = measure_many(steps, self.reference.inputs, steps=self.timed_rounds)
        except Exception as error:  # noqa: BLE001 - the memory columns stand without the times
            self.entry.rows.append(Row("timing", status="failed", note=f"{type(error).__name__}: {_first_words(str(error))}"))
            return
        for key, timing in timings.items():
            row = self.timed[key][0]
            row.time_s, row.time_ratio = timing.time_s, timing.ratio


def _first_words(text: str, limit: int = 160) -> str:
    """The start of a message on one line, without colors and the lines that Keras and AutoGraph put around it."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    lines = [line.strip() for line in plain.splitlines()]
    noise = (
        "in user code",
        "ValueError: Exception",
        "File ",
        "Exception encountered",
        "Arguments received",
        "return ",
        "raise ",
        "•",
        "loss = ",
        "with tf.",
    )
    told = [line for line in lines if line and not line.startswith(noise)]
    message = " ".join(told) or plain.strip()
    return message if len(message) <= limit else message[: limit - 3].rstrip() + "..."


def _about(tensorflow: str, keras: str) -> dict[str, Any]:
    processor = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", info.read_text()) if info.exists() else None
    return {
        "TensorFlow": tensorflow,
        "Keras": keras,
        "NumPy": importlib.metadata.version("numpy"),
        "on": f"{os.cpu_count()} cores of {found.group(1).strip() if found else processor}",
    }


def _run_models(options: argparse.Namespace, path: Path, console: Console) -> int:
    """Run each model in its own process and return how many died."""
    died = 0
    for name in options.models:
        settings = _settings(options)
        known = Results.read(path).models.get(name)
        if known is not None and known.complete and options.times:
            settings = known.settings
        elif known is not None and known.complete and known.settings == settings and not options.again:
            console.print(f"{name}: complete in {path}", style="dim")
            print_table(Results.read(path), [name], console)
            continue
        command = [sys.executable, "-m", "bench.memory", "--child", "--models", name, "--size", settings["size"], "--json", str(path)]
        command += ["--budgets", *map(str, settings["budgets"])]
        command += ["--batch", str(settings["batch"])] if settings["batch"] else []
        command += ["--quick"] if settings["quick"] else []
        command += ["--ours"] if settings.get("ours") else []
        command += ["--times"] if known is not None and known.complete and options.times else []
        status = subprocess.run(command, check=False).returncode
        if status:
            died += 1
            results = Results.read(path)
            entry = results.models.setdefault(name, ModelRows("", settings))
            how = signal.Signals(-status).name if -status in set(signal.Signals) else f"status {status}"
            entry.rows.append(Row("benchmark", status="failed", note=f"its process ended with {how}"))
            results.write(path)
        print_table(Results.read(path), [name], console)
    return died


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    asked = {"size": options.size, "batch": options.batch, "budgets": list(options.budgets), "quick": options.quick}
    return {**asked, "ours": True} if options.ours else asked


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODEL_NAMES, default=list(MODEL_NAMES), metavar="MODEL", help=", ".join(MODEL_NAMES))
    parser.add_argument("--budgets", nargs="+", type=float, default=list(BUDGETS), help="shares of the unmodified peak")
    parser.add_argument("--size", choices=("full", "small"), default="full")
    parser.add_argument("--batch", type=int, default=None, help="examples in a step; by default what the size has")
    parser.add_argument("--json", type=Path, default=None, help="the file for the results; default bench/results/memory-SIZE.json")
    parser.add_argument("--quick", action="store_true", help="fewer steps to measure, one step to compare")
    parser.add_argument("--ours", action="store_true", help="graphwright alone, at each budget without and with all verbs")
    parser.add_argument("--again", action="store_true", help="run models that are complete, too")
    parser.add_argument("--times", action="store_true", help="for models that are complete: measure the times of their rows again")
    parser.add_argument("--from-json", type=Path, default=None, help="print the tables of a file as Markdown and stop")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.from_json is not None:
        if not options.from_json.exists():
            parser.error(f"there is no file {options.from_json}")
        print(as_markdown(Results.read(options.from_json)))
        return 0
    console = Console()
    path = options.json or Path(__file__).parent / "results" / f"memory-{options.size}.json"
    if options.child:
        benchmark = Benchmark(options.models[0], path, _settings(options), console, again=options.times)
        benchmark.time_again() if options.times else benchmark.run()
        return 0
    died = _run_models(options, path, console)
    console.print(LEGEND, style="dim")
    console.print(f"kept in {path}; --from-json {path} prints them as Markdown")
    return 1 if died else 0


if __name__ == "__main__":
    sys.exit(main())
