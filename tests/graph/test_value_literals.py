"""Values as text: what is accepted, what is rejected and where, and that writing is the inverse of reading."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from rowgrad._catalog.spec import ALL_DTYPES, COMPLEX, FLOATS, QUANTIZED
from rowgrad._runtime.arrays import NUMPY_DTYPE, aval_of
from rowgrad.graph.literal import format_literal, parse_attrs, parse_dtype, parse_literal, parse_shape
from rowgrad.graph.page import PageError


@pytest.mark.parametrize(
    ("text", "dtype", "value"),
    [
        ("5", "int32", 5),
        (" { 5 ,3 } ", "int32", [5, 3]),
        ("{{1,2},{3,4}}", "int32", [[1, 2], [3, 4]]),
        ("{{{1}},{{2}}}", "int32", [[[1]], [[2]]]),
        ("{{79 },{110}}", "int32", [[79], [110]]),
        ("{}", "int32", []),
        ("{{},{}}", "int32", [[], []]),
        ("{1,2,}", "int32", [1, 2]),
        ("{{1,2,},{3,4,},}", "int32", [[1, 2], [3, 4]]),
        ("{{1,2},{3,4}};", "int32", [[1, 2], [3, 4]]),
        ("1.5f; ", "float32", 1.5),
        ('"a;";', "string", "a;"),
        ("2147483647", "int32", 2**31 - 1),
        ("2147483648", "int64", 2**31),
        ("{-9223372036854775808,1}", "int64", [-(2**63), 1]),
        ("{1.0f,2}", "float32", [1.0, 2.0]),
        ("{1,2.5}", "float64", [1.0, 2.5]),
        ("-1e3", "float64", -1000.0),
        (".5", "float64", 0.5),
        ("{inf,-inf,1f}", "float32", [np.inf, -np.inf, 1.0]),
        ("{true,FALSE,True}", "int32", [1, 0, 1]),
        ("{1+2j,-3j}", "complex128", [1 + 2j, -3j]),
        ('"a"', "string", "a"),
        ('{"a,b","}{"}', "string", ["a,b", "}{"]),
        (r'{"\"\\\n\t\x00\xff","é"}', "string", [b'"\\\n\t\x00\xff', "é"]),
    ],
)
def test_dtype_and_shape_are_inferred_from_the_text(text: str, dtype: str, value: Any) -> None:
    array = parse_literal(text)
    assert aval_of(array).dtype == dtype
    assert array.tolist() == value
    assert array.shape == np.array(value, object if dtype == "string" else None).shape


@pytest.mark.parametrize(
    ("text", "dtype", "value"),
    [
        ("{1.0f,2.5f}", "float64", [1.0, 2.5]),
        ("{1,0}", "float32", [1.0, 0.0]),
        ("9007199254740993", "int64", 2**53 + 1),
        ("9007199254740993.0", "int64", 2**53 + 1),
        ("18446744073709551615", "uint64", 2**64 - 1),
        ("2e2", "uint8", 200),
        ("3f", "int16", 3),
        ("true", "float16", 1.0),
        ("{TRUE,false,1,0}", "bool", [True, False, True, False]),
        ("{true,2}", "complex64", [1.0, 2.0]),
        ("{hello there, x}", "string", ["hello there", "x"]),
        ("word", "DT_STRING", "word"),
        ("word;", "DT_STRING", "word;"),
        ("{}", "qint8", []),
    ],
)
def test_an_explicit_dtype_overrides_the_text(text: str, dtype: str, value: Any) -> None:
    array = parse_literal(text, dtype)
    assert aval_of(array).dtype == parse_dtype(dtype)
    assert array.tolist() == value


def test_nan_and_quantized_dtypes() -> None:
    assert np.isnan(parse_literal("nan"))
    assert np.isnan(parse_literal("nan", "bfloat16"))
    array = parse_literal("{-1,5}", "qint32")
    assert array.dtype == NUMPY_DTYPE["qint32"]
    assert array["qint32"].tolist() == [-1, 5]


@pytest.mark.parametrize(
    ("text", "dtype", "message"),
    [
        ("{{1,2},{3}}", None, "these braces have 1 entries, those before have 2, at character 10"),
        ("{1,{2}}", None, "braces beside values, at character 4"),
        ("{{1},2}", None, "a value beside braces, at character 6"),
        ("{{1},{}}", None, "these braces have 0 entries, those before have 1"),
        ("{1,,}", None, "a comma where a value should be, at character 4"),
        ("{{1,2,},{3,}}", None, "these braces have 1 entries, those before have 2"),
        (";", None, "the text is empty"),
        ("5;;", None, "is not a valid int32"),
        ("{,1}", None, "a comma where a value should be, at character 2"),
        ("{1}{2}", None, "nothing may follow the value, at character 4"),
        ("1,2", None, "a comma outside of braces, at character 2"),
        ("{1", None, "a brace is not closed, at character 3"),
        ("1}", None, "a closing brace without an opening one, at character 2"),
        ("", None, "the text is empty"),
        ("  ", "string", "the text is empty"),
        ('{"a" "b"}', None, "a comma is missing before this, at character 6"),
        ('{"a, 1}', None, "a quote is not closed, at character 2"),
        (r'"a\q"', None, r"unknown escape \\q"),
        ('{"a",1.5}', "float32", "'\"a\"' at character 2 is not a valid float32"),
        ("{" * 33 + "}" * 33, None, "more than 32 braces"),
        ("{1, abc}", None, "'abc' at character 5 is not a valid int32"),
        ("1_000", None, "is not a valid int32"),
        ("٣", None, "is not a valid int32"),
        ("0x10", None, "is not a valid int32"),
        ("1 2", None, "is not a valid int32"),
        ("{1,-129}", "int8", r"'-129' at character 4 is not in \[-128, 127\], the range of int8"),
        ("9223372036854775808", "int64", "9223372036854775807"),
        ("99999999999999999999", None, "9223372036854775807"),
        ("1e999999999", "int32", "is not in"),
        ("9" * 5000, None, "is not in"),
        ("{1,1.5}", "int32", "'1.5' at character 4 is not an integer"),
        ("nan", "int32", "is not an integer"),
        ("1e39", "float32", "is too large for float32"),
        ("-1e400", None, "is too large for float64"),
        ("2", "bool", r"\[0, 1\]"),
        ("1", "DT_WHAT", "'DT_WHAT' is not a dtype; allowed are float16"),
    ],
)
def test_errors_name_the_position(text: str, dtype: str | None, message: str) -> None:
    with pytest.raises(PageError, match=message):
        parse_literal(text, dtype)


def sample(dtype: str) -> Any:
    rng = np.random.default_rng(0)
    numpy = NUMPY_DTYPE[dtype]
    if dtype == "string":
        array = np.empty((3, 2), dtype=object)
        array[:] = [["", '"\\'], [bytes(range(256)), "é\n\x7f"], ["a,b}{", b"\xff\xfe"]]
        return array
    if dtype in QUANTIZED:
        numpy = numpy[0]
    if dtype in FLOATS or dtype in COMPLEX:
        parts = [(rng.standard_normal((50, 4)) * 10.0 ** rng.integers(-3, 4, (50, 4))) for _ in "ri"]
        array = (parts[0] + 1j * parts[1] if dtype in COMPLEX else parts[0]).astype(numpy)
        array[0] = [np.inf, -np.inf, 0.0, -0.0]
        return array
    if dtype == "bool":
        return rng.integers(0, 2, (5, 3)).astype(bool)
    info = np.iinfo(numpy)
    edges = np.array([[info.min, info.max, 0, 1]], dtype=numpy)
    return edges.view(NUMPY_DTYPE[dtype])


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_writing_is_the_inverse_of_reading(dtype: str) -> None:
    array = sample(dtype)
    for part in (array, array[0], array[0, 0:1].reshape(()), array[:0, 0], array[:, :0]):
        again = parse_literal(format_literal(part), dtype)
        assert again.dtype == part.dtype
        assert again.shape == part.shape
        assert again.tobytes() == part.tobytes() if dtype != "string" else again.tolist() == part.tolist()


@pytest.mark.parametrize("dtype", ["int32", "float32", "float64", "complex128", "string"])
def test_some_dtypes_are_inferred(dtype: str) -> None:
    assert parse_literal(format_literal(sample(dtype))).dtype == NUMPY_DTYPE[dtype]


def test_a_shape_without_values() -> None:
    with pytest.raises(PageError, match=r"an array of shape \[0, 3\] cannot be written as text"):
        format_literal(np.zeros((0, 3)))


def test_parsing_time_is_linear_in_the_length() -> None:
    began = time.process_time()
    assert parse_literal("{" + ",".join(map(str, range(1_000_000))) + "}").shape == (1_000_000,)
    for text in ('"\\"' * 300_000, "a=" + " " * 300_000 + '"', "a" + " " * 300_000 + "{", "{" * 300_000):
        for parse in (parse_literal, parse_attrs, parse_shape):
            with pytest.raises(PageError):
                parse(text)
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    ("text", "shape"),
    [("", []), (" ", []), ("{}", []), ("[2][2]", [2, 2]), ("{2,2}", [2, 2]), (" { 3 } ", [3]), ("{-1,4}", [-1, 4])],
)
def test_shapes_are_parsed(text: str, shape: list[int]) -> None:
    assert parse_shape(text) == shape


@pytest.mark.parametrize(
    "text", ["2", "[2", "[2][]", "{2,,}", "{,}", "[a]", "[-2]", "[" + "9" * 30 + "]", "[1]" * 33, "[2]{2}"]
)
def test_invalid_shapes_raise(text: str) -> None:
    with pytest.raises(PageError, match=r"is not a shape|dimensions"):
        parse_shape(text)


def test_dtype_names_are_parsed() -> None:
    for name in ALL_DTYPES:
        assert parse_dtype(name) == name
    names = {"DT_INT64": "int64", "DT_HALF": "float16", "half": "float16", "double": "float64", "float": "float32",
            "int": "int32", "DT_BFLOAT16": "bfloat16", "DT_QUINT8": "quint8", "DT_FLOAT": "float32"}  # fmt: skip
    assert {text: parse_dtype(text) for text in names} == names


@pytest.mark.parametrize(
    ("text", "attrs"),
    [
        ("transpose_a_ = false;transpose_b_ =true;", {"transpose_a": "false", "transpose_b": "true"}),
        ("keep_dims_ =true", {"keep_dims": "true"}),
        ("container_ =;shared_name_ =;", {"container": "", "shared_name": ""}),
        ("shape_={2,3}", {"shape": "{2,3}"}),
        (' ; name_ = "a;b" ;', {"name": "a;b"}),
        ("", {}),
    ],
)
def test_attributes_are_parsed(text: str, attrs: dict[str, str]) -> None:
    assert parse_attrs(text) == attrs


@pytest.mark.parametrize("text", ["keep_dims_", "a=1;b", "=1", "a b = 1", 'a = "x', "a=1;a_=2", r'a="\q"'])
def test_invalid_attributes_raise(text: str) -> None:
    with pytest.raises(PageError, match="attribute"):
        parse_attrs(text)
