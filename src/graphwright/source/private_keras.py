"""Keras's private machinery, one use per function: the only file of `source/` that names private modules of Keras.

`tests/source/test_private_keras.py` calls each of these functions, so that a Keras that moves one is noticed at once.
"""

from __future__ import annotations

import importlib
from typing import Any


def without_autocast() -> Any:
    """A context in which the variables of layers keep their own dtype, whatever the policy of the layer that is being called."""
    return importlib.import_module("keras.src.backend.common.variables").AutocastScope(None)
