"""Verbs about one page: open, save from several windows, check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from studio_without_runs import FilesStudio, make_studio, page_with_array, project_files, small_page

from rowgrad.errors import InvalidArgumentError, OpError
from rowgrad.graph import Block, End, Page, build, save


@pytest.fixture
def studio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FilesStudio:
    return make_studio(tmp_path, monkeypatch)


def product() -> Page:
    """Return a page that multiplies x and w."""
    wires = {"x": [End("x", "output")], "y": [End("w", "output")]}
    consts = [Block(name, "Const", {"val": [1.0, 2.0]}) for name in ("x", "w")]
    return Page("p", [*consts, Block("m", "Multiply", wires=wires)])


def test_open_returns_page_revision_and_check(studio: FilesStudio) -> None:
    save(page_with_array("elsewhere"), studio.root / "p.json")
    response = studio.call("open", {"name": "p"})
    assert response.keys() == {"page", "revision", "checked", "run"}
    assert response["page"]["name"] == "p"
    assert response["checked"]["blocks"]["a"]["outputs"]["output"]["text"] == "float32[1000]"
    assert response["run"] == {"phase": "idle", "name": "p"}
    assert response["revision"] == studio.call("hello")["project"]["pages"][0]["revision"]
    # Saving the opened page unchanged writes only its name.
    assert studio.call("save", {"name": "p", "base": response["revision"], "page": response["page"]}).keys() == {
        "revision",
        "checked",
    }
    assert studio.folder.open("p")[0]["a"].values["val"].size == 1000


def test_save_notifies_windows_and_runs(studio: FilesStudio) -> None:
    base = studio.call("new", {"name": "p"})["revision"]
    studio.events()
    page = studio.pool.write_page(small_page())
    saved = studio.call("save", {"name": "p", "base": base, "page": page, "window": "w7"})
    assert saved["checked"]["blocks"].keys() == {"a", "b"}
    page_event, project_event = studio.events()
    assert page_event == {"event": "page", "name": "p", "revision": saved["revision"], "window": "w7"}
    assert project_event["pages"][0]["blocks"] == 2
    assert studio.runs.calls[-1] == ("edited", "p", 2, saved["revision"])
    again = studio.call("save", {"name": "p", "base": saved["revision"], "page": page, "window": "w7"})
    assert again["revision"] == saved["revision"]
    assert not studio.events()
    assert len(studio.runs.calls) == 2


def test_a_page_with_errors_is_saved_too(studio: FilesStudio) -> None:
    page = studio.pool.write_page(Page("p", [Block("a", "NoSuchOp")]))
    saved = studio.call("save", {"name": "p", "base": None, "page": page})
    assert saved["checked"]["errors"].keys() == {"a"}


def test_conflicting_saves_of_two_windows_lose_nothing(studio: FilesStudio) -> None:
    base = studio.call("new", {"name": "p"})["revision"]
    pages = [studio.pool.write_page(page) for page in (small_page(), page_with_array(seed=4))]
    first = studio.call("save", {"name": "p", "base": base, "page": pages[0], "window": "one"})
    studio.events()
    response = len(studio.runs.calls)
    second = studio.call("save", {"name": "p", "base": base, "page": pages[1], "window": "two"})
    assert second.keys() == {"conflict"}
    conflict = second["conflict"]
    assert conflict.keys() == {"kept", "fields", "revision", "page", "checked"}
    assert [(field["block"], field["kind"]) for field in conflict["fields"]] == [("a", "block")]  # both made it
    assert conflict["revision"] == first["revision"]
    assert conflict["checked"] == first["checked"]
    assert conflict["page"] == pages[0] | {"name": "p"}
    assert studio.call("open", {"name": conflict["kept"]})["page"]["blocks"] == pages[1]["blocks"]
    assert [event["event"] for event in studio.events()] == ["kept", "project"]
    assert len(studio.runs.calls) == response  # only the winning page is run
    # The window continues with the winning page.
    assert "revision" in studio.call("save", {"name": "p", "base": conflict["revision"], "page": pages[1]})


def test_saves_of_two_windows_that_change_different_blocks_are_merged(studio: FilesStudio) -> None:
    def saved(**more: Any) -> dict[str, Any]:
        return studio.call("save", {"name": "p", **more})

    base = studio.call("new", {"name": "p"})["revision"]
    begun = studio.pool.write_page(Page("p", [Block("a", "Const", {"val": 1.0}), Block("b", "Const", {"val": 2.0})]))
    base = saved(base=base, page=begun)["revision"]
    one, two = (json.loads(json.dumps(begun)) for _ in range(2))
    one["blocks"][0]["values"]["val"] = {"float": 5}
    two["blocks"][1]["values"]["val"] = {"float": 6}
    saved(base=base, page=one, window="one")
    studio.events()
    answer = saved(base=base, page=two, window="two")
    assert answer.keys() == {"revision", "checked", "merged", "sent"}
    values = [block["values"]["val"] for block in answer["merged"]["blocks"]]
    assert values == [{"float": 5}, {"float": 6}]
    assert answer["checked"]["errors"] == {}
    assert studio.call("open", {"name": "p"})["page"] == answer["merged"]
    assert [event["event"] for event in studio.events()] == ["page", "project"]
    # The same field: the user decides.
    two["blocks"][0]["values"]["val"] = {"float": 7}
    (field,) = saved(base=base, page=two)["conflict"]["fields"]
    assert (field["mine"], field["theirs"]) == ("7.0", "5.0")
    assert saved(base=base, page=two, theirs=[field["key"]])["merged"] == answer["merged"]
    chosen = saved(base=base, page=two, mine=[field["key"]])["merged"]
    assert [block["values"]["val"] for block in chosen["blocks"]] == [{"float": 7}, {"float": 6}]


def test_saving_over_a_damaged_file_keeps_both(studio: FilesStudio) -> None:
    base = studio.call("new", {"name": "p"})["revision"]
    (studio.root / "p.json").write_text("{")
    page = studio.pool.write_page(small_page())
    conflict = studio.call("save", {"name": "p", "base": base, "page": page})["conflict"]
    assert conflict["page"] is None
    assert "not JSON" in conflict["error"]
    assert studio.call("open", {"name": conflict["kept"]})["page"]["blocks"] == page["blocks"]
    assert (studio.root / "p.json").read_text() == "{"


def test_check_does_not_save(studio: FilesStudio) -> None:
    page = studio.pool.write_page(product())
    checked = studio.call("check", {"page": page})
    assert checked["blocks"]["m"]["outputs"]["z"]["text"] == "float32[2]"
    page["blocks"][1]["values"]["val"] = {"dtype": "int32", "shape": [2], "data": [1, 2]}
    assert studio.call("check", {"page": page})["errors"].keys() == {"m"}
    assert not project_files(studio.root)


def test_wire_candidates_in_both_directions(studio: FilesStudio) -> None:
    page = studio.pool.write_page(product())
    takes = studio.call("candidates", {"page": page, "from": "x.output"})["takes"]
    assert takes["m.x"] is None
    takes = studio.call("candidates", {"page": page, "to": "m.y"})["takes"]
    assert takes["x.output"] is None


def test_gradients_returns_blocks_and_wires(studio: FilesStudio) -> None:
    page = studio.pool.write_page(product())
    response = studio.call("gradients", {"page": page, "outputs": ["m.z"], "inputs": ["x.output", "w.output"]})
    assert len(response["gradients"]) == 2
    assert not {block["id"] for block in response["blocks"]} & {"x", "w", "m"}
    page["blocks"] += response["blocks"]
    whole = studio.pool.read_page(page)
    build(whole)
    for end in map(End.parse, response["gradients"]):
        assert whole[end.block]


@pytest.mark.parametrize(
    ("verb", "arguments", "message"),
    [
        ("open", {"name": "x"}, "there is no page 'x'"),
        ("open", {"name": "../p"}, "must not contain / or"),
        ("open", {}, "open: name must be a string"),
        ("save", {"name": "p", "base": ""}, "save: page must be an object"),
        ("save", {"name": "a/b", "base": "", "page": ...}, "must not contain / or"),
        ("save", {"name": "P", "base": "", "page": ...}, "already has a file 'p.json'"),
        ("save", {"name": "p", "base": 3, "page": ...}, "save: base must be a string"),
        ("check", {"page": []}, "check: page must be an object"),
        (
            "check",
            {"page": {"format": "rowgrad-page", "version": 1, "name": "", "blocks": 3}},
            "blocks: must be a list",
        ),
        ("candidates", {"page": ...}, "from must be set, or `to`"),
        ("candidates", {"page": ..., "from": "x.output", "to": "m.x"}, "not both"),
        ("candidates", {"page": ..., "from": "x"}, "from must be block.pin"),
        ("candidates", {"page": ..., "to": "m.x[0]"}, "without an index"),
        ("gradients", {"page": ..., "outputs": ["m"], "inputs": []}, "outputs[0] must be block.pin"),
        ("gradients", {"page": ..., "outputs": [3], "inputs": []}, "outputs[0] must be a string"),
        ("gradients", {"page": ..., "outputs": ["m.z"]}, "inputs must be a list"),
    ],
)
def test_what_is_rejected_changes_nothing(
    studio: FilesStudio, verb: str, arguments: dict[str, Any], message: str
) -> None:
    save(small_page(), studio.root / "p.json")
    before = project_files(studio.root)
    sent = {k: studio.pool.write_page(product()) if v is ... else v for k, v in arguments.items()}
    with pytest.raises((InvalidArgumentError, OpError)) as caught:
        studio.call(verb, sent)
    assert message in str(caught.value)
    assert project_files(studio.root) == before
    assert not studio.events()
    assert not studio.runs.calls


def test_dangling_wires_and_duplicate_ids_are_rejected(studio: FilesStudio) -> None:
    page = studio.pool.write_page(product())
    for blocks, message in ((page["blocks"][1:], "there is no block 'x'"), (page["blocks"] * 2, "already")):
        with pytest.raises(InvalidArgumentError, match=message):
            studio.call("save", {"name": "q", "base": None, "page": page | {"blocks": blocks}})
    assert not project_files(studio.root)
