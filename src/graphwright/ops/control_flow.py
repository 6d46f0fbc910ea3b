"""Control flow, communication between devices, and bookkeeping."""

from graphwright.ops.family import Family, per_input, zero

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
_TF1 = "Enter Exit Switch Merge NextIteration RefEnter RefExit RefSwitch RefMerge RefNextIteration LoopCond ControlTrigger"

FAMILY = Family(
    flops={
        "element by element": [
            ("NcclAllReduce CollectiveReduce CollectiveReduceV2 CollectiveReduceV3", "1 per element of the input", per_input(1))
        ],
        "no arithmetic": [(_BOOKKEEPING, "0: control flow and communication", zero)],
    },
    traffic={f"{_TF1} NoOp Assert FakeParam": "nothing"},
    weight_passes="Enter",
    cheap=f"{_TF1} NoOp RefIdentity",
)
