"""What tests and doctests share: the environment they need, and what to leave out where it is missing."""

from __future__ import annotations

import gc
import importlib.util
import itertools
import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Before TensorFlow is imported: its start-up lines say nothing about a test.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
# By itself TensorFlow takes oneDNN's kernels where the processor has instructions made for them, else its own. They round, pack and
# allocate in other ways, so figures of tests are of one kind on all machines; tests of the other kind say so.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

# `quick` in the default run; `GRAPHWRIGHT_PROFILE=thorough` for a long search. No deadlines: unit tests are not timed.
settings.register_profile("quick", max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("GRAPHWRIGHT_PROFILE", "quick"))

collect_ignore = ["docs/site_docstrings.py"]  # is loaded by mkdocs alone, which the tests do without

_NUMBERS = itertools.count()
_ROOT = Path(__file__).parent
_HAS_TENSORFLOW = importlib.util.find_spec("tensorflow") is not None
_TENSORFLOW_ROOMS = "source run step memory gradient least_squares reversible reuse workers editor costs".split()
_TENSORFLOW_FOLDERS = (
    *(_ROOT / top / room for top in ("src/graphwright", "tests") for room in _TENSORFLOW_ROOMS),
    _ROOT / "tests" / "corpus",
)


def _needs_tensorflow(path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in _TENSORFLOW_FOLDERS)


@pytest.fixture(autouse=True)
def _own_plan_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads a plan that another one, or the user, has kept. The folder is made by those who keep one."""
    monkeypatch.setenv("GRAPHWRIGHT_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "plans" / str(next(_NUMBERS))))


@pytest.fixture
def gpu_compiler() -> None:
    """For a test that needs XLA's compiler for GPUs, the extra `gpu-target`; skipped without it."""
    from graphwright.errors import MissingDependencyError
    from graphwright.run.xla_target import PYTHON, installed

    try:
        installed(os.environ.get(PYTHON) or sys.executable)
    except MissingDependencyError as error:
        pytest.skip(error.what)


@pytest.fixture(autouse=True, scope="module")
def _no_global_seed() -> None:
    """What another file drew, or seeded, does not decide what this one draws."""
    if "tensorflow" in sys.modules:
        sys.modules["tensorflow"].random.set_seed(None)


def pytest_collection_finish() -> None:
    """TensorFlow and all that was imported stays: going through it again and again took a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    if not _HAS_TENSORFLOW and _needs_tensorflow(collection_path):
        return True
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _needs_tensorflow(item.path):
            item.add_marker("tensorflow")
        if item.get_closest_marker("tensorflow") and not _HAS_TENSORFLOW:
            item.add_marker(pytest.mark.skip(reason="TensorFlow is not installed"))
        if item.get_closest_marker("gpu") and not _has_gpu():
            item.add_marker(pytest.mark.skip(reason="TensorFlow sees no GPU"))


def _has_gpu() -> bool:
    if not _HAS_TENSORFLOW:
        return False
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))
