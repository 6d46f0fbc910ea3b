"""Small parts that the portfolio combines; each works on a `Problem` or a `Draft`."""
