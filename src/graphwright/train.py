"""Training: steps that fit the memory, and solvers beside gradient descent.

Names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphwright.source.public_names import public_names

if TYPE_CHECKING:
    from graphwright.least_squares.keras.lm_model import LMModel as LMModel
    from graphwright.least_squares.keras.losses import LeastSquaresLoss as LeastSquaresLoss
    from graphwright.least_squares.keras.losses import ReducedMeanSquaredError as ReducedMeanSquaredError
    from graphwright.least_squares.keras.losses import SquareRootLoss as SquareRootLoss
    from graphwright.least_squares.keras.trainer import LevenbergMarquardt as LevenbergMarquardt
    from graphwright.least_squares.progress import LeastSquaresStep as LeastSquaresStep
    from graphwright.least_squares.result import LeastSquaresResult as LeastSquaresResult
    from graphwright.least_squares.result import LeastSquaresTensors as LeastSquaresTensors
    from graphwright.least_squares.solve import LeastSquares as LeastSquares
    from graphwright.least_squares.solve import least_squares as least_squares
    from graphwright.reversible.batch_norm import FusedBatchNormalization as FusedBatchNormalization
    from graphwright.reversible.block import ReversibleBlock as ReversibleBlock
    from graphwright.reversible.check import check_inverse as check_inverse
    from graphwright.reversible.couplings import Coupling as Coupling
    from graphwright.reversible.downsampling import InvertibleDownsampling as InvertibleDownsampling
    from graphwright.reversible.recomputed import RecomputedLayer as RecomputedLayer
    from graphwright.reversible.remember import remember as remember
    from graphwright.reversible.revnet import revnet as revnet
    from graphwright.reversible.sequence import ReversibleSequence as ReversibleSequence
    from graphwright.workers.checkpoints import TrainingCheckpoints as TrainingCheckpoints
    from graphwright.workers.repair import repair_for_workers as repair_for_workers
    from graphwright.workers.resume import ResumeTraining as ResumeTraining

__getattr__, __dir__ = public_names("graphwright.train")
