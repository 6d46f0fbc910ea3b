"""Training: steps that fit the memory, and solvers beside gradient descent.

Names are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphwright.train.damped_least_squares.result import LeastSquaresResult as LeastSquaresResult
    from graphwright.train.damped_least_squares.solve import LeastSquares as LeastSquares
    from graphwright.train.damped_least_squares.solve import least_squares as least_squares
    from graphwright.train.distribution.checkpoints import TrainingCheckpoints as TrainingCheckpoints
    from graphwright.train.distribution.resume import ResumeTraining as ResumeTraining
    from graphwright.train.levenberg_marquardt.lm_model import LMModel as LMModel
    from graphwright.train.levenberg_marquardt.output_losses import LeastSquaresLoss as LeastSquaresLoss
    from graphwright.train.levenberg_marquardt.output_losses import ReducedMeanSquaredError as ReducedMeanSquaredError
    from graphwright.train.levenberg_marquardt.trainer import LevenbergMarquardt as LevenbergMarquardt

_HOME = {
    "LMModel": "graphwright.train.levenberg_marquardt.lm_model",
    "LeastSquares": "graphwright.train.damped_least_squares.solve",
    "LeastSquaresLoss": "graphwright.train.levenberg_marquardt.output_losses",
    "LeastSquaresResult": "graphwright.train.damped_least_squares.result",
    "LevenbergMarquardt": "graphwright.train.levenberg_marquardt.trainer",
    "ReducedMeanSquaredError": "graphwright.train.levenberg_marquardt.output_losses",
    "ResumeTraining": "graphwright.train.distribution.resume",
    "TrainingCheckpoints": "graphwright.train.distribution.checkpoints",
    "least_squares": "graphwright.train.damped_least_squares.solve",
}
"""Public name -> module that defines it."""


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'graphwright.train' has no attribute {name!r}")
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
    return sorted(_HOME)
