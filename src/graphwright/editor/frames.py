"""The frames of TF1 loops: which loops each node runs in, told by `Enter` and `Exit`."""

from __future__ import annotations

from graphwright.errors import GraphError
from graphwright.ir.graph import Graph, Node
from graphwright.ir.traits import ENTERS, EXITS
from graphwright.ir.walk import topological_order


def frames_of(graph: Graph) -> dict[Node, tuple[str, ...]]:
    """The names of the frames around each node, the outermost first; linear in nodes and edges.

    A node that reads nothing inside a loop counts as outside of it, as in TensorFlow's executor.

    Raises:
        GraphError: an `Enter` has no frame name, or the graph has a cycle that is no loop.

    >>> from graphwright.ir.graph import DTYPES
    >>> g = Graph()
    >>> x = g.add_node("Placeholder", "x", output_types=[(DTYPES["float32"], ())])
    >>> e = g.add_node("Enter", "e", inputs=x.outputs, attrs={"frame_name": b"loop"}, output_types=[(DTYPES["float32"], ())])
    >>> out = g.add_node("Exit", "out", inputs=e.outputs, output_types=[(DTYPES["float32"], ())])
    >>> [frames_of(g)[node] for node in g]
    [(), ('loop',), ()]
    """
    found: dict[Node, tuple[str, ...]] = {}
    for node in topological_order(graph):
        before = (n for n in (*(v.producer for v in node.inputs), *node.control_inputs) if n in found)
        # All agree, but for what stands outside every loop.
        inherited = max((_after(n, found[n]) for n in before), key=len, default=())
        if node.op_type in ENTERS:
            name = node.attrs.get("frame_name")
            if not isinstance(name, bytes):
                raise GraphError(f"{node.name!r} is of op type {node.op_type} but has no frame_name", where=f"node {node.name!r}")
            inherited = (*inherited, name.decode())
        found[node] = inherited
    # An Exit itself runs in the frame around the loop.
    return {node: frames[:-1] if node.op_type in EXITS else frames for node, frames in found.items()}


def _after(node: Node, frames: tuple[str, ...]) -> tuple[str, ...]:
    return frames[:-1] if node.op_type in EXITS else frames
