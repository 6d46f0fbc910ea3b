"""`Graph.package`: what a file or object holds beside the graph, kept until the graph is written again."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphwright.ir.graph import Value


class TemporaryFolder:
    """A folder that is removed when nothing needs it any more, or when the process ends."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="graphwright-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


@dataclass(slots=True, eq=False)
class Package:
    """What is written back as it was read.

    Attributes:
        graph_rest: the `GraphDef` without nodes and functions (gradients of functions, debug info), serialized.
        graph_digest: of the `GraphDef` as it was read, to tell whether anything was edited.
        saved_model: the `SavedModel` without the graph, signatures and collections of this graph, serialized; empty when
            it was not read from one.
        meta_graph: which of its MetaGraphs this graph is.
        folder: where its variables and assets lie, or None.
        keep: what keeps the folder alive where it is a temporary one.
        object_ids: the object of the SavedModel that a value stands for: handles in the main graph, arguments of functions.
        captures: for a function: the tensor from outside behind each input that is no argument.
        keep_function: what keeps the variables behind the captures alive.
    """

    graph_rest: bytes = b""
    graph_digest: bytes = b""
    saved_model: bytes = b""
    meta_graph: int = 0
    folder: Path | None = None
    keep: Any = None
    object_ids: dict[Value, int] = field(default_factory=dict[Value, int])
    captures: dict[Value, Any] = field(default_factory=dict[Value, Any])
    keep_function: Any = None
