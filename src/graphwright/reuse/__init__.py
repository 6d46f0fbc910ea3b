"""Reuse: what was computed once is not computed, or kept in memory, a second time."""
