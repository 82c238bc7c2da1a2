"""Products and quotients of float64 near the least normal number: the kernels' calculation, which flushes by itself,
compared with the flushing mode of this processor."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from emulated_device import HERE, _compile
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
LEAST = 2.0**-1022

UNIT = """
#include "device.cuh"
using namespace rowgrad;
static void each(bool flushes, long n, const double* a, const double* b, double* to, double (*f)(double, double)) {
  const unsigned before = _mm_getcsr();
  _mm_setcsr(flushes ? before | 0x8040u : before & ~0x8040u);
  for (long i = 0; i < n; ++i) to[i] = f(a[i], b[i]);
  _mm_setcsr(before);
}
extern "C" void device(bool divides, long n, const double* a, const double* b, double* to) {
  each(false, n, a, b, to, divides ? over<double> : times<double>);
}
static double product(double x, double y) { return x * y; }
static double quotient(double x, double y) { return x / y; }
extern "C" void cpu(bool divides, long n, const double* a, const double* b, double* to) {
  each(true, n, a, b, to, divides ? quotient : product);
}
"""
Run = Callable[[str, bool, Doubles, Doubles], Doubles]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("unit") / "unit.so"
    _compile(UNIT, (HERE / "emulated.h").read_text(), Path(path))
    library = ctypes.CDLL(str(path))

    def call(name: str, divides: bool, a: Doubles, b: Doubles) -> Doubles:
        to = np.empty_like(a)
        pointers = [ctypes.c_void_p(x.ctypes.data) for x in (a, b, to)]
        getattr(library, name)(ctypes.c_bool(divides), ctypes.c_long(len(a)), *pointers)
        return to

    return call


def flushed(x: Doubles) -> Doubles:
    """What `flushed` of the kernels does where the compiler is NVIDIA's."""
    return np.where(np.abs(x) < LEAST, np.copysign(0.0, x), x)


@pytest.mark.parametrize("divides", [False, True], ids=["times", "over"])
def test_results_around_the_least_normal_number(run: Run, divides: bool) -> None:
    draw = np.random.default_rng(1)
    n = 200_000
    other = np.exp2(draw.uniform(-1, 0, n)) * draw.choice([-1.0, 1.0], n)
    other[: n // 4] = np.exp2(draw.integers(-3, 1, n // 4))  # exact results
    near = 1 - draw.integers(0, 12, n) * 2.0**-55
    shift = draw.integers(2, 500, n)
    if divides:
        other = np.ldexp(other, shift + 2)
        one = near * (other * LEAST)
    else:
        one = np.ldexp(near / other, shift - 1022)
        other = np.ldexp(other, -shift)
    assert (np.abs(one) >= LEAST).all()
    expected = run("cpu", divides, one, other)
    got = flushed(run("device", divides, one, other))
    assert (got.view(np.int64) == expected.view(np.int64)).all()
    with np.errstate(under="ignore"):
        plain = flushed(one / other if divides else one * other)
    assert (plain != expected).any()  # the cases are the hard ones


@pytest.mark.parametrize("divides", [False, True], ids=["times", "over"])
def test_special_values(run: Run, divides: bool) -> None:
    largest = np.finfo(np.float64).max
    numbers = [0.0, 5e-324, LEAST / 2, LEAST, LEAST * 1.5, 2.0**-958, 2.0**-511, 0.75, 1.0, 2.0**511, 2.0**959]
    numbers += [largest / 2, largest, np.inf, np.nan]
    values = np.array([sign * x for x in numbers for sign in (1, -1)])
    one, other = (x.ravel() for x in np.meshgrid(values, values))
    expected = run("cpu", divides, one, other)
    got = flushed(run("device", divides, flushed(one), flushed(other)))
    same = (got.view(np.int64) == expected.view(np.int64)) | (np.isnan(got) & np.isnan(expected))
    assert same.all(), list(zip(one[~same], other[~same], strict=True))
