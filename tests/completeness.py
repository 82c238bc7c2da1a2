"""Find what is missing for a record, and the file where it belongs: the checks behind CONTRIBUTING.md's recipes.

Each function returns lines `FILE: what to add`; an empty list means that every runner, test and page has the record.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import reference
from reference import updates as reference_updates
from rowgrad import _core
from rowgrad._catalog.enums import Fault, Order, Reduction, Rounding
from rowgrad._catalog.kernels import KERNELS, KernelSpec
from rowgrad._catalog.rules import RULES, RuleSpec
from rowgrad._catalog.spec import CATALOG, Op
from rowgrad._error_messages import MESSAGES
from rowgrad._runtime import vmap

ROOT = Path(__file__).resolve().parent.parent
CPP = ROOT / "cpp"
CATALOGUE = ROOT / "src/rowgrad/_catalog"
CUDA = ROOT / "src" / "rowgrad" / "cuda" / "source"


@cache
def text_of(file: Path) -> str:
    return file.read_text(encoding="utf-8")


@cache
def formulas() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_formulas", ROOT / "tools" / "docs_formulas.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@cache
def family_of(name: str) -> str:
    """Return the module of the catalogue that declares a kernel or an op, or the recipes' placeholder for it."""
    declaring = [file.stem for file in sorted(CATALOGUE.glob("*.py")) if f'"{name}"' in text_of(file)]
    return declaring[0] if declaring else "<family>"


def missing_for_kernel(spec: KernelSpec) -> list[str]:
    """Check that a kernel has C++, a vmap rule, CUDA, a portable JAX version and a fuzz target."""
    from rowgrad.cuda import run as _families  # noqa: F401  registers every kernel
    from rowgrad.cuda.call import RUNNERS
    from rowgrad.jax import portable

    missing = []
    if spec.name not in {name for name, _ in _core.kernels()}:
        missing.append(f"cpp/kernels/kernels.cpp: list the kernel {spec.name}")
    if spec.vmap and spec.vmap not in vmap.RULES:
        missing.append(f"src/rowgrad/_runtime/vmap.py: write the rule {spec.vmap} for {spec.name}")
    if "cuda" in spec.devices and spec.name not in RUNNERS:
        missing.append(f"src/rowgrad/cuda/{family_of(spec.name)}.py: write a function with @runs({spec.name!r})")
    sized = [op.name for op in CATALOG.values() if op.kernel == spec.name and not op.is_data_sized]
    if (sized or not spec.data_sized) and spec.name not in portable.KERNELS:
        file = "segments" if "reduction" in spec.parameters else "rows"
        missing.append(f"src/rowgrad/jax/portable/{file}.py: write {spec.name} and enter it into the KERNELS there")
    target = CPP / "fuzz" / f"fuzz_{spec.fuzz}.cpp"
    if not spec.fuzz or not target.exists():
        file = f"src/rowgrad/_catalog/{family_of(spec.name)}.py"
        missing.append(f"{file}: name a fuzz target of cpp/fuzz for the kernel {spec.name}")
    elif not any(f'"{spec.name}"' in text_of(file) for file in (CPP / "fuzz").glob("*.*")):
        missing.append(f"{target.relative_to(ROOT)}: call the kernel {spec.name}")
    return missing


def missing_for_op(op: Op) -> list[str]:
    """Check that an op has a kernel or a dense function, a reference, a formula, and the ops it refers to."""
    from rowgrad._runtime import dense

    missing = []
    if op.kernel is not None and op.kernel not in KERNELS:
        file = f"src/rowgrad/_catalog/{family_of(op.name)}.py"
        missing.append(f"{file}: declare kernel({op.kernel!r}) beside {op.name}")
    if op.layer == "kernel" and op.name not in reference.OPS:
        missing.append(f"tests/reference/checks.py: enter {op.name} into OPS")
    if op.layer == "dense" and op.kernel is None and op.name not in dense.FUNCTIONS:
        missing.append(f"src/rowgrad/_runtime/dense/: enter {op.name} into the FUNCTIONS of its family")
    if op.layer != "graph":
        try:
            formulas().formula(op.name)
        except KeyError:
            missing.append(f"tools/docs_formulas.py: write the formula of {op.name}")
    for other in (op.planned, op.without_plan, op.padded, op.sized, op.dense):
        if other and other not in CATALOG:
            missing.append(f"src/rowgrad/_catalog/{family_of(op.name)}.py: declare {other}, which {op.name} refers to")
    return missing


