"""Reversible networks: training in memory that does not grow with depth. `graphwright.train` has the public names."""
