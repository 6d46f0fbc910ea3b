"""Measured steps, made by hand."""

from graphwright.analyze.step_profile import MemoryTrack, OpRun, SourceLine, StepProfile

MIB = 1 << 20


def small_profile():
    """A matrix product and its gradient on three lanes of the host and a stream.

    thread 1:  [MatMul 0..40][Relu 40..50]        [MatMul_1 60..100]
    thread 2:            [Wait 30..........70]
    thread 3:                                        [Recv 60..90]
    """
    host, dense = ("CPU:0", "thread 1"), "net/dense/"
    runs = (
        OpRun(f"{dense}MatMul", "MatMul", *host, 0, 40_000, allocated_bytes=MIB, peak_bytes=2 * MIB, flops=4e6, bytes_moved=1e6),
        OpRun(f"{dense}Wait", "Wait", "CPU:0", "thread 2", 30_000, 70_000, flops=0.0),
        OpRun(f"{dense}Relu", "Relu", *host, 40_000, 50_000, residual_bytes=64, output_bytes=MIB, flops=1e3, bytes_moved=4e3),
        OpRun("loss/Recv", "_Recv", "CPU:0", "thread 3", 60_000, 90_000),
        OpRun(f"{dense}MatMul_1", "MatMul", *host, 60_000, 100_000, peak_bytes=MIB, direction="backward", flops=4e6),
        OpRun(f"{dense}MatMul_1", "MatMul", "GPU:0", "stream 7", 65_000, 95_000, True, "sgemm", direction="backward"),
    )
    memory = (MemoryTrack("CPU:0", "cpu", MIB, (1_000, 90_000), (3 * MIB, 2 * MIB)),)
    here = SourceLine("/models/net.py", 12, "call")
    return StepProfile(
        name="step",
        runs=runs,
        memory=memory,
        step_time_s=100e-6,
        step_times_s=(100e-6, 110e-6, 120e-6),
        plain_time_s=90e-6,
        parameters={"net/dense/ReadVariableOp": 1024},
        inputs={"net/dense/Relu": ("net/dense/MatMul",), "net/dense/MatMul_1": ("net/dense/Relu", "loss/Recv")},
        sources={
            "net/dense/MatMul": (SourceLine("/train.py", 3, "main"), here),
            "net/dense/Relu": (SourceLine("/train.py", 3, "main"), SourceLine("/models/net.py", 13, "call")),
        },
    )
