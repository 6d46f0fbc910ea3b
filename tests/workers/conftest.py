"""Programs in processes of their own: logical devices and `TF_CONFIG` must be set before TensorFlow starts."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_PROGRAMS = Path(__file__).parent / "programs"
_TIMEOUT_S = 300.0


@dataclass
class Outcome:
    """What a program printed, line by line, and how it ended."""

    lines: list[Any]
    code: int
    errors: str

    @property
    def losses(self) -> dict[tuple[int, int], float]:
        """The loss after each batch, by epoch and batch."""
        return {tuple(line["at"]): line["loss"] for line in self.lines if "at" in line}


def _start(name: str, task: dict[str, Any]) -> subprocess.Popen[str]:
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, str(_PROGRAMS / f"{name}.py"), json.dumps(task)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def _finish(process: subprocess.Popen[str], timeout_s: float) -> Outcome:
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return Outcome(lines, process.returncode, errors[-3000:])


@pytest.fixture(scope="session")
def run_program() -> Callable[..., Outcome]:
    """Runs a program of the folder `programs` to its end."""

    def run(name: str, **task: Any) -> Outcome:
        return _finish(_start(name, task), _TIMEOUT_S)

    return run


@pytest.fixture
def run_workers() -> Callable[..., list[Outcome]]:
    """Runs a program in as many processes as there are tasks; `patience_s` is for those that outlive one that failed."""

    def run(tasks: list[dict[str, Any]], *, program: str = "workers", patience_s: float = 15.0) -> list[Outcome]:
        ports = _free_ports(len(tasks))
        started = [_start(program, {"index": k, "ports": ports} | task) for k, task in enumerate(tasks)]
        # All at once: a program whose pipe nobody reads stops, and one whose partner died waits for it without end.
        with ThreadPoolExecutor(len(started)) as pool:
            ends = [pool.submit(_finish, process, _TIMEOUT_S) for process in started]
            wait(ends, return_when=FIRST_COMPLETED)
            if any(process.poll() for process in started):
                wait(ends, timeout=patience_s)
                for process in started:
                    process.kill()  # does nothing to one that has ended
        return [end.result() for end in ends]

    return run


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()
