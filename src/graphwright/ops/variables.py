"""Variables, and the kernels of optimizers: FLOPs per element as the update is written in TensorFlow's documentation."""

from graphwright.ir.graph import Node
from graphwright.ops.family import Count, Family, on_floats, per_input, zero
from graphwright.ops.sizes import UnknownSizeError, is_floating, size


def _gradient_size(node: Node) -> int:
    """Return the elements of an optimizer kernel's gradient: the input before the indices, else the largest input."""
    floats = [v for v in node.inputs if is_floating(v)]
    for before, value in zip(node.inputs, node.inputs[1:], strict=False):
        if "Sparse" in node.op_type and value.dtype.name in ("int32", "int64") and value.shape != () and is_floating(before):
            return size(before)
    if not floats:
        raise UnknownSizeError
    return max(size(v) for v in floats)


def _per_gradient(plain: float, nesterov: float = 0.0) -> Count:
    return lambda node: (plain + (nesterov if node.attrs.get("use_nesterov") is True else 0.0)) * _gradient_size(node)


_OPTIMIZERS: tuple[tuple[str, float, float], ...] = (
    ("GradientDescent", 2, 0),
    ("Momentum", 4, 3),
    ("KerasMomentum", 4, 3),
    ("Adam", 12, 3),
    ("AdamWithAmsgrad", 13, 0),
    ("AdaMax", 10, 0),
    ("Adagrad", 6, 0),
    ("AdagradV2", 7, 0),
    ("AdagradDA", 11, 0),
    ("Adadelta", 16, 0),
    ("RMSProp", 11, 0),
    ("CenteredRMSProp", 16, 0),
    ("Ftrl", 17, 0),
    ("FtrlV2", 19, 0),
    ("AddSign", 11, 0),
    ("PowerSign", 12, 0),
    ("ProximalGradientDescent", 8, 0),
    ("ProximalAdagrad", 12, 0),
)
"""Kernel, FLOPs per element of the gradient, and more with Nesterov's momentum."""


_SCATTER_ARITHMETIC = (
    "ResourceScatterAdd ResourceScatterSub ResourceScatterMul ResourceScatterDiv ResourceScatterMin ResourceScatterMax "
    "ResourceScatterNdAdd ResourceScatterNdSub ResourceScatterNdMin ResourceScatterNdMax ScatterAdd ScatterSub ScatterMul ScatterDiv "
    "ScatterMin ScatterMax ScatterNdAdd ScatterNdSub ScatterNdMin ScatterNdMax"
)
_STATE = (
    "Assign AssignVariableOp DestroyResourceOp DestroyTemporaryVariable DisableCopyOnRead IsVariableInitialized Placeholder "
    "PlaceholderV2 ReadVariableOp ResourceGather ResourceGatherNd ResourceScatterNdUpdate ResourceScatterUpdate "
    "ResourceStridedSliceAssign TemporaryVariable VarHandleOp VarIsInitializedOp Variable VariableShape VariableV2 _Arg _Retval "
    "_DeviceArg _DeviceRetval _VarHandlesOp _ReadVariablesOp CountUpTo ResourceCountUpTo ScatterNdUpdate ScatterUpdate StridedSliceAssign"
)

FAMILY = Family(
    flops={
        "element by element": [
            ("AssignAddVariableOp AssignSubVariableOp AssignAdd AssignSub", "1 per element added", on_floats(per_input(1, 1))),
            (_SCATTER_ARITHMETIC, "1 per element of the updates", on_floats(per_input(1, 2))),
        ],
        "optimizer": [
            (
                " ".join(f"{prefix}{name}" for prefix in ("ResourceApply", "ResourceSparseApply", "Apply", "SparseApply")),
                f"{plain:g} per element of the gradient" + (f", {plain + nesterov:g} with Nesterov" if nesterov else ""),
                _per_gradient(plain, nesterov),
            )
            for name, plain, nesterov in _OPTIMIZERS
        ],
        "no arithmetic": [(_STATE, "0: variables and arguments", zero)],
    },
    traffic={
        "Placeholder PlaceholderV2 _Arg _Retval VarHandleOp VariableV2 Variable VarIsInitializedOp VariableShape": "nothing",
        "ResourceGather ResourceGatherNd": "rows",
    },
    cheap="_Arg _DeviceArg _Retval _DeviceRetval Placeholder VarHandleOp",
)
