"""Read a program that XLA scheduled from its text: the live values at the peak, and its time by a roofline.

XLA's buffer assignment for an absent GPU gives totals only. So the live values are followed over XLA's order, each from its instruction
to its last reader; values in one place count separately. The time is the sum over instructions of the longer of FLOPs over the peak rate
of the dtype and bytes over the memory rate, plus the start of a kernel. No kernel reaches these rates: compare programs only.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphwright.analyze.device_models import with_article
from graphwright.analyze.time_model import Rates

_SHAPE = re.compile(r"\b([a-z]+\d*(?:e\d+m\d+\w*)?)\[([\d,]*)\]")
_HEAD = re.compile(r"^(?:ENTRY )?%(\S+) \(.*\{$")
_LINE = re.compile(r"^\s+(ROOT )?%(\S+) = (.*)$")
_CALLED = re.compile(r"(?:calls|to_apply|body|true_computation|false_computation)=%([\w.-]+)")
_VIEWS = frozenset({"get-tuple-element", "bitcast", "tuple", "optimization-barrier", "copy-done", "async-done"})
_FREE = _VIEWS | {"parameter", "constant", "after-all", "iota", "partition-id", "replica-id"}
_SLICES = frozenset({"dynamic-slice", "slice", "gather"})
_WHAT = "arguments, results and temporaries; nothing ran on one, and what cuDNN and cuBLAS take as workspace is not in it"
_DTYPES = {"f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class XlaBuffer:
    """A live buffer at the peak: its TensorFlow operation (or XLA name), the XLA opcode, its size."""

    name: str
    opcode: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class XlaMemory:
    """The memory of a compiled program.

    Attributes:
        argument_bytes: arguments and variables, and results that reuse their buffers.
        output_bytes: results and new values of variables in separate buffers.
        temporary_bytes: buffers between these.
        constant_bytes: large constants of the program.
        peak_op: the operation with the most live temporaries.
        live: temporaries and results live at that operation, largest first; their sum is less than the allocation if buffers leave gaps.
        time_s: roofline estimate; NaN for this process's own compiler.
        compiler: its name, "" for this process.
        library_bytes: known scratch of libraries, not part of the peak.
    """

    argument_bytes: int
    output_bytes: int
    temporary_bytes: int
    constant_bytes: int
    peak_op: str
    live: tuple[XlaBuffer, ...]
    time_s: float = math.nan
    compiler: str = ""
    library_bytes: int = 0

    def how(self, device: str) -> str:
        """Return the meaning of the peak on a GPU of this name."""
        return f"as {self.compiler} lays it out for {with_article(device)}: {_WHAT}"

    @property
    def peak_bytes(self) -> int:
        return self.argument_bytes + self.output_bytes + self.temporary_bytes + self.constant_bytes


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of a program: shapes of its results, names of its operands, and the rest of its text."""

    name: str
    opcode: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    operands: tuple[str, ...]
    text: str
    is_root: bool

    @property
    def nbytes(self) -> tuple[int, ...]:
        return tuple(_bytes_of(dtype) * math.prod(shape) for dtype, shape in self.shapes)

    @property
    def op_name(self) -> str:
        match = re.search(r'op_name="([^"]*)"', self.text)
        return match[1].rpartition("call_exported/")[2].partition(";")[0] if match else self.name


