"""`Graph.package`: what a file or object holds beside the graph, kept until the graph is written again."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphwright.ir.edit.clone import CloneResult
from graphwright.ir.graph import Graph, Value


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

    @property
    def is_live(self) -> bool:
        """Whether the variables belong to a live function instead of lying in files."""
        return self.keep_function is not None

    @property
    def has_files(self) -> bool:
        """Whether the graph comes from a SavedModel."""
        return bool(self.saved_model)

    def rename_functions(self, new_of: Mapping[str, str]) -> None:
        """Let what the file says of functions say it under their new names; `ir.edit.rename_functions` calls this."""
        from graphwright.source.rename_functions import rename_in_graph_rest, rename_in_saved_model

        rest, saved_model = rename_in_graph_rest(self.graph_rest, new_of), rename_in_saved_model(self.saved_model, self.meta_graph, new_of)
        self.graph_rest, self.saved_model = rest, saved_model

    def with_files(self, graph: Graph) -> Graph:
        """A graph whose live function is saved into a temporary folder, read again from there.

        Raises:
            ArgumentError: TensorFlow cannot save it.
        """
        from graphwright.source.function_module import save_function
        from graphwright.source.saved_model import read_saved_model

        keep = TemporaryFolder()
        folder = keep.path / "model"
        save_function(graph, self, folder)
        found = read_saved_model(folder, None, keep=keep)
        found.name = graph.name
        found.take_rules(graph)
        return found

    def prepare_join(
        self, graph: Graph, other: Graph, *, scope: str, functions: Mapping[str, str], signatures: Mapping[str, str]
    ) -> Callable[[CloneResult], None]:
        """Check and write what `graph` will hold when `other` is in it; see `graphwright.source.join`."""
        from graphwright.source.join import prepare_join

        return prepare_join(graph, other, scope=scope, functions=functions, signatures=signatures)
