"""Run an order under a memory cap: drop the least missed buffers, remake on demand.

If a task does not fit, live buffers are dropped by the least recompute time per byte and per step of waiting (the score of Kirisame et al.
2021, "Dynamic tensor rematerialization", with the true next use as in Belady 1966). A missing input is remade when it is read, recursively,
under the same cap. It is slower than the other solvers, but works with very little memory.
"""

from collections.abc import Sequence

from graphwright.plan.solvers.problem import Problem

LONGEST = 10  # give up when the schedule has this many times the steps of the order ...
STEPS = 50_000  # ... and this many steps
REACH = 300  # longest chain of missing makers that may arise


def run_under_cap(problem: Problem, order: Sequence[int], cap: int, deadline: float) -> list[int] | None:
    """Return a schedule that executes the order within `cap` bytes, or None."""
    return _Machine(problem, order, cap, deadline).run()


class _Machine:
    def __init__(self, problem: Problem, order: Sequence[int], cap: int, deadline: float) -> None:
        self.problem = problem
        self.order = order
        self.cap = cap
        self.deadline = deadline
        self.uses: list[list[int]] = [[] for _ in range(problem.buffer_count)]  # positions in the order, last first
        for place in range(len(order) - 1, -1, -1):
            for number in problem.inputs[order[place]]:
                self.uses[number].append(place)
        self.given = [maker < 0 for maker in problem.producer]
        self.live: dict[int, None] = {}
        self.held: dict[int, None] = {}
        self.used = problem.graph.resident_bytes
        for number in range(problem.buffer_count):
            if self.given[number] and (problem.kept[number] or self.uses[number]):
                self.live[number] = None
                self.used += problem.nbytes[number]
        self.done = [False] * problem.task_count
        self.pins = [0] * problem.buffer_count
        self.steps: list[int] = []
        self.place = 0
        self.victims: dict[int, list[int]] = {}  # killer -> tasks that cannot run again after it
        for task, killers in enumerate(problem.killers):
            for killer in killers:
                self.victims.setdefault(killer, []).append(task)

    def run(self) -> list[int] | None:
        for place, task in enumerate(self.order):
            self.place = place
            if not self._secure(task) or not self._execute(task):
                return None
            for number in self.problem.inputs[task]:
                while self.uses[number] and self.uses[number][-1] <= place:
                    self.uses[number].pop()
            self._sweep((*self.problem.inputs[task], *self.problem.outputs[task]))
        return self.steps

    def _secure(self, killer: int) -> bool:
        """Remake buffers that cannot be remade once `killer` has run, if they are still to be read."""
        return all(self._execute(task) for root in self.victims.get(killer, ()) for task in self._wanted([root]))

    def _wanted(self, roots: list[int]) -> list[int]:
        """Return makers of dropped buffers that are still to be read and would be remade from `roots`."""
        stack, seen = list(roots), set(roots)
        makers: list[int] = []
        while stack:
            task = stack.pop()
            if not self.done[task]:
                continue
            for number in self.problem.outputs[task]:
                if number in self.live:
                    continue
                if self.uses[number] and self.uses[number][0] > self.place:
                    makers.append(task)
                for reader in self.problem.consumers[number]:
                    if reader not in seen:
                        seen.add(reader)
                        stack.append(reader)
        return makers

    def _may_rerun(self, task: int) -> bool:
        if task < 0 or not self.done[task]:
            return False
        return self.problem.recomputable[task] and not any(self.done[killer] for killer in self.problem.killers[task])

    def _execute(self, root: int) -> bool:
        """Run a task after remaking its missing inputs, with an explicit stack."""
        problem = self.problem
        stack: list[tuple[int, list[int]]] = [(root, [])]  # task, inputs pinned for it
        while stack:
            task, pinned = stack[-1]
            missing = [number for number in problem.inputs[task] if number not in self.live]
            self._pin(task, pinned)
            if missing:
                maker = max((problem.producer[number] for number in missing), key=lambda maker: (self._cost(maker), maker))
                if len(stack) > problem.task_count or not self._may_rerun(maker):
                    return False
                stack.append((maker, []))
                continue
            if not self._run_one(task):
                return False
            for number in pinned:
                self.pins[number] -= 1
            stack.pop()
            if stack:
                self._pin(*stack[-1])  # what was remade is for the task below
                self._sweep((*problem.inputs[task], *problem.outputs[task]))
        return True

    def _pin(self, task: int, pinned: list[int]) -> None:
        for number in self.problem.inputs[task]:
            if number in self.live and number not in pinned:
                self.pins[number] += 1
                pinned.append(number)

    def _run_one(self, task: int) -> bool:
        problem = self.problem
        if len(self.steps) > max(STEPS, LONGEST * len(self.order)) or problem.stop(self.deadline):
            return False
        fresh = [number for number in problem.outputs[task] if number not in self.live]
        need = problem.workspace[task] + sum(problem.nbytes[number] for number in fresh)
        for number, output in problem.in_place[task]:
            if output in fresh and self.pins[number] == 1 and not (self.uses[number] and self.uses[number][-1] > self.place):
                need -= problem.nbytes[output]
                break
        own = set(problem.outputs[task])
        if self.used + need > self.cap:
            self._make_room(self.used + need - self.cap, own)
        if self.used + need > self.cap:
            return False
        self.steps.append(task)
        self.done[task] = True
        for number in fresh:
            self.live[number] = None
            self.used += problem.nbytes[number]
        return True

    def _make_room(self, excess: int, own: set[int]) -> None:
        problem = self.problem
        if self.held:
            before = self.used
            held, self.held = self.held, {}
            self._sweep(tuple(number for number in held if number not in own))
            excess -= before - self.used
        scored: list[tuple[float, int]] = []
        for number in self.live:
            if self.pins[number] or number in own or self.given[number] or problem.kept[number] or not problem.nbytes[number]:
                continue
            maker = problem.producer[number]
            if not self._may_rerun(maker):
                continue
            wait = (self.uses[number][-1] - self.place if self.uses[number] else len(self.order)) + 1
            cost = self._cost(maker)
            if cost < float("inf"):
                scored.append((cost / (problem.nbytes[number] * max(1, wait)), number))
        scored.sort()
        # Largest benefit first; then spare those that turn out not to be needed.
        chosen: list[int] = []
        for _, number in scored:
            if excess <= 0:
                break
            chosen.append(number)
            excess -= problem.nbytes[number]
        for number in list(chosen):
            if excess + problem.nbytes[number] <= 0:
                chosen.remove(number)
                excess += problem.nbytes[number]
        for number in chosen:
            del self.live[number]
            self.used -= problem.nbytes[number]

    def _cost(self, task: int) -> float:
        """Return the time to remake a task's outputs from live buffers; infinite if impossible."""
        problem = self.problem
        total = problem.tiny_time
        seen = {task}
        stack = [task]
        while stack:
            current = stack.pop()
            if len(seen) > REACH or not self._may_rerun(current):
                return float("inf")
            total += problem.time[current] + problem.tiny_time
            for number in problem.inputs[current]:
                if number not in self.live:
                    maker = problem.producer[number]
                    if maker not in seen:
                        seen.add(maker)
                        stack.append(maker)
        return total

    def _sweep(self, numbers: tuple[int, ...]) -> None:
        problem = self.problem
        for number in numbers:
            if number not in self.live or self.pins[number] or problem.kept[number]:
                continue
            if not self.uses[number] or self.uses[number][0] <= self.place:
                if not self._may_rerun(problem.producer[number]) and self._wanted(problem.consumers[number]):
                    self.held[number] = None  # the last copy of something that a chain will read
                    continue
                del self.live[number]
                self.used -= problem.nbytes[number]
