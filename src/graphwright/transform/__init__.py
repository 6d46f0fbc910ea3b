"""Graph to graph: each file is one transform."""
