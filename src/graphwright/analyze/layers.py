"""The layer of a node, in the user's words: Keras layers as in `model.summary()`, other scopes as written.

Keras 3 opens the scope of a layer twice per call, once to build it and once to run it, so nodes of `dense` lie in `dense_1`, and nodes of
`dense_1` in `dense_1_2`. The names of variables tell such a graph; if weights are constants, a number on every layer's scope does. A layer
that is called twice is one layer.

Keras 2 opens the scope of a layer once, below that of the model (`model_1/dense`), and names weights without the model (`dense/kernel`). If
weights are constants, the one scope around all layers has a name that Keras gives to models, and something in it read a variable, or
constants lie in scopes with the names of its layers.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from graphwright.ir.graph import Graph

GRADIENT_SCOPES = frozenset({"gradient_tape", "gradients"})
"""The scopes that TensorFlow opens around gradients, of a tape and of `tf.gradients`."""

_SCOPES_SKIPPED = GRADIENT_SCOPES | {"recomputed", "ConstantFolding", "ArithmeticOptimizer"}
_OPERATOR_SCOPE = re.compile(
    r"(Add|AddV2|AddN|Sub|sub|Mul|mul|Div|RealDiv|FloorMod|FloorDiv|Cast|Pow|pow|Sqrt|Rsqrt|Square|Neg|Abs|Sign|Exp|Log|Maximum|Minimum"
    r"|Less|Greater|Equal|SelectV2|truediv|floordiv|div_no_nan|Assign\w*VariableOp|ReadVariableOp|Identity)(_\d+)?|\w+_grad"
)
_CALL = re.compile(r"(Stateful)?PartitionedCall(_\d+)?")
_READ = re.compile(r"ReadVariableOp")
_FEW = 2  # layers that may have the number of their scope by chance
_NUMBER = re.compile(r"_\d+$")
_DIMENSIONS = re.compile(r"(conv|pool|pooling|padding|cropping|dropout|sampling|lstm)[123]d$")  # ends of the names that Keras gives layers
_KERAS_2_MODEL = re.compile(r"(model|functional|sequential)(_\d+)?")


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers of one graph. Made by `find_layers`; without a graph, scopes are taken as written.

    Attributes:
        of_scope: layer by scope of the graph, or by name of a node.
    """

    of_scope: Mapping[str, str] = field(default_factory=dict[str, str])
    _known: dict[str, str] = field(default_factory=dict[str, str], init=False, repr=False, compare=False)

    def of(self, name: str) -> str:
        """Return the layer of a node, or ""; gradients and recomputations belong to the layer they are made for.

        >>> Layers().of("gradient_tape/encoder/conv/Conv2D/Conv2DBackpropInput")
        'encoder/conv/Conv2D'
        >>> Layers().of("adam/Sub_79/ReadVariableOp")
        'adam'
        """
        if name not in self._known:
            self._known[name] = self._find(name)
        return self._known[name]

    def _find(self, name: str) -> str:
        parts = _scopes(name)
        for end in range(len(parts), 0, -1):
            known = self.of_scope.get("/".join(parts[:end]))
            if known is not None:
                return known
        scopes = parts[:-1]
        while scopes and _OPERATOR_SCOPE.fullmatch(scopes[-1]):
            scopes.pop()
        return "/".join(scopes)

    def with_lines(self, line: Callable[[str], str], names: Iterable[str]) -> "Layers":
        """Return layers in which nodes without a scope have the file name and line of the Python code that made them.

        Args:
            line: the result of `source.tracebacks.innermost_line`.
            names: of the nodes.

        >>> Layers().with_lines(lambda name: f"src/train.py:{len(name)} step", ["Relu", "net/Relu"]).of("gradient_tape/Relu")
        'train.py:4'
        """
        own = ("/".join(_scopes(name)) for name in names if not self.of(name))
        return Layers({**self.of_scope, **{name: place for name in own if (place := line(name).rpartition(" ")[0].rpartition("/")[2])}})

    def words(self, name: str) -> str:
        """Return the name of a node after its layer: `lstm/while` for `net_1/lstm_1/while`."""
        return in_layer(self.of(name), name)


def in_layer(layer: str, name: str) -> str:
    """Return the name of a node or value after its layer instead of its scopes.

    >>> in_layer("lstm", "net_1/lstm_1/while:0"), in_layer("", "loss:0"), in_layer("train.py:12", "MatMul")
    ('lstm/while:0', 'loss:0', 'MatMul (train.py:12)')
    """
    label = name.rpartition("/")[2]
    return f"{label} ({layer})" if ":" in layer else f"{layer}/{label}" if layer else label


