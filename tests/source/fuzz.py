"""Mutates files and reads them: `python -m tests.source.fuzz FIRST_SEED COUNT [FORMAT ...]`. Runs in a process of its own, which may crash.

Each seed takes a file, flips bytes, cuts or shuffles it, or changes fields of its messages, and reads it. A graph that loads is written
again; FORMAT "graphs", the default, does no more, "costs" asks for its costs too. The other formats are those of `OTHERS`. Anything but
success or an error of graphwright ends the run and names the seed; so does a hang, or more memory than a damaged file may take.
"""

from __future__ import annotations

import faulthandler
import json
import random
import resource
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.protobuf import saved_model_pb2

import graphwright as gw
from graphwright.costs.baseline import read_costs, write_costs
from graphwright.errors import GraphwrightError
from graphwright.plan.files import read_cost_graph
from graphwright.report.comparison import FIGURES, LayerFigures, StepCosts
from graphwright.report.memory_plan import load_plan
from graphwright.reuse.feature_store import FeatureFolder
from graphwright.source.join_checkpoints import stored_values
from graphwright.source.load import load
from graphwright.source.write import write
from tests.corpus.graphs import CORPUS

BASES = ("frozen_graph", "graph_as_text", "graph_with_functions", "module_with_several_signatures", "table_from_a_file")
BASES += ("tf1_loop", "tf1_variables", "tf1_table", "branches_and_loops", "tf1_sparse_signature", "custom_gradient", "keras_file")
HANG_S = 30
EXTRA_BYTES = 2 * 2**30


