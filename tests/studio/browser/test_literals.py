"""Values that are typed straight into pins: on blocks, in the inspector, of every dtype, and wrong ones."""

from __future__ import annotations

import re
import time

import pytest
from desk import Desk, block, const
from made_pages import array, made, session
from playwright.sync_api import Route, expect

SLOW = 0.6  # seconds an answer is held back
LARGE = "9007199254740993"  # the first whole number that JavaScript and float64 round
TYPED = {
    "bool": "{true,false}",
    "string": '{"a b","c"}',
    "complex64": "{1+2j,-3j}",
    "complex128": "{1+2j,-3j}",
    "float16": "{0.5,-2}",
    "bfloat16": "{0.5,-2}",
    "float32": "{0.1,-2}",
    "float64": "{0.1,1e300}",
    "uint8": "{0,255}",
    "uint64": "{0,18446744073709551615}",
    "int64": "{-9223372036854775808,9223372036854775807}",
}
SHOWN = {
    "string": ["a b", "c"],
    "complex64": ["1.0+2.0j", "0.0-3.0j"],
    "bfloat16": ["0.5", "-2.0"],
    "uint64": ["0", "18446744073709551615"],
    "int64": ["-9223372036854775808", "9223372036854775807"],
}


@pytest.mark.feature("literals")
@pytest.mark.broken("rowgrad.studio.value_input:_without_dtype", "lambda found, truth: 7")
def test_inline_literal_on_an_unwired_pin(desk: Desk) -> None:
    """Inline literal on an unwired pin (also on a sparse-family block)."""
    desk.open_made(
        made("sum", "Add"), made("segments", "SparseSegmentSum", (0, 200)), session("sum.z", "segments.output")
    )
    desk.type_value("sum", "x", "{1,2,3}")
    desk.type_value("sum", "y", "10")
    desk.type_value("segments", "data", "{{1,2},{3,4},{5,6}}")
    desk.type_value("segments", "indices", "{0,2}")
    desk.type_value("segments", "segment_ids", "{0,0}")
    assert desk.saved("sum")["values"] == {"x": [1, 2, 3], "y": 10}
    assert desk.saved("segments")["values"]["data"] == [[1, 2], [3, 4], [5, 6]]
    desk.run_once()
    assert desk.result("sum", "z") == [["11"], ["12"], ["13"]]
    assert [[float(x) for x in row] for row in desk.result("segments", "output")] == [[6, 8]]


@pytest.mark.feature("literals")
@pytest.mark.broken(
    "rowgrad.studio.value_input:parse_literal", "lambda *words: original(*words).astype('f8').astype('i8')"
)
@pytest.mark.broken("rowgrad.studio.value_text:texts_of", "lambda flat: [str(int(float(x))) for x in flat]")
def test_an_int64_keeps_all_its_digits(desk: Desk) -> None:
    """int64-safe entry: it survives typing, saving, running and the result table."""
    desk.open_made(made("sum", "Add", values={"y": 0}), session("sum.z"))
    desk.type_value("sum", "x", f"{{{LARGE},1}}", "int64")
    assert desk.saved_value("sum", "x") == {"dtype": "int64", "shape": [2], "data": [LARGE, 1]}
    desk.run_once()
    assert desk.result("sum", "z") == [[LARGE], ["1"]]
    desk.reload()
    expect(desk.block("sum")).to_contain_text(LARGE[:10])
    desk.select("sum")
    expect(desk.inspector.get_by_label("Value of sum.x", exact=True)).to_have_value(f"{{{LARGE},1}}")


@pytest.mark.feature("literals", "attributes")
def test_const_with_dtype_shape_and_literal(desk: Desk) -> None:
    """Const with dtype, shape, literal."""
    desk.open_made(made("const", "Const"), session("const.output"))
    desk.type_value("const", "val", "{1,2,3,4}")
    desk.select("const")
    desk.inspector.get_by_label("dtype of const", exact=True).select_option("float64")
    desk.type_in_inspector("shape of const", "{2,2}")
    expect(desk.block("const").locator('[data-out="output"]')).to_contain_text("float64[2,2]")
    assert desk.saved("const")["attrs"] == {"dtype": "float64", "shape": [2, 2]}
    assert desk.saved_value("const", "val") == [1, 2, 3, 4]
    desk.run_once()
    assert desk.result("const", "output") == [["1.0", "2.0"], ["3.0", "4.0"]]


