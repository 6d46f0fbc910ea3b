"""The proof by structure that a rewritten graph computes what the original does: nothing runs, on any device, under XLA too.

It knows nothing of what rewrote the graph: no names of clones, no schedule. See `analyze/meaning.py` for what is compared.
"""

from dataclasses import dataclass

from graphwright.analyze.meaning import Defaults, Meaning, Numbering, first_difference
from graphwright.errors import GraphwrightError
from graphwright.ir.graph import Graph
from graphwright.ir.traits.effects import Purity


@dataclass(frozen=True, slots=True)
class Proof:
    """What was found.

    Attributes:
        difference: what keeps the rewritten graph from standing for the original; "" where nothing does.
        nodes: how many operations of the rewritten graph were numbered.
        effects: how many writes and other effects run once in both.
        sums: how many sums of three and more terms it or the original has. Which terms their kernel adds first depends on which buffers it
            may reuse.
        pools: how many gradients of max pools were put into another form, which is not a matter of structure.
        parts: how many sums over the batch are added up part by part.
        loops: how many loops run in segments, which was proved before (`transform.segments_proof`).
        uncompiled: how many calls of convolutions that XLA compiles in the original run by TensorFlow's kernels.
        optimized: whether the original is what Grappler made of the step, which is what TensorFlow runs for it.
    """

    difference: str
    nodes: int = 0
    effects: int = 0
    sums: int = 0
    pools: int = 0
    parts: int = 0
    loops: int = 0
    uncompiled: int = 0
    optimized: bool = False

    @property
    def equal(self) -> bool:
        """Whether it is proved."""
        return not self.difference

    def __str__(self) -> str:
        if self.difference:
            return f"not proved: {self.difference}"
        if not self.nodes:
            return "equal: it is the original itself"
        words = f"equal by structure: {self.nodes:,} operations make the same outputs, and {self.effects:,} effects, once each and in order"
        if self.optimized:
            words += ", as in the graph that TensorFlow runs for the step (after Grappler, whose own rewrites are not proved)"
        if self.sums:
            words += f"; {self.sums:,} sums of three and more terms (AddN) may add them in another order, which structure cannot see"
        if self.loops:
            words += (
                f"; {self.loops:,} loops run in segments: with their own conditions and bodies, from borders that are their values, and "
                "their gradients as many rounds in the same order"
            )
        if self.parts:
            words += (
                f"; equal but for the order of sums over the batch: {self.parts:,} sums are added up part by part, in exact arithmetic "
                "the same, and a kernel may round the last elements of a part in another way than those of the whole"
            )
        if self.uncompiled:
            words += (
                f"; {self.uncompiled:,} calls that hold convolutions alone and that XLA compiles in the original run by TensorFlow's "
                "kernels: equal but for the order of sums within a convolution"
            )
        if self.pools:
            words += f"; but for {self.pools:,} gradients of max pools, which compare numbers instead of asking for indices"
        return words


class Original:
    """What a graph means before it is rewritten. Make it first, since a rewrite changes the graph in place.

    Args:
        purity: tells which nodes of the graph and its functions have effects.
        defaults: the attributes of an op type that nodes may leave out, with the values that they have then.
        parts: whether a graph may run in parts of the batch (`transform.split_batch`); its sums have another order then.

    Raises:
        UnsupportedError: see `Numbering.meaning`.

    >>> from graphwright.ir.graph import DTYPES
    >>> f32 = [(DTYPES["float32"], (2,))]
    >>> g = Graph()
    >>> x, y = (g.add_node("Placeholder", name, output_types=f32) for name in "xy")
    >>> g.inputs = [x.outputs[0], y.outputs[0]]
    >>> difference = g.add_node("Sub", "difference", inputs=g.inputs, output_types=f32)
    >>> g.outputs = difference.outputs
    >>> original = Original(g, Purity(g, {}))
    >>> again = g.add_node("Sub", "again", inputs=g.inputs, output_types=f32)
    >>> g.outputs = again.outputs
    >>> original.compare(g, Purity(g, {})).equal
    True
    >>> g.replace_inputs(again, [y.outputs[0], x.outputs[0]])
    >>> original.compare(g, Purity(g, {})).difference
    'output 0 is something else'
    """

    def __init__(self, graph: Graph, purity: Purity, defaults: Defaults = lambda _: {}, *, parts: bool = False) -> None:
        self._numbering = Numbering(defaults, parts=parts)
        self._meaning: Meaning = self._numbering.meaning(graph, purity)

    def compare(self, graph: Graph, purity: Purity) -> Proof:
        """Whether a graph can stand for the original: same outputs, same effects, in its order. Takes time linear in the graph."""
        try:
            meaning = self._numbering.meaning(graph, purity)
        except GraphwrightError as error:  # a cycle
            return Proof(error.what)
        parts = self._numbering.parts
        sums = len(parts.sums) if parts is not None else 0
        many = max(self._meaning.sums, meaning.sums)
        return Proof(first_difference(self._meaning, meaning), len(meaning.numbers), len(meaning.effects), many, parts=sums)
