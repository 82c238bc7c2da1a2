"""Every kernel compiles for the oldest and the newest supported architecture; NVRTC needs no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from rowgrad.cuda import run  # noqa: F401  (registers every kernel)
from rowgrad.cuda.compile import compile_unit, cubin_of, nvrtc, unit_of
from rowgrad.cuda.kernel import KERNELS
from rowgrad.errors import UnimplementedError

ARCHITECTURES = ("sm_80", "sm_90")


def compiled(name: str, variant: tuple[str, ...], architecture: str) -> bytes:
    kernel = KERNELS[name]
    return compile_unit(nvrtc()[0], unit_of(kernel, variant), architecture)


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_one_variant_of_each_kernel(name: str) -> None:
    for architecture, variant in zip(
        ARCHITECTURES, (KERNELS[name].variants[0], KERNELS[name].variants[-1]), strict=True
    ):
        assert compiled(name, variant, architecture).startswith(b"\x7fELF")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(KERNELS))
def test_all_variants(name: str) -> None:
    for architecture in ARCHITECTURES:
        for variant in KERNELS[name].variants:
            assert compiled(name, variant, architecture).startswith(b"\x7fELF"), variant


def test_damaged_files_of_the_cache_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROWGRAD_CACHE", str(tmp_path))
    kernel = KERNELS["put_words"]
    code = cubin_of(kernel, (), "sm_90")
    (file,) = (tmp_path / "cuda").iterdir()
    file.write_bytes(b"")
    assert cubin_of(kernel, (), "sm_90") == code == file.read_bytes()


def test_compiler_errors_are_raised() -> None:
    with pytest.raises(UnimplementedError, match="undefined"):
        compile_unit(nvrtc()[0], '#include "device.cuh"\nint x = no_such_name;\n', "sm_90")
