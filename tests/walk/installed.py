"""The package as users get it: built, and installed into environments that have nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "1", "COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}


def build(out: Path) -> tuple[Path, Path]:
    """The sdist, and the wheel that is made of it."""
    run([sys.executable, "-m", "build", "--outdir", str(out), str(ROOT)])
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


_PROGRESS = re.compile(r"(?m)^ +\d+\.\d\sm?s  .*\n")
"""A line of progress, as a log gets one every ten seconds."""


class Environment:
    """A virtual environment with a wheel and its extras, and nothing of this process: neither its path nor its variables."""

    def __init__(self, folder: Path, wheel: Path, extras: str = "") -> None:
        self.bin = folder / "bin"
        self.home = folder / "home"
        run([sys.executable, "-m", "venv", str(folder)])
        self.home.mkdir()
        pip = [str(self.bin / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run([*pip, "--constraint", str(ROOT / "constraints.txt"), f"{wheel}{extras}"])

    @property
    def variables(self) -> dict[str, str]:
        """What a process in it sees: the wheel's programs come first."""
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        return {"PATH": path, "HOME": str(self.home), "LANG": "C.UTF-8", "VIRTUAL_ENV": str(self.bin.parent), **QUIET}

    def run(self, command: list[str], folder: Path, *, code: int | None = 0) -> str:
        """What a command of the environment prints on both streams; `code` is the exit code that it must have, None for any."""
        done = subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=folder,
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert code is None or done.returncode == code, f"{command} ended with {done.returncode}:\n{done.stdout}"
        return _PROGRESS.sub("", done.stdout)


def run(command: list[str], environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout
