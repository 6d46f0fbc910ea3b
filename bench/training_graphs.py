"""Synthetic joint graphs of training steps (forward, backward, optimizer updates) for the planner's tests and benchmarks.

A network is written forward, op by op; the backward pass and the updates follow from what
each op's gradient reads. Bytes and FLOPs are those of the real layers at the given sizes,
so that the ratio of cheap (ReLU, batch norm) to expensive (convolution) operations is real.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphwright.plan.model import Buffer, CostGraph, Task


@dataclass
class _Op:
    name: str
    inputs: tuple[int, ...]
    output: int
    flops: float
    saves_inputs: bool
    saves_output: bool
    extra: tuple[int, ...]  # further buffers that the gradient reads (masks, statistics)
    weight: int | None
    weight_bytes: int
    differentiable: tuple[int, ...]
    in_place_gradient: bool


class TrainingGraph:
    """Builds a `CostGraph`: forward with `op`, then `finish`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tasks: list[Task] = []
        self.buffers: list[Buffer] = []
        self.ops: list[_Op] = []
        self.resident = 0

    def task(
        self,
        name: str,
        inputs: Sequence[int],
        nbytes: Sequence[int],
        flops: float,
        *,
        in_place: bool = False,
        recomputable: bool = True,
        workspace: int = 0,
    ) -> list[int]:
        """Add a task by hand; returns its output buffers."""
        index = len(self.tasks)
        outputs: list[int] = []
        for size in nbytes:
            outputs.append(len(self.buffers))
            self.buffers.append(Buffer(f"{name}:{len(outputs) - 1}", size, index))
        inputs = tuple(dict.fromkeys(inputs))
        pairs = tuple((number, outputs[0]) for number in inputs) if in_place and outputs else ()
        self.tasks.append(Task(name, flops, inputs, tuple(outputs), (), workspace, recomputable, pairs))
        return outputs

    def given(self, name: str, nbytes: int) -> int:
        """An input of the step."""
        self.buffers.append(Buffer(name, nbytes, None, kept=True))
        return len(self.buffers) - 1

    def op(
        self,
        name: str,
        inputs: Sequence[int],
        nbytes: int,
        flops: float,
        *,
        saves_inputs: bool = False,
        saves_output: bool = False,
        statistics: int = 0,
        weight_bytes: int = 0,
        in_place: bool = False,
        random_mask: int = 0,
        constants: Sequence[int] = (),
        workspace: int = 0,
    ) -> int:
        """Add a forward operation; returns its output buffer.

        Args:
            saves_inputs: the gradient reads the inputs.
            saves_output: the gradient reads the output.
            statistics: bytes of a second output that the gradient reads.
            weight_bytes: bytes of a variable that the operation reads and the optimizer updates.
            random_mask: bytes of a mask drawn by a task of its own that must not run twice.
            constants: inputs without a gradient.
        """
        read = list(inputs)
        extra: list[int] = []
        if random_mask:
            extra += self.task(f"{name}/mask", (), (random_mask,), random_mask, recomputable=False)
            read += extra
        weight = None
        if weight_bytes:
            weight = len(self.buffers)
            self.buffers.append(Buffer(f"{name}/weight", 0, None, kept=True))
            self.resident += 3 * weight_bytes
            read.append(weight)
        sizes = (nbytes, statistics) if statistics else (nbytes,)
        made = self.task(name, read, sizes, flops, in_place=in_place, workspace=workspace)
        extra += made[1:]
        differentiable = tuple(number for number in inputs if number not in constants)
        self.ops.append(
            _Op(
                name,
                tuple(inputs),
                made[0],
                flops,
                saves_inputs,
                saves_output,
                tuple(extra),
                weight,
                weight_bytes,
                differentiable,
                in_place,
            )
        )
        return made[0]

    def finish(self, loss: int) -> CostGraph:
        """Append backward pass and updates; `loss` is the last forward buffer."""
        needs = {loss}
        produced = {op.output: op for op in self.ops}
        made_by_op = set(produced)
        gradients: dict[int, list[int]] = {}
        (seed,) = self.task("seed", (), (self.buffers[loss].nbytes,), 0.0)
        gradients[loss] = [seed]
        for op in reversed(self.ops):
            parts = gradients.pop(op.output, [])
            if not parts:
                continue
            gradient = parts[0]
            size = self.buffers[op.output].nbytes
            if len(parts) > 1:
                (gradient,) = self.task(f"grad/{op.name}/add", parts, (size,), size / 4 * (len(parts) - 1), in_place=True)
            residuals = [*(op.inputs if op.saves_inputs else ()), *((op.output,) if op.saves_output else ()), *op.extra]
            wanted = [number for number in op.differentiable if number in made_by_op]
            if op.weight is not None:
                (change,) = self.task(f"grad/{op.name}/weight", [gradient, *residuals], (op.weight_bytes,), op.flops)
            if wanted:
                read = [gradient, *residuals, *((op.weight,) if op.weight is not None else ())]
                sizes = [self.buffers[number].nbytes for number in wanted]
                share = op.flops if op.weight is not None or not op.saves_inputs else op.flops * max(1, len(wanted))
                made = self.task(f"grad/{op.name}", read, sizes, share, in_place=op.in_place_gradient)
                for number, part in zip(wanted, made, strict=True):
                    gradients.setdefault(number, []).append(part)
            if op.weight is not None:
                update = len(self.tasks)
                self.task(f"update/{op.name}", [change, op.weight], (), op.weight_bytes, recomputable=False)
                weight = self.buffers[op.weight]
                self.buffers[op.weight] = Buffer(weight.name, 0, None, kept=True, killed_by=update)
        del needs
        order = tuple(range(len(self.tasks)))
        return CostGraph(tuple(self.tasks), tuple(self.buffers), order, self.resident, "FLOPs", self.name)

    # ---- layers --------------------------------------------------------------------------

    def dense(self, name: str, x: int, rows: int, width_in: int, width_out: int) -> int:
        """Matrix product with a weight."""
        return self.op(
            name,
            (x,),
            4 * rows * width_out,
            2.0 * rows * width_in * width_out,
            saves_inputs=True,
            weight_bytes=4 * width_in * width_out,
        )

    def relu(self, name: str, x: int) -> int:
        """In-place ReLU; the gradient reads the output."""
        size = self.buffers[x].nbytes
        return self.op(name, (x,), size, size / 4, saves_output=True, in_place=True)

    def conv(self, name: str, x: int, batch: int, side: int, cin: int, cout: int, kernel: int = 3) -> int:
        """Convolution; the gradients read the input and the weight."""
        return self.op(
            name,
            (x,),
            4 * batch * side * side * cout,
            2.0 * batch * side * side * cin * cout * kernel * kernel,
            saves_inputs=True,
            weight_bytes=4 * cin * cout * kernel * kernel,
        )

    def batch_norm(self, name: str, x: int, channels: int) -> int:
        """Batch norm; the gradient reads the input and small statistics."""
        size = self.buffers[x].nbytes
        return self.op(name, (x,), size, 2 * size, saves_inputs=True, statistics=8 * channels)

    def add(self, name: str, x: int, y: int) -> int:
        """Sum of two values of one size."""
        size = self.buffers[x].nbytes
        return self.op(name, (x, y), size, size / 4, in_place=True)

    def dropout(self, name: str, x: int) -> int:
        """Mask drawn once (one byte per element), then a product."""
        size = self.buffers[x].nbytes
        return self.op(name, (x,), size, size / 4, random_mask=size // 4, in_place=True)


def mlp(layers: int = 1000, rows: int = 256, width: int = 512) -> CostGraph:
    """Dense + ReLU, `layers` times."""
    net = TrainingGraph(f"mlp_{layers}")
    x = net.given("x", 4 * rows * width)
    for index in range(layers):
        x = net.relu(f"relu{index}", net.dense(f"dense{index}", x, rows, width, width))
    return net.finish(x)


def resnet(blocks: Sequence[int] = (3, 4, 6, 3), batch: int = 8, side: int = 56, width: int = 64, name: str = "resnet50") -> CostGraph:
    """Bottleneck residual network after a stem."""
    net = TrainingGraph(name)
    x = net.given("image", 4 * batch * (4 * side) ** 2 * 3)
    x = net.conv("stem/conv", x, batch, 2 * side, 3, width, 7)
    x = net.relu("stem/relu", net.batch_norm("stem/bn", x, width))
    x = net.op("stem/pool", (x,), 4 * batch * side * side * width, 9.0 * batch * side * side * width, saves_inputs=True, saves_output=True)
    channels = width
    for stage, count in enumerate(blocks):
        inner = width * 2 ** min(stage, 3)
        for block in range(count):
            p = f"stage{stage}/block{block}"
            if block == 0 and stage and side > 4:
                side //= 2
            if block == 0:
                shortcut = net.batch_norm(f"{p}/bn0", net.conv(f"{p}/conv0", x, batch, side, channels, 4 * inner, 1), 4 * inner)
            else:
                shortcut = x
            y = net.relu(f"{p}/relu1", net.batch_norm(f"{p}/bn1", net.conv(f"{p}/conv1", x, batch, side, channels, inner, 1), inner))
            y = net.relu(f"{p}/relu2", net.batch_norm(f"{p}/bn2", net.conv(f"{p}/conv2", y, batch, side, inner, inner, 3), inner))
            y = net.batch_norm(f"{p}/bn3", net.conv(f"{p}/conv3", y, batch, side, inner, 4 * inner, 1), 4 * inner)
            x = net.relu(f"{p}/relu3", net.add(f"{p}/add", shortcut, y))
            channels = 4 * inner
    x = net.op("pool", (x,), 4 * batch * channels, net.buffers[x].nbytes / 4)
    return net.finish(net.dense("head", x, batch, channels, 1000))


def unet(batch: int = 1, side: int = 572, width: int = 64, depth: int = 4) -> CostGraph:
    """U-Net without padding, with its long skips."""
    net = TrainingGraph("unet")
    x = net.given("image", 4 * batch * side * side)
    channels = 1
    skips: list[tuple[int, int, int]] = []

    def double(name: str, x: int, side: int, cin: int, cout: int) -> tuple[int, int]:
        for index in range(2):
            side -= 2
            y = net.conv(f"{name}/conv{index}", x, batch, side, cin, cout)
            y = net.op(f"{name}/bias{index}", (y,), net.buffers[y].nbytes, net.buffers[y].nbytes / 4, in_place=True)
            x, cin = net.relu(f"{name}/relu{index}", y), cout
        return x, side

    for level in range(depth):
        cout = width * 2**level
        x, side = double(f"down{level}", x, side, channels, cout)
        channels = cout
        skips.append((x, side, cout))
        side //= 2
        x = net.op(
            f"pool{level}", (x,), 4 * batch * side * side * cout, 4.0 * batch * side * side * cout, saves_inputs=True, saves_output=True
        )
    x, side = double("bottom", x, side, channels, width * 2**depth)
    channels = width * 2**depth
    for level in reversed(range(depth)):
        skip, _, cout = skips[level]
        side *= 2
        x = net.conv(f"up{level}/conv", x, batch, side, channels, cout, 2)
        crop = net.op(f"up{level}/crop", (skip,), 4 * batch * side * side * cout, 1.0 * batch * side * side * cout)
        x = net.op(f"up{level}/concat", (crop, x), 8 * batch * side * side * cout, 2.0 * batch * side * side * cout)
        x, side = double(f"up{level}", x, side, 2 * cout, cout)
        channels = cout
    return net.finish(net.conv("head", x, batch, side, channels, 2, 1))


def transformer(layers: int = 12, batch: int = 4, length: int = 512, width: int = 512, heads: int = 8) -> CostGraph:
    """Pre-norm encoder with dropout."""
    net = TrainingGraph("transformer")
    rows = batch * length
    x = net.given("embedded", 4 * rows * width)
    scores = 4 * batch * heads * length * length
    product = 2.0 * rows * length * width
    for layer in range(layers):
        p = f"layer{layer}"
        h = net.op(f"{p}/norm1", (x,), 4 * rows * width, 8.0 * rows * width, saves_inputs=True, statistics=8 * rows)
        q, k, v = (net.dense(f"{p}/{name}", h, rows, width, width) for name in ("query", "key", "value"))
        s = net.op(f"{p}/scores", (q, k), scores, product, saves_inputs=True)
        s = net.op(f"{p}/softmax", (s,), scores, scores, saves_output=True, in_place=True)
        s = net.dropout(f"{p}/dropout1", s)
        a = net.op(f"{p}/mix", (s, v), 4 * rows * width, product, saves_inputs=True)
        a = net.dropout(f"{p}/dropout2", net.dense(f"{p}/out", a, rows, width, width))
        x = net.add(f"{p}/add1", x, a)
        h = net.op(f"{p}/norm2", (x,), 4 * rows * width, 8.0 * rows * width, saves_inputs=True, statistics=8 * rows)
        h = net.dense(f"{p}/ffn1", h, rows, width, 4 * width)
        h = net.op(f"{p}/gelu", (h,), 16 * rows * width, 32.0 * rows * width, saves_inputs=True)
        h = net.dropout(f"{p}/dropout3", net.dense(f"{p}/ffn2", h, rows, 4 * width, width))
        x = net.add(f"{p}/add2", x, h)
    return net.finish(net.dense("head", x, rows, width, width))


def residual_net_of(tasks: int) -> CostGraph:
    """A residual network with about `tasks` tasks in its joint graph."""
    per_block = len(resnet((0, 3)).tasks) - len(resnet((0, 2)).tasks)
    return resnet((0, 0, 0, max(1, tasks // per_block)), side=14, name=f"residual_{tasks}")
