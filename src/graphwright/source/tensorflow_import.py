"""The import of TensorFlow, with an error that names the package to install when it is missing."""

import gc
import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

from graphwright.errors import MissingDependencyError
from graphwright.ir.garbage_collection import garbage_collection_paused


def import_tensorflow() -> Any:
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


@contextmanager
def explaining_missing_tensorflow() -> Generator[None]:
    """Raise the error that names the package to install where code in the block imports a missing TensorFlow."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name == "tensorflow":
            import_tensorflow()
        raise


_Function = TypeVar("_Function", bound=Callable[..., Any])


def left_alone(function: _Function) -> _Function:
    return import_tensorflow().autograph.experimental.do_not_convert(function)


def start_quietly() -> None:
    """Import TensorFlow without its start-up lines on the terminal, which no setting turns off."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as lines, garbage_collection_paused():
        os.dup2(lines.fileno(), 2)
        try:
            import_tensorflow().constant(0)
        except BaseException:
            lines.seek(0)
            os.write(terminal, lines.read())
            raise
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
            gc.freeze()  # what TensorFlow is made of stays: the collector need not look at it again


def import_keras() -> Any:
    import_tensorflow()
    return importlib.import_module("keras")
