"""Keras's private machinery, one use per function: the only file of `source/` that names private modules of Keras.

`tests/source/test_private_keras.py` calls each of these functions, so that a Keras that moves one is noticed at once.
"""

from __future__ import annotations

import importlib
from typing import Any


def without_autocast() -> Any:
    """A context in which the variables of layers keep their own dtype, whatever the policy of the layer that is being called."""
    return importlib.import_module("keras.src.backend.common.variables").AutocastScope(None)


def track_parts(layer: Any) -> None:
    """Let TensorFlow's saving see all variables of a built layer, as Keras' does.

    Keras 3 gives TensorFlow the parts that are attributes, and neither those in lists and dictionaries nor the states of random
    generators: `tf.train.Checkpoint` leaves them out without a word.
    """
    tree: Any = importlib.import_module("keras").tree
    kind: Any = importlib.import_module("tensorflow").__internal__.tracking.Trackable
    with importlib.import_module("keras.src.utils.tracking").DotNotTrackScope():  # Keras knows them already, and its built layers take none
        for part in layer._flatten_layers():
            held = {(name, *path): item for name in part._tracked for path, item in tree.flatten_with_path(getattr(part, name))}
            held |= {("seed_generators", number): generator.state for number, generator in enumerate(part._seed_generators)}
            for path, item in held.items():
                if isinstance(item, kind):
                    part._track_trackable(item, "-".join(map(str, path)), overwrite=True)
