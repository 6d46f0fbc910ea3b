"""Event files for TensorBoard: a graph and the record of a run."""

import tempfile
import time
from pathlib import Path
from typing import Any

from graphwright.errors import ArgumentError
from graphwright.files import replaced_file
from graphwright.source.graph_def import nodes_of
from graphwright.source.tensorflow_import import import_tensorflow

_LARGEST_VALUE = 1024
"""Bytes of an attribute that are written. TensorBoard leaves out longer ones itself, and a model may hold gigabytes of constants."""


def write_event_file(folder: str | Path, graph_def: Any, run_metadata: Any = None, *, tag: str = "step") -> Path:
    """Write an event file for TensorBoard's tab "Graphs" into a folder, which is made where it is missing; return its path."""
    tf = import_tensorflow()
    target = Path(folder)
    if target.exists() and not target.is_dir():
        raise ArgumentError(f"{str(target)!r} is a file", argument="folder", remedy="give a folder, such as 'logs/step'")
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="graphwright_") as temporary, tf.Graph().as_default():
        writer = tf.compat.v1.summary.FileWriter(temporary)
        # Not `add_graph`, which warns of every GraphDef and wants a tf.Graph.
        writer.add_event(tf.compat.v1.Event(wall_time=time.time(), graph_def=_without_large_values(graph_def).SerializeToString()))
        if run_metadata is not None:
            writer.add_run_metadata(tf.compat.v1.RunMetadata(step_stats=run_metadata.step_stats), tag)
        writer.close()
        (written,) = Path(temporary).glob("events.out.tfevents.*")
        with replaced_file(target / written.name) as stream:
            stream.buffer.write(written.read_bytes())
        return target / written.name


def _without_large_values(graph_def: Any) -> Any:
    small = type(graph_def)()
    small.CopyFrom(graph_def)
    for node in nodes_of(small):
        for key in [key for key, value in node.attr.items() if value.ByteSize() > _LARGEST_VALUE]:
            del node.attr[key]
    return small
