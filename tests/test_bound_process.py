"""What graphwright starts ends with it, however it ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from graphwright import bound_process
from graphwright.bound_process import bound

CHILD = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
WATCHED = f"import os; from graphwright import bound_process as b; b.bind_by_watching(os.getppid()); {CHILD}"
PARENT = """
import subprocess, sys
from graphwright.bound_process import bound
command = [sys.executable, "-c", sys.argv[2]]
subprocess.run(bound(command) if sys.argv[1] == "bound" else command)
"""


@pytest.fixture
def start() -> Iterator[object]:
    """Starts a parent that starts a child; gives the parent and the child's number. Ends both."""
    started: list[tuple[subprocess.Popen[str], int]] = []

    def run(how: str, child: str = CHILD) -> tuple[subprocess.Popen[str], int]:
        parent = subprocess.Popen([sys.executable, "-c", PARENT, how, child], stdout=subprocess.PIPE, text=True)
        assert parent.stdout is not None
        started.append((parent, int(parent.stdout.readline())))
        return started[-1]

    yield run
    for parent, child in started:
        parent.kill()
        if runs(child):
            os.kill(child, signal.SIGKILL)
        parent.communicate()


def runs(process: int) -> bool:
    """Whether it runs; one that ended and waits for its parent to look does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ends(process: int) -> bool:
    deadline = time.monotonic() + 20
    while runs(process) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not runs(process)


linux = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")


@linux
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_child_ends_with_its_parent(start, number):
    parent, child = start("bound")
    assert runs(child)
    parent.send_signal(number)
    assert ends(child)


@linux
def test_without_it_a_child_goes_on(start):
    parent, child = start("unbound")
    parent.kill()
    parent.wait()
    assert runs(child)


@linux
def test_a_child_that_is_watched_ends_with_its_parent(start):
    """The way that is taken where there is no Linux."""
    parent, child = start("unbound", WATCHED)
    parent.kill()
    parent.wait()
    assert ends(child)


def test_signals_status_input_and_output_are_those_of_the_command():
    command = bound([sys.executable, "-c", "import sys; print(input()); sys.exit(3)"])
    done = subprocess.run(command, input=b"x", capture_output=True, check=False)
    assert (done.stdout.strip(), done.returncode) == (b"x", 3)
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(bound(["sleep", "60"]), timeout=0.5, check=False)
    assert bound_process.__file__ in bound(["true"])


def test_every_process_that_graphwright_starts_is_bound():
    texts = {path: path.read_text() for path in Path(bound_process.__file__).parent.rglob("*.py") if path.name != "bound_process.py"}
    started = {path.name: text.count("subprocess.run(") + text.count("Popen(") for path, text in texts.items()}
    assert "measure.py" in {name for name, count in started.items() if count}
    assert [path for path, text in texts.items() if text.count(" bound(") + text.count("(bound(") < started[path.name]] == []
