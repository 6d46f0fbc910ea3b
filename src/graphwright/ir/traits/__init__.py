"""Traits: what an op is like, told from its type. The one place that knows lists of op types, a file per question."""
