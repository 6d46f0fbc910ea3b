"""What computes nothing: data movement, integers and bits, variables, text, files, queues, tables, data sets, bookkeeping."""

import re

from graphwright.analyze.flop_rules.rule import FlopRule, table, zero
from graphwright.ir.traits.control_flow import called_functions

_MOVEMENT = (
    "BatchToSpace BatchToSpaceND Bitcast BroadcastArgs BroadcastGradientArgs BroadcastTo Cast CheckNumerics CheckNumericsV2 Concat "
    "ConcatOffset ConcatV2 Const ConjugateTranspose Copy CopyHost DataFormatDimMap DataFormatVecPermute DeepCopy DepthToSpace Diag "
    "DiagPart DynamicPartition DynamicStitch EditDistance Empty EnsureShape ExpandDims ExtractGlimpse ExtractGlimpseV2 "
    "ExtractImagePatches ExtractVolumePatches Fill Gather GatherNd GatherV2 GuaranteeConst HostConst Identity IdentityN Imag "
    "ImmutableConst InplaceUpdate InvertPermutation ListDiff MatrixBandPart MatrixDiag MatrixDiagPart MatrixDiagPartV2 "
    "MatrixDiagPartV3 MatrixDiagV2 MatrixDiagV3 MatrixSetDiag MatrixSetDiagV2 MatrixSetDiagV3 MirrorPad MirrorPadGrad OneHot OnesLike "
    "Pack Pad PadV2 ParallelConcat ParallelDynamicStitch PlaceholderWithDefault PreventGradient QuantizedConcat QuantizedConcatV2 "
    "QuantizedReshape RandomCrop RandomShuffle Range Rank Real Reshape Reverse ReverseSequence ReverseV2 Roll ScatterNd ScatterNdUpdate "
    "ScatterUpdate Shape ShapeN Size Slice Snapshot SpaceToBatch SpaceToBatchND SpaceToDepth Split SplitV Squeeze StopGradient "
    "StridedSlice StridedSliceAssign StridedSliceGrad TensorScatterUpdate TensorStridedSliceUpdate Tile Transpose Unpack UnravelIndex "
    "Where ZerosLike StatelessShuffle RandomIndexShuffle Unique UniqueV2 UniqueWithCounts UniqueWithCountsV2 HostCast _HostCast "
    "XlaDynamicSlice XlaDynamicUpdateSlice XlaGather XlaPad XlaSharding XlaOptimizationBarrier "
    "BatchMatrixBandPart BatchMatrixDiag BatchMatrixDiagPart BatchMatrixSetDiag _EagerConst _ListToArray _ArrayToList _ReadVariablesOp"
)
_INTEGERS = (
    "BitwiseAnd BitwiseOr BitwiseXor Invert LeftShift RightShift PopulationCount LogicalXor RandomUniformInt StatelessRandomUniformInt "
    "StatelessRandomUniformIntV2 StatelessRandomUniformFullInt StatelessRandomUniformFullIntV2 StatefulUniformInt "
    "StatefulUniformFullInt NonDeterministicInts RngSkip RngReadAndSkip StatelessRandomGetAlg StatelessRandomGetKeyCounter "
    "StatelessRandomGetKeyCounterAlg CountUpTo ResourceCountUpTo UniformCandidateSampler LogUniformCandidateSampler "
    "LearnedUnigramCandidateSampler ThreadUnsafeUnigramCandidateSampler FixedUnigramCandidateSampler AllCandidateSampler "
    "ComputeAccidentalHits ToBool"
)
_STATE = (
    "Assign AssignVariableOp DestroyResourceOp DestroyTemporaryVariable DisableCopyOnRead IsVariableInitialized Placeholder "
    "PlaceholderV2 ReadVariableOp ResourceGather ResourceGatherNd ResourceScatterNdUpdate ResourceScatterUpdate "
    "ResourceStridedSliceAssign TemporaryVariable VarHandleOp VarIsInitializedOp Variable VariableShape VariableV2 _Arg _Retval "
    "_DeviceArg _DeviceRetval _VarHandlesOp"
)
_BOOKKEEPING = (
    "Abort Assert ControlTrigger DeviceIndex Enter Exit FakeParam LoopCond Merge NextIteration NoOp Print PrintV2 RefEnter RefExit "
    "RefIdentity RefMerge RefNextIteration RefSelect RefSwitch Switch _SwitchN Timestamp OptionalFromValue OptionalGetValue "
    "OptionalHasValue OptionalNone CompositeTensorVariantFromComponents CompositeTensorVariantToComponents _Send _Recv _HostSend "
    "_HostRecv Send Recv CollectiveInitializeCommunicator CollectiveAssignGroupV2 CollectiveGather CollectiveGatherV2 "
    "CollectiveBcastSend CollectiveBcastRecv CollectiveBcastSendV2 CollectiveBcastRecvV2 CollectivePermute NcclBroadcast "
    "GetOptions IsTensorFloat32Enabled StochasticCastToInt MutexV2 MutexLock ConsumeMutexLock GetSessionHandle GetSessionHandleV2 "
    "GetSessionTensor DeleteSessionTensor Unbatch Batch CudnnRNNParamsSize CudnnRNNParamsToCanonical CudnnRNNParamsToCanonicalV2 "
    "CudnnRNNCanonicalToParams CudnnRNNCanonicalToParamsV2 Fingerprint GraphDefVersion _ParallelConcatStart _ParallelConcatUpdate"
)
_SPARSE_MOVEMENT = (
    "SparseConcat SparseFillEmptyRows SparseFillEmptyRowsGrad SparseReorder SparseReshape SparseSlice SparseSliceGrad SparseSplit "
    "SparseToDense SparseAddGrad SparseCross SparseCrossV2 SparseCrossHashed SparseToSparseSetOperation DenseToSparseSetOperation "
    "DenseToDenseSetOperation SetSize RaggedTensorToSparse "
    "RaggedBincount RaggedCountSparseOutput SparseCountSparseOutput DenseCountSparseOutput"
)
_SILENT = re.compile(
    r"""
    TensorList\w+ | EmptyTensor(List|Map) | TensorMap\w+ | TensorArray\w* | Stack(V2|Push|PushV2|Pop|PopV2|Close|CloseV2)?
    | \w*Dataset\w* | \w*Iterator\w* | \w*Queue\w* | Barrier\w* | (Ordered)?Map(Stage|Unstage|Peek|Size|Clear|IncompleteSize|UnstageNoKey)
    | Stage(Peek|Size|Clear)? | Unstage
    | (Lookup|Hash|Mutable|AnonymousMutable|AnonymousHash|Initialize)\w*Table\w*
    | \w*Reader\w* | ReadFile | WriteFile | MatchingFiles | WholeFile\w* | Sharded(Filename|Filespec) | MergeV2Checkpoints
    | (Save|Restore)(V2|Slices?)? | \w*Summary\w* | (Add|Take)ManySparse\w* | AddSparseToTensorsMap
    | (De)?serialize\w* | Serialize\w* | Deserialize\w* | Parse\w* | (Decode|Encode)\w* | ExtractJpegShape
    | String\w* | (Static)?Regex\w* | Substr | ReduceJoin | UnsortedSegmentJoin | AsString | Unicode\w* | \w*ToHashBucket\w*
    | Ragged(Gather|Range|TensorFromVariant|TensorToVariant|TensorToTensor|TensorToVariantGradient|FillEmptyRows|FillEmptyRowsGrad|Cross)
    | Debug\w* | (Copy)?ToMesh\w* | DeleteSeedGenerator | \w*SeedGenerator | GenerateVocabRemapping | LoadAndRemapMatrix
    """,
    re.VERBOSE,
)
"""Families of op types that only move, keep, read or write: lists and arrays of tensors, data sets, queues, tables, files, text."""


# Nothing, unless it calls a function: what a data set maps is not known to be nothing.
_SILENT_RULE = FlopRule("no arithmetic", "0", lambda node: None if called_functions(node) else 0.0)


def silent_rule(op_type: str) -> FlopRule | None:
    """The rule of what computes nothing by the family of its name: text, files, queues, tables, data sets, lists of tensors."""
    return _SILENT_RULE if _SILENT.fullmatch(op_type) else None


RULES: dict[str, FlopRule] = table(
    {
        "no arithmetic": [
            (_MOVEMENT, "0: data movement", zero),
            (_INTEGERS, "0: integers and bits", zero),
            (_STATE, "0: variables and arguments", zero),
            (_BOOKKEEPING, "0: control flow and communication", zero),
            (_SPARSE_MOVEMENT, "0: data movement", zero),
        ]
    }
)
