"""Whatever is written is there whole, the old or the new, wherever the process is killed.

A process is killed before or behind each operation on the file system: from then on no operation does anything, so that what cleans up
after an error changes nothing either, as after SIGKILL.
"""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from graphwright import files
from graphwright.files import path_before, put_back, replaced_file, replaced_folder

_OPERATIONS = ("open", "replace", "rename", "mkdir", "rmdir", "unlink", "remove", "chmod", "fsync", "link", "symlink", "truncate")


class _KilledError(BaseException):
    pass


class _Kill:
    """Counts operations, and lets the process be dead from the k-th moment on: 2k before the k-th operation, 2k + 1 behind it."""

    def __init__(self, at: int | None) -> None:
        self.at, self.moment, self.log = at, 0, list[tuple[str, str]]()

    def _pass(self) -> None:
        dead = self.at is not None and self.moment >= self.at
        if dead:
            raise _KilledError
        self.moment += 1

    def wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*args: Any, **options: Any) -> Any:
            self._pass()
            self.log.append((name, " -> ".join(str(a) for a in args[:2] if isinstance(a, str | Path))))
            result = real(*args, **options)
            try:
                self._pass()
            except _KilledError:
                if hasattr(result, "close"):
                    result.close()  # not to leave it open in this process
                raise
            return result

        return operation


