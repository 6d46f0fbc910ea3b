"""See what a TensorFlow graph costs, edit it, and train it in the memory you have.

Names are loaded when they are first used, so `import graphwright` is quick and works
without TensorFlow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphwright.source.public_names import public_names

__version__ = "0.1.0"

if TYPE_CHECKING:
    from graphwright import train as train
    from graphwright.advice.advise import advise as advise
    from graphwright.advice.explain_oom import explain_oom as explain_oom
    from graphwright.analyze.measurement import Measurement as Measurement
    from graphwright.costs.baseline import read_costs as read_costs
    from graphwright.costs.baseline import write_costs as write_costs
    from graphwright.costs.check import check as check
    from graphwright.costs.compare import compare as compare
    from graphwright.costs.compare import step_costs as step_costs
    from graphwright.costs.flops import count_flops as count_flops
    from graphwright.costs.flops import register_flops as register_flops
    from graphwright.costs.inspection import inspect as inspect
    from graphwright.costs.max_batch import max_batch as max_batch
    from graphwright.costs.parameters import count_parameters as count_parameters
    from graphwright.costs.peak import predict_peak as predict_peak
    from graphwright.costs.profile import Profile as Profile
    from graphwright.costs.profile import profile as profile
    from graphwright.costs.shapes import infer_shapes as infer_shapes
    from graphwright.costs.sweep import sweep as sweep
    from graphwright.errors import ArgumentError as ArgumentError
    from graphwright.errors import AssumedSizeWarning as AssumedSizeWarning
    from graphwright.errors import CheckpointWarning as CheckpointWarning
    from graphwright.errors import ErrorCode as ErrorCode
    from graphwright.errors import FileFormatError as FileFormatError
    from graphwright.errors import GraphError as GraphError
    from graphwright.errors import GraphwrightError as GraphwrightError
    from graphwright.errors import InfeasibleError as InfeasibleError
    from graphwright.errors import MeasurementError as MeasurementError
    from graphwright.errors import MissingDependencyError as MissingDependencyError
    from graphwright.errors import OffloadError as OffloadError
    from graphwright.errors import OutOfMemoryError as OutOfMemoryError
    from graphwright.errors import UnknownShapeError as UnknownShapeError
    from graphwright.errors import UnsupportedError as UnsupportedError
    from graphwright.errors import VerificationError as VerificationError
    from graphwright.errors import VerificationWarning as VerificationWarning
    from graphwright.gradient.checkpointed import checkpointed as checkpointed
    from graphwright.gradient.gradients import gradients as gradients
    from graphwright.gradient.gradients import gradients_collection as gradients_collection
    from graphwright.gradient.gradients import gradients_memory as gradients_memory
    from graphwright.gradient.gradients import gradients_speed as gradients_speed
    from graphwright.ir.graph import Graph as Graph
    from graphwright.memory.optimize_memory import optimize_memory as optimize_memory
    from graphwright.memory.optimized_step import OptimizedStep as OptimizedStep
    from graphwright.report.advice import Advice as Advice
    from graphwright.report.advice import Suggestion as Suggestion
    from graphwright.report.batch_results import MaxBatch as MaxBatch
    from graphwright.report.comparison import CheckResult as CheckResult
    from graphwright.report.comparison import Comparison as Comparison
    from graphwright.report.comparison import StepCosts as StepCosts
    from graphwright.report.diff import diff as diff
    from graphwright.report.drawing import draw as draw
    from graphwright.report.flop_count import FlopCount as FlopCount
    from graphwright.report.flop_count import Formula as Formula
    from graphwright.report.inspection import Inspection as Inspection
    from graphwright.report.memory_plan import CopyEngine as CopyEngine
    from graphwright.report.memory_plan import MemoryPlan as MemoryPlan
    from graphwright.report.memory_plan import load_plan as load_plan
    from graphwright.report.out_of_memory import OutOfMemory as OutOfMemory
    from graphwright.report.parameter_table import ParameterTable as ParameterTable
    from graphwright.report.peak_prediction import PeakPrediction as PeakPrediction
    from graphwright.report.shape_report import ShapeReport as ShapeReport
    from graphwright.report.sweep import SweepResult as SweepResult
    from graphwright.reuse.cache_frozen import cache_frozen as cache_frozen
    from graphwright.reuse.cached import CacheInfo as CacheInfo
    from graphwright.reuse.cached import cached as cached
    from graphwright.reuse.gradient_cache import GradientCache as GradientCache
    from graphwright.reuse.gradient_cache import GradientCacheResult as GradientCacheResult
    from graphwright.reuse.jacobian import JacobianPlan as JacobianPlan
    from graphwright.reuse.jacobian import jacobian as jacobian
    from graphwright.reuse.jacobian import plan_jacobian as plan_jacobian
    from graphwright.reuse.rewrite import RewriteReport as RewriteReport
    from graphwright.reuse.rewrite import rewrite as rewrite
    from graphwright.reuse.rule import Rule as Rule
    from graphwright.reuse.simplify import SimplifyReport as SimplifyReport
    from graphwright.reuse.simplify import simplify as simplify
    from graphwright.reversible.block import ReversibleBlock as ReversibleBlock
    from graphwright.reversible.check import check_inverse as check_inverse
    from graphwright.reversible.sequence import ReversibleSequence as ReversibleSequence
    from graphwright.run.verify import Verification as Verification
    from graphwright.source.load import load as load
    from graphwright.source.trust import trust as trust
    from graphwright.source.variable_values import variable_values as variable_values
    from graphwright.source.write import write as write
    from graphwright.step.running import measure as measure
    from graphwright.step.running import measure_many as measure_many
    from graphwright.step.running import verify as verify
    from graphwright.transform.batch_size import change_batch_size as change_batch_size
    from graphwright.transform.convert_dtype import convert_weights as convert_weights
    from graphwright.transform.extract_submodel import extract_submodel as extract_submodel
    from graphwright.transform.fold_batch_norms import fold_batch_norms as fold_batch_norms
    from graphwright.transform.freeze_variables import freeze_variables as freeze_variables
    from graphwright.transform.merge_models import merge_models as merge_models
    from graphwright.transform.preprocessing import add_postprocessing as add_postprocessing
    from graphwright.transform.preprocessing import add_preprocessing as add_preprocessing
    from graphwright.transform.remove_debug_ops import remove_debug_ops as remove_debug_ops
    from graphwright.transform.rename_interface import rename_inputs as rename_inputs
    from graphwright.transform.rename_interface import rename_outputs as rename_outputs
    from graphwright.transform.replace_op_type import replace_op_type as replace_op_type
    from graphwright.transform.signatures import keep_signatures as keep_signatures
    from graphwright.transform.strip_training import strip_training as strip_training

__getattr__, __dir__ = public_names("graphwright", ["__version__"])
