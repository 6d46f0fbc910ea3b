"""Levenberg-Marquardt for Keras models against the PyPI package tf-levenberg-marquardt, on that package's own kinds of example.

    python -m bench.train lm_keras          # prints a table, writes bench/results/train_lm_keras.json

Each pair (a problem, a trainer) runs in a process of its own: time per step after the first two (which compile), the process's peak
memory above that before training, and the loss of all data at the end, from the same initial weights. Pairs take turns, `--rounds`
times; ratios are between medians. Crossentropies are trained twice by ours: with the square root of the loss as residual, as the
package does ("same residuals"), and by the Hessian of the loss in the logits, ten rows per sample instead of one. The package is not a
requirement of graphwright: `pip install --no-deps tf-levenberg-marquardt==1.0.3`, or put the unpacked wheel on PYTHONPATH; without it,
only ours is measured.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "train_lm_keras.json"
THEIRS = "tf_levenberg_marquardt"
PROBLEMS = {
    # name: (batch, steps, sizes of the model in words)
    "sinc, 61 parameters": (1000, 40),
    "digits, dense 1,510": (300, 12),
    "digits, convolutional 548": (300, 12),
    "sinc, 2,401 parameters, 200 samples": (200, 12),
}
LARGE = {
    "streamed Gram matrix, 9,985 parameters, batch 64": (64, 2),
    "streamed Gram matrix, 9,985 parameters, batch 256": (256, 2),
    "matrix-free, 1,001,070 parameters": (512, 6),
}


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


def run_one(name: str, trainer: str) -> dict[str, Any]:
    """Train in this process, and measure."""
    import keras

    model, x, y, kind = problem(name)
    batch, steps = {**PROBLEMS, **LARGE}[name]
    loss = keras.losses.MeanSquaredError() if kind == "mse" else keras.losses.SparseCategoricalCrossentropy()
    model(x[:2])
    if trainer == "theirs":
        step, decided = _theirs(model, kind)
    else:
        step, decided = _ours(model, loss, trainer == "same residuals" and kind != "mse", name.startswith("streamed"))
    before = _resident()
    _reset_peak()
    times: list[float] = []
    for number in range(steps + 2):
        first = number * batch % max(len(x) - batch + 1, 1)
        part = slice(first, first + batch)
        started = time.perf_counter()
        step(x[part], y[part])
        times.append(time.perf_counter() - started)
    final = float(loss(y, model.predict(x, verbose=0, batch_size=512)))
    return {
        "step_s": statistics.median(times[2:]),
        "first_step_s": times[0],
        "peak_bytes": _peak() - before,
        "loss": final,
        "parameters": int(model.count_params()),
        "decisions": decided(),
    }


def _ours(model: Any, loss: Any, square_root: bool, streamed: bool) -> tuple[Any, Any]:
    from graphwright.train import LevenbergMarquardt, SquareRootLoss

    trainer = LevenbergMarquardt(model, SquareRootLoss(loss) if square_root else loss, method="cholesky" if streamed else "auto")
    return (lambda x, y: float(trainer.step(x, y).new_loss)), (lambda: [str(entry) for entry in trainer.decisions])


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

    return step, lambda: [f"solve_method={solver!r}, jacobian_max_num_rows=100"]


def _optimizer() -> Any:
    import keras

    return keras.optimizers.SGD(learning_rate=1.0)


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def _resident() -> int:
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def measure(name: str, trainer: str) -> dict[str, Any]:
    """`run_one` in a fresh process."""
    command = [sys.executable, "-m", "bench.train_lm_keras", "--one", name, trainer]
    found = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"})
    if found.returncode:
        return {"failed": found.stderr.strip().splitlines()[-1][:200]}
    return json.loads(found.stdout.strip().splitlines()[-1])


def main(argv: list[str]) -> int:
    """Measure all pairs, print a table, write the results."""
    parser = argparse.ArgumentParser(prog="python -m bench.train lm_keras", description=__doc__)
    parser.add_argument("--one", nargs=2, metavar=("PROBLEM", "TRAINER"), help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=3, help="processes per pair")
    parser.add_argument("--only", default="", help="problems whose name contains this")
    options = parser.parse_args(argv)
    if options.one:
        print(json.dumps(run_one(*options.one)))
        return 0
    others = ["theirs"] if importlib.util.find_spec(THEIRS) else []
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in [*PROBLEMS, *LARGE]:
        if options.only not in name:
            continue
        trainers = ["ours"] if name in LARGE or "digits" not in name else ["same residuals", "ours"]
        results[name] = _rounds(name, trainers + (others if name in PROBLEMS else []), options.rounds)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))
    return 0


def _rounds(name: str, trainers: list[str], rounds: int) -> dict[str, Any]:
    runs: dict[str, list[dict[str, Any]]] = {trainer: [] for trainer in trainers}
    for _ in range(rounds):
        for trainer in trainers:
            runs[trainer].append(measure(name, trainer))
            print(name, trainer, runs[trainer][-1], file=sys.stderr)
    found: dict[str, Any] = {}
    for trainer, entries in runs.items():
        good = [entry for entry in entries if "failed" not in entry]
        figures = ("step_s", "first_step_s", "peak_bytes", "loss")
        found[trainer] = {**good[0], **{key: statistics.median(e[key] for e in good) for key in figures}} if good else entries[0]
    return found


def table(results: dict[str, Any]) -> str:
    """The results as Markdown: ratios of ours to theirs, below 1 where ours is faster or smaller."""
    lines = [
        "| problem | step time, ours / theirs | peak memory, ours / theirs | loss ours | loss theirs | solver |",
        "|---|---|---|---|---|---|",
    ]
    for name, found in results.items():
        theirs = found.get("theirs", {})
        for trainer, ours in found.items():
            if trainer == "theirs":
                continue
            label = name if trainer == "ours" else f"{name}, {trainer}"
            if "failed" in ours:
                lines.append(f"| {label} | failed: {ours['failed']} | | | | |")
                continue
            mebibytes = f"{ours['peak_bytes'] / 2**20:.0f} MiB"
            cells = ["", mebibytes, f"{ours['loss']:.3g}", theirs.get("failed", "")]
            if "step_s" in theirs:
                cells[0] = f"{ours['step_s'] / theirs['step_s']:.2f}"
                cells[1] = f"{ours['peak_bytes'] / theirs['peak_bytes']:.2f} ({mebibytes})"
                cells[3] = f"{theirs['loss']:.3g}"
            lines.append(f"| {label} | {' | '.join(cells)} | {ours['decisions'][0].split(':')[0]} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