def find_layers(graph: Graph) -> Layers:
    """Find the layers of a graph by the scopes of its nodes and the names of its variables.

    >>> from graphwright.ir.text import from_text
    >>> lines = [f'%"net_1/{scope}/Relu" = Const() : float32[4]' for scope in ("conv_1", "conv_1_2", "pool_1")]
    >>> layers = find_layers(from_text("\\n".join(['graph "g"', *lines])))
    >>> [layers.of(f"net_1/{scope}/Relu") for scope in ("conv_1", "conv_1_2", "pool_1")]
    ['conv', 'conv_1', 'pool']
    """
    variables = graph.variables.values()
    trained = [variable.name for variable in variables if variable.trainable]
    return layers_by_names((node.name for node in graph.nodes), [variable.name for variable in variables], trained)


def layers_by_names(names: Iterable[str], variables: Sequence[str], weights: Sequence[str] = ()) -> Layers:
    paths = [_scopes(name) for name in names]
    nodes = {"/".join(path) for path in paths}
    scopes = {tuple(path[:end]) for path in paths for end in range(1, len(path))}
    known, trained = ({part for name in given for part in name.split("/")[:-1]} for given in (variables, weights or variables))
    held = {tuple(parts[:end]) for parts in (name.split("/") for name in variables) for end in range(1, len(parts))}
    opened = {scope for scope in scopes if _is_operator(scope, held) or "/".join(scope) in nodes}
    operators = opened | {scope for scope in scopes if _is_another(scope, scopes)}
    if _numbered(scopes - operators, trained):
        return Layers(_keras_names(scopes, operators, known, trained))
    tops = {name.partition("/")[0] for name in variables if "/" in name}
    model = _keras_2_model(paths, scopes - opened, tops)
    return Layers({"/".join(scope): "/".join(_as_written(_outermost(scope, opened), model, tops)) for scope in scopes})


def _scopes(name: str) -> list[str]:
    """Return the parts of a name, without scopes of gradients and the like, and without the calls around a signature."""
    parts = [part for part in name.split("/") if part not in _SCOPES_SKIPPED] or [name]
    calls = next((k for k, scope in enumerate(parts[:-1]) if not _CALL.fullmatch(scope)), len(parts) - 1)
    return parts[calls:]


def in_gradient_scope(name: str) -> bool:
    """Whether the name has a scope that TensorFlow opens for gradients.

    >>> in_gradient_scope("gradient_tape/net/Mul"), in_gradient_scope("net/gradients_of/Mul")
    (True, False)
    """
    return not GRADIENT_SCOPES.isdisjoint(name.split("/"))


def unnumbered(name: str) -> str:
    """Return the name of a scope before it was numbered.

    >>> unnumbered("conv_1_2"), unnumbered("conv1")
    ('conv_1', 'conv1')
    """
    return _NUMBER.sub("", name)


def _is_operator(scope: tuple[str, ...], held: set[tuple[str, ...]]) -> bool:
    """Whether TensorFlow opened a scope for an operator; not if a layer that holds variables has its name ("sub")."""
    if not _OPERATOR_SCOPE.fullmatch(scope[-1]):
        return False
    path = tuple(map(unnumbered, scope))
    outermost = next((k for k, name in enumerate(path) if (name,) in held), len(path) - 1)
    return not {path[outermost:], (*path[outermost:-1], scope[-1])} & held


def _is_another(scope: tuple[str, ...], scopes: set[tuple[str, ...]]) -> bool:
    """Whether TensorFlow opened it as another one of a series ("moments", "moments_1")."""
    first = unnumbered(scope[-1])
    return first != scope[-1] and not _NUMBER.search(first) and (*scope[:-1], first) in scopes


def _keras_2_model(paths: Sequence[Sequence[str]], scopes: set[tuple[str, ...]], tops: set[str]) -> str:
    """Return the scope of the model that Keras 2 wrote around its layers, or ""; `tops` are the first parts of the names of variables."""
    if tops:
        around = {scope[0] for scope in scopes if len(scope) > 1 and scope[1] in tops} - tops
    else:
        around = {scope[0] for scope in scopes if _KERAS_2_MODEL.fullmatch(scope[0])}
        within = {scope[1] for scope in scopes if len(scope) > 1 and scope[0] in around}
        beside = {scope[0] for scope in scopes} - around  # of weights that were frozen, which lie in scopes called as their layers
        reads = any(_READ.match(path[-1]) for path in paths)
        around = around if beside <= within and (beside or reads) else set[str]()
    return next(iter(around)) if len(around) == 1 else ""


