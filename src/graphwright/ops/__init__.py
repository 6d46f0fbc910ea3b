"""Facts about operations, one family per file: FLOPs, split rule, scratch, bytes moved, speed, roles of weights.

`catalog` joins the families. Traits that the graph itself asks for (views, effects, control flow) are in `ir/traits`.
"""
