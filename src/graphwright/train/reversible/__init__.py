"""Reversible networks: training in memory that does not grow with depth."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphwright.train.reversible.batch_norm import FusedBatchNormalization as FusedBatchNormalization
    from graphwright.train.reversible.block import ReversibleBlock as ReversibleBlock
    from graphwright.train.reversible.check import InverseCheck as InverseCheck
    from graphwright.train.reversible.check import check_inverse as check_inverse
    from graphwright.train.reversible.couplings import Coupling as Coupling
    from graphwright.train.reversible.downsampling import InvertibleDownsampling as InvertibleDownsampling
    from graphwright.train.reversible.recomputed import RecomputedLayer as RecomputedLayer
    from graphwright.train.reversible.remember import remember as remember
    from graphwright.train.reversible.revnet import resnet as resnet
    from graphwright.train.reversible.revnet import resnet32 as resnet32
    from graphwright.train.reversible.revnet import resnet101 as resnet101
    from graphwright.train.reversible.revnet import resnet110 as resnet110
    from graphwright.train.reversible.revnet import resnet164 as resnet164
    from graphwright.train.reversible.revnet import revnet as revnet
    from graphwright.train.reversible.revnet import revnet38 as revnet38
    from graphwright.train.reversible.revnet import revnet104 as revnet104
    from graphwright.train.reversible.revnet import revnet110 as revnet110
    from graphwright.train.reversible.revnet import revnet164 as revnet164
    from graphwright.train.reversible.sequence import ReversibleSequence as ReversibleSequence
    from graphwright.train.reversible.transformer import reversible_transformer as reversible_transformer

_NAMES = {
    "batch_norm": ("FusedBatchNormalization",),
    "block": ("ReversibleBlock",),
    "check": ("InverseCheck", "check_inverse"),
    "couplings": ("Coupling",),
    "downsampling": ("InvertibleDownsampling",),
    "recomputed": ("RecomputedLayer",),
    "remember": ("remember",),
    "revnet": ("resnet", "resnet32", "resnet101", "resnet110", "resnet164", "revnet", "revnet38", "revnet104", "revnet110", "revnet164"),
    "sequence": ("ReversibleSequence",),
    "transformer": ("reversible_transformer",),
}
HOME = {name: f"graphwright.train.reversible.{module}" for module, names in _NAMES.items() for name in names}
"""Public name -> module that defines it. They are loaded when first used, since they load TensorFlow."""


def __getattr__(name: str) -> object:
    if name not in HOME:
        raise AttributeError(f"module 'graphwright.train.reversible' has no attribute {name!r}")
    return getattr(import_module(HOME[name]), name)
