"""Fuzz one reader of `readers.py` with atheris, or replay inputs without it.

    python tools/fuzzing/reader_process.py literal -max_total_time=60 build/fuzz/corpus/literal tests/corpus/literal
    python tools/fuzzing/reader_process.py literal --replay FILE…

The arguments are libFuzzer's. A replay needs only rowgrad.
"""

from __future__ import annotations

import shlex
import sys
import time
import warnings
from pathlib import Path


def replay(name: str, paths: list[str]) -> int:
    import readers

    files = [f for p in map(Path, paths) for f in (sorted(p.iterdir()) if p.is_dir() else [p]) if f.is_file()]
    begin = time.monotonic()
    for path in files:
        try:
            readers.one_input(name, path.read_bytes())
        except BaseException:
            print(f"{name}: a finding: {path}", flush=True)
            raise
    print(f"Executed {len(files)} inputs of {name} in {time.monotonic() - begin:.1f} s")
    return 0


def import_from_sources() -> None:
    """Import the package again from its sources: atheris does not instrument modules of an editable installation, and
    without coverage nothing guides it. The extension cannot be loaded twice and stays."""
    import rowgrad._core

    for name in [n for n in sys.modules if n.split(".")[0] == "rowgrad" and n != rowgrad._core.__name__]:
        del sys.modules[name]
    sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
    sys.path.insert(0, str(Path(__file__).parents[2] / "src"))


def fuzz(name: str, arguments: list[str]) -> None:
    import atheris
    from json_mutations import changed

    import_from_sources()
    # Other libraries have their own tests, and instrumenting them would be slow.
    with atheris.instrument_imports(include=["rowgrad"]):
        import readers

    def one(data: bytes) -> None:
        readers.one_input(name, data)

    def mutate(data: bytes, longest: int, seed: int) -> bytes:
        return changed(data, longest, seed) or atheris.Mutate(data, longest)

    # A merge restarts this program from a single word.
    word = Path(__file__).parents[2] / "build" / "fuzz" / "again" / name
    word.parent.mkdir(parents=True, exist_ok=True)
    word.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, __file__, name])} "$@"\n')
    word.chmod(0o700)
    atheris.Setup([str(word), *arguments], one, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.path.append(str(Path(__file__).parents[2] / "tests"))
    if sys.argv[2:3] == ["--replay"]:
        raise SystemExit(replay(sys.argv[1], sys.argv[3:]))
    fuzz(sys.argv[1], sys.argv[2:])
