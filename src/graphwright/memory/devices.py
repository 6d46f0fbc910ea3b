"""The device of each node, as far as the graph and the places of its inputs tell."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from graphwright.errors import UnsupportedError
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.control_flow import called_functions
from graphwright.ir.traits.values import is_constant
from graphwright.ir.traits.variables import resource_of
from graphwright.ir.walk import topological_order

_DEVICE = re.compile(r"(?:^|/|device:)(CPU|GPU|TPU):(\d+)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Placement:
    """The devices of a step.

    Attributes:
        devices: devices with a budget, such as "GPU:1", in order; then "CPU:0" as the host of accelerators.
        budgeted: how many of them have a budget.
        of_node: per node, the number of its device.
        of_input: per input of the graph with a known place, the number of its device.
    """

    devices: tuple[str, ...]
    budgeted: int
    of_node: Mapping[Node, int]
    of_input: Mapping[Value, int]


def short_name(device: str) -> str:
    """Return type and number of a device; "" for an incomplete name.

    >>> short_name("/job:localhost/replica:0/task:0/device:CPU:1"), short_name("/gpu:0"), short_name("/job:worker")
    ('CPU:1', 'GPU:0', '')
    """
    match = _DEVICE.search(device)
    return f"{match[1].upper()}:{match[2]}" if match else ""


def find_placement(graph: Graph, located: Mapping[Value, str]) -> Placement | None:
    """Return where the nodes of a flat graph run, or None if one device does all the work.

    A node without a device follows the resource it uses, then its first input, much like TensorFlow's placer. Raises `UnsupportedError` if
    a loop or a branch holds work for several devices.

    Args:
        located: the device of graph inputs (handles of variables, captured tensors), as TensorFlow names it.
    """
    workers = find_workers(graph, located)
    if len(workers) < 2:
        return None
    names = {value: short_name(device) for value, device in located.items()}
    has_host = not workers[0].startswith("CPU")
    devices = (*workers, "CPU:0") if has_host else workers
    number = {name: k for k, name in enumerate(devices)}
    host = len(devices) - 1 if has_host else 0
    of_input = {value: number.get(name, host) for value, name in names.items() if name}
    of_node: dict[Node, int] = {}
    for node in topological_order(graph):
        name = short_name(node.device) or _device_inside(graph, node)
        if name:
            of_node[node] = number.get(name, host)
            continue
        resources = [resource_of(v) for v in node.inputs if v.dtype.name == "resource"]
        places = [of_input[v] for v in (*resources, *node.outputs) if v in of_input]
        places += [of_node[v.producer] for v in node.inputs if v.producer in of_node and not is_constant(v.producer)]
        of_node[node] = places[0] if places else 0
    return Placement(devices, len(workers), of_node, of_input)


def find_workers(graph: Graph, located: Mapping[Value, str]) -> tuple[str, ...]:
    """Return the devices that nodes and variables of a flat graph name; only the accelerators, if there are any."""
    named = {short_name(node.device) for node in graph.nodes}
    named |= {short_name(device) for value, device in located.items() if value in graph.variables}
    accelerators = {name for name in named if not name.startswith("CPU")} - {""}
    return tuple(sorted(accelerators or named - {""}, key=_by_number))


def pin(placement: Placement, nodes: Iterable[Node]) -> None:
    """Set the planned device on nodes that name none and use no resource that decides it."""
    for node in nodes:
        if not node.device and not any(v.dtype.name == "resource" for v in node.inputs):
            node.device = f"/device:{placement.devices[placement.of_node[node]]}"


def _by_number(name: str) -> tuple[str, int]:
    kind, _, number = name.partition(":")
    return kind, int(number)


def _device_inside(graph: Graph, node: Node) -> str:
    bodies = [graph.functions[name].body for name in called_functions(node) if name in graph.functions]
    devices = {short_name(inner.device) for body in bodies for inner in body.nodes} - {""}
    accelerators = {name for name in devices if not name.startswith("CPU")}
    devices = accelerators or devices
    if len(devices) > 1:
        raise UnsupportedError(
            f"a loop or a branch spans the devices {', '.join(sorted(devices, key=_by_number))}",
            where=f"node {node.name!r} ({node.op_type})",
            cause="strategy.run is called inside tf.while_loop, tf.cond or a for loop that AutoGraph converts",
            remedy="optimize the step that the loop repeats, and call it from a Python loop",
        )
    return devices.pop() if devices else ""
