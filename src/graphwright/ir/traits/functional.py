"""Op types of TF2 that run functions: calls, branches and loops."""

from collections.abc import Mapping

LOOPS = frozenset({"While", "StatelessWhile"})
"""Loops, with functions for condition and body."""
BRANCHES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})
"""Branches, with a function each."""
FUNCTION_ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("While", "StatelessWhile"), ("cond", "body")),
    **dict.fromkeys(("If", "StatelessIf"), ("then_branch", "else_branch")),
    **dict.fromkeys(("Case", "StatelessCase"), ("branches",)),
}
"""The attributes that name the functions of loops and branches."""
CALL_TYPES = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
"""Calls of the function named in their attribute `f`."""
CALLS_LIKE: Mapping[str, str] = {
    **dict.fromkeys(("If", "Case", "While"), "StatefulPartitionedCall"),
    **dict.fromkeys(("StatelessIf", "StatelessCase", "StatelessWhile"), "PartitionedCall"),
}
"""Loops and branches -> the call of the one function that a branch takes, or of one round of a loop."""
