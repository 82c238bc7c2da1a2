"""Literals typed into pins, on blocks and in the inspector: every dtype, and invalid text."""

from __future__ import annotations

import re
import time

import pytest
from page_fixtures import array, block, const, session
from playwright.sync_api import Route, expect
from studio_window import StudioWindow

SLOW = 0.6  # seconds by which a request is delayed
LARGE = "9007199254740993"  # the smallest positive integer that float64 cannot represent
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
def test_a_literal_on_an_unwired_pin(ui: StudioWindow) -> None:
    """Also on a block of a sparse op."""
    ui.open_blocks(
        block("sum", "Add"), block("segments", "SparseSegmentSum", (0, 200)), session("sum.z", "segments.output")
    )
    ui.type_value("sum", "x", "{1,2,3}")
    ui.type_value("sum", "y", "10")
    ui.type_value("segments", "data", "{{1,2},{3,4},{5,6}}")
    ui.type_value("segments", "indices", "{0,2}")
    ui.type_value("segments", "segment_ids", "{0,0}")
    assert ui.saved_block("sum")["values"] == {"x": [1, 2, 3], "y": 10}
    assert ui.saved_block("segments")["values"]["data"] == [[1, 2], [3, 4], [5, 6]]
    ui.run_once()
    assert ui.result("sum", "z") == [["11"], ["12"], ["13"]]
    assert [[float(x) for x in row] for row in ui.result("segments", "output")] == [[6, 8]]


@pytest.mark.feature("literals")
@pytest.mark.broken(
    "rowgrad.studio.value_input:parse_literal", "lambda *words: original(*words).astype('f8').astype('i8')"
)
@pytest.mark.broken("rowgrad.studio.value_text:texts_of", "lambda flat: [str(int(float(x))) for x in flat]")
def test_an_int64_keeps_all_its_digits(ui: StudioWindow) -> None:
    """Through typing, saving, running and the result table."""
    ui.open_blocks(block("sum", "Add", values={"y": 0}), session("sum.z"))
    ui.type_value("sum", "x", f"{{{LARGE},1}}", "int64")
    assert ui.saved_value("sum", "x") == {"dtype": "int64", "shape": [2], "data": [LARGE, 1]}
    ui.run_once()
    assert ui.result("sum", "z") == [[LARGE], ["1"]]
    ui.reload()
    expect(ui.block("sum")).to_contain_text(LARGE[:10])
    ui.select("sum")
    expect(ui.inspector.get_by_label("Value of sum.x", exact=True)).to_have_value(f"{{{LARGE},1}}")


@pytest.mark.feature("literals", "attributes")
def test_const_with_dtype_shape_and_literal(ui: StudioWindow) -> None:
    ui.open_blocks(block("const", "Const"), session("const.output"))
    ui.type_value("const", "val", "{1,2,3,4}")
    ui.select("const")
    ui.inspector.get_by_label("dtype of const", exact=True).select_option("float64")
    ui.type_in_inspector("shape of const", "{2,2}")
    expect(ui.block("const").locator('[data-out="output"]')).to_contain_text("float64[2,2]")
    assert ui.saved_block("const")["attrs"] == {"dtype": "float64", "shape": [2, 2]}
    assert ui.saved_value("const", "val") == [1, 2, 3, 4]
    ui.run_once()
    assert ui.result("const", "output") == [["1.0", "2.0"], ["3.0", "4.0"]]


