"""The stubs, by mypy and pyright: what is right passes in their strict modes, and each mistake is found."""
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
from conftest import FOLDER

TYPED = pathlib.Path(__file__).parent / "typed"

needs_mypy = pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed (tools/python_env)")


def checked(file, folder):
    """What mypy says of a file; koine's own sources are silent, as those of installed packages are."""
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--no-error-summary", f"--cache-dir={folder}", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env={**os.environ, "MYPYPATH": FOLDER}, timeout=300)
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("mypy")


@needs_mypy
def test_what_is_right_passes(folder):
    assert checked(TYPED / "right.py", folder) == ""


@needs_mypy
def test_mistakes_are_found(folder):
    found = {int(line): code for line, code in re.findall(r"wrong\.py:(\d+): error: .*\[([\w-]+)\]", checked(TYPED / "wrong.py", folder))}
    lines = (TYPED / "wrong.py").read_text().splitlines()
    assert found == {k: line.split("# wrong: ")[1] for k, line in enumerate(lines, 1) if "# wrong: " in line}


@pytest.mark.skipif(importlib.util.find_spec("basedpyright") is None, reason="basedpyright is not installed (docs/python.md)")
def test_pyright_agrees(tmp_path):
    settings = {"typeCheckingMode": "strict", "extraPaths": [FOLDER], "include": [str(TYPED)], "reportMissingTypeStubs": False}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run([sys.executable, "-m", "basedpyright", "--outputjson", "-p", str(tmp_path)], capture_output=True, text=True, timeout=300)
    found = [(pathlib.Path(d["file"]).name, d["range"]["start"]["line"]) for d in json.loads(done.stdout)["generalDiagnostics"]]
    lines = (TYPED / "wrong.py").read_text().splitlines()
    assert set(found) == {("wrong.py", k) for k, line in enumerate(lines) if "# wrong: " in line}


def test_what_is_right_runs():
    done = subprocess.run([sys.executable, str(TYPED / "right.py")], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout, done.stderr