@pytest.mark.feature("literals", "attributes", "wires")
@pytest.mark.broken(
    "rowgrad.studio.page_session:PageRun._open", "lambda run, prepared, engine: (PageSession.new(prepared, engine), [])"
)
def test_variable_from_a_literal_or_a_wire_keeps_its_value(desk: Desk) -> None:
    """Variable (literal with shape; wired Const; keeps its value between runs)."""
    desk.open_made(
        made("typed", "Variable"),
        made("wired", "Variable", (0, 200)),
        made("first", "Const", (-340, 200), values={"val": array("int32", [10, 20])}),
        made("more", "AssignAdd", (340, 0), values={"value": [[1, 1], [1, 1]]}, wires={"ref": "typed.ref"}),
        made("more_2", "AssignAdd", (340, 200), values={"value": [5, 5]}, wires={"ref": "wired.ref"}),
        session("more.output_ref", "more_2.output_ref"),
    )
    desk.type_value("typed", "initvalues", "{1,2,3,4}", "float32")
    desk.type_in_inspector("shape of typed", "2 2")
    desk.wire("first.output", "wired.initvalues")
    expect(desk.block("typed").locator('[data-out="ref"]')).to_contain_text("float32[2,2]")
    expect(desk.block("wired").locator('[data-out="ref"]')).to_contain_text("int32[2]")
    desk.run_once()
    assert desk.result("more", "output_ref") == [["2.0", "3.0"], ["4.0", "5.0"]]
    assert desk.result("more_2", "output_ref") == [["15"], ["25"]]
    desk.run_once()
    assert desk.result("more", "output_ref") == [["3.0", "4.0"], ["5.0", "6.0"]]
    assert desk.result("more_2", "output_ref") == [["20"], ["30"]]


@pytest.mark.feature("attributes", "literals", "wires")
def test_placeholder_is_fed_through_feedtype(desk: Desk) -> None:
    """Placeholder with dtype and shape, fed through FeedType."""
    desk.open_made(
        made("x", "Placeholder"),
        made("feed", "FeedType", (340, 0)),
        made("twice", "Add", (340, 200), wires={"x": "x.output", "y": "x.output"}),
        session("twice.z"),
    )
    desk.select("x")
    desk.inspector.get_by_label("dtype of x", exact=True).select_option("int64")
    desk.type_in_inspector("shape of x", "{3}")
    expect(desk.block("x").locator('[data-out="output"]')).to_contain_text("int64[3]")
    desk.wire("x.output", "feed.input")
    desk.type_value("feed", "initializer", f"{{1,2,{LARGE}}}")
    desk.wire("feed.output", "session.inputs")
    assert desk.saved("session")["in"] == {"fetch_outputs": "twice.z", "inputs": "feed.output"}
    desk.run_once()
    assert desk.result("twice", "z") == [["2"], ["4"], [str(2 * int(LARGE))]]


