"""Compare predicted peaks with measured ones, and FLOPs with the counts of other tools.

    python -m bench.accuracy                          # every model, training and inference, three batch sizes; takes long
    python -m bench.accuracy --models unet --quick    # small models, one batch size
    python -m bench.accuracy --predict                # predict the file's rows again; measures nothing
    python -m bench.accuracy --flops                  # count the FLOPs of the file's rows again; measures nothing
    python -m bench.accuracy --from-json FILE         # the tables again, as Markdown

For each model, mode and batch size the peak is measured in fresh processes: with the order fixed by control edges, and of the
unmodified step with two inter-op threads (at the middle batch size also with one). If the simulations differ by more than
the goal, the peak is random, and the median of several processes counts. The predictions are

- ordered: `predict_peak(order="traced")`, the order that the control edges hold (inside loops the executor's, simulated as below);
- executor: TensorFlow's executor simulated on the graph that the measured process ran (the order depends on node
  numbers, which differ from process to process), and the range of `predict_peak(order="executor")`, which does not
  know that graph;
- Grappler: `DeterminePeakMemoryUsage`.

Each model runs in its own process. Results are written after each row; rows of the file are not measured again without --again.
The graphs that ran are kept in the temporary folder, so that predictions can be repeated.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from rich.console import Console

from bench.accuracy_table import GOAL, AccuracyResults, FlopRow, PeakRow, as_markdown, as_summary, print_tables
from bench.xla_costs import xla_flops
from graphwright.analyze.measurement import Measurement

BATCHES = {
    "unet": (1, 2, 3),
    "resnet50": (2, 4, 8),
    "densenet121": (2, 4, 8),
    "transformer": (1, 2, 4),
    "transformer_bfloat16": (1, 2, 4),
    "mlp1000": (256, 512, 1024),
    "lstm": (16, 32, 64),
    "gru1": (16, 32, 64),
    "gru2": (16, 32, 64),
    "depthwise": (8, 16, 32),
    "mobilenetv3small": (4, 8, 16),
}
SMALL_BATCHES = {  # large, because the kernel's count of pages is too coarse below some ten megabytes
    "unet": (16, 32, 64),
    "resnet50": (64, 128, 256),
    "densenet121": (64, 128, 256),
    "transformer": (16, 32, 64),
    "transformer_bfloat16": (16, 32, 64),
    "mlp1000": (8192, 16384, 32768),
    "lstm": (128, 256, 512),
    "gru1": (128, 256, 512),
    "gru2": (128, 256, 512),
    "depthwise": (64, 128, 256),
    "mobilenetv3small": (64, 128, 256),
}
MODES = ("train", "infer")
THREADS = (1, 2)
_PROCESSES = 3  # for a peak that is random
_PROCESSES_SMALL = 7  # for a peak that is too small for a single measurement, and the limit of small
_SMALL_BYTES = 16 * 2**20
_FORMULAS = ("unet", "resnet50", "densenet121", "mlp1000")  # models of layers with a short formula
_PRODUCTS = ("Conv2D", "Conv2DBackpropInput", "MatMul")


class Accuracy:
    """Measures one model and keeps its rows in the file."""

    def __init__(self, name: str, path: Path, console: Console, options: argparse.Namespace) -> None:
        self.name, self.path, self.console = name, path, console
        self.size: str = options.size
        self.modes: tuple[str, ...] = tuple(options.modes)
        self.predict: bool = options.predict
        usual = (BATCHES if self.size == "full" else SMALL_BATCHES)[name]
        self.middle = usual[1]
        self.batches: tuple[int, ...] = tuple(options.batches) or (usual[1:2] if options.quick else usual)
        self.results = AccuracyResults.read(path)
        self.known = {} if options.again else {row.key: row for row in self.results.peaks}
        self.records = Path(tempfile.gettempdir()) / "graphwright-accuracy"
        self.records.mkdir(exist_ok=True)

    def run(self) -> None:
        """All rows of the model."""
        from bench import zoo

        for batch in self.batches:
            reference = zoo.make(self.name, size=self.size, batch=batch)
            for mode in self.modes:
                self.console.print(f"{self.name}, {mode}, batch {batch}", style="dim")
                step, inputs = step_of(reference, mode)
                for row in self._peaks(step, inputs, mode, batch):
                    self._keep(row)
                if not self.predict:
                    self._keep(self._flops(step, inputs, mode, batch, reference.model))

    def count_again(self) -> None:
        """Count the FLOPs of every row of the model in the file."""
        from bench import zoo

        for batch in sorted({row.batch for row in self.results.peaks if (row.model, row.size) == (self.name, self.size)}):
            reference = zoo.make(self.name, size=self.size, batch=batch)
            for mode in self.modes:
                step, inputs = step_of(reference, mode)
                self._keep(self._flops(step, inputs, mode, batch, reference.model))

    def _keep(self, row: PeakRow | FlopRow) -> None:
        self.results.put(row)
        self.results.write(self.path)

    def _peaks(self, step: Any, inputs: tuple[Any, ...], mode: str, batch: int) -> Iterator[PeakRow]:
        from bench.grappler_estimate import grappler_peak_bytes
        from graphwright.costs.peak import predict_peak, traced_loops_peak
        from graphwright.memory.planning import map_tasks
        from graphwright.run.executed_graph import read_executed_graph
        from graphwright.run.measure import measure
        from graphwright.step.executor_peak import executor_peak
        from graphwright.step.flatten import flat_step
        from graphwright.step.targets import trace

        traced = trace(step, inputs=inputs)
        flat = flat_step(traced)
        tasks = map_tasks(flat)
        grappler = grappler_peak_bytes(traced.function)
        steps = 1 if self.size == "full" else 3
        key = (self.name, self.size, mode, batch, "ordered", max(THREADS))
        known, record = self.known.get(key), self._record(key)
        seen: list[Measurement] = []
        if known is None and not self.predict:
            graphs = list[bytes]()
            fixed = fixed_order(traced)
            ordered = partial(measure, fixed, inputs, time=False, steps=steps, inter_op_threads=max(THREADS), grappler=False)
            seen = [ordered(graphs=graphs)]
            seen += [ordered() for _ in range(1, _processes(seen[0]))]
            if flat.loops.trip_counts:
                record.write_bytes(max(graphs, key=len))
        found = predict_peak(step, inputs=inputs, threads=max(THREADS))
        peak, low, high = found.peak_bytes, found.low_bytes, found.high_bytes
        if flat.loops.trip_counts and record.exists():
            same = traced_loops_peak(traced, threads=max(THREADS), records=[record.read_bytes()])
            peak, low, high = same.peak_bytes, min(low, same.low_bytes), max(high, same.high_bytes)
        if seen:
            yield _row(key, seen, peak, low, high, grappler)
        elif known is not None:
            yield replace(known, predicted_bytes=peak, low_bytes=low, high_bytes=high, grappler_bytes=grappler)
        for threads in THREADS if batch == self.middle else THREADS[-1:]:
            key = (self.name, self.size, mode, batch, "executor", threads)
            record = self._record(key)
            known = self.known.get(key) if record.exists() else None
            plain = partial(measure, step, inputs, time=False, steps=steps, inter_op_threads=threads)
            seen = []
            if known is None and self.predict:
                continue
            if known is None:
                graphs = []
                seen = [plain(graphs=graphs)]
                record.write_bytes(max(graphs, key=len))
            ran = read_executed_graph([record.read_bytes()], like=flat.graph)
            same = executor_peak(traced, flat.graph, tasks, threads=threads, graph=ran, as_listed=True)
            anew = executor_peak(traced, flat.graph, tasks, threads=threads)
            low, high = min(anew.low_bytes, same.low_bytes), max(anew.high_bytes, same.high_bytes)
            if known is not None:
                yield replace(known, predicted_bytes=same.peak_bytes, low_bytes=low, high_bytes=high, grappler_bytes=grappler)
                continue
            is_chance = high > (1 + GOAL) * low
            seen += [plain() for _ in range(1, _processes(seen[0], is_chance))]
            yield _row(key, seen, same.peak_bytes, low, high, grappler)

    def _record(self, key: tuple[str, str, str, int, str, int]) -> Path:
        """Return the file of the graph that the measured process ran."""
        return self.records / ("-".join(map(str, key)) + ".pb")

    def _flops(self, step: Any, inputs: tuple[Any, ...], mode: str, batch: int, model: Any) -> FlopRow:
        import graphwright as gw

        counted = gw.count_flops(step, inputs=inputs)
        unknown = sum(ops.count for ops in counted.unknown.values())
        profiler = profiler_flops(step.get_concrete_function(*inputs).graph)
        products = sum(row.total for name, row in counted.per_op_type.items() if name in _PRODUCTS)
        formula = closed_formula(model, batch) if mode == "infer" and self.name in _FORMULAS else None
        of_products = products if formula else 0.0
        xla = xla_flops(step, inputs)
        return FlopRow(self.name, self.size, mode, batch, counted.total, profiler, unknown, of_products, formula, xla)


def _processes(first: Measurement, is_chance: bool = False) -> int:
    """Return the number of processes to measure a peak in; the kernel counts pages in lots, which distorts small peaks."""
    return _PROCESSES_SMALL if first.peak_bytes < _SMALL_BYTES else _PROCESSES if is_chance else 1


def _row(
    key: tuple[str, str, str, int, str, int], seen: Sequence[Measurement], predicted: int, low: int, high: int, grappler: int
) -> PeakRow:
    peaks = [m.peak_bytes for m in seen]
    typical = statistics.median_low(peaks)
    resident, how = seen[0].resident_bytes, seen[peaks.index(typical)].how
    return PeakRow(*key, typical, resident, predicted, low, high, grappler, how, len(peaks), min(peaks), max(peaks))


def step_of(reference: Any, mode: str) -> tuple[Any, tuple[Any, ...]]:
    """Return the step of a mode, and its inputs."""
    import tensorflow as tf

    if mode == "train":
        return reference.step, reference.inputs
    model = reference.model

    @tf.function
    def infer(x: Any) -> Any:
        return model(x, training=False)

    return infer, reference.inputs[:1]


def fixed_order(traced: Any) -> Any:
    """Return the step with the traced order fixed by control edges."""
    from graphwright.memory.planning import follow_schedule, map_tasks
    from graphwright.plan.model import Schedule
    from graphwright.step.flatten import flat_step

    flat = flat_step(traced)
    tasks = map_tasks(flat)
    return follow_schedule(flat, tasks, Schedule(tasks.costs.order))


def closed_formula(model: Any, batch: int) -> float:
    """FLOPs of the convolutions and dense layers of a Keras model in one forward pass: 2 x outputs x terms of each sum."""
    import keras

    total = 0.0
    for layer in model.layers:
        if isinstance(layer, keras.layers.Conv2DTranspose):  # each input pixel goes into a window of outputs
            total += 2.0 * batch * math.prod(layer.input.shape[1:3]) * math.prod(layer.kernel.shape)
        elif isinstance(layer, keras.layers.Conv2D):
            total += 2.0 * batch * math.prod(layer.output.shape[1:3]) * math.prod(layer.kernel.shape)
        elif isinstance(layer, keras.layers.Dense):
            total += 2.0 * batch * math.prod(layer.kernel.shape)
    return total


def profiler_flops(graph: Any) -> int:
    """Return the FLOPs that `tf.compat.v1.profiler` counts."""
    import tensorflow as tf

    profiler = tf.compat.v1.profiler
    options = profiler.ProfileOptionBuilder(profiler.ProfileOptionBuilder.float_operation()).with_empty_output().build()
    return int(profiler.profile(graph, cmd="op", options=options).total_float_ops)


def _run_models(options: argparse.Namespace, path: Path) -> int:
    died = 0
    for name in options.models:
        command = [sys.executable, "-m", "bench.accuracy", "--child", "--models", name, "--json", str(path)]
        command += ["--size", options.size, "--modes", *options.modes]
        command += ["--batches", *map(str, options.batches)] if options.batches else []
        command += [f"--{flag}" for flag in ("quick", "again", "flops", "predict") if getattr(options, flag)]
        died += subprocess.run(command, check=False).returncode != 0
    return died


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.accuracy", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=tuple(BATCHES), default=None, metavar="MODEL", help=", ".join(BATCHES))
    parser.add_argument("--quick", action="store_true", help="small models, one batch size each; by default unet and transformer")
    parser.add_argument("--json", type=Path, default=None, help="the file for the results; default bench/results/accuracy.json")
    parser.add_argument("--size", choices=("full", "small"), default=None, help="of the models; small with --quick, else full")
    parser.add_argument("--batches", nargs="+", type=int, default=[], help="batch sizes instead of the usual three of a model")
    parser.add_argument("--again", action="store_true", help="measure anew what the file has; else only the predictions are made anew")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES), help="training or inference only; default both")
    parser.add_argument("--predict", action="store_true", help="make the predictions of the file's rows anew and measure nothing")
    parser.add_argument("--flops", action="store_true", help="count the FLOPs of the file's rows anew and measure nothing")
    parser.add_argument("--from-json", type=Path, default=None, help="print the tables of a file as Markdown and stop")
    parser.add_argument("--summary", action="store_true", help="with --from-json: one line per model and mode")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.from_json is not None:
        if not options.from_json.exists():
            parser.error(f"there is no file {options.from_json}")
        results = AccuracyResults.read(options.from_json)
        print(as_summary(results) if options.summary else as_markdown(results))
        return 0
    options.size = options.size or ("small" if options.quick else "full")
    options.models = options.models or (["unet", "transformer"] if options.quick else list(BATCHES))
    console = Console()
    path = options.json or Path(__file__).parent / "results" / ("accuracy-quick.json" if options.quick else "accuracy.json")
    if options.child:
        accuracy = Accuracy(options.models[0], path, console, options)
        if options.flops:
            accuracy.count_again()
        else:
            accuracy.run()
        return 0
    died = _run_models(options, path)
    print_tables(AccuracyResults.read(path), console)
    console.print(f"kept in {path}; --from-json {path} prints them as Markdown", style="dim")
    return 1 if died else 0


if __name__ == "__main__":
    sys.exit(main())
