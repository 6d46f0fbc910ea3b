"""Making a schedule that fits cheaper."""

from __future__ import annotations

import time as clock

from graphwright.plan.solvers.sequence import Sequence


def drop_recomputations(sequence: Sequence, deadline: float) -> None:
    """Remove recomputations, dearest first, as long as nothing new rises above the budget."""
    problem = sequence.problem
    again = True
    while again:
        again = False
        repeats = [run for runs in sequence.runs for run in runs[1:]]
        repeats.sort(key=lambda run: (-problem.time[sequence.run_task[run]], int(sequence.position[run])))
        for run in repeats:
            if clock.perf_counter() > deadline:
                return
            edit = sequence.trial((), 0, (run,))
            if edit is not None and edit.gain >= 0:
                sequence.apply(edit)
                again = True
