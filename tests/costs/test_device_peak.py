"""Peaks for GPUs that are not there, wherever a peak is asked for; the compiler itself is tested in `tests/run/test_xla_target.py`."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

import graphwright as gw
from graphwright.analyze.device_models import DEVICES
from graphwright.commands.cli import main
from tests.fake_compiler import ANSWER, VERSIONS, fake_python

STEP = tf.function(lambda x: tf.reduce_sum(tf.nn.relu(x @ x)))
FEEDS = {"x": (256, 256)}
PEAK = 4096


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return fake_python(tmp_path, monkeypatch, f"print(json.dumps({ANSWER!r}))")


def test_a_peak_says_what_it_is_and_what_it_is_not(compiler: Path) -> None:
    found = gw.predict_peak(STEP, FEEDS, device="h100")
    assert found.peak_bytes == PEAK
    assert found.order == "xla"
    assert found.peak_op == "layer/Relu"
    assert found.how["peak"].startswith("as XLA of jaxlib 1.0 lays it out for an NVIDIA H100")
    assert "nothing ran on one" in found.how["peak"]
    assert found.how["time"].startswith("6.00 µs, estimated")
    # x, and the product, whose place the relu takes; without oneDNN's scratch.
    assert found.how["without XLA"].startswith("512 KiB by TensorFlow's own kernels")
    here = gw.predict_peak(STEP, FEEDS, device="cpu")
    assert here.order == "executor"
    assert "without XLA" not in here.how


def test_every_question_about_peaks_takes_a_device(compiler: Path) -> None:
    assert gw.step_costs(STEP, FEEDS, device="l4").figures["peak_bytes"] == PEAK
    assert not gw.check(STEP, FEEDS, max_peak=PEAK - 1, device="l4").passed
    assert gw.compare(STEP, STEP, FEEDS, device="l4").b.figures["peak_bytes"] == PEAK
    rows = tf.function(lambda x: tf.reduce_sum(tf.nn.relu(x)))
    assert [p.peak_bytes for p in gw.sweep(rows, {"x": (None, 8)}, (2, 4), device="a100").points] == [PEAK, PEAK]
    told = compiler.read_text()
    assert all(f"{DEVICES[name].memory_bytes}\n" in told for name in ("l4", "a100"))


def test_what_cannot_be_asked_of_a_device_is_an_error(compiler: Path) -> None:
    with pytest.raises(gw.ArgumentError, match="measure"):
        gw.max_batch(STEP, "1MiB", {"x": (None, 8)}, measure=True, device="h100")
    with pytest.raises(gw.ArgumentError, match="graph"):
        gw.step_costs(tf.Graph(), device="h100")
    with pytest.raises(gw.ArgumentError, match="'k80'"):
        gw.predict_peak(STEP, FEEDS, device="k80")


@pytest.mark.parametrize(("device", "said"), [("k80", "there are cpu, h100"), ("h100", "graphwright[gpu-target]")])
def test_the_command_line_says_what_is_wrong(
    device: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_python(tmp_path, monkeypatch, "", versions={**VERSIONS, "jax": ""})
    with pytest.raises(SystemExit) as ended:
        main(["peak", f"{__name__}:STEP", "--feed", "x=256,256", "--device", device])
    assert ended.value.code == 2
    assert said in "".join(capsys.readouterr().err.replace("│", "").split("\n")).replace("  ", " ")
