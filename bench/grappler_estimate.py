"""The peak memory of a step by TensorFlow's own estimator, for comparison.

Grappler's `DeterminePeakMemoryUsage` simulates a schedule of its own over the graph, on a device it assumes; a dimension that
is not known counts as 1.
"""

from __future__ import annotations

import importlib
from typing import Any

from graphwright.errors import UnsupportedError, first_line

tf: Any = importlib.import_module("tensorflow")


def grappler_peak_bytes(function: Any) -> int:
    """Grappler's estimate of the peak of a `ConcreteFunction`, on the device where it is largest.

    Raises:
        UnsupportedError: Grappler finds nothing to estimate.

    >>> import tensorflow as tf
    >>> step = tf.function(lambda x: tf.nn.relu(x) + 1.0).get_concrete_function(tf.zeros([256, 1024]))
    >>> grappler_peak_bytes(step) >= 256 * 1024 * 4
    True
    """
    graph: Any = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(function.graph.as_graph_def(add_shapes=True), name="")
        meta_graph = tf.compat.v1.train.export_meta_graph(graph=graph)
    fetches = [tensor.name for tensor in function.graph.outputs] + [op.name for op in function.graph.control_outputs]
    meta_graph.collection_def["train_op"].node_list.value.extend(fetches)
    try:
        item = importlib.import_module("tensorflow.python.grappler.item").Item(meta_graph)
        clusters: Any = importlib.import_module("tensorflow.python.grappler.cluster")
        cluster = clusters.Cluster(allow_soft_placement=True, disable_detailed_stats=True)
        usage = {device: int(peak[0]) for device, peak in cluster.DeterminePeakMemoryUsage(item).items()}
    except (ValueError, RuntimeError, tf.errors.OpError) as error:
        raise UnsupportedError(f"Grappler gives no estimate: {first_line(error)}", where=f"step {function.name!r}") from error
    if not usage:
        raise UnsupportedError("Grappler gives no estimate", where=f"step {function.name!r}")
    return max(usage.values())
