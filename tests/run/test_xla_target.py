"""XLA for a GPU that is not there: the process that compiles, what it may say, and what is kept of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from graphwright.analyze.device_models import DEVICES
from graphwright.errors import MissingDependencyError, UnsupportedError
from graphwright.run import device_worker
from graphwright.run.xla_memory import xla_memory
from graphwright.run.xla_target import PYTHON, compile_for
from tests.fake_compiler import ANSWER, VERSIONS, fake_python

H100 = DEVICES["h100"]


def test_an_answer_is_read_and_kept_by_module_target_and_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = fake_python(tmp_path, monkeypatch, f"print(json.dumps({ANSWER!r}))")

    def asked() -> int:
        return record.read_text().count("asked") if record.exists() else 0

    found = compile_for("module @step_1 {}", H100)
    assert (found.argument_bytes, found.output_bytes, found.temporary_bytes, found.peak_bytes) == (1024, 1024, 2048, 4096)
    assert [(b.name, b.nbytes) for b in found.live] == [("layer/Relu", 1024)]
    assert found.time_s == pytest.approx(2 * 3e-6, rel=0.1)
    assert "XLA of jaxlib 1.0" in found.how("GPU")
    assert "nothing ran" in found.how("GPU")
    assert asked() == 1
    assert compile_for("module @step_2 {}", H100) == found  # the number of a trace does not count
    assert asked() == 1
    compile_for("module @step_2 {other}", H100)
    compile_for("module @step_2 {}", DEVICES["a100"])
    compile_for("module @step_2 {}", H100, memory_bytes=10**9)
    assert asked() == 4
    assert "1000000000" in record.read_text()
    other = tmp_path / "other"
    other.mkdir()
    record = fake_python(other, monkeypatch, f"print(json.dumps({ANSWER!r}))", versions={**VERSIONS, "jaxlib": "2.0"})
    assert "jaxlib 2.0" in compile_for("module @step_2 {}", H100).compiler
    assert asked() == 1


def test_a_kept_answer_that_is_broken_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = fake_python(tmp_path, monkeypatch, f"print(json.dumps({ANSWER!r}))")
    found = compile_for("module {}", H100)
    (kept,) = Path(os.environ["GRAPHWRIGHT_CACHE_DIR"]).glob("compiled-*.json")
    kept.write_text(json.dumps({"argument_bytes": "many"}))
    assert compile_for("module {}", H100) == found
    assert record.read_text().count("asked") == 2


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_python(tmp_path, monkeypatch, "", versions={**VERSIONS, "jax-cuda13-pjrt": ""})
    with pytest.raises(MissingDependencyError, match="needs jax-cuda13-pjrt") as caught:
        compile_for("module {}", H100)
    assert "graphwright[gpu-target]" in caught.value.remedy
    assert str(tmp_path) in caught.value.where


@pytest.mark.parametrize(
    ("answer", "said", "cause"),
    [
        ("sys.exit('RESOURCE_EXHAUSTED: no place')", "RESOURCE_EXHAUSTED: no place", "cannot compile"),
        ("os.kill(os.getpid(), 9)", "it said nothing", "killed"),
        ("print('no JSON')", "it said nothing", "cannot compile"),
    ],
)
def test_a_compiler_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, said: str, cause: str) -> None:
    fake_python(tmp_path, monkeypatch, answer)
    with pytest.raises(UnsupportedError, match=said) as caught:
        compile_for("module {}", H100)
    assert cause in caught.value.cause


def test_a_python_that_is_not_there_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PYTHON, str(tmp_path / "nothing"))
    with pytest.raises(MissingDependencyError, match="a Python that runs"):
        compile_for("module {}", H100)


def test_copies_and_truth_values_as_this_mlir_reads_them() -> None:
    text = '%1 = mhlo.copy %0 : tensor<2x3xf32> loc(#loc)\n%2 = stablehlo.constant dense<"0x0503"> : tensor<2x5xi1>'
    first, second = device_worker.readable(text).splitlines()
    assert first == "%1 = stablehlo.reshape %0 : (tensor<2x3xf32>) -> tensor<2x3xf32> loc(#loc)"
    assert second == f'%2 = stablehlo.constant dense<"0x{"01000100000000000101"}"> : tensor<2x5xi1>'


def _step() -> tuple[Any, list[tuple[int, ...]]]:
    weights = tf.Variable(tf.ones((512, 512)))

    def step(x: Any, keep: Any) -> Any:
        first = tf.matmul(x, weights, name="first")
        second = tf.matmul(tf.where(keep, first, 0.0), weights, name="second")
        weights.assign_sub(tf.matmul(first, second, transpose_a=True, name="third"))
        return tf.reduce_sum(second)

    shapes = [(2048, 512), (2048, 512)]
    return tf.function(step).get_concrete_function(*(tf.TensorSpec(shapes[0], d) for d in (tf.float32, tf.bool))), shapes


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in ("h100", "t4") else pytest.mark.thorough) for name in DEVICES])
def test_the_compiler_lays_out_a_step_for_each_gpu(name: str, gpu_compiler: None) -> None:
    function, shapes = _step()
    memory = xla_memory(function, shapes, DEVICES[name])
    assert memory.argument_bytes == (4 * 2048 + 2048 + 4 * 512) * 512  # the new weights lie where the old ones did
    assert memory.output_bytes < 1024
    assert 2 * 2**22 <= memory.temporary_bytes <= 2**24 + 4096  # first and second, and what a product is split into
    assert sum(buffer.nbytes for buffer in memory.live) == pytest.approx(memory.temporary_bytes, rel=0.5)
    assert {"first", "second"} & {buffer.name for buffer in memory.live}
    assert 0 < memory.time_s < 1


def test_the_compiler_says_what_it_does_not_understand(gpu_compiler: None) -> None:
    with pytest.raises(UnsupportedError, match="gave no answer") as caught:
        compile_for("module { nonsense }", H100)
    assert "nonsense" in str(caught.value) or "parse" in str(caught.value)
