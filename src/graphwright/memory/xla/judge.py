"""The judge of a compiled step's plans: the XLA of this process, or XLA for an absent GPU."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from graphwright.analyze.device_models import DeviceModel, device_name
from graphwright.analyze.xla_program import XlaMemory
from graphwright.memory.xla.schedule import GATES, Holding
from graphwright.run.xla_memory import xla_memory

_HOW_PEAK = (
    "XLA's buffer assignment of the compiled step, for this process's first device: arguments, variables, results, temporaries and "
    "constants; workspace that libraries take by themselves is not in it"
)
_HOW_ORDER = (
    "made by XLA: {} hold back {}, as the plan says. The charts over the step, what is live at "
    "the peak and the layers are the planner's model of it, operation by operation, without XLA's fusions"
)


@dataclass(frozen=True, slots=True)
class Judge:
    """Compiles a step, and reports its memory."""

    device: DeviceModel | None
    holdings: tuple[Holding, ...]

    @property
    def name(self) -> str:
        return device_name(self.device)

    def memory(self, function: Any, shapes: Sequence[tuple[int, ...]]) -> XlaMemory:
        return xla_memory(function, shapes, self.device)

    def how(self, memory: XlaMemory, holding: Holding, *, parts: bool = False, recomputed: bool = True) -> dict[str, str]:
        """Describe the origin of the figures."""
        held = ["what is computed again"] * recomputed + ["what is kept"] * holding.residuals
        held += ["each part of the batch until the one before it is done"] * parts
        order = _HOW_ORDER.format("optimization barriers" if holding.barriers else "gates", ", and ".join(held))
        return {"peak": _HOW_PEAK if self.device is None else memory.how(self.device.full_name), "order": order}


def judge_for(device: DeviceModel | None) -> Judge:
    if device is None:
        return Judge(None, (GATES,))
    return Judge(device, (Holding(barriers=True, residuals=False), Holding(barriers=True, residuals=True)))
