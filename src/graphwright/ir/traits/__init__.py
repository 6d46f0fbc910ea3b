"""Traits: what is known of an op from its type. The one place for lists of op types, a file per question."""
