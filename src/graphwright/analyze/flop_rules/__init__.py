"""FLOP rules, one family of op types per file; `graphwright.analyze.flops` joins them."""
