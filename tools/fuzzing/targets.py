"""The fuzz targets: the command of each, its share of the time, and the command that repeats a finding."""

from __future__ import annotations

import platform
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORK = ROOT / "build" / "fuzz"
FINDINGS = WORK / "findings"
READING = Path(__file__).with_name("reader_process.py")
KERNELS = [  # targets of cpp/fuzz, and whether they use the row arithmetic, which is compiled for several levels
    ("segment_forward", True),
    ("segment_gradient", True),
    ("fill_empty_rows", False),
    ("slice", False),
    ("add", False),
    ("updates", True),
    ("plan", True),
    ("rows", True),
]
READERS = [
    "page_text",
    "page_run",
    "page_file",
    "literal",
    "enuspace",
    "state",
    "npy_header",
    "safetensors_header",
    "parts",
    "checkpoint",
    "studio_body",
    "studio_verb",
]
LONGEST = 1024  # bytes of a kernel's input: a few hundred ids and some values


@dataclass
class Target:
    name: str
    command: list[str]  # libFuzzer's arguments follow
    environment: dict[str, str] = field(default_factory=dict)
    kind: str = "libfuzzer"
    options: list[str] = field(default_factory=list)

    @property
    def level(self) -> str:
        return self.environment.get("ROWGRAD_LEVEL", "")

    @property
    def label(self) -> str:
        return f"{self.name} ({self.level})" if self.level else self.name

    @property
    def seeds(self) -> Path:
        """Return the folder of the committed corpus."""
        return ROOT / "tests" / "corpus" / self.name

    @property
    def grown(self) -> Path:
        """Return the folder of the corpus that runs on this machine have grown."""
        return WORK / "corpus" / self.name

    def again(self, finding: Path) -> str:
        """Return the command that repeats one input."""
        replay = ["--replay"] if self.kind == "reader" else []
        settings = [f"{name}={value}" for name, value in self.environment.items()]
        parts = [*self.command, *replay, str(finding)]
        return shlex.join(settings + [str(Path(w).relative_to(ROOT)) if w.startswith(f"{ROOT}/") else w for w in parts])


def levels() -> list[str]:
    """Return the levels of the row arithmetic that this machine supports, the most general first."""
    found = ["baseline"]
    if platform.machine().lower() not in ("x86_64", "amd64") or not Path("/proc/cpuinfo").exists():
        return found
    flags = set(next((x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("flags")), "").split())
    if {"avx2", "fma", "bmi2", "movbe"} <= flags:
        found.append("x86-64-v3")
    if {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"} <= flags:
        found.append("x86-64-v4")
    return found


def kernel_targets(build: Path, at_levels: list[str]) -> list[Target]:
    options = [f"-max_len={LONGEST}", "-len_control=0"]
    return [
        Target(name, [str(build / "cpp" / "fuzz" / f"fuzz_{name}")], {"ROWGRAD_LEVEL": level}, options=options)
        for name, by_level in KERNELS
        for level in (at_levels if by_level else at_levels[:1])
    ]


def reader_targets() -> list[Target]:
    return [Target(name, [sys.executable, str(READING), name], kind="reader") for name in READERS]


def reference_target() -> Target:
    """Return the target of random calls compared with tests/reference."""
    return Target("reference", [sys.executable, str(Path(__file__).with_name("random_calls.py"))], kind="reference")
