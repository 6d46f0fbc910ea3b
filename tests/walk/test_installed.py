"""Wheel and sdist: what is in them, and what an environment can do that has them and nothing else, with and without TensorFlow."""

from __future__ import annotations

import json
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.walk import without_tensorflow
from tests.walk.installed import ROOT, Environment, build
from tests.walk.not_walked import NOT_WALKED
from tests.walk.pages import SHELL, Page, pages, walk

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def bare(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An installation without TensorFlow."""
    return Environment(tmp_path_factory.mktemp("bare"), built[1])


@pytest.fixture(scope="module")
def whole(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """As the README says it."""
    return Environment(tmp_path_factory.mktemp("whole"), built[1], "[cpu,demo]")


def own_files() -> set[str]:
    package = ROOT / "src" / "graphwright"
    files = (path.relative_to(package.parent) for path in package.rglob("*") if path.is_file())
    return {path.as_posix() for path in files if "__pycache__" not in path.parts}


def test_the_wheel_holds_the_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    names = zipfile.ZipFile(built[1]).namelist()
    packed = {name for name in names if ".dist-info/" not in name}
    assert packed == own_files()
    assert {"graphwright/py.typed", "graphwright/report/schemas/doctor.schema.json", "graphwright/report/templates/head.html"} <= packed
    assert {name.rpartition("dist-info/")[2] for name in names} >= {"METADATA", "entry_points.txt", "licenses/LICENSE"}


def test_the_sdist_holds_what_makes_the_wheel_and_runs_the_tests(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    assert {f"src/{name}" for name in own_files()} <= names
    assert {"pyproject.toml", "README.md", "LICENSE", "Makefile", "constraints.txt", "conftest.py", "docs/json.md"} <= names
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not (ROOT / top).exists()} <= {"PKG-INFO"}
    stray = {
        name for name in names if "__pycache__" in name or name.endswith((".pyc", ".so", ".keras", ".log")) or name.startswith(".venv")
    }
    assert stray == set()


def test_without_tensorflow_all_that_needs_it_says_so_alike(bare: Environment, tmp_path: Path) -> None:
    without_tensorflow.check(json.loads(bare.run(["python", str(without_tensorflow.__file__)], tmp_path)))


def test_without_tensorflow_the_planner_works(bare: Environment, tmp_path: Path) -> None:
    assert bare.run(["python", "-c", "import graphwright; print(graphwright.__version__)"], tmp_path).strip()
    assert "optimize" in bare.run(["graphwright", "--help"], tmp_path)
    graph = ROOT / "bench" / "data" / "planner_graphs" / "vgg19.json"
    assert "Planned peak" in bare.run(["graphwright", "plan", str(graph), "--budget", "0.8", "--time-limit", "1"], tmp_path)
    assert 'pip install "graphwright[cpu]"' in " ".join(bare.run(["graphwright", "doctor"], tmp_path, code=4).split())


def test_with_tensorflow_the_doctor_is_content(whole: Environment, tmp_path: Path) -> None:
    found = json.loads(whole.run(["graphwright", "doctor", "--json"], tmp_path).splitlines()[-1])
    assert found["healthy"] is True
    assert Path(found["findings"][1]["note"]).is_relative_to(whole.bin.parent), "the wheel's, not the checkout"


WITH_COMMANDS = [page for page in pages() if any(block.language in SHELL for block in page.blocks)]
WALKED = [page for page in WITH_COMMANDS if not isinstance(NOT_WALKED.get(page.name), str)]


@pytest.mark.parametrize("page", WALKED, ids=lambda page: page.name)
def test_what_a_page_shows_is_what_is_printed(whole: Environment, page: Page, tmp_path: Path) -> None:
    assert walk(page, whole, tmp_path, set(NOT_WALKED.get(page.name, ()))) > 0
