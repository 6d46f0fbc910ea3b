"""The proof by structure that a rewritten graph computes the same as the original. Nothing runs.

It does not know the rewrite. See `analyze/meaning.py` for what is compared.
"""

from dataclasses import dataclass

from graphwright.analyze.meaning import Defaults, Meaning, Numbering, first_difference
from graphwright.errors import GraphwrightError
from graphwright.ir.graph import Graph
from graphwright.ir.traits.effects import Purity


@dataclass(frozen=True, slots=True)
class Proof:
    """The result of a proof.

    Attributes:
        difference: the first difference; "" if there is none.
        nodes: operations of the rewritten graph that were numbered.
        effects: writes and other effects that run once in both.
        sums: sums of three and more terms, whose order of addition depends on which buffers the kernel may reuse.
        pools: gradients of max pools in another form, which structure does not prove.
        parts: sums over the batch that are added up part by part.
        loops: loops in segments, proved before (`transform.segments_proof`).
        uncompiled: convolutions that XLA compiles in the original and TensorFlow's kernels run in the rewritten step.
        optimized: whether the original is Grappler's graph of the step.
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
        return not self.difference

    def __str__(self) -> str:
        if self.difference:
            return f"not proved: {self.difference}"
        if not self.nodes:
            return "equal: it is the original itself"
        words = f"equal by structure: {self.nodes:,} operations make the same outputs, and {self.effects:,} effects, once each and in order"
        if self.optimized:
            words += ", as in Grappler's graph of the step (Grappler's own rewrites are not proved)"
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
    """The meaning of a graph before it is rewritten. Make it first, since a rewrite changes the graph in place."""

    def __init__(self, graph: Graph, purity: Purity, defaults: Defaults = lambda _: {}, *, parts: bool = False) -> None:
        self._numbering = Numbering(defaults, parts=parts)
        self._meaning: Meaning = self._numbering.meaning(graph, purity)

    def compare(self, graph: Graph, purity: Purity) -> Proof:
        """Compare outputs, effects and their order with a rewritten graph, in linear time."""
        try:
            meaning = self._numbering.meaning(graph, purity)
        except GraphwrightError as error:  # a cycle
            return Proof(error.what)
        parts = self._numbering.parts
        sums = len(parts.sums) if parts is not None else 0
        many = max(self._meaning.sums, meaning.sums)
        return Proof(first_difference(self._meaning, meaning), len(meaning.numbers), len(meaning.effects), many, parts=sums)
