"""What to do where memory is short: what can be done before a step runs, and what a step that ran out of memory held."""