@pytest.mark.feature("literals")
@pytest.mark.broken("rowgrad.studio.value_input:parse_dtype", "lambda name: original('float32')")
def test_every_dtype_can_be_typed(desk: Desk) -> None:
    """Every dtype can be typed."""
    desk.open_made(made("first", "Const"))
    desk.select("first")
    dtypes = desk.inspector.get_by_label("Dtype of first.val").locator("option").all_inner_texts()[1:]
    assert len(dtypes) == 19
    blocks = [made(f"c_{dtype}", "Const", (k % 5 * 250, k // 5 * 160)) for k, dtype in enumerate(dtypes)]
    desk.open_made(*blocks, session(*(f"{b['id']}.output" for b in blocks), at=(1300, 0)), name="all")
    for dtype in dtypes:
        desk.block(f"c_{dtype}").locator(".block-op").click()
        desk.inspector.get_by_label(f"Dtype of c_{dtype}.val", exact=True).select_option(dtype)
        desk.type_in_inspector(f"Value of c_{dtype}.val", TYPED.get(dtype, "{1,2}"))
        expect(desk.block(f"c_{dtype}").locator('[data-pin="val"] .literal')).not_to_have_class(re.compile("empty"))
    values = {b["id"]: b["values"]["val"] for b in desk.page_json()["blocks"] if "values" in b}
    assert {name: value["dtype"] for name, value in values.items()} == {f"c_{dtype}": dtype for dtype in dtypes}
    desk.run_once()
    for dtype in dtypes:
        expect(desk.window.locator(f'[data-result="c_{dtype}.output"]')).to_contain_text(f"{dtype}[2]")
    for dtype, texts in SHOWN.items():
        assert [row[0] for row in desk.result(f"c_{dtype}", "output")] == texts


@pytest.mark.feature("literals")
@pytest.mark.broken("rowgrad.studio.value_verbs:parse_value", "lambda *given: 0")
def test_a_mistyped_number_says_where_and_loses_nothing(desk: Desk) -> None:
    """Mistyped number: message names block and pin, field stays, nothing else lost."""
    desk.watch.forgive("status of 400")
    desk.open_made(made("sum", "Add", values={"x": [1, 2]}), made("other", "Const", (340, 0), values={"val": 5}))
    desk.type_value("sum", "y", "3")
    before = desk.page_json()
    desk.block("sum").get_by_role("button", name="type a value into sum.y").click()
    field = desk.block("sum").get_by_label("Value of sum.y", exact=True)
    field.fill("{1,2x}")
    field.press("Enter")
    desk.wait_message(re.compile(r"sum\.y.*2x"))
    expect(field).to_have_value("{1,2x}")
    expect(field).to_have_attribute("aria-invalid", "true")
    assert desk.page_json() == before
    field.fill("{1,2}")
    field.press("Enter")
    expect(field).to_have_count(0)
    assert desk.saved("sum")["values"] == {"x": [1, 2], "y": [1, 2]}
    assert desk.saved_value("other", "val") == 5


def _slow(route: Route) -> None:
    time.sleep(SLOW)
    route.continue_()


@pytest.mark.feature("literals")
def test_a_value_goes_to_the_page_it_was_typed_on(desk: Desk) -> None:
    desk.put_page("one", const("same", (100, 100), 1.0))
    desk.put_page("two", const("same", (100, 100), 2.0))
    desk.open("two")
    desk.go_to("one")
    desk.window.route("**/api/parse", _slow)
    desk.block("same").get_by_role("button", name=re.compile("type a value into same.val$")).click()
    desk.block("same").get_by_label("Value of same.val", exact=True).fill("7")
    desk.tab("two").click()  # leaves the field; the server has not read it yet
    expect(desk.block("same").locator("input")).to_have_count(0)  # nor is it open on the other page
    expect(desk.tab("two")).to_have_attribute("aria-selected", "true")
    desk.tab("one").click()
    expect(desk.block("same").locator(".literal")).to_have_text("7")
    assert desk.saved_block("same", "one")["values"]["val"]["data"] == 7
    assert desk.saved_block("same", "two")["values"]["val"]["data"] == 2


@pytest.mark.feature("literals", "tabs")
def test_leaving_a_field_by_a_key_commits_it(desk: Desk) -> None:
    desk.put_page("one", const("a", (100, 100), 1.0))
    desk.put_page("two", const("b", (100, 100), 2.0))
    desk.open("two")
    desk.go_to("one")
    desk.block("a").get_by_role("button", name=re.compile("type a value into a.val$")).click()
    desk.block("a").get_by_label("Value of a.val", exact=True).fill("7")
    desk.key("Alt+PageDown")
    expect(desk.tab("two")).to_have_attribute("aria-selected", "true")
    desk.tab("one").click()
    expect(desk.block("a").locator(".literal")).to_have_text("7")


@pytest.mark.feature("run", "literals")
def test_a_run_started_in_a_field_uses_its_text(desk: Desk) -> None:
    desk.open_made(
        const("a", (100, 100), 1.0),
        block("run", "ClientSession", (500, 100), wires={"fetch_outputs": "a.output"}),
    )
    desk.select("a")
    desk.window.route("**/api/parse", _slow)
    desk.inspector.get_by_label("Value of a.val", exact=True).fill("7")
    desk.key("Control+Enter")
    desk.wait_runs(1)
    desk.wait_run()
    assert desk.preview("a", "output") == "7"