def flip_bytes(data: bytes, rng: random.Random) -> bytes:
    mutable = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        mutable[rng.randrange(len(mutable))] = rng.choice((0, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return bytes(mutable)


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def shuffle(data: bytes, rng: random.Random) -> bytes:
    a, b, c = sorted(rng.randrange(len(data)) for _ in range(3))
    return rng.choice((data[:a] + data[b:c] + data[a:b] + data[c:], data[:b] + data[a:c] + data[c:], data[:a] + data[c:]))


def change_fields(message: Any, rng: random.Random) -> None:
    """Swap, drop, repeat or overwrite fields anywhere in a message."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        target = message
        for _ in range(rng.randrange(1, 9)):
            parts = [(f, v) for f, v in target.ListFields() if f.type == f.TYPE_MESSAGE and not _is_map(f)]
            maps = [(f, v) for f, v in target.ListFields() if _is_map(f) and f.message_type.fields_by_name["value"].message_type]
            if not parts and not maps:
                break
            field, value = rng.choice(parts + maps)
            if _is_map(field):
                target = value[rng.choice(sorted(value))]
            else:
                target = rng.choice(list(value)) if field.is_repeated and len(value) else value
                if field.is_repeated and not len(value):
                    break
        _change(target, message, rng)


def _is_map(field: Any) -> bool:
    return field.type == field.TYPE_MESSAGE and field.message_type.GetOptions().map_entry


def _change(target: Any, root: Any, rng: random.Random) -> None:
    fields = [f for f, _ in target.ListFields()] if hasattr(target, "ListFields") else []
    if not fields:
        return
    field = rng.choice(fields)
    value = getattr(target, field.name)
    if _is_map(field):
        key = rng.choice(sorted(value))
        del value[key]
    elif field.is_repeated:
        kind = rng.randrange(4)
        k = rng.randrange(len(value))
        if kind == 0:
            del value[k]
        elif kind == 1:
            value.append(value[rng.randrange(len(value))])
        elif field.type == field.TYPE_MESSAGE:
            other = type(value[k])()
            other.CopyFrom(value[rng.randrange(len(value))])
            value[k].CopyFrom(other)
        else:
            value[k] = _scalar(field, value[k], root, rng)
    elif field.type == field.TYPE_MESSAGE:
        target.ClearField(field.name)
    else:
        setattr(target, field.name, _scalar(field, value, root, rng))


def _scalar(field: Any, value: Any, root: Any, rng: random.Random) -> Any:
    if field.type == field.TYPE_STRING:
        names = [n.name for n in _nodes(root)] + [n.op for n in _nodes(root)] or ["x"]
        name = rng.choice(names)
        return rng.choice(
            (name, f"{name}:1", f"^{name}", f"{name}:99999999999", "", "../" * 5 + "etc/passwd", f"{name}:x:-1", value + "x", "\0")
        )
    if field.type == field.TYPE_BYTES:
        return rng.choice((b"", b"\xff" * 9, value + value, value[: len(value) // 2]))
    if field.type == field.TYPE_BOOL:
        return not value
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return rng.choice((float("nan"), -1.0, 1e30))
    if field.type == field.TYPE_ENUM:
        return rng.choice((0, 1, 3, 7, 9, 20, 101))
    return rng.choice((0, 1, -1, 2**31 - 1, 5)) if field.type != field.TYPE_UINT32 else rng.choice((0, 1, 5))


def _nodes(root: Any) -> Any:
    return root.node if hasattr(root, "node") else [n for m in root.meta_graphs for n in m.graph_def.node]


class Base:
    """An undamaged file and the place of the file inside of it that is damaged."""

    def __init__(self, name: str, folder: Path) -> None:
        folder.mkdir()
        self.path = CORPUS[name](folder).path
        self.file = self.path / "saved_model.pb" if self.path.is_dir() else self.path
        self.data = self.file.read_bytes()

    def message(self) -> Any:
        if self.file.name == "saved_model.pb":
            return saved_model_pb2.SavedModel.FromString(self.data)
        graph_def = tf.compat.v1.GraphDef()
        if self.file.suffix == ".pbtxt":
            return text_format.Parse(self.data.decode(), graph_def)
        graph_def.ParseFromString(self.data)
        return graph_def

    def mutate(self, rng: random.Random) -> bytes:
        how = rng.choice((flip_bytes, cut, shuffle, change_fields, change_fields, change_fields))
        if how is not change_fields or self.file.suffix == ".keras":
            return (flip_bytes if how is change_fields else how)(self.data, rng)
        message = self.message()
        change_fields(message, rng)
        return text_format.MessageToString(message).encode() if self.file.suffix == ".pbtxt" else message.SerializeToString()


# Other formats than graphs: how a file of each is made in a folder, and how it is read


def _plan(folder: Path) -> Path:
    weight = tf.Variable(tf.ones([16, 16]))

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.tanh(tf.tanh(x @ weight) @ weight))
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    return gw.optimize_memory(step, 0.9, inputs=tf.ones([64, 16]), cache_dir=None).plan.save(folder / "plan.json")


def _costs(folder: Path) -> Path:
    layer = LayerFigures("model/conv", 3, 10, 100.0, 200.0, 10.0, 40, 40)
    return write_costs(StepCosts("step", {"x": (8, 3)}, dict.fromkeys(FIGURES, 1.0), (layer,), (), {}, 1), folder / "costs.json")


def _planner(folder: Path) -> Path:
    path, tasks = folder / "graph.json", [{"name": f"task_{k}", "time": 1.5, "nbytes": 8 * k} for k in range(8)]
    path.write_text(json.dumps({"name": "graph", "tasks": tasks, "edges": [[k, k + 1] for k in range(7)], "order": list(range(8))}))
    return path


def _checkpoint(suffix: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            for name, value in (("a", tf.ones([8, 3])), ("b", tf.constant([1, 2], tf.int64)), ("c", tf.constant(["x", "text"]))):
                tf.compat.v1.get_variable(name, initializer=value)
            session.run(tf.compat.v1.global_variables_initializer())
            tf.compat.v1.train.Saver().save(session, str(folder / "model"), write_meta_graph=False)
        return folder / f"model.{suffix}"

    return make


def _features(folder: Path) -> Path:
    store = FeatureFolder(folder, "x")
    store.put({bytes([k]): (np.full((2, 3), k, np.float32), np.arange(k + 1)) for k in range(4)})
    return next(folder.glob("*.sqlite"))


def _read_features(path: Path) -> None:
    store = FeatureFolder(path.parent, "x")
    for k in range(4):
        store.get(bytes([k]))


OTHERS: dict[str, tuple[Callable[[Path], Path], Callable[[Path], Any]]] = {
    "plan": (_plan, load_plan),
    "baseline": (_costs, read_costs),
    "planner graph": (_planner, read_cost_graph),
    "checkpoint index": (_checkpoint("index"), lambda path: stored_values(path.with_name("model"))),
    "checkpoint data": (_checkpoint("data-00000-of-00001"), lambda path: stored_values(path.with_name("model"))),
    "features": (_features, _read_features),
}


class Other:
    """An undamaged file of another format."""

    def __init__(self, name: str, folder: Path) -> None:
        folder.mkdir()
        self.path = self.file = OTHERS[name][0](folder)
        self.data = self.file.read_bytes()

    def mutate(self, rng: random.Random) -> bytes:
        if self.file.suffix != ".json" or rng.random() < 0.2:
            return rng.choice((flip_bytes, cut, shuffle))(self.data, rng)
        document = json.loads(self.data)
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            change_json(document, rng)
        return json.dumps(document).encode()


def change_json(document: Any, rng: random.Random) -> None:
    """Remove, repeat or overwrite something anywhere in a document."""
    target = document
    while True:
        keys = list(target) if isinstance(target, dict) else list(range(len(target)))
        if not keys:
            return
        key = rng.choice(keys)
        if not isinstance(target[key], dict | list) or rng.random() < 0.1:
            break
        target = target[key]
    how = rng.randrange(6)
    if how == 0:
        del target[key]
    elif how == 1 and isinstance(target, list):
        target.append(target[key])
    else:
        wrong = (0, -1, 1, 2**63 - 1, 2**64, 10**400, 1e308, -1e308, float("nan"), float("inf"), 5e-324, "", "x" * 9, "\x1b[31m\u202e")
        target[key] = rng.choice((*wrong, None, True, [], {}, [0], "999999999999 GiB"))


def read_graph(path: Path, written: Path, *, ask_costs: bool) -> None:
    graph = load(path)
    write(graph, written if path.is_dir() else written.with_suffix(".pb"))
    graph.settle_shapes()
    if ask_costs:
        gw.inspect(path, batch=2)


def main(first: int, count: int, *forms: str) -> None:
    for form in forms or ("graphs",):
        fuzz(first, count, form)


def fuzz(first: int, count: int, form: str) -> None:
    results: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        written = folder / "written"
        bases: list[Any] = [Other(form, folder / "other")] if form in OTHERS else [Base(name, folder / name) for name in BASES]

        def read(path: Path) -> None:
            if form in OTHERS:
                OTHERS[form][1](path)
            else:
                read_graph(path, written, ask_costs=form == "costs")

        for base in bases:  # warms up what is imported late, before memory is limited
            assert attempt(base, base.data, read, written) == "unchanged" or form == "costs"
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + EXTRA_BYTES, resource.RLIM_INFINITY))
        for seed in range(first, first + count):
            rng = random.Random(seed)
            base = rng.choice(bases[:-1]) if len(bases) > 1 and rng.random() < 0.97 else bases[-1]  # Keras takes long for its error
            faulthandler.dump_traceback_later(HANG_S, exit=True)
            try:
                results[attempt(base, base.mutate(rng), read, written)] += 1
            except BaseException as error:
                sys.stdout.write(f"seed {seed} ({base.file.name} of {base.path.parent.name}): {type(error).__name__}\n")
                raise
            finally:
                faulthandler.cancel_dump_traceback_later()
    sys.stdout.write(f"{form}: tried {count}: {', '.join(f'{n} {what}' for what, n in results.most_common())}\n")


def attempt(base: Any, data: bytes, read: Callable[[Path], Any], written: Path) -> str:
    base.file.write_bytes(data)
    try:
        read(base.path)
    except GraphwrightError as error:
        return type(error).__name__ if error.what else "an error without words"
    finally:
        base.file.write_bytes(base.data)
        shutil.rmtree(written, ignore_errors=True)
        written.with_suffix(".pb").unlink(missing_ok=True)
    return "unchanged" if data == base.data else "still read"


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
