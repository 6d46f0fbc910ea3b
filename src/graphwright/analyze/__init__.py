"""Questions to a graph, one per file; each answer is a frozen value."""
