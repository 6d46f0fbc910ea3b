"""Reversible networks: peak against depth, time against plain backpropagation and against recomputation.

    python -m bench.train reversible                                      # everything; some 15 minutes on two quiet cores
    python -m bench.train reversible --quick                              # small images, few steps
    python -m bench.train reversible --parts memory --depths 38 164       # or: time, xla, drift
    python -m bench.train reversible --parts time --models revnet110 --rounds 9
    python -m bench.train reversible --from-json                          # the tables again, as Markdown

All rows of a model train the same variables with the same blocks and differ only in the gradient:

- `plain`: TensorFlow's own gradient, which keeps every intermediate value;
- `reversible`: as built by the model's builder; `nothing kept`: the last blocks keep nothing;
- `tf.recompute_grad`: around each block; `optimize_memory` (`--planned`): of the plain step, in the memory of the reversible step.

Each peak is measured in a fresh process (`graphwright.measure`), above the resident bytes (weights, momentum, images). It includes the
gradients of all weights, which the table also lists, because they grow with the depth for every method. The optimizer waits for all
gradients: otherwise the executor decays every momentum at once, which takes as much again.

For times all steps of a model take turns in one process; a ratio is the median over the rounds of a step's time over the plain step's
in the same round. `cpu` is the ratio of processor times, which other programs disturb less.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

RESULTS = Path(__file__).parent / "results" / "train_reversible.json"
PARTS = ("memory", "time", "xla", "drift")

DEPTHS = {38: 2, 110: 6, 164: 9}
"""Layers of a bottleneck RevNet -> units of each of its three stages: 6 convolutions a unit, and the first and last layer."""

BASIC_DEPTHS = (38, 110)
"""Layers of the RevNets of basic units in `examples/reversible_networks.py`."""


class Subject:
    """A model with its steps."""

    def __init__(self, model: Any, batch: int) -> None:
        import keras
        import tensorflow as tf

        self.model, self.trunk = model, model.get_layer("trunk")
        self.default_kept = (self.trunk.kept_blocks, self.trunk.remembering_blocks)
        self.optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        self.optimizer.build(model.trainable_variables)
        self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        shape = model.input_shape[1:]
        self.weight_bytes = sum(4 * v.value.shape.num_elements() for v in model.trainable_variables)
        self.inputs = (tf.random.stateless_normal((batch, *shape), (0, 0)), tf.range(batch) % model.output_shape[-1])

    def step(
        self,
        *,
        reversible: bool,
        kept: tuple[int, int] | None = None,
        recompute: bool = False,
        update: bool = True,
        jit_compile: bool = False,
    ) -> Any:
        """A training step, traced, since the settings hold while it is traced; without `update`, the gradients alone."""
        import tensorflow as tf

        from graphwright.reversible import engine

        @tf.function(jit_compile=jit_compile)
        def train_step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = self.loss(y, self.model(x, training=True))
            variables = self.model.trainable_variables
            gradients = tape.gradient(loss, [v.value for v in variables])
            if not update:
                return loss, gradients
            with tf.control_dependencies([tf.group(*gradients)]):  # else the executor first decays all momenta
                self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return loss

        self.trunk.reconstructs = reversible
        self.trunk.kept_blocks, self.trunk.remembering_blocks = self.default_kept if kept is None else kept
        with patch.object(engine, "run_plain", _recomputed(engine.run_plain) if recompute else engine.run_plain):
            return train_step.get_concrete_function(*self.inputs)


def _recomputed(plain: Callable[..., Any]) -> Callable[..., Any]:
    import tensorflow as tf

    def run(parts: Sequence[Any], x: Any, training: Any, mask: Any) -> Any:
        for part in parts:
            x = tf.recompute_grad(lambda x1, x2, part=part: plain([part], (x1, x2), training, mask)[0])(*x)
        return x, []

    return run


def deep(units: int, *, quick: bool) -> Any:
    from examples.reversible_networks import revnet

    side = 16 if quick else 32
    return revnet([units] * 3, [64, 128, 256], bottleneck=True, input_shape=(side, side, 3))


def named(name: str, *, quick: bool) -> Any:
    from examples.reversible_networks import paper_network

    side = 16 if quick else 32
    return paper_network(name, (side, side, 3))


STEPS: dict[str, dict[str, Any]] = {
    "plain": {"reversible": False},
    "reversible": {"reversible": True},
    "nothing kept": {"reversible": True, "kept": (0, 0)},
}


def memory(results: dict[str, Any], *, quick: bool, batch: int, depths: Sequence[int]) -> None:
    rows = results.setdefault("memory", {})
    for title, model in _by_depth(depths, quick=quick):
        subject = Subject(model, batch)
        row: dict[str, Any] = {"batch": batch, "gradients": subject.weight_bytes, "kept": subject.default_kept}
        rows[f"{title}, batch {batch}"] = row
        for key, options in STEPS.items():
            measured = measured_step(subject.step(**options), subject.inputs, quick=quick)
            row[key], row["resident"] = measured.peak_bytes - measured.resident_bytes, measured.resident_bytes
            print(title, key, row[key], flush=True)
            _write(results)


def _by_depth(depths: Sequence[int], *, quick: bool) -> Iterator[tuple[str, Any]]:
    """Networks of two kinds of units, which differ only in depth within a kind."""
    for layers in depths:
        yield f"bottlenecks, {layers} layers", deep(DEPTHS[layers], quick=quick)
    for layers in depths:
        if layers in BASIC_DEPTHS:
            yield f"revnet{layers}", named(f"revnet{layers}", quick=quick)


def compiled(results: dict[str, Any], *, quick: bool, batch: int, depths: Sequence[int], rounds: int) -> None:
    """Compile the gradients by XLA; return its temporaries, and the time relative to the plain step."""
    from graphwright.run.xla_memory import xla_memory

    rows = results.setdefault("xla", {})
    for title, model in _by_depth(depths, quick=quick):
        subject = Subject(model, batch)
        steps = {key: subject.step(**options, update=False, jit_compile=True) for key, options in STEPS.items()}
        row: dict[str, Any] = {"batch": batch, "gradients": subject.weight_bytes, "kept": subject.default_kept}
        shapes = [tuple(tensor.shape) for tensor in subject.inputs]
        row["temporaries"] = {key: xla_memory(step, shapes).temporary_bytes for key, step in steps.items()}
        print(title, row["temporaries"], flush=True)
        row["steps"] = ratios(steps, subject.inputs, rounds=2 if quick else rounds)
        print(title, row["steps"], flush=True)
        rows[f"{title}, batch {batch}"] = row
        _write(results)


def measured_step(step: Any, inputs: Sequence[Any], *, quick: bool) -> Any:
    import graphwright as gw

    return gw.measure(step, inputs, time=False, steps=1 if quick else 2)


def times(results: dict[str, Any], *, quick: bool, batch: int, names: Sequence[str], rounds: int, planned: bool) -> None:
    rows = results.setdefault("time", {})
    for name in names:
        subject = Subject(named(name, quick=quick), batch)
        steps = {
            "plain": subject.step(reversible=False),
            "reversible": subject.step(reversible=True),
            "nothing kept": subject.step(reversible=True, kept=(0, 0)),
            "tf.recompute_grad": subject.step(reversible=False, recompute=True),
        }
        if planned:
            steps |= _planned(steps, subject.inputs, quick=quick)
        found = ratios(steps, subject.inputs, rounds=2 if quick else rounds)
        print(name, found, flush=True)
        rows[name] = {"batch": batch, "kept": subject.default_kept, "load": os.getloadavg()[0], "rounds": rounds, "steps": found}
        _write(results)


def _planned(steps: Mapping[str, Any], inputs: Sequence[Any], *, quick: bool) -> dict[str, Any]:
    """Return the plain step within the memory of the reversible step, if a plan exists."""
    import graphwright as gw

    budget = measured_step(steps["reversible"], inputs, quick=quick).peak_bytes
    try:
        return {"optimize_memory": gw.optimize_memory(steps["plain"], budget=budget, inputs=inputs, verify=False, cache_dir=None)}
    except gw.InfeasibleError as error:
        print(f"optimize_memory: {error}", flush=True)
        return {}


def ratios(steps: Mapping[str, Any], inputs: Sequence[Any], *, rounds: int) -> dict[str, dict[str, float]]:
    """Return wall and processor time of each step relative to the first in the same round, median over rounds."""
    import tensorflow as tf

    clocks = {"wall": time.perf_counter, "cpu": time.process_time}
    spent: dict[str, list[dict[str, float]]] = {key: [] for key in steps}
    for _ in range(rounds + 1):
        for key, step in steps.items():
            start = {clock: read() for clock, read in clocks.items()}
            tf.nest.map_structure(lambda tensor: tensor.numpy(), step(*inputs))
            spent[key].append({clock: read() - start[clock] for clock, read in clocks.items()})
    first = next(iter(spent.values()))

    def ratio(key: str, clock: str) -> float:
        return statistics.median(mine[clock] / base[clock] for mine, base in zip(spent[key][1:], first[1:], strict=True))

    return {key: {clock: ratio(key, clock) for clock in clocks} for key in steps}


def drift(results: dict[str, Any], *, quick: bool, batch: int) -> None:
    """One stage of many units that keeps only its last streams, and a network whose stages keep their inputs."""
    import keras

    import graphwright as gw
    from examples.reversible_networks import revnet

    keras.utils.set_random_seed(0)
    side = 16 if quick else 32
    one_stage = revnet([27], [16], input_shape=(side, side, 3), name="27 units of 16 channels")
    for model in (one_stage, named("revnet110", quick=quick)):
        check = gw.check_inverse(model, Subject(model, batch).inputs[0], training=True)
        print(check)
        rows = [{"depth": row.depth, "dtype": row.dtype, "relative": row.relative_error} for row in check.rows]
        results.setdefault("drift", {})[model.name] = rows
    _write(results)


def as_markdown(results: Mapping[str, Any]) -> str:
    lines: list[str] = []
    if "memory" in results:
        lines += ["| RevNet | plain | as built | nothing kept | of it gradients of weights | the last two without those | |"]
        lines += ["|---|---:|---:|---:|---:|---:|---:|"]
        for title, row in results["memory"].items():
            if not STEPS.keys() <= row.keys():
                continue
            peaks = [row[key] for key in STEPS]
            figures = [*peaks, row["gradients"], *(peak - row["gradients"] for peak in peaks[1:])]
            lines.append(f"| {title} | {' | '.join(f'{n / 1e6:,.1f}' for n in figures)} |")
        lines.append("")
    if "time" in results:
        lines += ["| model | batch | step | time | processor time |", "|---|---:|---|---:|---:|"]
        for name, row in results["time"].items():
            for key, found in row["steps"].items():
                lines.append(f"| {name} | {row['batch']} | {key} | {found['wall']:.2f} | {found['cpu']:.2f} |")
        lines.append("")
    if "xla" in results:
        lines += ["| RevNet | XLA's temporaries: plain | as built | nothing kept | processor time: as built | nothing kept |"]
        lines += ["|---|---:|---:|---:|---:|---:|"]
        for title, row in results["xla"].items():
            cells = [f"{nbytes / 1e6:,.1f}" for nbytes in row["temporaries"].values()]
            cells += [f"{row['steps'][key]['cpu']:.2f}" for key in list(STEPS)[1:]]
            lines.append(f"| {title} | {' | '.join(cells)} |")
        lines.append("")
    for name, drifts in results.get("drift", {}).items():
        dtypes = list(dict.fromkeys(row["dtype"] for row in drifts))
        lines += [f"| blocks back, {name} | {' | '.join(dtypes)} |", f"|---:|{'---:|' * len(dtypes)}"]
        for depth in dict.fromkeys(row["depth"] for row in drifts):
            cells = [f"{row['relative']:.1e}" for row in drifts if row["depth"] == depth]
            lines.append(f"| {depth} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def _write(results: dict[str, Any]) -> None:
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--depths", type=int, nargs="+", choices=tuple(DEPTHS), default=tuple(DEPTHS), help="of the parts memory and xla")
    parser.add_argument("--models", nargs="+", default=("revnet38", "revnet110", "revnet164"), help="of the part time")
    parser.add_argument("--rounds", type=int, default=7, help="of the parts time and xla")
    parser.add_argument("--planned", action="store_true", help="with optimize_memory, which plans for minutes")
    parser.add_argument("--from-json", action="store_true")
    options = parser.parse_args(argv)
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if not options.from_json:
        import tensorflow as tf

        results["about"] = {"tensorflow": tf.__version__, "cores": os.cpu_count(), "quick": options.quick}
        if "memory" in options.parts:
            memory(results, quick=options.quick, batch=options.batch, depths=options.depths)
        if "time" in options.parts:
            times(results, quick=options.quick, batch=options.batch, names=options.models, rounds=options.rounds, planned=options.planned)
        if "xla" in options.parts:
            compiled(results, quick=options.quick, batch=options.batch, depths=options.depths, rounds=options.rounds)
        if "drift" in options.parts:
            drift(results, quick=options.quick, batch=options.batch)
    print(as_markdown(results))


if __name__ == "__main__":
    main()
