"""The same for steps that XLA compiles."""