@contextmanager
def _killed(at: int | None, *, exchanges: bool = True) -> Iterator[_Kill]:
    kill = _Kill(at)
    with pytest.MonkeyPatch.context() as patch:
        for name in _OPERATIONS:
            real = (lambda descriptor: None) if name == "fsync" else getattr(os, name)  # none goes out here, and syncing takes its time
            patch.setattr(os, name, kill.wrapped(name, real))
        opened = kill.wrapped("open", io.open)

        def opens(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
            return (opened if set(mode) & set("wxa+") else _OPEN)(file, mode, *args, **options)

        patch.setattr(io, "open", opens)
        patch.setattr(builtins, "open", opens)
        patch.setattr(files, "_exchange", kill.wrapped("exchange", files._exchange if exchanges else lambda one, other: False))
        yield kill


_OPEN = io.open


def _content(path: Path) -> Any:
    """What is at a path: bytes, or those of each file in a folder."""
    if not path.is_dir():
        return path.read_bytes() if path.exists() else None
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


def _check_every_moment(
    write: Callable[[Path, int], None], folder: Path, name: str, *, exchanges: bool = True, over: bool = True
) -> list[tuple[str, str]]:
    """Write version 2, and (`over`) write it over version 1, killed at every moment; returns the operations."""
    wanted = [None]
    for version in (1, 2):
        write(folder / f"{version}" / name, version)
        wanted.append(_content(folder / f"{version}" / name))
    assert None not in wanted[1:]
    assert wanted[1] != wanted[2]
    for old in (0, 1) if over else (0,):  # nothing there, or version 1
        at, seen = 0, list[int]()
        while True:
            target = folder / f"{old}_{at}" / name
            target.parent.mkdir()
            if old:
                write(target, 1)
            with _killed(at, exchanges=exchanges) as kill:
                try:
                    write(target, 2)
                except _KilledError:
                    done = False
                else:
                    done = True
            put_back(target)
            seen.append(wanted.index(_content(target)))
            assert seen[-1] in ((2,) if done else (old, 2)), (at, kill.log[-3:])
            if done:
                assert [entry.name for entry in target.parent.iterdir()] == [name]
                break
            at += 1
        assert seen == sorted(seen)
        assert len(seen) > 8
        assert set(seen) == {old, 2}
    return kill.log


def _prepare(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    return path


def _write_page(path: Path, version: int) -> None:
    from graphwright.report.page import write_page

    write_page(_prepare(path), f"<p>{version}</p>")


def _write_json(path: Path, version: int) -> None:
    from graphwright.plan.json_file import write_json

    write_json(_prepare(path), {"version": version}, indent=1)


def _write_plan(path: Path, version: int) -> None:
    from graphwright.memory.plan_cache import PlanCache
    from graphwright.plan.model import Schedule

    solution: Any = SimpleNamespace(schedule=Schedule((0,) * version), status="feasible")
    PlanCache(_prepare(path).parent).write(path.stem, solution)


def _graph(version: int) -> Any:
    from graphwright.ir.signature import Signature
    from graphwright.ir.text import from_text

    graph = from_text(f"""
        graph "g"
        outputs %y:0
        %x = Placeholder() {{dtype = float32, shape = shape[{version}]}} : float32[{version}]
        %y = Relu(%x:0) {{T = float32}} : float32[{version}]
        """)
    graph.signatures["serving_default"] = Signature({"x": graph.value("x")}, {"y": graph.value("y")})
    return graph


def _write_graph(path: Path, version: int) -> None:
    from graphwright.source.write import write

    write(_graph(version), _prepare(path), overwrite=True)


def _write_model(path: Path, version: int) -> None:
    """With variables and assets beside the graph."""
    from graphwright.source.package import Package
    from graphwright.source.write import write

    parts = path.parent.parent / f"parts_{version}"
    for name in ("variables/variables.index", "variables/variables.data-00000-of-00001", "assets/words.txt"):
        _prepare(parts / name).write_text(f"{name} {version}")
    graph = _graph(version)
    graph.package = Package(folder=parts)
    write(graph, _prepare(path), overwrite=True)


def _write_drawing(path: Path, version: int) -> None:
    from graphwright.report.drawing import draw

    draw(_graph(version), _prepare(path))


def _write_trace(path: Path, version: int) -> None:
    from graphwright.report.chrome_trace import write_chrome_trace
    from tests.report.profiles import small_profile

    write_chrome_trace(small_profile(), _prepare(path), flows=version == 2)


def _write_checkpoint(path: Path, version: int) -> None:
    from graphwright.workers.checkpoints import TrainingCheckpoints

    class Variable:
        def numpy(self) -> Any:
            return np.full(3, version)

    TrainingCheckpoints(_prepare(path).parent, lambda: {"w": Variable()}).save(7)


WRITERS = {
    "page.html": _write_page,
    "data.json": _write_json,
    "plan.json": _write_plan,
    "graph.pb": _write_graph,
    "graph.pbtxt": _write_graph,
    "model": _write_model,
    "trace.json": _write_trace,
    "drawing.html": _write_drawing,
    "step-000000000007.process-0-of-1.npz": _write_checkpoint,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_writer_that_is_killed_leaves_the_old_or_the_new(name: str, tmp_path: Path) -> None:
    log = _check_every_moment(WRITERS[name], tmp_path, name)
    steps = [operation for operation, _ in log]
    took_place = max(k for k, step in enumerate(steps) if step in ("replace", "rename", "exchange"))
    assert "fsync" in steps[:took_place]  # the content first
    assert "fsync" in steps[took_place:]  # then the name


def test_graph_def_editor_writes_values_and_graph_at_once(tmp_path: Path) -> None:
    from graphwright.editor.saved_model import write_saved_model

    def write(path: Path, version: int) -> None:
        values = tmp_path / f"values_{version}"
        _prepare(values / "variables.index").write_text(str(version))
        write_saved_model(_graph(version), str(_prepare(path)), None, str(values))

    _check_every_moment(write, tmp_path, "model", over=False)


def test_a_folder_where_nothing_exchanges_is_put_back_by_the_next_writer(tmp_path: Path) -> None:
    _check_every_moment(_write_model, tmp_path, "model", exchanges=False)


@pytest.mark.parametrize("write", [lambda path: path.write_text("new"), lambda path: (path.unlink(), path.write_text("new"))])
def test_a_writer_in_place_is_noticed(write: Callable[[Path], Any], tmp_path: Path) -> None:
    """What the test above is worth."""

    def plain(path: Path, version: int) -> None:
        _prepare(path).touch()
        write(path) if version == 2 else path.write_text("old")

    with pytest.raises((AssertionError, ValueError)):
        _check_every_moment(plain, tmp_path, "text")


def test_a_model_that_was_set_aside_is_named_and_put_back(tmp_path: Path) -> None:
    import graphwright as gw

    _write_graph(tmp_path / "model", 1)
    (tmp_path / "model").rename(path_before(tmp_path / "model"))
    with pytest.raises(gw.ArgumentError, match=r"\.model\.before': rename it"):
        gw.load(tmp_path / "model")
    with pytest.raises(gw.ArgumentError, match="there is something at"):  # the old one is back
        gw.write(_graph(2), tmp_path / "model")
    assert gw.load(tmp_path / "model").signatures["serving_default"].outputs["y"].shape == (1,)


def test_what_raises_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "inner").write_text("old")

    def half(writer: Any, inside: str) -> None:
        with writer as place:
            place.write("half") if not inside else (place / inside).write_text("half")
            raise KeyError

    with pytest.raises(KeyError):
        half(replaced_file(tmp_path / "file"), "")
    with pytest.raises(KeyError):
        half(replaced_folder(tmp_path / "folder"), "half")
    assert _content(tmp_path) == {"file": b"old", "folder/inner": b"old"}
    with replaced_folder(tmp_path / "file") as folder:  # a folder takes the place of a file too
        (folder / "inner").write_text("new")
    assert _content(tmp_path) == {"file/inner": b"new", "folder/inner": b"old"}


def test_new_files_have_the_rights_that_others_have(tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        with replaced_file(tmp_path / "file"), replaced_folder(tmp_path / "folder"):
            pass
    finally:
        os.umask(mask)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("file", "folder")] == [0o640, 0o750]
