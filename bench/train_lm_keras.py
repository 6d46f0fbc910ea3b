"""Levenberg-Marquardt for Keras models against the PyPI package tf-levenberg-marquardt, on examples of its kind.

    python -m bench.train lm_keras                          # everything: about ten minutes on two cores
    python -m bench.train lm_keras --only digits --rounds 1  # problems whose name contains this
    python -m bench.train lm_keras --from-json              # the table again, from the stored results

**Time**: the trainers of a problem take turns, step by step, in one process, from the same initial weights. A ratio is between the medians
of a process; the table has the median over `--rounds` processes, and the ratio of processor times. The first two steps, which compile, do
not count.

**Memory**: a process per trainer, with a malloc that returns freed memory (`graphwright.run.meter`). *Of a step*: the largest growth of the
process during a step, after the first two. *Of the process*: the growth from before the trainer is created until after its first two
steps, with tracing, graphs, and first-touched pages of TensorFlow's code, which dominate for small models.

Cross-entropies are trained with the square root of the loss as residual, one row per sample, as the package does ("same residuals"); by
their exact Hessian as `method="auto"` decides; and, where that is by iteration, with the Gram matrix too ("cholesky").

The package is not a requirement of graphwright: `pip install --no-deps tf-levenberg-marquardt==1.0.3`, or the unpacked wheel on PYTHONPATH.
Without it, its columns are missing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "train_lm_keras.json"
THEIRS = "tf_levenberg_marquardt"
MISSING = "tf-levenberg-marquardt is not installed, so its figures are missing: pip install --no-deps tf-levenberg-marquardt==1.0.3"
PROBLEMS = {
    "sinc, 61 parameters": (1000, 40),
    "digits, dense 1,510": (300, 12),
    "digits, convolutional 548": (300, 12),
    "sinc, 2,401 parameters, 200 samples": (200, 12),
}
"""Samples of a batch, and steps."""
LARGE = {
    "streamed Gram matrix, 9,985 parameters, batch 64": (64, 2),
    "streamed Gram matrix, 9,985 parameters, batch 256": (256, 2),
    "matrix-free, 1,001,070 parameters": (512, 6),
}
OURS = {
    "digits, dense 1,510": ("same residuals", "ours", "cholesky"),
    "digits, convolutional 548": ("same residuals", "ours"),
}
"""Ways of ours to train a problem, where there are several."""
WARM_UP = 2
MIB = 1 << 20


def problem(name: str) -> tuple[Any, Any, Any, str]:
    """Model, inputs, targets, and `"mse"` or `"crossentropy"`; the same weights each time."""
    import keras
    import numpy as np

    keras.utils.set_random_seed(7)
    dense, sequential = keras.layers.Dense, keras.Sequential
    random = np.random.default_rng(7)
    if name.startswith("sinc"):
        hidden = 20 if "61" in name else 800
        count = 1000 if "61" in name else 200
        x = random.uniform(-1.0, 1.0, (count, 1)).astype(np.float32)
        return sequential([keras.Input((1,)), dense(hidden, "tanh"), dense(1)]), x, np.sinc(10.0 * x).astype(np.float32), "mse"
    if name.startswith("streamed"):
        x = random.normal(size=(256, 64)).astype(np.float32)
        y = np.tanh(x @ random.normal(size=(64, 10)) / 8.0).astype(np.float32)
        return sequential([keras.Input((64,)), dense(133, "tanh"), dense(10)]), x, y, "mse"
    if name.startswith("matrix"):
        x = random.normal(size=(512, 784)).astype(np.float32)
        y = np.argmax(x @ random.normal(size=(784, 10)), axis=1)
        layers = [dense(800, "tanh"), dense(460, "tanh"), dense(10, "softmax")]
        return sequential([keras.Input((784,)), *layers]), x, y, "crossentropy"
    from sklearn.datasets import load_digits

    digits: Any = load_digits()
    x = (digits.images[..., np.newaxis] / 16.0).astype(np.float32)
    if "dense" in name:
        layers = [keras.layers.Flatten(), dense(20, "tanh"), dense(10, "softmax")]
    else:
        layers = [keras.layers.Conv2D(4, 4, 2, activation="tanh"), keras.layers.Flatten(), dense(10, "tanh"), dense(10, "softmax")]
    return sequential([keras.Input((8, 8, 1)), *layers]), x, digits.target, "crossentropy"


def trained(name: str, trainer: str) -> tuple[Any, Callable[[int], None], Callable[[], float], Callable[[], str]]:
    """Return the model, a function that takes its i-th step, the loss of all data, and the solver."""
    import keras

    model, x, y, kind = problem(name)
    batch, _ = {**PROBLEMS, **LARGE}[name]
    loss = keras.losses.MeanSquaredError() if kind == "mse" else keras.losses.SparseCategoricalCrossentropy()
    model(x[:2])
    step, decided = _theirs(model, kind) if trainer == "theirs" else _ours(model, loss, name, trainer)

    def take(number: int) -> None:
        first = number * batch % max(len(x) - batch + 1, 1)
        step(x[first : first + batch], y[first : first + batch])

    return model, take, lambda: float(loss(y, model.predict(x, verbose=0, batch_size=512))), decided


def _ours(model: Any, loss: Any, name: str, trainer: str) -> tuple[Any, Any]:
    from graphwright.train import LevenbergMarquardt, SquareRootLoss

    method: Any = "cholesky" if trainer == "cholesky" or name.startswith("streamed") else "auto"
    lm = LevenbergMarquardt(model, SquareRootLoss(loss) if trainer == "same residuals" else loss, method=method)
    return (lambda x, y: float(lm.step(x, y).new_loss)), (lambda: str(lm.decisions[0]))


def _theirs(model: Any, kind: str) -> tuple[Any, Any]:
    """As the package's own examples call it: its Trainer, its solver for classification or curve fitting, batches as tensors.

    One patch, from outside: the package counts residuals by running the model on an empty batch, which Keras 3.15 refuses after `Flatten`.
    """
    import tensorflow as tf

    package: Any = importlib.import_module(THEIRS)
    loss = package.loss.MeanSquaredError() if kind == "mse" else package.loss.SparseCategoricalCrossentropy()
    solver = "qr" if kind == "mse" else "cholesky"
    trainer = package.training.Trainer(model=model, loss=loss, optimizer=_optimizer(), solve_method=solver)
    trainer.backup_variables()
    trainer._num_outputs = 1  # residuals per sample, here of all examples

    def step(x: Any, y: Any) -> None:
        targets = tf.convert_to_tensor(y)
        if kind != "mse":
            targets = tf.cast(targets, tf.float32)
        trainer.train_step(tf.convert_to_tensor(x), targets)

    return step, lambda: f"solve_method={solver!r}, jacobian_max_num_rows=100"


def _optimizer() -> Any:
    import keras

    return keras.optimizers.SGD(learning_rate=1.0)


def time_of(name: str, trainers: list[str]) -> dict[str, Any]:
    """Time steps of these trainers in turns, in this process."""
    all_of_them = {trainer: trained(name, trainer) for trainer in trainers}
    wall: dict[str, list[float]] = {trainer: [] for trainer in trainers}
    processor: dict[str, list[float]] = {trainer: [] for trainer in trainers}
    for number in range({**PROBLEMS, **LARGE}[name][1] + WARM_UP):
        for trainer, (_, take, _, _) in all_of_them.items():
            started, ran = time.perf_counter(), time.process_time()
            take(number)
            wall[trainer].append(time.perf_counter() - started)
            processor[trainer].append(time.process_time() - ran)
    found: dict[str, Any] = {}
    for trainer, (model, _, loss, decided) in all_of_them.items():
        found[trainer] = {
            "step_s": statistics.median(wall[trainer][WARM_UP:]),
            "processor_s": statistics.median(processor[trainer][WARM_UP:]),
            "first_step_s": wall[trainer][0],
            "loss": loss(),
            "parameters": int(model.count_params()),
            "decision": decided(),
        }
    return found


def memory_of(name: str, trainer: str) -> dict[str, int]:
    """Memory of one trainer's steps in this process, whose malloc is set for it."""
    from graphwright.run.meter import check, growth_of

    check()
    steps: list[Any] = []

    def first_steps() -> None:
        steps.append(trained(name, trainer)[1])
        for number in range(WARM_UP):
            steps[0](number)

    problem(name)  # imports what problems need
    process = growth_of(first_steps)
    return {"process_bytes": process, "step_bytes": statistics.median_high(growth_of(lambda: steps[0](WARM_UP)) for _ in range(3))}


