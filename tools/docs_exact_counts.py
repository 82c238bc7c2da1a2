"""Count the numbers on docs/explanation/exact.md in the repository, so that none of them is typed by hand."""

from __future__ import annotations

import json
import re
import textwrap
from collections import Counter
from pathlib import Path

import numpy as np

from rowgrad._catalog.spec import CATALOG

ROOT = Path(__file__).resolve().parent.parent
GROUPS = {
    "valid": "the same bits; any NaN equals any NaN",
    "error": "the same class and message",
    "quirk": "TensorFlow's result uses the wrong bits: an error here",
    "undefined": "TensorFlow returns memory as it was: zeros here",
}


def golden() -> str:
    lines = (ROOT / "tests/golden/index.jsonl").read_text(encoding="utf-8").splitlines()
    cases = [json.loads(line) for line in lines]
    groups = Counter(case["group"] for case in cases)
    kinds = {case["op"] for case in cases}
    with np.load(ROOT / "tests/golden/updates.npz") as file:
        steps = len(json.loads(str(file["cases"]))["cases"])
    with np.load(ROOT / "tests/golden/random.npz") as file:
        draws = len(file.files)
    rows = "".join(f"| {group} | {groups[group]:,} | {requirement} |\n" for group, requirement in GROUPS.items())
    return (
        f"{len(cases):,} calls of {len(kinds)} ops and lookups, and what came back:\n\n"
        f"| kind | cases | what rowgrad must do |\n|---|---|---|\n{rows}\n"
        f"There are also {steps} runs of TensorFlow's optimizers, {draws} draws of its random numbers, and "
        f"{len(folders('tests/golden/checkpoints'))} kinds of checkpoint files.\n"
    )


def folders(place: str) -> list[Path]:
    return [path for path in (ROOT / place).iterdir() if path.is_dir()]


def catalogue() -> str:
    layers = Counter(op.layer for op in CATALOG.values())
    linear = sum(bool(op.linear) for op in CATALOG.values())
    adjoint = sum(op.adjoint is not None for op in CATALOG.values())
    return (
        f"The catalogue has {layers['kernel']} ops with kernels, {layers['dense']} dense ops and "
        f"{layers['graph']} blocks. {adjoint} have a gradient, {linear} are linear in something.\n"
    )


def fuzzing() -> str:
    often, kernels = calls(".ci/run"), len(list((ROOT / "cpp/fuzz").glob("fuzz_*.cpp")))
    corpus = [folder for folder in (ROOT / "tests/corpus").iterdir() if folder.is_dir()]
    inputs = sum(1 for folder in corpus for _ in folder.iterdir())
    lines = sum(len(p.read_text(encoding="utf-8").splitlines()) for p in (ROOT / "tests/reference").glob("*.py"))
    return wrapped(
        f"The reference is {lines:,} lines of loops. CI compares every change with it in {often:,} random calls. "
        f"`make fuzz MINUTES=60` runs more of them for an hour, and {kernels} fuzz targets of kernels and "
        f"{len(corpus) - kernels} of readers, guided by coverage; {inputs:,} inputs that reached new code are kept."
    )


def wrapped(text: str) -> str:
    return textwrap.fill(text, 120) + "\n"


def calls(path: str) -> int:
    found = re.search(r"random_calls\.py --calls (\d+)", (ROOT / path).read_text(encoding="utf-8"))
    if found is None:
        raise ValueError(f"{path} no longer contains the number of random calls")
    return int(found[1])


def sanitizers() -> str:
    found = re.search(r"^SANITIZERS := (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise ValueError("the Makefile has no SANITIZERS")
    programs = len(list((ROOT / "cpp/test").glob("test_*.cpp")))
    names = found[1].replace(",", " ").split()
    return (
        f"{programs} programs of C++ tests run under {len(names)} sanitizers: {', '.join(names)}; under the last "
        "without those that start no thread.\n"
    )


def emulated() -> str:
    texts = [p.read_text(encoding="utf-8") for p in (ROOT / "src/rowgrad/cuda/source").glob("*.cuh")]
    kernels = sum(len(re.findall(r"void \w+\(const \w+& p\)", text)) for text in texts)
    files = len(list((ROOT / "tests/cuda").glob("test_emulated_*.py")))
    return f"{kernels} kernels, {files} files of tests.\n"


def parts() -> dict[str, str]:
    """Return the generated parts of docs/explanation/exact.md by name."""
    functions = (golden, catalogue, fuzzing, sanitizers, emulated)
    return {make.__name__: make() for make in functions}
