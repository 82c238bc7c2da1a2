"""The checks of an installed wheel, run by the Python it is installed for; tools/wheel_check.py copies this there.

The folder also has `golden_cases.py`, `golden/`, `typed_program.py` and `README.md`; nothing else of the source tree is
reachable.
"""

from __future__ import annotations

import argparse
import http.client
import importlib.metadata
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SCRIPTS = Path(sysconfig.get_path("scripts"))
BUILDERS = ("cc", "c++", "gcc", "g++", "clang", "clang++", "cmake", "ninja", "make", "node", "npm", "git")
# One page of the gallery, and the value of its last block after a run.
PAGE, BLOCK, PIN = "01_sparse_segment_mean", "op", "output"
CELLS = [["3.5", "2.5", "3.5"], ["1.0", "2.0", "3.0"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--types", action="store_true", help="also check a typed program with mypy")
    parser.add_argument("--readme", action="store_true", help="also run the blocks of README.md; needs torch and JAX")
    parser.add_argument("--every", type=int, default=1, help="one golden case of so many")
    args = parser.parse_args()
    checks: list[Callable[[], str]] = [
        no_builders,
        files,
        exceptions,
        quiet_import,
        import_time,
        tour,
        *(lambda level=level: golden(level, args.every) for level in levels()),
        studio,
        *([types] if args.types else []),
        *([readme_python, readme_commands] if args.readme else []),
    ]
    for check in checks:
        began = time.perf_counter()
        said = check()
        print(f"  {said} ({time.perf_counter() - began:.1f} s)", flush=True)


def no_builders() -> str:
    """Check that no compiler or build tool is on the path."""
    from shutil import which

    found = [name for name in BUILDERS if which(name)]
    assert not found, f"on the path of this check: {found}"
    return f"path without {', '.join(BUILDERS)}"


def files() -> str:
    """Check that the package is the installed one, its extension is abi3, and licences and types are included."""
    import rowgrad
    from rowgrad import _core

    place = Path(rowgrad.__file__).parent
    assert place.is_relative_to(sys.prefix), place
    free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    assert free_threaded or ".abi3." in Path(_core.__file__).name or sys.platform == "win32", _core.__file__
    for name in ("py.typed", "raw_ops.pyi", "studio/static/studio.js", f"studio/gallery_pages/{PAGE}.json"):
        assert (place / name).is_file(), name
    there = {p.name for p in importlib.metadata.files("rowgrad") or []}
    missing = {"LICENSE", "THIRD_PARTY_NOTICES.md"} - there
    assert not missing, f"the wheel lacks {missing}"
    points = {p.name for p in importlib.metadata.entry_points(group="rowgrad.runners")}
    assert points >= {"numpy", "torch", "jax"}, points
    assert rowgrad.__version__ == importlib.metadata.version("rowgrad")
    return f"rowgrad {rowgrad.__version__} in {Path(_core.__file__).name}"


def exceptions() -> str:
    """Check that exceptions cross the boundary to nanobind's backend in both directions, whatever compiled it."""
    from rowgrad import _core

    thrown = {
        ValueError: (0, [0, 0], (bytearray(4),), b""),  # raised by rowgrad
        RuntimeError: (0, [], (), b""),  # raised by rowgrad: too few numbers
        IndexError: (1_000_000, [], (), b""),  # raised by the C++ library
        TypeError: (0, [0, 0], (object(),), b"\0"),  # raised by Python
    }
    for kind, arguments in thrown.items():
        try:
            _core.Job(*arguments)
        except kind:
            continue
        raise AssertionError(f"no {kind.__name__} for {arguments}")
    return "C++ exceptions become Python's"


def quiet_import() -> str:
    run([sys.executable, "-W", "error", "-c", "import rowgrad"])
    return "imports without a warning"


def import_time() -> str:
    """Return the best of three, next to the time that NumPy and ml_dtypes need anyway."""
    ours, theirs = (
        min(timed([sys.executable, "-c", f"import {names}"]) for _ in range(3))
        for names in ("numpy, ml_dtypes, rowgrad", "numpy, ml_dtypes")
    )
    return f"imports in {ours * 1e3:.0f} ms, NumPy and ml_dtypes alone in {theirs * 1e3:.0f} ms"


def timed(command: list[str]) -> float:
    began = time.perf_counter()
    run(command)
    return time.perf_counter() - began


def tour() -> str:
    said = run([str(SCRIPTS / "rowgrad"), "tour"])
    assert "rowgrad tour --all" in said, said[-2000:]
    every = run([str(SCRIPTS / "rowgrad"), "tour", "--all"])
    assert "SparseSegmentMeanGrad" in every, every[-2000:]
    return f"the tour has {len(said.splitlines())} lines"


def readme_blocks(language: str) -> list[str]:
    text = (HERE / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def readme_python() -> str:
    """Run the Python blocks in order, in one process; they print what the README shows."""
    blocks = readme_blocks("python")
    assert len(blocks) >= 3, blocks
    printed = run([sys.executable, "-W", "error", "-c", "\n".join(blocks)])
    assert [printed] == readme_blocks("text"), printed
    return f"the README's {len(blocks)} Python blocks run"


def readme_commands() -> str:
    """Check every command: extras exist, `rowgrad` commands start. Those for a clone need a clone."""
    extras = set(importlib.metadata.metadata("rowgrad").get_all("Provides-Extra") or [])
    checked = 0
    for line in "".join(readme_blocks("sh")).splitlines():
        program, *words = shlex.split(line, comments=True) or [""]
        if program == "pip":
            requested = {extra for word in words for extra in re.findall(r"\[(\w+)\]", word)}
            assert requested <= extras, f"{line}: there is no extra {requested - extras}"
        elif program == "rowgrad":
            assert words[:1] == ["studio"], f"{line}: this check starts `rowgrad studio` only"
            with started(words) as (_, address):
                assert Client(address).page()
        else:
            assert program in ("", "make"), line
            continue
        checked += 1
    assert checked >= 3
    return f"the README's {checked} commands for users work"


def levels() -> list[str]:
    """Return the instruction-set levels of this processor, from the lowest."""
    from rowgrad import _core

    known = ["baseline", "x86-64-v3", "x86-64-v4"]
    return known[: known.index(_core.level()) + 1]


def golden(level: str, every: int) -> str:
    """Run in a separate process: the level is chosen once per process."""
    script = f"import wheel_self_check; print(wheel_self_check.golden_here({level!r}, {every}))"
    return run([sys.executable, "-c", script], ROWGRAD_LEVEL=level, PYTHONPATH=str(HERE)).strip()


def golden_here(level: str, every: int) -> str:
    """Check TensorFlow's recorded results to the bit, and its error messages exactly."""
    import rowgrad
    from golden_cases import cases, same_bits
    from rowgrad import _core

    assert _core.level() == level, _core.level()
    right = errors = 0
    for number, case in enumerate(cases("valid", "error")):
        if number % every:
            continue
        op = getattr(rowgrad.raw_ops, case.op)
        if case.error is None:
            results = op(**case.inputs, **case.attrs)
            for (name, expected), got in zip(
                case.outputs.items(), results if isinstance(results, tuple) else (results,), strict=True
            ):
                # An empty list of rows has one dimension here, two in TensorFlow: docs/reference/differences.md.
                reference = expected.reshape(0) if expected.shape == (0, 1) and got.shape == (0,) else expected
                assert same_bits(got, reference), f"{case}: {name}\n{got}\n{expected}"
            right += 1
        elif "dtype" not in case.tag:  # rowgrad supports some dtypes that TensorFlow does not
            error = error_of(lambda op=op, case=case: op(**case.inputs, **case.attrs))
            assert error == (case.error["class"], case.error["message"]), f"{case}: {error}"
            errors += 1
    assert min(right, errors) > 0
    return f"{right} golden results and {errors} errors at {level}"


def error_of(call: Callable[[], object]) -> tuple[str, str] | None:
    from rowgrad.errors import OpError

    try:
        call()
    except OpError as error:
        return type(error).__name__, error.message
    return None


@contextmanager
def started(words: list[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start `rowgrad` with these words; yield the process and the line with the server's address, and end it."""
    command = [str(SCRIPTS / "rowgrad"), *words, "--no-browser", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert '"url": "http://127.0.0.1:' in line, line + process.communicate()[1]
        yield process, line
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def studio() -> str:
    """Start the server on a free port, fetch its page, run a gallery page through its verbs, stop it."""
    with tempfile.TemporaryDirectory() as folder, started(["studio", folder]) as (process, line):
        served = Client(line)
        size = served.page()
        cells = served.gallery_page()
        process.send_signal(signal.SIGTERM)
        stderr = process.communicate(timeout=20)[1]
        assert process.returncode == 143, f"it ended with {process.returncode}: {stderr}"
    return f"Studio serves {size // 1024} KiB, runs {PAGE} ({cells}) and ends on SIGTERM"


class Client:
    """A client of the server at an address."""

    def __init__(self, line: str) -> None:
        address = json.loads(line)
        self.host, self.port, self.token = address["host"], address["port"], address["token"]

    def request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=20)
        try:
            headers = {"X-Rowgrad-Token": self.token, "Content-Type": "application/json"}
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            read = answer.read()
            assert answer.status == 200, f"{method} {path}: {answer.status} {read[:500]!r}"
            return read
        finally:
            connection.close()

    def verb(self, verb: str, /, **given: Any) -> Any:
        return json.loads(self.request("POST", f"/api/{verb}", json.dumps(given).encode()))

    def page(self) -> int:
        """Fetch the page and the files it refers to; returns their size."""
        parts = [self.request("GET", path) for path in ("/", "/studio.js", "/studio.css")]
        assert b"studio.js" in parts[0]
        return sum(len(part) for part in parts)

    def gallery_page(self) -> str:
        """Return the elements of the result, as the page would show them."""
        self.verb("new", name="tried", page=self.verb("gallery", name=PAGE)["page"])
        state = self.verb("run", name="tried", mode="once")
        until = time.monotonic() + 20
        while state["phase"] == "running" and time.monotonic() < until:
            time.sleep(0.02)
            state = self.verb("state", name="tried")
        assert state["phase"] == "done", state
        shown = self.verb("window", name="tried", block=BLOCK, pin=PIN, rows=[0, 9], columns=[0, 9])
        assert shown["cells"] == CELLS, shown
        return f"{BLOCK}.{PIN} = {shown['cells']}"


def types() -> str:
    run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", os.devnull, str(HERE / "typed_program.py")])
    said = run([sys.executable, str(HERE / "typed_program.py")])
    return f"mypy --strict accepts a program that prints {said.strip()!r}"


def run(command: list[str], **environment: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=3600)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    return done.stdout


if __name__ == "__main__":
    main()
