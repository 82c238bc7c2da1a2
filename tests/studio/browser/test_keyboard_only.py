"""The first page once more without a mouse."""

from __future__ import annotations

import re

import pytest
from desk import Desk
from playwright.sync_api import expect
from test_first_page import VALUES, is_right

OP = "sparse_segment_mean_grad"


def place(desk: Desk, op: str, block: str) -> None:
    """Through the command menu: the block is selected then."""
    desk.key("Control+k")
    desk.keys.type(op)
    chosen = desk.window.locator("[role=option][aria-selected=true]")
    while chosen.get_attribute("data-key") != f"put {op}":
        desk.key("ArrowDown")
    desk.key("Enter")
    expect(desk.block(block)).to_have_class(re.compile("selected"))


def choose(desk: Desk, words: str, key: str) -> None:
    """In the list that opens: type until it is in front, then Enter."""
    option = desk.window.locator(f'[role=option][data-key="{key}"]')
    expect(option).to_be_visible()  # before that, nobody hears what is typed
    desk.keys.type(words)
    expect(option.and_(desk.window.locator("[aria-selected=true]"))).to_be_visible()
    desk.key("Enter")
    expect(option).to_have_count(0)


@pytest.mark.feature("keyboard", "commandMenu", "wires", "literals")
def test_a_gradient_by_keyboard(desk: Desk) -> None:
    desk.key("Alt+n")
    desk.canvas.wait_for()
    place(desk, "SparseSegmentMeanGrad", OP)
    for k, (pin, (text, dtype)) in enumerate(VALUES.items()):
        constant = "const" if k == 0 else f"const_{k + 1}"
        place(desk, "Const", constant)
        desk.key("Enter")
        expect(desk.inspector.get_by_label(f"Value of {constant}.val")).to_be_focused()
        desk.key("Tab")
        expect(desk.inspector.get_by_label(f"Dtype of {constant}.val")).to_be_focused()
        desk.keys.type(dtype)
        desk.key("Shift+Tab")
        desk.keys.type(text)
        desk.key("Enter")
        expect(desk.block(constant)).to_contain_text(dtype)  # on its output, from the server
        desk.key("Escape")
        expect(desk.inspector.get_by_label(f"Value of {constant}.val")).not_to_be_focused()  # or it is typed there
        desk.key("w")
        choose(desk, "output", "from output")
        choose(desk, f"{OP}.{pin}", f"{OP}.{pin}")
        expect(desk.wires(f"{OP}.{pin}")).to_have_count(1)
    place(desk, "ClientSession", "client_session")
    desk.key("w")
    choose(desk, "fetch", "to fetch_outputs")
    choose(desk, f"{OP}.output", f"{OP}.output")
    expect(desk.wires("client_session.fetch_outputs")).to_have_count(1)
    desk.key("Control+Enter")
    desk.wait_run()
    desk.key("Alt+1")
    assert is_right(desk.read_table(desk.table(OP, "output")))
