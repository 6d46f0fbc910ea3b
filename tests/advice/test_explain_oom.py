"""Memory that runs out: who asked for it, what the step held, and what would fit, in place of TensorFlow's error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import graphwright as gw

HUGE = (2**20, 2**20)  # 4 TiB of float32, which no machine gives


@tf.function
def asks_for_too_much(x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.tanh(x)) + tf.reduce_sum(tf.zeros(tf.cast(tf.reduce_sum(x) * 0, tf.int32) + HUGE))


MESSAGE = (
    "OOM when allocating tensor with shape[30000,4096] and type float on /job:localhost/replica:0/task:0/device:CPU:0 by allocator cpu\n"
    "\t [[{{node dense_1/BiasAdd}}]]"
)


def test_what_tensorflow_says_is_read() -> None:
    with pytest.raises(gw.OutOfMemoryError) as caught, gw.explain_oom("1GiB"):
        raise tf.errors.ResourceExhaustedError(None, None, MESSAGE)
    report = caught.value.report
    assert isinstance(report, gw.OutOfMemory)
    assert (report.op, report.asked, report.asked_bytes) == ("dense_1/BiasAdd", "float32[30000,4096]", 30000 * 4096 * 4)
    assert report.device == "CPU:0 by allocator cpu"
    assert "outside of any tf.function" in report.left_out
    assert "469 MiB" in str(caught.value)


def test_a_step_is_not_looked_at_where_tensorflow_would_abort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphwright.advice.explain_oom.free_bytes", lambda: 20 * 2**20)
    with pytest.raises(gw.OutOfMemoryError) as caught, gw.explain_oom("1GiB"):
        raise tf.errors.ResourceExhaustedError(None, None, MESSAGE)
    report = caught.value.report
    assert isinstance(report, gw.OutOfMemory)
    assert report.op == "dense_1/BiasAdd"
    assert "20.0 MiB are left" in report.left_out


@pytest.mark.slow  # TensorFlow waits for ten seconds whether memory comes free
def test_a_step_that_asks_for_too_much_is_explained() -> None:
    with pytest.raises(gw.OutOfMemoryError) as caught, gw.explain_oom("1GiB", advice=False):
        asks_for_too_much(tf.zeros((8, 4)))
    report = caught.value.report
    assert isinstance(report, gw.OutOfMemory)
    assert (report.asked, report.asked_bytes, report.memory_bytes) == ("float32[1048576,1048576]", 2**42, 2**30)
    assert "4.00 TiB" in report.verdict
    assert isinstance(caught.value.__cause__, tf.errors.ResourceExhaustedError)
    assert isinstance(caught.value, MemoryError)


def test_other_errors_pass() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError), gw.explain_oom():
        tf.debugging.assert_equal(1, 2)
    with gw.explain_oom():
        pass


class Asks(keras.layers.Layer):
    """Asks for too much where its input is not zero."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        side = tf.cast(tf.reduce_max(x) * 2.0**20, tf.int32)
        return x + tf.reduce_sum(tf.zeros((side, side)))


@pytest.mark.slow
def test_training_by_keras_is_explained_and_the_model_is_as_before() -> None:
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1), Asks()])
    model.compile("sgd", "mse")
    callback = gw.explain_oom(advice=False)
    good, bad = np.zeros((8, 4), np.float32), np.ones((8, 4), np.float32)
    for layer in model.layers[:2]:
        layer.set_weights([np.full_like(w, w.ndim - 1) for w in layer.get_weights()])  # ones, and no bias
    model.fit(good, np.zeros((8, 1)), epochs=1, verbose=0, callbacks=[callback])
    own = model.train_function
    for callbacks in ([callback], []):
        with pytest.raises(gw.OutOfMemoryError, match="Out of memory") as caught, gw.explain_oom(advice=False):
            model.fit(bad, np.zeros((8, 1)), batch_size=4, epochs=1, verbose=0, callbacks=callbacks)
        report = caught.value.report
        assert isinstance(report, gw.OutOfMemory)
        assert "/asks" in report.op
        assert not report.left_out or "not known" in report.left_out
        assert model.train_function is own


LIMITED = """
import resource, sys
import keras, numpy as np, tensorflow as tf
import graphwright as gw
layers = [keras.layers.Dense(2048, activation="relu") for _ in range(3)]
model = keras.Sequential([keras.layers.Input((64,)), *layers, keras.layers.Dense(1)])
model.compile("sgd", "mse")
data = np.zeros((4, 64), np.float32), np.zeros((4, 1), np.float32)
model.fit(*data, verbose=0)
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + 1500 * 2**20,) * 2)
try:
    data = np.zeros((100_000, 64), np.float32), np.zeros((100_000, 1), np.float32)
    model.fit(*data, batch_size=100_000, verbose=0, callbacks=[gw.explain_oom()])
except gw.OutOfMemoryError as error:
    print(error.report)
    report = error.report
    print("PEAK", report.peak.peak_bytes, "MEMORY", report.memory_bytes, "FITS", [s.kind for s in report.advice.suggestions if s.fits])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the address space of a process is limited there alone")
def test_a_process_with_little_memory_says_what_would_fit(tmp_path: Path) -> None:
    script = tmp_path / "limited.py"
    script.write_text(LIMITED)
    environment = os.environ | {"TF_ENABLE_ONEDNN_OPTS": "0", "GRAPHWRIGHT_CACHE_DIR": str(tmp_path / "plans")}
    found = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, env=environment, timeout=300)
    assert "Out of memory: " in found.stdout, found.stderr[-2000:]
    last = found.stdout.strip().splitlines()[-1].split(maxsplit=5)
    assert int(last[1]) > int(last[3])
    assert "batch" in last[5]