def in_process(arguments: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """What `--one` prints in a fresh process."""
    command = [sys.executable, "-m", "bench.train_lm_keras", "--one", json.dumps(arguments)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment}
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if found.returncode:
        return {"failed": (found.stderr.strip().splitlines() or ["no message"])[-1][:200]}
    return json.loads(found.stdout.strip().splitlines()[-1])


def measure(name: str, trainers: list[str], rounds: int, keep: Callable[[dict[str, Any]], None]) -> None:
    """Measure one problem; `keep` is called with the results so far."""
    from graphwright.run.meter import MEMORY_ENVIRONMENT

    found: dict[str, Any] = {trainer: {} for trainer in trainers}
    times: list[dict[str, Any]] = []
    for _ in range(rounds):
        one = in_process(["time", name, *trainers], {})
        print(name, one, file=sys.stderr)
        if "failed" in one:
            keep(dict.fromkeys(trainers, one))
            return
        times.append(one)
        for trainer in trainers:
            mine = [entry[trainer] for entry in times]
            medians = {key: statistics.median(entry[key] for entry in mine) for key in ("step_s", "processor_s", "first_step_s")}
            found[trainer] |= mine[0] | medians
            if "theirs" in trainers:
                for key in ("step_s", "processor_s"):
                    found[trainer][f"{key}_ratio"] = statistics.median(e[trainer][key] / e["theirs"][key] for e in times)
        keep(found)
    for trainer in trainers:
        memory = in_process(["memory", name, trainer], MEMORY_ENVIRONMENT)
        print(name, trainer, memory, file=sys.stderr)
        found[trainer] |= memory
        keep(found)


def main(argv: list[str]) -> int:
    """Measure, print a table, write the results after every process."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.train lm_keras", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=3, help="processes that time the trainers of a problem")
    parser.add_argument("--only", default="", help="problems whose name contains this")
    parser.add_argument("--from-json", action="store_true", help="print the table of the kept results")
    options = parser.parse_args(argv)
    if options.one:
        kind, name, *trainers = json.loads(options.one)
        print(json.dumps(time_of(name, trainers) if kind == "time" else memory_of(name, trainers[0])))
        return 0
    kept: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    results = kept.setdefault("problems", {})
    installed = importlib.util.find_spec(THEIRS) is not None

    def keep(name: str, found: dict[str, Any]) -> None:
        results[name] = found
        kept["machine"] = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[1]:.1f}"
        RESULTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")

    chosen = [] if options.from_json else [name for name in (*PROBLEMS, *LARGE) if options.only in name]
    for name in chosen:
        trainers = [*OURS.get(name, ("ours",)), *(["theirs"] if installed and name in PROBLEMS else [])]
        measure(name, trainers, 1 if name in LARGE else options.rounds, lambda found, name=name: keep(name, found))
    print(table(results))
    print(f"\n{kept.get('machine', '')}")
    if chosen and not installed:
        print(f"\n{MISSING}")
    return 0


def table(results: dict[str, Any]) -> str:
    """The results as Markdown: ratios of ours to theirs, below 1 where ours is faster or smaller."""
    lines = [
        "| problem | step time (processor time), ours / theirs | step memory | process memory | loss ours | loss theirs | solver |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in [name for name in (*PROBLEMS, *LARGE) if name in results]:
        theirs = results[name].get("theirs", {})
        for trainer, ours in results[name].items():
            if trainer == "theirs":
                continue
            label = name if trainer == "ours" else f"{name}, {trainer}"
            if "failed" in ours:
                lines.append(f"| {label} | failed: {ours['failed']} | | | | | |")
                continue
            times = f"{ours['step_s_ratio']:.2f} ({ours['processor_s_ratio']:.2f})" if "step_s_ratio" in ours else ""
            memory = [_bytes(ours.get(key), theirs.get(key)) for key in ("step_bytes", "process_bytes")]
            losses = [f"{one['loss']:.3g}" if "loss" in one else "" for one in (ours, theirs)]
            lines.append(f"| {label} | {times} | {' | '.join([*memory, *losses])} | {ours['decision'].split(':')[0]} |")
    return "\n".join(lines)


def _bytes(ours: int | None, theirs: int | None) -> str:
    """Return our mebibytes, after their ratio to the other's."""
    if ours is None:
        return "not run"
    text = f"{ours / MIB:,.1f} MiB" if ours < 100 * MIB else f"{ours / MIB:,.0f} MiB"
    return f"{ours / theirs:.2f} ({text})" if theirs else text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
