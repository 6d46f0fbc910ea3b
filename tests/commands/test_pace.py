"""What commands show while they work, that they look at output paths first, and that Ctrl-C ends them."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from graphwright.commands.cli import app
from graphwright.commands.interrupts import EXIT_INTERRUPTED
from graphwright.report.progress import hide, lines_every, shown, tell

STEP = """
import tensorflow as tf
step = tf.function(lambda x: tf.reduce_sum(tf.exp(x)), input_signature=[tf.TensorSpec((4, 4))])
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_pace.py").write_text(STEP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_verbose_keeps_a_line_for_each_thing_and_quiet_none(project: Path) -> None:
    verbose = CliRunner().invoke(app, ["peak", "my_pace:step", "-v"])
    told = [line.split(" s  ")[1] for line in verbose.stderr.splitlines()]
    assert told == ["starting TensorFlow", "importing my_pace", "tracing the step", "reading the graph"]
    quiet = CliRunner().invoke(app, ["peak", "my_pace:step", "-q"])
    assert (quiet.stderr, quiet.stdout) == ("", verbose.stdout)


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", "no_such:target", "--html", "nowhere/report.html"],
        ["optimize", "no_such:target", "--budget", "0.5", "--html", "."],
        ["sweep", "no_such:target", "--html", "nowhere/report.html"],
        ["compare", "no_such:a", "no_such:b", "--html", "nowhere/report.html"],
        ["check", "no_such:target", "--write-baseline", "nowhere/baseline.json"],
        ["profile", "no_such:target", "--trace", "nowhere/trace.json"],
        ["demo", "--html", "nowhere/report.html"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_output_paths_are_looked_at_before_the_work(project: Path, arguments: list[str]) -> None:
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code == 2
    assert "nowhere" in found.stderr or "is a folder" in found.stderr  # and not that there is no such target


def test_a_bar_shows_what_is_done_and_gives_way_to_what_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    controller, terminal = os.openpty()
    with os.fdopen(terminal, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setenv("TERM", "xterm")
        with shown(after_s=0.0):
            tell("tracing")
            time.sleep(0.2)
            printed = io.StringIO()
            monkeypatch.setattr(sys, "stdout", printed)
            hide()
            print("the result")  # noqa: T201
        stream.flush()
        drawn = os.read(controller, 100_000).decode()
    os.close(controller)
    assert "tracing" in drawn
    assert printed.getvalue() == "the result\n"


BUSY = """
import ctypes, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has what it starts in the background ignore it
sys.argv[0] = "graphwright"
from graphwright.commands.interrupts import ends_when_interrupted
with ends_when_interrupted():
    print("busy", flush=True)
    {work}
"""


@pytest.mark.skipif(os.name == "nt", reason="signals of Windows are others")
@pytest.mark.parametrize(
    "work",
    [
        "time.sleep(60)",
        "ctypes.CDLL(None).usleep(60_000_000)",  # a call that hears of nothing, as TensorFlow's
        "t = threading.Thread(target=time.sleep, args=(60,)); t.start(); t.join()",  # which the end of the process would wait for
        "import collections, itertools; collections.deque(itertools.repeat(0), maxlen=0)",  # which lets no other thread run
    ],
    ids=["python", "a call that lasts", "a thread that lasts", "a call that keeps the lock"],
)
def test_ctrl_c_ends_at_once(work: str) -> None:
    code = BUSY.format(work=work)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "busy\n"
        time.sleep(0.2)  # the call is under way then
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    if "repeat" in work:
        assert process.returncode == -signal.SIGKILL
    else:
        assert (process.returncode, errors.strip()) == (EXIT_INTERRUPTED, "interrupted")


def test_a_log_gets_a_line_at_intervals_with_what_is_done_then(capsys):
    with lines_every(0.01):
        tell("tracing the step")
        text = ""
        for _ in range(1000):
            text += capsys.readouterr().err
            if text.count("tracing the step") >= 2:
                break
            time.sleep(0.005)
    assert re.search(r"\d\.\d s  tracing the step\n", text)
    capsys.readouterr()
    time.sleep(0.05)
    assert not capsys.readouterr().err


@pytest.mark.tensorflow
def test_a_file_is_read_without_optional_packages_and_they_can_be_imported_later(tmp_path: Path) -> None:
    (tmp_path / "model.pb").write_bytes(b"graph")
    code = """
import importlib.util, sys
from graphwright.commands.inputs import load_target
load_target("model.pb")
assert not {"jax", "sklearn"} & set(sys.modules)
if importlib.util.find_spec("sklearn"):
    import sklearn
print(sys.modules["keras"].backend.backend())
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["tensorflow"], done.stderr
