"""Keep some signatures of a model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack

from graphwright.errors import ArgumentError
from graphwright.ir.graph import Graph
from graphwright.ir.jobs import Written, edits_in_place
from graphwright.transform.strip_training import remove_unneeded


@edits_in_place
def keep_signatures(graph: Graph, names: Iterable[str], **written: Unpack[Written]) -> int:
    """Remove all signatures except these, and the nodes that only the removed ones need; returns how many signatures.

    Variables stay, as the saver of the model restores them all; `freeze_variables` removes them.

    Args:
        names: the signatures that stay.

    Raises:
        ArgumentError: there is no such signature, or none is named.

    >>> from graphwright.ir.text import from_text
    >>> from graphwright.ir.signature import Signature
    >>> g = from_text('''graph "g"
    ... %x = Placeholder() : float32[2]
    ... %y = Relu(%x:0) : float32[2]
    ... %loss = L2Loss(%x:0) : float32[]''')
    >>> x = {"x": g.value("x")}
    >>> g.signatures.update(serve=Signature(x, {"y": g.value("y")}), train=Signature(x, {"loss": g.value("loss")}))
    >>> keep_signatures(g, ["serve"]), [node.name for node in g]
    (1, ['x', 'y'])
    """
    remaining = [names] if isinstance(names, str) else list(names)
    missing = next((name for name in remaining if name not in graph.signatures), None)
    if missing is not None or not remaining:
        what = "no signature was named" if missing is None else f"there is no signature {missing!r}"
        raise ArgumentError(what, argument="names", remedy=f"its signatures are {', '.join(graph.signatures) or 'none'}")
    removed = [name for name in graph.signatures if name not in remaining]
    for name in removed:
        del graph.signatures[name]
    remove_unneeded(graph)
    return len(removed)
