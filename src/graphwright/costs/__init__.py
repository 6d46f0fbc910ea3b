"""What users ask about costs, answered by joining reading, tracing, analysis and measurement."""
