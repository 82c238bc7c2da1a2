"""The gradient of test_first_page.py, built with the keyboard only."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect
from studio_window import StudioWindow
from test_first_page import VALUES, is_expected

OP = "sparse_segment_mean_grad"


def place(ui: StudioWindow, op: str, block: str) -> None:
    """Place a block with the command menu, which selects it."""
    ui.key("Control+k")
    ui.keys.type(op)
    chosen = ui.window.locator("[role=option][aria-selected=true]")
    while chosen.get_attribute("data-key") != f"put {op}":
        ui.key("ArrowDown")
    ui.key("Enter")
    expect(ui.block(block)).to_have_class(re.compile("selected"))


def choose(ui: StudioWindow, text: str, key: str) -> None:
    """Type into the open list until the entry is selected, then press Enter."""
    option = ui.window.locator(f'[role=option][data-key="{key}"]')
    expect(option).to_be_visible()  # typing before that is ignored
    ui.keys.type(text)
    expect(option.and_(ui.window.locator("[aria-selected=true]"))).to_be_visible()
    ui.key("Enter")
    expect(option).to_have_count(0)


@pytest.mark.feature("keyboard", "commandMenu", "wires", "literals")
def test_build_and_run_a_gradient_by_keyboard(ui: StudioWindow) -> None:
    ui.key("Alt+n")
    ui.canvas.wait_for()
    place(ui, "SparseSegmentMeanGrad", OP)
    for k, (pin, (text, dtype)) in enumerate(VALUES.items()):
        constant = "const" if k == 0 else f"const_{k + 1}"
        place(ui, "Const", constant)
        ui.key("Enter")
        expect(ui.inspector.get_by_label(f"Value of {constant}.val")).to_be_focused()
        ui.key("Tab")
        expect(ui.inspector.get_by_label(f"Dtype of {constant}.val")).to_be_focused()
        ui.keys.type(dtype)
        ui.key("Shift+Tab")
        ui.keys.type(text)
        ui.key("Enter")
        expect(ui.block(constant)).to_contain_text(dtype)  # its output type, from the server
        ui.key("Escape")
        expect(ui.inspector.get_by_label(f"Value of {constant}.val")).not_to_be_focused()  # or the next key goes there
        ui.key("w")
        choose(ui, "output", "from output")
        choose(ui, f"{OP}.{pin}", f"{OP}.{pin}")
        expect(ui.wires(f"{OP}.{pin}")).to_have_count(1)
    place(ui, "ClientSession", "client_session")
    ui.key("w")
    choose(ui, "fetch", "to fetch_outputs")
    choose(ui, f"{OP}.output", f"{OP}.output")
    expect(ui.wires("client_session.fetch_outputs")).to_have_count(1)
    ui.key("Control+Enter")
    ui.wait_run()
    ui.key("Alt+1")
    assert is_expected(ui.read_table(ui.table(OP, "output")))
