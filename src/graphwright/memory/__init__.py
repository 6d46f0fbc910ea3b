"""Training steps that fit the memory: planned, rewritten, proved. On several devices each one's share is planned by itself."""
