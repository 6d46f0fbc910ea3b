"""Record one step: every operation that ran, with its times and its memory. By default in a fresh process.

Several steps are recorded after warm-up, and the one of median time is kept. Unrecorded steps are timed too, so that the cost of recording
shows.
"""

import importlib
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphwright.errors import MeasurementError
from graphwright.run.measure import check_counts, conditions, request_of, run_worker, step_options, surroundings
from graphwright.run.step_session import StepSession, check_recordable, trace_options
from graphwright.run.traced_step import TracedStep
from graphwright.source.step_file import write_steps

tf: Any = importlib.import_module("tensorflow")

_METADATA = "metadata.pb"


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """TensorFlow's records of one step (a `RunMetadata`), and the wall times of recorded and unrecorded steps."""

    metadata: Any
    times_s: tuple[float, ...]
    plain_times_s: tuple[float, ...]
    how: str


def record_step(
    step: TracedStep,
    *,
    steps: int = 3,
    warmup: int = 1,
    isolated: bool = True,
    inter_op_threads: int | None = None,
    grappler: bool = True,
    timeout_s: float | None = None,
) -> RecordedStep:
    """Run a step several times and record it. The options are those of `graphwright.profile`."""
    check_counts(steps, warmup)
    check_recordable(step)
    options = step_options(step, grappler=grappler, executor="")
    request = request_of({step.name: options}, steps, warmup, inter_op_threads)
    with tempfile.TemporaryDirectory(prefix="graphwright_") as directory:
        folder = Path(directory)
        if isolated:
            write_steps({step.name: (step.function, step.arguments)}, folder)
            result = run_worker(folder, request | {"kind": "profile"}, {}, timeout_s)
        else:
            result = record_here(open_session(step, options, request), request, folder) | surroundings()
        metadata = tf.compat.v1.RunMetadata.FromString((folder / _METADATA).read_bytes())
    if not any(stats.node_stats for stats in metadata.step_stats.dev_stats):
        raise MeasurementError("TensorFlow recorded no operation", where=f"step {step.name!r}", remedy="report this with your step")
    place = "a fresh process" if isolated else "this process"
    how = (
        f"{conditions(result, options)}; in {place}, in a session that runs the graph of the step as a call would; "
        f"the median of {steps} recorded steps after {warmup}"
    )
    return RecordedStep(metadata, tuple(result["times"]), tuple(result["plain_times"]), how)


def open_session(step: TracedStep, options: Mapping[str, Any], request: Mapping[str, Any]) -> StepSession:
    return StepSession(
        step,
        grappler=options["grappler"],
        inter_op_threads=int(request["inter_op_threads"] or 0),
        intra_op_threads=int(request["intra_op_threads"] or 0),
    )


def record_here(session: StepSession, request: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    recording = trace_options(devices=bool(tf.config.list_logical_devices("GPU")))
    recorded: list[tuple[float, bytes]] = []
    plain: list[float] = []
    with session:
        for _ in range(request["warmup"]):
            session.run(options=recording, metadata=tf.compat.v1.RunMetadata())
        for _ in range(request["steps"]):
            metadata = tf.compat.v1.RunMetadata()
            start = time.perf_counter()
            session.run(options=recording, metadata=metadata)
            recorded.append((time.perf_counter() - start, metadata.SerializeToString()))
        session.run()  # without options TensorFlow makes another executor
        for _ in range(request["steps"]):
            start = time.perf_counter()
            session.run()
            plain.append(time.perf_counter() - start)
    times = [took for took, _ in recorded]
    (directory / _METADATA).write_bytes(recorded[times.index(statistics.median_low(times))][1])
    return {"times": times, "plain_times": plain}
