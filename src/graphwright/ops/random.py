"""Random numbers."""

from graphwright.ir.graph import Node
from graphwright.ops.dimensions import Dimensions
from graphwright.ops.family import Family, on_floats, per_output, zero
from graphwright.ops.reduction import log2
from graphwright.ops.sizes import UnknownSizeError, constant, output_dims, output_size, ranked, size_of

_UNIFORM = "RandomUniform StatelessRandomUniform StatelessRandomUniformV2 StatefulUniform"
_NORMAL = (
    "RandomStandardNormal StatelessRandomNormal StatelessRandomNormalV2 StatefulStandardNormal StatefulStandardNormalV2 "
    "TruncatedNormal StatelessTruncatedNormal StatelessTruncatedNormalV2 StatefulTruncatedNormal"
)
_REJECTION = (
    "RandomGamma StatelessRandomGammaV2 StatelessRandomGammaV3 RandomPoisson RandomPoissonV2 StatelessRandomPoisson "
    "StatefulRandomBinomial StatelessRandomBinomial"
)
_INTEGERS = (
    "RandomUniformInt StatelessRandomUniformInt StatelessRandomUniformIntV2 StatelessRandomUniformFullInt StatelessRandomUniformFullIntV2 "
    "StatefulUniformInt StatefulUniformFullInt NonDeterministicInts RngSkip RngReadAndSkip StatelessRandomGetAlg "
    "StatelessRandomGetKeyCounter StatelessRandomGetKeyCounterAlg UniformCandidateSampler LogUniformCandidateSampler "
    "LearnedUnigramCandidateSampler ThreadUnsafeUnigramCandidateSampler FixedUnigramCandidateSampler AllCandidateSampler "
    "ComputeAccidentalHits"
)
_SHUFFLES = "RandomCrop RandomShuffle StatelessShuffle RandomIndexShuffle"


def _multinomial(node: Node) -> float:
    """Count softmax weights and their cumulative sums, then a binary search per sample."""
    _, classes = ranked(node, 0, 2)
    return 3.0 * size_of(node) + output_size(node) * (2 + log2(classes))


def _draw(node: Node) -> Dimensions:
    """Philox draws a fixed number of elements per step of its counter, in memory order."""
    if int(constant(node, 3)) not in (1, 3):  # Philox, and TensorFlow's automatic choice
        raise UnknownSizeError
    sizes = output_dims(node)
    first = next((k for k, size in enumerate(sizes) if size > 1), 0)
    labels = tuple("first" if k == first else None for k in range(len(sizes)))
    each = 16 // max(int(node.outputs[0].dtype.itemsize or 4), 4)  # a step gives 128 bits
    return Dimensions(((None,), (None,), (None,), *[()] * (len(node.inputs) - 3)), labels, {0: labels}, drawn=each)


FAMILY = Family(
    flops={
        "random numbers (the generator's integer arithmetic counts 0)": [
            (_UNIFORM, "2 per sample: bits to float", on_floats(per_output(2))),
            (_NORMAL, "6 per sample: Box and Muller, two for log, root, sine and cosine", on_floats(per_output(6))),
            ("ParameterizedTruncatedNormal StatelessParameterizedTruncatedNormal", "10 per sample", on_floats(per_output(10))),
            (_REJECTION, "20 per sample: one round of rejection sampling, an estimate", per_output(20)),
            ("Multinomial StatelessMultinomial", "3 per logit + (2 + log2 classes) per sample", _multinomial),
        ],
        "no arithmetic": [(_INTEGERS, "0: integers and bits", zero), (_SHUFFLES, "0: data movement", zero)],
    },
    splits={"StatelessRandomUniformV2 StatelessRandomNormalV2": _draw},
    bytes_per_s={
        "StatelessRandomUniformV2 RandomUniform": 0.9e9,
        "StatelessRandomNormalV2 RandomStandardNormal": 0.5e9,
        "StatelessTruncatedNormalV2 TruncatedNormal": 0.4e9,
    },
    widens="StatelessRandomUniformV2 StatelessRandomNormalV2 StatelessTruncatedNormalV2",
)
