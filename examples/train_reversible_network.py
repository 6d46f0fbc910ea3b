"""How do I train a deep network from TFRecord files in memory that does not grow with its depth, and resume after a break?

A RevNet and the plain ResNet of the same size learn the scanned digits of scikit-learn. The images are in TFRecord files, which
tf.data reads, parses in parallel and prefetches. Weights, optimizer and epoch are saved after each epoch: run the
script again with the same folder, and it resumes. Needs `pip install "graphwright[cpu,demo]"`.

    python train_reversible_network.py                                   # a minute: three epochs of small networks
    python train_reversible_network.py --folder runs --epochs 30 --curves curves.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from reversible_networks import paper_network, resnet, revnet
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

SHARDS = 4
SIDE = 16  # pixels; the scans have 8, each becomes a square of four


def write_records(folder: Path) -> dict[str, list[str]]:
    """Write the digits to TFRecord files, once, and return the paths by split."""
    images, digits = load_digits(return_X_y=True)
    pixels = (images.reshape(-1, 8, 8) * 255 / 16).astype(np.uint8).repeat(2, 1).repeat(2, 2)
    parts = train_test_split(pixels, digits, test_size=0.25, random_state=0, stratify=digits)
    paths: dict[str, list[str]] = {}
    for split, x, y in (("train", parts[0], parts[2]), ("test", parts[1], parts[3])):
        paths[split] = [str(folder / f"{split}-{shard}-of-{SHARDS}.tfrecord") for shard in range(SHARDS)]
        for shard, path in enumerate(paths[split]):
            if Path(path).exists():
                continue
            with tf.io.TFRecordWriter(path + ".new") as writer:
                for image, digit in zip(x[shard::SHARDS], y[shard::SHARDS], strict=True):
                    png = tf.io.encode_png(image[..., np.newaxis]).numpy()
                    feature = {
                        "png": tf.train.Feature(bytes_list=tf.train.BytesList(value=[png])),
                        "digit": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(digit)])),
                    }
                    writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
            Path(path + ".new").replace(path)
    return paths


def parse(record: Any) -> Any:
    """Return image and digit of a record."""
    spec = {"png": tf.io.FixedLenFeature([], tf.string), "digit": tf.io.FixedLenFeature([], tf.int64)}
    example = tf.io.parse_single_example(record, spec)
    image = tf.cast(tf.io.decode_png(example["png"], 1), tf.float32) / 127.5 - 1.0
    return tf.ensure_shape(image, [SIDE, SIDE, 1]), example["digit"]


def shifted(image: Any, digit: Any) -> Any:
    """Return the image, moved by up to two pixels."""
    padded = tf.pad(image, [[2, 2], [2, 2], [0, 0]], constant_values=-1.0)
    return tf.image.random_crop(padded, [SIDE, SIDE, 1]), digit


def batches(paths: list[str], batch: int, *, training: bool) -> Any:
    """Return the files as batches, read and parsed in parallel and prefetched; for training they repeat without end."""
    files = tf.data.Dataset.from_tensor_slices(paths)
    records = files.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE, deterministic=not training)
    examples = records.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    if training:
        examples = examples.cache().shuffle(2048).repeat().map(shifted, num_parallel_calls=tf.data.AUTOTUNE)
    return examples.batch(batch).prefetch(tf.data.AUTOTUNE)


def networks(size: str) -> dict[str, Any]:
    """Return a RevNet and a ResNet with as many weights."""
    if size == "paper":
        return {"RevNet-38": paper_network("revnet38", (SIDE, SIDE, 1)), "ResNet-32": paper_network("resnet32", (SIDE, SIDE, 1))}
    return {
        "RevNet": revnet([2, 2, 2], [8, 16, 32], input_shape=(SIDE, SIDE, 1), stem=16),
        "ResNet": resnet([4, 4, 4], [8, 16, 32], input_shape=(SIDE, SIDE, 1), stem=8),
    }


class SaveEpochs(keras.callbacks.Callback):
    """Saves weights, optimizer, epoch and the curve so far after each epoch."""

    def __init__(self, model: Any, folder: Path) -> None:
        super().__init__()
        self.epoch = tf.Variable(0, dtype=tf.int64)
        checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer, epoch=self.epoch)
        self.manager = tf.train.CheckpointManager(checkpoint, str(folder), max_to_keep=2)
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "curve.json"
        restored = self.manager.restore_or_initialize() is not None and self.log.exists()
        self.curve: list[dict[str, float]] = json.loads(self.log.read_text())[: int(self.epoch)] if restored else []

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Keras calls this."""
        row = {name: float(value) for name, value in (logs or {}).items()}
        print(f"  epoch {epoch + 1:2}: loss {row['loss']:.3f}, test accuracy {row['val_accuracy']:.4f}", flush=True)
        self.curve.append(row)
        self.log.write_text(json.dumps(self.curve))
        self.epoch.assign(epoch + 1)
        self.manager.save()


def learn(name: str, model: Any, paths: dict[str, list[str]], folder: Path, *, epochs: int, batch: int) -> list[dict[str, float]]:
    """Train up to `epochs` in all, from the last checkpoint if one exists, and return loss and accuracy of each epoch."""
    per_epoch = 1347 // batch
    warm = max(1, epochs * per_epoch // 10)
    rate = keras.optimizers.schedules.CosineDecay(0.0, epochs * per_epoch - warm, warmup_target=0.1, warmup_steps=warm)
    optimizer = keras.optimizers.SGD(rate, momentum=0.9, nesterov=True, weight_decay=1e-4)
    optimizer.build(model.trainable_variables)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"], jit_compile=False)
    saved = SaveEpochs(model, folder / name)
    done = int(saved.epoch)
    print(f"{name}, {model.count_params():,} weights" + (f", goes on after epoch {done}" if done else ""), flush=True)
    model.fit(
        batches(paths["train"], batch, training=True),
        validation_data=batches(paths["test"], 150, training=False),
        initial_epoch=done,
        epochs=epochs,
        steps_per_epoch=per_epoch,
        validation_steps=3,
        shuffle=False,
        callbacks=[saved],
        verbose=0,
    )
    return saved.curve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("reversible_digits"))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--size", choices=("small", "paper"), default="small")
    parser.add_argument("--only", choices=("RevNet", "ResNet"), help="one of the two networks")
    parser.add_argument("--seed", type=int, default=0, help="of weights, shuffling and shifts")
    parser.add_argument("--curves", type=Path, help="write loss and accuracy of each epoch as JSON")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    paths = write_records(options.folder)
    keras.utils.set_random_seed(options.seed)
    curves = {
        name: learn(name, model, paths, options.folder, epochs=options.epochs, batch=options.batch)
        for name, model in networks(options.size).items()
        if name.startswith(options.only or "")
    }
    for name, curve in curves.items():
        print(f"{name}: test accuracy {curve[-1]['val_accuracy']:.4f}, best {max(row['val_accuracy'] for row in curve):.4f}")
    if options.curves:
        options.curves.write_text(json.dumps(curves, indent=1))


if __name__ == "__main__":
    main()
