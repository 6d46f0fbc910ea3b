"""Training: steps that fit the memory, and solvers beside gradient descent.

Names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphwright.public_names import public_names

if TYPE_CHECKING:
    from graphwright.train.damped_least_squares.progress import LeastSquaresStep as LeastSquaresStep
    from graphwright.train.damped_least_squares.result import LeastSquaresResult as LeastSquaresResult
    from graphwright.train.damped_least_squares.result import LeastSquaresTensors as LeastSquaresTensors
    from graphwright.train.damped_least_squares.solve import LeastSquares as LeastSquares
    from graphwright.train.damped_least_squares.solve import least_squares as least_squares
    from graphwright.train.distribution.checkpoints import TrainingCheckpoints as TrainingCheckpoints
    from graphwright.train.distribution.repair import repair_for_workers as repair_for_workers
    from graphwright.train.distribution.resume import ResumeTraining as ResumeTraining
    from graphwright.train.levenberg_marquardt.least_squares_losses import LeastSquaresLoss as LeastSquaresLoss
    from graphwright.train.levenberg_marquardt.least_squares_losses import ReducedMeanSquaredError as ReducedMeanSquaredError
    from graphwright.train.levenberg_marquardt.least_squares_losses import SquareRootLoss as SquareRootLoss
    from graphwright.train.levenberg_marquardt.lm_model import LMModel as LMModel
    from graphwright.train.levenberg_marquardt.trainer import LevenbergMarquardt as LevenbergMarquardt
    from graphwright.train.reversible.batch_norm import FusedBatchNormalization as FusedBatchNormalization
    from graphwright.train.reversible.block import ReversibleBlock as ReversibleBlock
    from graphwright.train.reversible.check import check_inverse as check_inverse
    from graphwright.train.reversible.couplings import Coupling as Coupling
    from graphwright.train.reversible.downsampling import InvertibleDownsampling as InvertibleDownsampling
    from graphwright.train.reversible.recomputed import RecomputedLayer as RecomputedLayer
    from graphwright.train.reversible.remember import remember as remember
    from graphwright.train.reversible.revnet import resnet as resnet
    from graphwright.train.reversible.revnet import resnet32 as resnet32
    from graphwright.train.reversible.revnet import resnet101 as resnet101
    from graphwright.train.reversible.revnet import resnet110 as resnet110
    from graphwright.train.reversible.revnet import resnet164 as resnet164
    from graphwright.train.reversible.revnet import revnet as revnet
    from graphwright.train.reversible.revnet import revnet38 as revnet38
    from graphwright.train.reversible.revnet import revnet104 as revnet104
    from graphwright.train.reversible.revnet import revnet110 as revnet110
    from graphwright.train.reversible.revnet import revnet164 as revnet164
    from graphwright.train.reversible.sequence import ReversibleSequence as ReversibleSequence
    from graphwright.train.reversible.transformer import reversible_transformer as reversible_transformer

_HOME = {
    "LMModel": "graphwright.train.levenberg_marquardt.lm_model",
    "LeastSquares": "graphwright.train.damped_least_squares.solve",
    "LeastSquaresLoss": "graphwright.train.levenberg_marquardt.least_squares_losses",
    "LeastSquaresResult": "graphwright.train.damped_least_squares.result",
    "LeastSquaresStep": "graphwright.train.damped_least_squares.progress",
    "LeastSquaresTensors": "graphwright.train.damped_least_squares.result",
    "LevenbergMarquardt": "graphwright.train.levenberg_marquardt.trainer",
    "ReducedMeanSquaredError": "graphwright.train.levenberg_marquardt.least_squares_losses",
    "ResumeTraining": "graphwright.train.distribution.resume",
    "SquareRootLoss": "graphwright.train.levenberg_marquardt.least_squares_losses",
    "TrainingCheckpoints": "graphwright.train.distribution.checkpoints",
    "least_squares": "graphwright.train.damped_least_squares.solve",
    "Coupling": "graphwright.train.reversible.couplings",
    "FusedBatchNormalization": "graphwright.train.reversible.batch_norm",
    "InvertibleDownsampling": "graphwright.train.reversible.downsampling",
    "RecomputedLayer": "graphwright.train.reversible.recomputed",
    "ReversibleBlock": "graphwright.train.reversible.block",
    "ReversibleSequence": "graphwright.train.reversible.sequence",
    "check_inverse": "graphwright.train.reversible.check",
    "repair_for_workers": "graphwright.train.distribution.repair",
    "remember": "graphwright.train.reversible.remember",
    "resnet": "graphwright.train.reversible.revnet",
    "resnet32": "graphwright.train.reversible.revnet",
    "resnet101": "graphwright.train.reversible.revnet",
    "resnet110": "graphwright.train.reversible.revnet",
    "resnet164": "graphwright.train.reversible.revnet",
    "reversible_transformer": "graphwright.train.reversible.transformer",
    "revnet": "graphwright.train.reversible.revnet",
    "revnet38": "graphwright.train.reversible.revnet",
    "revnet104": "graphwright.train.reversible.revnet",
    "revnet110": "graphwright.train.reversible.revnet",
    "revnet164": "graphwright.train.reversible.revnet",
}
"""Public name -> module that defines it."""

__getattr__, __dir__ = public_names("graphwright.train", _HOME)
