"""See what a TensorFlow graph costs, edit it, and train it in the memory you have.

Names are loaded when they are first used, so `import graphwright` is quick and works
without TensorFlow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from graphwright.analyze.measurement import Measurement as Measurement
    from graphwright.errors import ArgumentError as ArgumentError
    from graphwright.errors import FileFormatError as FileFormatError
    from graphwright.errors import GraphError as GraphError
    from graphwright.errors import GraphwrightError as GraphwrightError
    from graphwright.errors import InfeasibleError as InfeasibleError
    from graphwright.errors import MeasurementError as MeasurementError
    from graphwright.errors import MissingDependencyError as MissingDependencyError
    from graphwright.errors import UnknownShapeError as UnknownShapeError
    from graphwright.errors import UnsupportedError as UnsupportedError
    from graphwright.errors import VerificationWarning as VerificationWarning
    from graphwright.inspection import SweepResult as SweepResult
    from graphwright.inspection import inspect as inspect
    from graphwright.inspection import sweep as sweep
    from graphwright.ir.graph import Graph as Graph
    from graphwright.report.results import Inspection as Inspection
    from graphwright.report.results import MemoryPlan as MemoryPlan
    from graphwright.run.measure import measure as measure
    from graphwright.run.measure import measure_many as measure_many
    from graphwright.run.verify import Verification as Verification
    from graphwright.run.verify import verify as verify
    from graphwright.train.optimize_memory import OptimizedStep as OptimizedStep
    from graphwright.train.optimize_memory import optimize_memory as optimize_memory

_HOME = {
    "ArgumentError": "graphwright.errors",
    "FileFormatError": "graphwright.errors",
    "Graph": "graphwright.ir.graph",
    "GraphError": "graphwright.errors",
    "GraphwrightError": "graphwright.errors",
    "InfeasibleError": "graphwright.errors",
    "Inspection": "graphwright.report.results",
    "Measurement": "graphwright.analyze.measurement",
    "MeasurementError": "graphwright.errors",
    "MemoryPlan": "graphwright.report.results",
    "MissingDependencyError": "graphwright.errors",
    "OptimizedStep": "graphwright.train.optimize_memory",
    "SweepResult": "graphwright.inspection",
    "UnknownShapeError": "graphwright.errors",
    "UnsupportedError": "graphwright.errors",
    "Verification": "graphwright.run.verify",
    "VerificationWarning": "graphwright.errors",
    "inspect": "graphwright.inspection",
    "measure": "graphwright.run.measure",
    "measure_many": "graphwright.run.measure",
    "optimize_memory": "graphwright.train.optimize_memory",
    "sweep": "graphwright.inspection",
    "verify": "graphwright.run.verify",
}
"""Public name -> module that defines it."""


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'graphwright' has no attribute {name!r}")
    try:
        value = getattr(import_module(_HOME[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "tensorflow":
            raise
        from graphwright.source.tensorflow_import import import_tensorflow

        import_tensorflow()  # raises the error that says what to install
        raise
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*_HOME, "__version__"])
