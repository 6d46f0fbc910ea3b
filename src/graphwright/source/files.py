"""Files that hold a model: `.keras`, SavedModel folders, frozen graphs."""

import gc
import logging
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any
from weakref import finalize

from graphwright.errors import ArgumentError, FileFormatError, in_words
from graphwright.source.keras_file import read_keras_file
from graphwright.source.load import load
from graphwright.source.model_folder import KERAS_SUFFIXES
from graphwright.source.protobuf_files import serialize
from graphwright.source.saved_model import parse_saved_model
from graphwright.source.static_function import add_default_signature, check_has_values, default_signature, static_function
from graphwright.source.tensorflow_import import import_tensorflow
from graphwright.source.trust import check_trusted


def load_callable(path: Path, *, runs: bool = False) -> Any:
    """Load a file as something that can be traced. Nothing of it runs, and no variable has a value, unless it is trusted and `runs`.

    A `.keras` or `.h5` file gives the Keras model, a SavedModel folder its default or only signature, a `.pb` or `.pbtxt` file a function
    from all placeholders to all values that nothing reads (or the default signature, where it was frozen with several).
    """
    if not path.exists():
        remedy = "import it, and give the object; a command takes file.py:name" if ".py:" in str(path) else ""
        raise ArgumentError(f"there is no file or folder {str(path)!r}", argument="target", remedy=remedy)
    if runs:
        check_trusted(path, "running the model")
    if path.suffix in KERAS_SUFFIXES:
        return read_keras_file(path, compiled=True)
    graph = load(path)
    key = default_signature(graph, str(path)) if path.is_dir() else add_default_signature(graph)
    function = _loaded_signature(path, key) if path.is_dir() and key and runs else static_function(graph, key, runs=runs)
    if runs and not key:
        check_has_values(function, str(path))
    function.__name__ = path.resolve().name if path.is_dir() else f"{path.stem} ({key})" if key else path.stem
    return function


def _loaded_signature(path: Path, key: str) -> Any:
    try:
        loaded = _loaded_model(path)
        function = loaded.signatures[key]
    except Exception as error:  # TensorFlow raises anything
        raise FileFormatError(
            f"the file cannot be read: {in_words(error)}",
            where=str(path),
            cause="it is damaged, or needs ops that are not loaded",
            remedy="load it yourself and pass the object",
        ) from error
    function.graphwright_keeps_alive = loaded  # the variables live as long as the loaded object
    return function


def _loaded_model(path: Path) -> Any:
    """Load a SavedModel with TensorFlow; where TensorFlow with Keras 3 cannot load the optimizer state of Keras 2 ("'_UserObject' object
    has no attribute 'add_slot'"), without that state, which signatures do not need.
    """
    load_model = import_tensorflow().saved_model.load
    try:
        return load_model(os.fspath(path))
    except AttributeError as error:
        if "add_slot" not in str(error):
            raise
    model = parse_saved_model(path)
    for node in (node for meta_graph in model.meta_graphs for node in meta_graph.object_graph_def.nodes):
        del node.slot_variables[:]
    folder = Path(mkdtemp(prefix="graphwright-"))
    try:
        for entry in path.resolve().iterdir():
            if entry.name != "saved_model.pb":
                (folder / entry.name).symlink_to(entry)
        (folder / "saved_model.pb").write_bytes(serialize(model, "the model"))
        with _quiet():
            loaded = load_model(os.fspath(folder))
            gc.collect()
    except BaseException:
        rmtree(folder)
        raise
    finalize(loaded, rmtree, folder)  # it may read its assets later
    return loaded


@contextmanager
def _quiet() -> Generator[None]:
    """Suppress, in this thread, the line that TensorFlow logs for each unused value of a checkpoint."""
    logger, here = import_tensorflow().get_logger(), threading.get_ident()

    def is_for_the_user(record: logging.LogRecord) -> bool:
        return record.thread != here or record.levelno >= logging.ERROR

    logger.addFilter(is_for_the_user)
    try:
        yield
    finally:
        logger.removeFilter(is_for_the_user)
