"""What a user asks of `optimize_memory`, read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

from graphwright.analyze.device_models import HERE, find_device
from graphwright.errors import ArgumentError, UnsupportedError
from graphwright.memory.offload import Offload
from graphwright.memory.offload import offload_to as find_offload
from graphwright.memory.plan_cache import PlanCache, plan_cache
from graphwright.memory.verbs import BIT_FOR_BIT, Allow, Verb, read_allow, refuse_for_xla
from graphwright.plan.budget import Budget
from graphwright.report.memory_plan import CopyEngine, MemoryPlan, load_plan
from graphwright.report.progress import Progress
from graphwright.step.targets import Feed

Verify = Literal["structure", "run"] | bool
OnFailure = Literal["raise", "original"]
TIME_LIMIT_S = 6.0
_MAX_OVERHEAD = 0.1  # of a plan for the smallest peak, as a share of the step's time


class Options(TypedDict, total=False):
    """Options of `optimize_memory`, as type checkers know them."""

    inputs: Any
    outputs: Any
    feeds: Mapping[str, Feed] | None
    verify: Verify
    time_limit_s: float
    cache_dir: str | Path | None
    progress: Progress | None
    curve_points: int
    allow: Allow
    max_overhead: float | None
    plan: MemoryPlan | str | Path | None
    device: str
    offload_to: str | Path | None
    copy_engine: CopyEngine | None
    on_failure: OnFailure


@dataclass(frozen=True)
class Request:
    """The plan that is asked for.

    Attributes:
        budget: bytes, or a share of the unmodified peak; None for the smallest peak within `max_overhead`.
        max_overhead: extra time that the smallest peak may cost, as a share.
        saved: a plan to follow instead of searching.
        offload: where copies go; None if nothing may be copied.
        prove: whether the rewritten graph is compared with the original.
    """

    budget: Budget | None
    max_overhead: float = 0.0
    time_limit_s: float = TIME_LIMIT_S
    cache: PlanCache | None = None
    progress: Progress | None = None
    curve_points: int = 0
    allow: frozenset[Verb] = frozenset(BIT_FOR_BIT)
    saved: MemoryPlan | None = None
    device: str = HERE
    offload: Offload | None = None
    prove: bool = True

    @property
    def budget_in_words(self) -> int | float | str:
        return "smallest" if self.budget is None else self.budget.plain


def read_request(
    budget: int | float | str | None,
    plan: MemoryPlan | str | Path | None,
    *,
    allow: Allow,
    verify: Verify,
    time_limit_s: float,
    cache_dir: str | Path | None,
    progress: Progress | None,
    curve_points: int,
    max_overhead: float | None,
    device: str,
    offload_to: str | Path | None,
    copy_engine: CopyEngine | None,
) -> Request:
    """Read the arguments of `optimize_memory` that say what to plan.

    Raises:
        ArgumentError: an argument cannot be read, or two of them contradict each other.
        FileFormatError: the file of a plan cannot be read.
        MissingDependencyError: the compiler for the device is not installed.
        UnsupportedError: a verb is named that has no meaning on the device.
    """
    if verify not in ("structure", "run", True, False):
        raise ArgumentError(f"verify={verify!r} was given", argument="verify", remedy='give "structure", "run" or False')
    saved = load_plan(plan) if isinstance(plan, str | Path) else plan
    if (saved is None) == (budget is None):
        raise ArgumentError(
            "neither a budget nor a plan was given" if saved is None else "a budget was given beside a plan",
            argument="budget" if saved is None else "plan",
            remedy="give one of the two; a plan has its own budget",
        )
    if saved is not None:
        recipe = saved.recipe
        if recipe is None:
            raise ArgumentError("the plan lacks the data to follow it", argument="plan", remedy="give one that optimize_memory made")
        contradictions = {
            "allow": read_allow(allow) not in (frozenset(BIT_FOR_BIT), read_allow(recipe.allow)),
            "time_limit_s": time_limit_s not in (TIME_LIMIT_S, recipe.time_limit_s),
            "max_overhead": max_overhead not in (None, recipe.max_overhead),
            "offload_to": offload_to is not None and not recipe.offload_to,
            "copy_engine": copy_engine is not None,
            "device": device not in (HERE, recipe.device),
        }
        for argument in (name for name, contradicts in contradictions.items() if contradicts):
            raise ArgumentError(
                f"{argument} was given beside a plan that was made without it",
                argument=argument,
                cause="the plan is followed as it was made",
                remedy="leave it out, or give a budget instead of the plan",
            )
        budget, allow, time_limit_s, device = recipe.budget, read_allow(recipe.allow), recipe.time_limit_s, recipe.device
        offload_to, copy_engine = offload_to or recipe.offload_to or None, recipe.copy_engine
        max_overhead = recipe.max_overhead if recipe.budget == "smallest" else None
    assert budget is not None
    is_compiled = find_device(device) is not None
    amount, max_overhead = _read_budget(budget, max_overhead)
    verbs = read_allow(allow).union(() if offload_to is None else read_allow(("offload",)))
    if is_compiled:
        refuse_for_xla(verbs, f"device={device!r}")
    if copy_engine is not None and "offload" not in verbs:
        raise ArgumentError(
            "a copy engine was given, and nothing may be copied",
            argument="copy_engine",
            remedy='give offload_to=..., or "offload" in allow, as well',
        )
    return Request(
        amount,
        max_overhead,
        time_limit_s,
        plan_cache(cache_dir),
        progress,
        curve_points,
        verbs,
        saved,
        device,
        find_offload(offload_to, copy_engine) if "offload" in verbs else None,
        prove=verify is not False,
    )


def _read_budget(budget: int | float | str, max_overhead: float | None) -> tuple[Budget | None, float]:
    smallest = isinstance(budget, str) and budget.strip().lower() == "smallest"
    if max_overhead is None:
        max_overhead = _MAX_OVERHEAD
    elif not smallest:
        raise ArgumentError(
            f"max_overhead={max_overhead!r} was given beside the budget {budget!r}",
            argument="max_overhead",
            cause="for a budget, the plan minimizes the extra time, without a limit",
            remedy='give the budget "smallest", or no max_overhead',
        )
    elif not 0 <= max_overhead < float("inf"):
        raise ArgumentError(f"max_overhead={max_overhead!r} was given", argument="max_overhead", remedy="give a share, such as 0.1")
    return None if smallest else Budget.read(budget), float(max_overhead)


def budget_for_xla(request: Request, step: str) -> Budget:
    """Return the budget of a step that XLA compiles.

    Raises:
        UnsupportedError: the smallest peak is asked for.
    """
    if request.budget is None:
        raise UnsupportedError(
            'the budget "smallest" is not for a step that XLA compiles',
            where=f"step {step!r}",
            cause="each plan is compiled to know its peak, and the estimated times are not those of XLA's program",
            remedy="give a budget, such as 0.5",
        )
    return request.budget