def _as_written(scope: tuple[str, ...], model: str, tops: set[str]) -> tuple[str, ...]:
    """Return the scope without that of the model, and without the number that Keras 2 gives a layer that is called again."""
    if not model or len(scope) < 2 or scope[0] != model:
        return scope
    first = unnumbered(scope[1])
    return (first if scope[1] not in tops and first in tops else scope[1], *scope[2:])


def _numbered(scopes: Iterable[tuple[str, ...]], known: set[str]) -> bool:
    """Whether Keras numbered the scopes of its layers."""
    parts = {part for scope in scopes for part in scope}
    as_numbered = sum(1 for part in parts if part not in known and unnumbered(part) in known)
    as_written = sum(1 for part in parts if part in known and unnumbered(part) not in known - {part})
    if as_numbered or as_written:
        return as_numbered > as_written
    below = [scope for scope in scopes if len(scope) == 2]
    names = {unnumbered(scope[-1]) for scope in below}
    if len(names) > 1 and all(_NUMBER.search(part) for scope in below for part in scope):
        return True
    # Beside losses and optimizers, which have no numbers: one model with the number of all its layers.
    models = {scope[0] for scope in below if _NUMBER.search(scope[0])}
    within = [scope for scope in below if scope[0] in models]
    numbers = {found[0] if (found := _NUMBER.search(part)) else "" for scope in within for part in scope}
    return len(models) == len(numbers) == 1 and len({scope[1] for scope in within}) > _FEW and "" not in numbers


def _outermost(scope: tuple[str, ...], operators: set[tuple[str, ...]]) -> tuple[str, ...]:
    while scope and scope in operators:
        scope = scope[:-1]
    return scope


def _keras_names(scopes: set[tuple[str, ...]], operators: set[tuple[str, ...]], known: set[str], trained: set[str]) -> dict[str, str]:
    """Return layers by scope: a scope without a number is part of the layer around it, and the one model around all is left out."""
    path: dict[tuple[str, ...], tuple[str, ...]] = {(): ()}  # of every scope, and of those that lie in a layer the layer's
    layer: dict[tuple[str, ...], tuple[str, ...]] = {(): ()}
    inside: set[tuple[str, ...]] = set()
    for scope in sorted(scopes, key=len):
        above, name = scope[:-1], unnumbered(scope[-1])
        if scope in operators or above in inside:
            inside.add(scope)
        is_layer = scope not in inside and name != scope[-1] and not (scope[-1] in known and name not in known)
        path[scope] = (*path[above], name if is_layer else scope[-1])
        layer[scope] = path[scope] if is_layer else layer[above]
    models = {found[0] for scope, found in layer.items() if len(found) > 1 and layer[scope[:1]]}
    beside = {found[0] for found in layer.values() if found and found[0] in trained}  # layers with weights, where others are mere scopes
    model = next(iter(models)) if len(models) == 1 and beside <= models else None
    named: dict[str, str] = {}
    for scope in scopes:
        found = layer[scope] or _outermost(scope, operators)
        named["/".join(scope)] = "/".join(found[1:] if layer[scope] and found[0] == model and len(found) > 1 else found)
    return named


def blocks(layers: Sequence[str]) -> dict[str, str]:
    """Return, by layer, the block that its name tells, if at least three layers share it: the name up to the first number.

    Layers that alternate with those of another block have none: `conv_1_a`, `norm_1_a`, `conv_1_b`, `norm_1_b` number layers of cells.

    Args:
        layers: in the order in which they run.

    >>> blocks(["stem", "block_1_conv", "block_1_norm", "block_1_relu", "block_2_conv", "fc1"])
    {'block_1_conv': 'block_1', 'block_1_norm': 'block_1', 'block_1_relu': 'block_1'}
    """
    block_of = {layer: match[0] for layer in layers if (match := re.match(r"\D*\d+[a-z]?(?=_)|\D*\d+[a-z]?$", layer))}
    sizes = Counter(block_of.values())
    block_of = {layer: block for layer, block in block_of.items() if sizes[block] > 2 and not _DIMENSIONS.search(block)}
    turns = Counter(block for block, _ in groupby(block_of.values()))
    return {layer: block for layer, block in block_of.items() if turns[block] < 2}


def several(names: Sequence[str]) -> str:
    """Return a common name of similar layers that follow each other.

    >>> several(["block_2", "block_3", "block_4"]), several(["block_5"])
    ('3 × block_2…4', 'block_5')
    """
    if len(names) < 2:
        return names[0]
    number = re.search(r"\d+\D*$", names[-1])
    return f"{len(names)} × {names[0]}…{number[0] if number else names[-1]}"
