"""The graph: nodes, values, dtypes, traits of ops, and the verbs that edit it. Knows no TensorFlow."""
