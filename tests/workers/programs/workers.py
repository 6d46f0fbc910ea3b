"""One process of a training on several: `workers.py '{"index": 0, "ports": [...], ...}'` prints one JSON line per batch, then a summary."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from typing import Any


def main(task: dict[str, Any]) -> None:
    """Train as the task says."""
    if task["ports"]:
        cluster = {"worker": [f"127.0.0.1:{port}" for port in task["ports"]]}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": task["index"]}})
    import keras
    import numpy as np
    import tensorflow as tf

    import graphwright as gw

    strategy = tf.distribute.MultiWorkerMirroredStrategy() if task["ports"] else tf.distribute.get_strategy()
    keras.utils.set_random_seed(1)
    random = np.random.default_rng(0)
    x = random.random((task["samples"], 32), np.float32)
    y = random.integers(0, 3, task["samples"])
    with strategy.scope():
        hidden = inputs = keras.Input((32,))
        for _ in range(4):
            hidden = keras.layers.Dense(64, activation="tanh")(hidden)
            if task.get("noise"):
                hidden = keras.layers.Dropout(0.2)(keras.layers.BatchNormalization()(hidden))
        model = keras.Model(inputs, keras.layers.Dense(3)(hidden))
        model.compile(
            keras.optimizers.Adam(1e-2),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            jit_compile=False,
        )
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(task["batch"]).with_options(options)
    if task.get("budget"):
        gw.optimize_memory(model, task["budget"], cache_dir=None)

    if task.get("killed_in_save"):
        _die_in_save(task["killed_in_save"])
    resume = gw.train.ResumeTraining(task["directory"], every=2) if task.get("directory") else None

    class Report(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.epoch = 0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if resume is None or not resume.skipping:
                print(json.dumps({"at": [self.epoch, batch], "loss": float(logs["loss"])}), flush=True)  # noqa: T201

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if [self.epoch, batch] == task.get("killed_at"):
                os.kill(os.getpid(), signal.SIGKILL)

    # `Report` comes first: what `resume.skipping` says holds for the batch that just ended.
    callbacks = [Report(), *([resume] if resume is not None else [])]
    history = model.fit(data, epochs=task["epochs"], verbose=0, validation_data=data, callbacks=callbacks)
    plans = model.optimized_step.plans if task.get("budget") else ()
    summary = {
        "history": history.history,
        "plans": [
            {
                "verification": p.verification,
                "peak": p.peak_bytes,
                "budget": p.budget_bytes,
                "recomputed": p.recomputed_count,
                "devices": p.device_peaks,
            }
            for p in plans
        ],
        "weights": float(sum(np.abs(w).sum() for w in model.get_weights())),
    }
    print(json.dumps(summary), flush=True)  # noqa: T201


def _die_in_save(number: int) -> None:
    """Let this process be killed when it has written half of this checkpoint, counted from 1."""
    import numpy as np

    savez, saves = np.savez, itertools.count(1)

    def save_or_die(stream: Any, **arrays: Any) -> None:
        savez(stream, **arrays)
        if next(saves) == number:
            stream.truncate(stream.tell() // 2)
            stream.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    np.savez = save_or_die


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