class Program:
    """A module of XLA.

    >>> text = '''HloModule m, is_scheduled=true
    ... ENTRY %main (a: f32[64,64]) -> f32[64,64] {
    ...   %a = f32[64,64]{1,0} parameter(0)
    ...   %b = f32[64,64]{1,0} dot(%a, %a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    ...   ROOT %c = f32[64,64]{1,0} add(%b, %a)
    ... }'''
    >>> program = Program(text)
    >>> [i.opcode for i in program.entry], program.live_at_peak()[0].name
    (['parameter', 'dot', 'add'], 'b')
    """

    def __init__(self, text: str) -> None:
        self._computations: dict[str, list[Instruction]] = {}
        self.entry: list[Instruction] = []
        current: list[Instruction] = []
        for line in text.splitlines():
            if head := _HEAD.match(line):
                current = self._computations[head[1]] = []
                self.entry = current if line.startswith("ENTRY") else self.entry
            elif found := _LINE.match(line):
                current.append(_instruction(found[2], found[3], is_root=bool(found[1])))

    def live_at_peak(self) -> tuple[Instruction, list[tuple[Instruction, int]]]:
        """Return the instruction with the most live bytes beside arguments and results, and the live instructions with their bytes."""
        made: dict[str, list[tuple[int, int]]] = {}  # what stands for a name: numbers of instructions and of their results
        last: dict[tuple[int, int], int] = {}
        for k, one in enumerate(self.entry):
            held = [places for name in one.operands for places in made.get(name, ())]
            if one.opcode == "get-tuple-element":
                index = int(re.findall(r"index=(\d+)", one.text)[0])
                made[one.name] = held[index : index + 1]
            elif one.opcode in _VIEWS:
                made[one.name] = held
            else:
                made[one.name] = [] if one.opcode == "parameter" else [(k, j) for j in range(len(one.shapes))]
            for place in (*held, *made[one.name]):
                last[place] = k
        results = {place for one in self.entry if one.is_root for place in made[one.name]}
        live: dict[tuple[int, int], int] = {}
        most, peak, at_peak = -1, self.entry[0], dict(live)
        for k, one in enumerate(self.entry):
            ending = [place for place in live if last[place] == k]
            for j, nbytes in enumerate(one.nbytes) if (k, 0) in last and one.opcode not in _VIEWS else ():
                shared = next((place for place in ending if live.get(place) == nbytes and "kind=kLoop" in one.text), None)
                if shared is not None:
                    del live[shared]  # an element is written where it was read
                if (k, j) not in results and one.opcode != "parameter":
                    live[k, j] = nbytes
            if sum(live.values()) > most:
                most, peak, at_peak = sum(live.values()), one, dict(live)
            for place in [place for place in live if last[place] == k]:
                del live[place]
        return peak, [(self.entry[k], nbytes) for (k, _), nbytes in at_peak.items() if nbytes]

    def time_s(self, rates: Rates) -> float:
        """Estimated seconds."""
        return self._time_of(self.entry, rates)

    def _time_of(self, instructions: Sequence[Instruction], rates: Rates) -> float:
        shapes = {one.name: one for one in instructions}
        total = 0.0
        for one in instructions:
            if one.opcode in _FREE:
                continue
            called = [self._computations[name] for name in _CALLED.findall(one.text) if name in self._computations]
            if one.opcode in ("while", "call", "conditional"):
                branches = re.search(r"branch_computations=\{([^}]*)\}", one.text)
                called += [self._computations[name.strip(" %")] for name in branches[1].split(",")] if branches else []
                rounds = re.search(r'known_trip_count":\{"n":"(\d+)"', one.text)
                times = [self._time_of(body, rates) for body in called]
                total += (int(rounds[1]) if rounds else 1) * max(times, default=0.0)
                continue
            inner = called[0] if called and one.opcode == "fusion" else [one]
            known = {each.name: each for each in inner} if called else shapes
            compute_s = sum(_flops(each, known) / rates.product(_dtype_of(each, known)) for each in inner)
            total += rates.execution_s + max(compute_s, self._moved_bytes(one, shapes, called) / rates.bytes_per_s)
        return total

    def _moved_bytes(self, one: Instruction, shapes: Mapping[str, Instruction], called: Sequence[Sequence[Instruction]]) -> int:
        """Return bytes read and written; only slices and updates count of operands that are sliced or updated in place."""
        sizes = [sum(shapes[name].nbytes) if name in shapes else 0 for name in one.operands]
        written = sum(one.nbytes)
        body = called[0] if called and one.opcode == "fusion" else ()
        readers: dict[str, list[Instruction]] = defaultdict(list)
        for each in body:
            for name in each.operands:
                readers[name].append(each)
        for each in body:
            number = re.match(r"(\d+)\)", each.text) if each.opcode == "parameter" else None
            by = readers[each.name]
            if number is not None and by and all(r.opcode in _SLICES and r.operands[0] == each.name for r in by):
                sizes[int(number[1])] = sum(sum(r.nbytes) for r in by)
            elif number is not None and by and all(r.opcode == "dynamic-update-slice" and r.operands[0] == each.name for r in by):
                sizes[int(number[1])] = 0
        known = {each.name: each for each in body}
        for each in body:
            if each.opcode == "dynamic-update-slice" and sum(each.nbytes) in one.nbytes:
                written -= sum(each.nbytes) - sum(known[each.operands[1]].nbytes)
        return sum(sizes) + written


def _instruction(name: str, rest: str, *, is_root: bool) -> Instruction:
    end = _closing(rest) + 1 if rest.startswith("(") else rest.index(" ")
    kind, rest = rest[:end], rest[end:].lstrip()
    opcode, _, text = rest.partition("(")
    inside = text[: _closing("(" + text) - 1]
    shapes = tuple((dtype, tuple(int(d) for d in dims.split(",") if d)) for dtype, dims in _SHAPE.findall(kind))
    return Instruction(name, opcode, shapes, tuple(re.findall(r"%([\w.-]+)", inside)), text, is_root)


def _closing(text: str) -> int:
    """Return the index of the parenthesis that closes the first one."""
    depth = 0
    for found in re.finditer(r"[()]", text):
        depth += 1 if found[0] == "(" else -1
        if not depth:
            return found.start()
    return len(text)


def _bytes_of(dtype: str) -> int:
    bits = re.search(r"\d+", dtype)
    return max(int(bits[0]) // 8, 1) if bits else 1  # "pred"; a complex one is named by the bits of both parts


def _dtype_of(one: Instruction, known: Mapping[str, Instruction]) -> str:
    operand = known[one.operands[0]] if one.operands and one.operands[0] in known else one
    return _DTYPES.get(operand.shapes[0][0], "float32") if operand.shapes else "float32"


def _flops(one: Instruction, known: Mapping[str, Instruction]) -> float:
    shapes = [known[name].shapes[0][1] for name in one.operands[:2] if name in known and known[name].shapes]
    if len(shapes) < 2:
        return 0.0
    contracted = re.search(r'lhs_contracting_dim(?:s=\{|ensions":\[)([\d,"]*)', one.text)
    if contracted and (one.opcode == "dot" or "gemm" in one.text or "matmul" in one.text):
        sizes = [shapes[0][int(k)] for k in contracted[1].replace('"', "").split(",") if k]
        return 2.0 * math.prod(one.shapes[0][1]) * math.prod(sizes)
    labels = re.search(r"dim_labels=\w+_(\w+)->", one.text)
    if labels is None:
        return 0.0
    result = one.shapes[0][1]
    # The kernel and the activation on its output side, wherever the kind of convolution has them.
    kernel, outer = (
        (result, shapes[1]) if "BackwardFilter" in one.text else (shapes[1], shapes[0] if "BackwardInput" in one.text else result)
    )
    return 2.0 * math.prod(outer) * math.prod(kernel) / max(kernel[labels[1].index("o")], 1)
