"""A program in the place of XLA's compiler for GPUs: it gives one answer, whatever it is asked."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from graphwright.run import device_worker
from graphwright.run.xla_target import PYTHON

PROGRAM = """HloModule m, is_scheduled=true
ENTRY %main (a: f32[256]) -> f32[256] {
  %a = f32[256]{0} parameter(0)
  %b = f32[256]{0} copy(%a), metadata={op_name="jit(call)/call_exported/layer/Relu"}
  ROOT %c = f32[256]{0} negate(%b)
}"""
ANSWER = {"argument_bytes": 1024, "output_bytes": 1024, "temporary_bytes": 2048, "program": PROGRAM}
VERSIONS = dict.fromkeys(device_worker.PACKAGES, "1.0")


def fake_python(folder: Path, monkeypatch: pytest.MonkeyPatch, answer: str, *, versions: dict[str, str] = VERSIONS) -> Path:
    """What the environment names instead of a Python: it tells versions, and runs `answer` where it is to compile. Returns its record."""
    record = folder / "asked"
    script = folder / "python"
    script.write_text(
        f"#!{sys.executable}\nimport json, os, sys\nrequest = json.load(sys.stdin)\n"
        f"if 'module' not in request:\n    print(json.dumps({{'versions': {versions!r}}}))\n    sys.exit()\n"
        f"with open({str(record)!r}, 'a') as stream:\n    stream.write('asked ' + request['target'].split('device_memory_size: ')[1])\n"
        f"{answer}\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv(PYTHON, str(script))
    return record
