"""Writes a graph that was read from a live function as a SavedModel, with the captured variables."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphwright.errors import ArgumentError, GraphError, first_line
from graphwright.ir.graph import Graph
from graphwright.source.join import OpenPackage
from graphwright.source.package import Package, TemporaryFolder
from graphwright.source.rebuild import function_of_values
from graphwright.source.saved_model import read_saved_model
from graphwright.source.structured_values import spec_of
from graphwright.source.tensorflow_import import import_tensorflow


@dataclass(slots=True, eq=False)
class LivePackage(OpenPackage):
    """Of a graph that was read from a live function."""

    def with_files(self, graph: Graph) -> Graph:
        keep = TemporaryFolder()
        folder = keep.path / "model"
        save_function(graph, self, folder)
        saved = read_saved_model(folder, None, keep=keep)
        saved.name = graph.name
        saved.take_rules(graph)
        return saved


def save_function(graph: Graph, package: Package, folder: Path) -> None:
    """Save each signature of the graph as a function of a `tf.Module`; where it calls functions, without their custom gradients. Raise
    `ArgumentError` where it captures something that is not a variable, constant or tracked resource.
    """
    tf = import_tensorflow()
    if not graph.signatures:
        raise ArgumentError("a SavedModel needs a signature, and the graph has none", where=f"graph {graph.name!r}")
    module: Any = tf.Module(name=None)
    function = package.keep_function
    module.kept_variables = list(function.graph.variables)
    module.kept_function = function
    functions = {key: _rebuilt(graph, key, package) for key in graph.signatures}
    try:
        module.kept_signatures = list(functions.values())
        # TensorFlow looks for custom gradients in all functions, and cannot look into those that were registered from a definition.
        options = tf.saved_model.SaveOptions(experimental_custom_gradients=not graph.functions)
        tf.saved_model.save(module, str(folder), signatures=functions, options=options)
    except (ValueError, TypeError, AssertionError, NotImplementedError, tf.errors.OpError) as error:
        raise ArgumentError(
            f"TensorFlow cannot save the function: {first_line(error)}",
            where=f"graph {graph.name!r}",
            cause="it captures something that is not tracked, such as a table or a dataset",
            remedy="save the object that owns it with tf.saved_model.save, and load that folder",
        ) from error


def _rebuilt(graph: Graph, key: str, package: Package) -> Any:
    signature = graph.signatures[key]
    arguments = [signature.inputs[name] for name in sorted(signature.inputs)]
    known = {*arguments, *package.captures}
    for value in graph.inputs:
        if value not in known:
            raise GraphError(f"{value.name} is an input of the graph and not of the signature", where=f"signature {key!r}")
    outputs = dict(sorted(signature.outputs.items()))
    return function_of_values(
        graph,
        arguments,
        outputs.values(),
        [(outer, value) for value, outer in package.captures.items() if graph.owns(value.producer)],
        graph.control_outputs,
        structured_input_signature=((), {name: spec_of(value, name) for name, value in sorted(signature.inputs.items())}),
        structured_outputs={name: spec_of(value) for name, value in outputs.items()},
        name=graph.name or key,
    )
