"""Write the C++ headers derived from the catalogue: enums, rules, and the numbers that each kernel reads.

The structs of CUDA kernels are derived from their sources. `--check` compares instead. CUDA sources read the same
records when they are compiled (`rowgrad.cuda.kernel`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path

import rowgrad.raw_ops  # noqa: F401  fills the catalogue
from rowgrad._catalog.enums import Fault, Order, Reduction, Rounding
from rowgrad._catalog.kernels import KERNELS, PARAMETERS, UPDATE_KERNELS
from rowgrad._catalog.rules import NUMBERS, RULES, RuleSpec
from rowgrad.cuda.kernel import SOURCE, entry_structs, kernel_structs, size_of

CPP = Path(__file__).parent.parent / "cpp"
WIDTH = 120


def enum(name: str, members: list[str], doc: str, kind: str = "std::int64_t") -> str:
    values_ = ", ".join(f"{member} = {i}" for i, member in enumerate(members))
    line = f"enum class {name} : {kind} {{ {values_} }};"
    if len(line) > WIDTH:
        body = "".join(f"  {member} = {i},\n" for i, member in enumerate(members))
        line = f"enum class {name} : {kind} {{\n{body}}};"
    return f"// {doc}\n{line}\n"


def of_enum(cls: type[IntEnum]) -> str:
    members = [member.name for member in sorted(cls)]
    assert [int(m) for m in sorted(cls)] == list(range(len(members))), cls
    return enum(cls.__name__, members, (cls.__doc__ or "").split(". ")[0].rstrip(".") + ".")


def each(macro: str, names: list[str]) -> str:
    return f"#define {macro}(X) \\\n  " + " \\\n  ".join(f"X({name})" for name in names) + "\n"


def fact(kind: str, name: str, values: dict[str, str], doc: str) -> str:
    cases = "".join(f"    case Rule::{rule}:\n      return {value};\n" for rule, value in values.items())
    return (
        f"// {doc}\nstatic constexpr {kind} {name}(Rule rule) {{\n  switch (rule) {{\n{cases}  }}\n"
        "  __builtin_unreachable();  // kernels reject other numbers\n}\n"
    )


def literal(value: bool) -> str:
    return str(value).lower()


def rules() -> str:
    def values(get: object) -> dict[str, str]:
        return {name: get(spec) for name, spec in RULES.items()}  # type: ignore[operator]

    def per_row(spec: RuleSpec) -> str:
        return literal(spec.per_row)

    return "\n".join(
        (
            enum("Rule", list(RULES), "What an optimizer does to a row (src/rowgrad/_catalog/rules.py)."),
            each("ROWGRAD_RULES", list(RULES)),
            f"constexpr int kMostSlots = {max(len(spec.slots) for spec in RULES.values())};\n",
            "// Functions are `static`, as in dtype.h: this header is compiled for newer processors as well.\n",
            fact("int", "slots_of", values(lambda s: str(len(s.slots))), "How many slots a rule has."),
            fact("bool", "is_per_row", values(per_row), "Whether its slot is one number for a whole row."),
            fact(
                "bool", "fades", values(lambda s: literal(s.fades)), "Whether moments of rows without a gradient fade."
            ),
            fact(
                "bool",
                "decays_in_gradient",
                values(lambda s: literal(s.decay == "coupled")),
                "Whether weight_decay is a part of the gradient.",
            ),
            fact(
                "bool",
                "needs_positive_lr",
                values(lambda s: literal("lr" in s.positive)),
                "Whether its learning rate must be above 0.",
            ),
            fact("const char*", "class_of", values(lambda s: f'"{s.class_name}"'), "Its class in CUDA sources."),
            "// The numbers of a step, in the order in which kernels read them.",
            each("ROWGRAD_STEP_NUMBERS", list(NUMBERS)),
        )
    )


def parameters() -> str:
    def count(name: str) -> int:
        members = PARAMETERS[name]
        return 2 if members is None else len(members)

    lines = []
    for name, spec in KERNELS.items():
        values_ = ", ".join(f'{{"{p}", {count(p)}}}' for p in spec.parameters)
        lines.append(f'    {{"{name}", {{{values_}}}}},\n')
    for name, names in UPDATE_KERNELS.items():
        counts = {
            "rule": len(RULES),
            "rows": 0,
            "seed": 0,
            "step": 0,
            "weighted": 2,
            "lazy": 2,
            "stochastic_rounding": 2,
        }
        values_ = ", ".join(f'{{"{p}", {counts[p] if p in counts else count(p)}}}' for p in names)
        lines.append(f'    {{"{name}", {{{values_}}}}},\n')
    return (
        "// The numbers each kernel reads besides its arrays. A parameter takes the values 0, …, count - 1; 0: any.\n"
        "struct Parameter {\n  const char* name;\n  std::int64_t count;\n};\n"
        "struct KernelParameters {\n  const char* kernel;\n  std::initializer_list<Parameter> list;\n};\n"
        f"inline const KernelParameters kKernelParameters[] = {{\n{''.join(lines)}}};\n"
    )


def cuda_parameters() -> str:
    """Return the structs of CUDA kernels as the launcher fills them: every field has eight bytes."""
    structs = []
    for file in sorted(p.name for p in SOURCE.glob("*.cuh")):
        for struct, fields in entry_structs(file).items():
            structs.append(f"struct {struct} {{\n{_cuda_fields(fields)}}};\n")
        for name, (struct, fields) in kernel_structs(file).items():
            head = f'  static constexpr const char* kernel = "{name}";\n'
            structs.append(f"struct {struct} {{\n{head}{_cuda_fields(fields)}}};\n")
    return "\n".join(("using Address = std::uint64_t;  // of device memory\n", *structs))


def _cuda_fields(fields: Mapping[str, str]) -> str:
    lines = []
    for field, kind in fields.items():
        if "[" in kind:
            lines.append(f"  std::int64_t {field}[{size_of(kind)}] = {{}};\n")
        else:
            own = "double" if kind == "double" else "Address" if kind.endswith("*") else "std::int64_t"
            lines.append(f"  {own} {field} = 0;\n")
    return "".join(lines)


def page(what: str, *parts: str, source: str = "src/rowgrad/_catalog", namespace: str = "rowgrad") -> str:
    note = f"// {what}, written by tools/gen_headers.py from {source}. Do not edit.\n"
    head = f"#pragma once\n#include <cstdint>\n#include <initializer_list>\n\nnamespace {namespace} {{\n"
    return "\n".join((note + head, *parts, f"}}  // namespace {namespace}\n"))


def texts() -> dict[Path, str]:
    faults = [fault.name for fault in sorted(Fault)]
    enums = page(
        "Enums and optimizer rules",
        of_enum(Reduction),
        of_enum(Order),
        of_enum(Rounding),
        enum("Fault", faults, "What a kernel found wrong with its data.", "std::uint8_t"),
        each("ROWGRAD_FAULTS", faults),
        rules(),
    )
    return {
        CPP / "include" / "rowgrad" / "enums.h": enums,
        CPP / "kernels" / "kernel_parameters.h": page("Kernel parameters", parameters()),
        CPP / "cuda" / "kernel_structs.h": page(
            "Parameters of CUDA kernels", cuda_parameters(), source="src/rowgrad/cuda/source", namespace="rowgrad::cuda"
        ),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    check = parser.parse_args().check
    stale = 0
    for file, text in texts().items():
        if file.exists() and file.read_text(encoding="utf-8") == text:
            continue  # so that nothing is compiled again
        if not check:
            file.write_text(text, encoding="utf-8")
            print(f"wrote {file.name}")
        else:
            print(f"{file.relative_to(CPP.parent)} is stale: run `make generate`", file=sys.stderr)
            stale = 1
    return stale


if __name__ == "__main__":
    raise SystemExit(main())