@pytest.mark.feature("literals", "attributes", "wires")
@pytest.mark.broken(
    "rowgrad.studio.page_session:PageRun._open", "lambda run, prepared, engine: (PageSession.new(prepared, engine), [])"
)
def test_a_variable_starts_from_a_literal_or_a_wire_and_keeps_its_value(ui: StudioWindow) -> None:
    ui.open_blocks(
        block("typed", "Variable"),
        block("wired", "Variable", (0, 200)),
        block("first", "Const", (-340, 200), values={"val": array("int32", [10, 20])}),
        block("more", "AssignAdd", (340, 0), values={"value": [[1, 1], [1, 1]]}, wires={"ref": "typed.ref"}),
        block("more_2", "AssignAdd", (340, 200), values={"value": [5, 5]}, wires={"ref": "wired.ref"}),
        session("more.output_ref", "more_2.output_ref"),
    )
    ui.type_value("typed", "initvalues", "{1,2,3,4}", "float32")
    ui.type_in_inspector("shape of typed", "2 2")
    ui.wire("first.output", "wired.initvalues")
    expect(ui.block("typed").locator('[data-out="ref"]')).to_contain_text("float32[2,2]")
    expect(ui.block("wired").locator('[data-out="ref"]')).to_contain_text("int32[2]")
    ui.run_once()
    assert ui.result("more", "output_ref") == [["2.0", "3.0"], ["4.0", "5.0"]]
    assert ui.result("more_2", "output_ref") == [["15"], ["25"]]
    ui.run_once()
    assert ui.result("more", "output_ref") == [["3.0", "4.0"], ["5.0", "6.0"]]
    assert ui.result("more_2", "output_ref") == [["20"], ["30"]]


@pytest.mark.feature("attributes", "literals", "wires")
def test_a_placeholder_is_fed_through_feedtype(ui: StudioWindow) -> None:
    ui.open_blocks(
        block("x", "Placeholder"),
        block("feed", "FeedType", (340, 0)),
        block("twice", "Add", (340, 200), wires={"x": "x.output", "y": "x.output"}),
        session("twice.z"),
    )
    ui.select("x")
    ui.inspector.get_by_label("dtype of x", exact=True).select_option("int64")
    ui.type_in_inspector("shape of x", "{3}")
    expect(ui.block("x").locator('[data-out="output"]')).to_contain_text("int64[3]")
    ui.wire("x.output", "feed.input")
    ui.type_value("feed", "initializer", f"{{1,2,{LARGE}}}")
    ui.wire("feed.output", "session.inputs")
    assert ui.saved_block("session")["in"] == {"fetch_outputs": "twice.z", "inputs": "feed.output"}
    ui.run_once()
    assert ui.result("twice", "z") == [["2"], ["4"], [str(2 * int(LARGE))]]