def missing_for_rule(spec: RuleSpec) -> list[str]:
    """Check that a rule has arithmetic in C++, CUDA and JAX, a torch class, two references and a formula."""
    from rowgrad import jax as rowgrad_jax
    from rowgrad import torch as rowgrad_torch
    from rowgrad.jax.update_rules import STEPS

    missing = []
    header = text_of(CPP / "include" / "rowgrad" / "enums.h")
    if f"X({spec.name})" not in header:
        missing.append("cpp/include/rowgrad/enums.h: run `make generate`")
    if f"Rule::{spec.name}" not in text_of(CPP / "kernels" / "update_rows.cpp"):
        missing.append(f"cpp/kernels/update_rows.cpp: write the step of {spec.name}")
    if f"struct {spec.class_name} : {spec.class_name}Facts " not in text_of(CUDA / "update_rules.cuh"):
        missing.append(f"src/rowgrad/cuda/source/update_rules.cuh: write the struct {spec.class_name}")
    if spec.name not in STEPS:
        missing.append(f"src/rowgrad/jax/update_rules.py: enter {spec.name} into STEPS")
    if f"case Rule::{spec.name}:" not in text_of(CPP / "test" / "naive_rule.h"):
        missing.append(f"cpp/test/naive_rule.h: write {spec.name} as a loop")
    if f'"{spec.name}"' not in text_of(Path(reference_updates.__file__)):
        missing.append(f"tests/reference/updates.py: write {spec.name} for one row")
    if spec.name in RULES and not hasattr(rowgrad_torch.optim, spec.class_name):
        missing.append(f"src/rowgrad/torch/optim.py: make the class {spec.class_name}")
    if spec.name in RULES and not hasattr(rowgrad_jax.optim, spec.name):
        missing.append(f"src/rowgrad/jax/optim.py: make the function {spec.name}")
    if f"| `{spec.name}` |" not in text_of(ROOT / "docs" / "reference" / "optimizers.md"):
        missing.append("docs/reference/optimizers.md: run `make generate`")
    return missing


# -- switches ---------------------------------------------------------------------------------------------------------

ENUMS = {cls.__name__: [member.name for member in cls] for cls in (Reduction, Order, Rounding)}
ENUMS["Rule"] = list(RULES)
_SWITCH = re.compile(r"\bswitch \([^{]*\) \{")
_COMPARED = re.compile(r"[!=]= (Reduction|Order|Rounding)::\w+|\b(Reduction|Order|Rounding)::\w+ [!=]=")


def sources() -> list[Path]:
    """Return the C++ and CUDA sources that compute; tests and fuzz targets need not cover every member."""
    cpp = [*(CPP / "include" / "rowgrad").glob("*.h"), *(CPP / "kernels").glob("*.*")]
    return sorted([*cpp, *CUDA.glob("*.cuh"), CPP / "test" / "naive_rule.h"])


def _blocks(text: str) -> Iterator[tuple[int, str]]:
    """Yield every switch with its line number."""
    for match in _SWITCH.finditer(text):
        depth, end = 1, match.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        yield text.count("\n", 0, match.start()) + 1, text[match.end() : end]


def incomplete_switches(text: str, file: str) -> list[str]:
    """Find switches over a shared enum without a member or with a default, and comparisons with a single member."""
    found = []
    for line, body in _blocks(text):
        cases = re.findall(r"case (\w+)::(\w+)", body)
        for name in {enum for enum, _ in cases} & ENUMS.keys():
            covered = {member for enum, member in cases if enum == name}
            missing = [member for member in ENUMS[name] if member not in covered]
            if "ROWGRAD_RULES(" not in body and missing:
                found.append(f"{file}:{line}: this switch over {name} leaves out {', '.join(missing)}")
            if "default:" in body:
                found.append(f"{file}:{line}: this switch over {name} has a default, which hides new members")
    for number, row in enumerate(text.splitlines(), 1):
        if _COMPARED.search(row):
            found.append(f"{file}:{number}: compares with one member of an enum: switch over all of them")
    return found


def missing_messages() -> list[str]:
    """Check that every fault of a kernel has a message."""
    return [f"src/rowgrad/_error_messages.py: word the fault {f.name}" for f in Fault if f and f.name not in MESSAGES]
