"""The import of TensorFlow: one place that says what to install when it is missing."""

from __future__ import annotations

import importlib
from typing import Any

from graphwright.errors import MissingDependencyError


def import_tensorflow() -> Any:
    """The `tensorflow` module.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        return importlib.import_module("tensorflow")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "tensorflow":
            raise
        raise MissingDependencyError(
            "TensorFlow is not installed",
            cause="graphwright keeps TensorFlow out of its core requirements, so that you choose the build",
            remedy='pip install "graphwright[cpu]", or pip install "graphwright[gpu]" for an NVIDIA GPU',
        ) from error


def import_keras() -> Any:
    """The `keras` module, which TensorFlow brings along.

    Raises:
        MissingDependencyError: TensorFlow is not installed.
    """
    import_tensorflow()
    return importlib.import_module("keras")
