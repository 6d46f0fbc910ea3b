"""The process of a measurement: `python -m graphwright.run.worker DIRECTORY`.

Reads `request.json` and the steps beside it, and writes `result.json`. `graphwright.run.measure` starts it with the environment that the
measurement needs.
"""

import gc
import importlib
import json
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from graphwright.analyze.downsample import envelope
from graphwright.run import meter
from graphwright.run.allocations import check_counting, count_allocations, kept_bytes
from graphwright.run.call_options import grappler_disabled, grappler_enabled
from graphwright.run.measure import surroundings
from graphwright.run.record_step import open_session, record_here
from graphwright.run.traced_step import TracedStep
from graphwright.source.private_tensorflow import collected_graphs
from graphwright.source.step_file import StoredStep, read_steps

tf: Any = importlib.import_module("tensorflow")

_CURVE_POINTS = 1000


def main(directory: Path) -> None:
    request: dict[str, Any] = json.loads((directory / "request.json").read_text())
    tf.config.threading.set_inter_op_parallelism_threads(request["inter_op_threads"])
    tf.config.threading.set_intra_op_parallelism_threads(request["intra_op_threads"])
    tf.config.experimental.enable_tensor_float_32_execution(request["tensor_float_32"])
    steps = read_steps(directory)
    measured = {"memory": _memory, "count": _count, "time": _time, "profile": _profile}[request["kind"]](
        steps, request | {"directory": directory}
    )
    result = measured | surroundings()
    new = directory / "result.json.new"
    new.write_text(json.dumps(result))
    new.replace(directory / "result.json")


def _memory(steps: Mapping[str, StoredStep], request: Mapping[str, Any]) -> dict[str, Any]:
    ((name, step),) = steps.items()
    run = _runner(step, request["options"][name])
    growth_of = _gpu_growth_of if _device() == "GPU:0" else meter.growth_of
    if _device() != "GPU:0":
        meter.check()
    with _kept_graphs(request):
        for _ in range(request["warmup"]):
            run()
    growths = [growth_of(run) for _ in range(request["steps"])]
    if _device() != "GPU:0":
        meter.check()
    return {"growths": growths}


def _count(steps: Mapping[str, StoredStep], request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the allocations of each step, and the growth of the process besides, once the pool is filled."""
    ((name, step),) = steps.items()
    run = _runner(step, request["options"][name])
    check_counting()
    with _kept_graphs(request):
        first = count_allocations(run)
    pool_bytes = kept_bytes(first, count_allocations(run))
    for _ in range(request["warmup"]):
        run()
    counted = [count_allocations(run) for _ in range(request["steps"])]
    outside = [meter.growth_of(run) for _ in range(request["steps"])]
    changes = counted[-1].changes
    kept_changes = [changes[k] for k in envelope([nbytes for _, nbytes in changes], _CURVE_POINTS)]
    most = {"tensors": [c.tensors_bytes for c in counted], "all": [c.all_bytes for c in counted]}
    return {**most, "outside": outside, "kept": pool_bytes, "changes": kept_changes}


def _time(steps: Mapping[str, StoredStep], request: Mapping[str, Any]) -> dict[str, Any]:
    """Return wall times of each step. Steps take turns, so that a machine that slows down slows all of them."""
    runs = {name: _runner(step, request["options"][name]) for name, step in steps.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        for _ in range(request["warmup"]):
            run()
    for _ in range(request["steps"]):
        for name, run in runs.items():
            tf.test.experimental.sync_devices()
            start = time.perf_counter()
            run()
            tf.test.experimental.sync_devices()
            times[name].append(time.perf_counter() - start)
    return {"times": times}


def _profile(steps: dict[str, StoredStep], request: Mapping[str, Any]) -> dict[str, Any]:
    name, stored = steps.popitem()
    session = open_session(TracedStep.called(name, stored.concrete, stored.arguments), request["options"][name], request)
    del stored  # with its variables, which the session has copied
    gc.collect()
    return record_here(session, request, request["directory"])


@contextmanager
def _kept_graphs(request: Mapping[str, Any]) -> Generator[None]:
    """Write TensorFlow's records of the graphs that it makes meanwhile beside the result, if asked for."""
    with collected_graphs() if request["graphs"] else nullcontext([]) as graphs:
        yield
    for number, graph in enumerate(graphs):
        Path(request["directory"], f"{request['kind']}{number}.pb").write_bytes(graph)


def _runner(step: StoredStep, options: Mapping[str, Any]) -> Callable[[], None]:
    def run() -> None:
        with grappler_enabled() if options["grappler"] else grappler_disabled(executor=options["executor"]):
            outputs = step.concrete(*step.arguments)
        del outputs

    return run


def _device() -> str:
    return "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"


def _gpu_growth_of(call: Callable[[], object]) -> int:
    tf.test.experimental.sync_devices()
    tf.config.experimental.reset_memory_stats("GPU:0")
    before = tf.config.experimental.get_memory_info("GPU:0")["current"]
    call()
    tf.test.experimental.sync_devices()
    return max(0, tf.config.experimental.get_memory_info("GPU:0")["peak"] - before)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