@pytest.mark.feature("literals")
@pytest.mark.broken("rowgrad.studio.value_input:parse_dtype", "lambda name: original('float32')")
def test_every_dtype_can_be_typed(ui: StudioWindow) -> None:
    ui.open_blocks(block("first", "Const"))
    ui.select("first")
    dtypes = ui.inspector.get_by_label("Dtype of first.val").locator("option").all_inner_texts()[1:]
    assert len(dtypes) == 19
    blocks = [block(f"c_{dtype}", "Const", (k % 5 * 350, k // 5 * 160)) for k, dtype in enumerate(dtypes)]
    ui.open_blocks(*blocks, session(*(f"{b['id']}.output" for b in blocks), at=(1800, 0)), name="all")
    for dtype in dtypes:
        ui.block(f"c_{dtype}").locator(".block-op").click()
        ui.inspector.get_by_label(f"Dtype of c_{dtype}.val", exact=True).select_option(dtype)
        ui.type_in_inspector(f"Value of c_{dtype}.val", TYPED.get(dtype, "{1,2}"))
        expect(ui.block(f"c_{dtype}").locator('[data-pin="val"] .literal')).not_to_have_class(re.compile("empty"))
    values = {b["id"]: b["values"]["val"] for b in ui.page_json()["blocks"] if "values" in b}
    assert {name: value["dtype"] for name, value in values.items()} == {f"c_{dtype}": dtype for dtype in dtypes}
    ui.run_once()
    for dtype in dtypes:
        expect(ui.window.locator(f'[data-result="c_{dtype}.output"]')).to_contain_text(f"{dtype}[2]")
    for dtype, texts in SHOWN.items():
        assert [row[0] for row in ui.result(f"c_{dtype}", "output")] == texts


@pytest.mark.feature("literals")
@pytest.mark.broken("rowgrad.studio.value_verbs:parse_value", "lambda *given: 0")
def test_a_mistyped_number_is_reported_with_its_pin_and_loses_nothing(ui: StudioWindow) -> None:
    """The message names block and pin, the field stays open, other values stay."""
    ui.windows.allow_error("status of 400")
    ui.open_blocks(block("sum", "Add", values={"x": [1, 2]}), block("other", "Const", (340, 0), values={"val": 5}))
    ui.type_value("sum", "y", "3")
    before = ui.page_json()
    ui.block("sum").get_by_role("button", name="type a value into sum.y").click()
    field = ui.block("sum").get_by_label("Value of sum.y", exact=True)
    field.fill("{1,2x}")
    field.press("Enter")
    ui.wait_message(re.compile(r"sum\.y.*2x"))
    expect(field).to_have_value("{1,2x}")
    expect(field).to_have_attribute("aria-invalid", "true")
    assert ui.page_json() == before
    field.fill("{1,2}")
    field.press("Enter")
    expect(field).to_have_count(0)
    assert ui.saved_block("sum")["values"] == {"x": [1, 2], "y": [1, 2]}
    assert ui.saved_value("other", "val") == 5


def _slow(route: Route) -> None:
    time.sleep(SLOW)
    route.continue_()


@pytest.mark.feature("literals")
def test_a_value_is_saved_on_the_page_where_it_was_typed(ui: StudioWindow) -> None:
    ui.write_page("one", const("same", (100, 100), 1.0))
    ui.write_page("two", const("same", (100, 100), 2.0))
    ui.open("two")
    ui.switch_to("one")
    ui.window.route("**/api/parse", _slow)
    ui.block("same").get_by_role("button", name=re.compile("type a value into same.val$")).click()
    ui.block("same").get_by_label("Value of same.val", exact=True).fill("7")
    ui.tab("two").click()  # leaves the field before the server has parsed it
    expect(ui.block("same").locator("input")).to_have_count(0)  # the field is not open on the other page
    expect(ui.tab("two")).to_have_attribute("aria-selected", "true")
    ui.tab("one").click()
    expect(ui.block("same").locator(".literal")).to_have_text("7")
    assert ui.saved_block("same", "one")["values"]["val"]["data"] == 7
    assert ui.saved_block("same", "two")["values"]["val"]["data"] == 2


@pytest.mark.feature("literals", "tabs")
def test_leaving_a_field_by_a_key_commits_it(ui: StudioWindow) -> None:
    ui.write_page("one", const("a", (100, 100), 1.0))
    ui.write_page("two", const("b", (100, 100), 2.0))
    ui.open("two")
    ui.switch_to("one")
    ui.block("a").get_by_role("button", name=re.compile("type a value into a.val$")).click()
    ui.block("a").get_by_label("Value of a.val", exact=True).fill("7")
    ui.key("Alt+PageDown")
    expect(ui.tab("two")).to_have_attribute("aria-selected", "true")
    ui.tab("one").click()
    expect(ui.block("a").locator(".literal")).to_have_text("7")


@pytest.mark.feature("run", "literals")
def test_a_run_started_in_a_field_uses_its_text(ui: StudioWindow) -> None:
    ui.open_blocks(
        const("a", (100, 100), 1.0),
        block("run", "ClientSession", (500, 100), wires={"fetch_outputs": "a.output"}),
    )
    ui.select("a")
    ui.window.route("**/api/parse", _slow)
    ui.inspector.get_by_label("Value of a.val", exact=True).fill("7")
    ui.key("Control+Enter")
    ui.wait_runs(1)
    ui.wait_run()
    assert ui.preview("a", "output") == "7"
