"""What the page may do in a browser, and who may see it."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from at_the_desk import bring, drop, panel
from desk import Desk
from drawn_pages import block, const, page, session
from playwright.sync_api import Page, Response, expect
from running import Studio
from watching import Watch

SAMPLES = Path(__file__).parents[2] / "graph" / "enuspace_samples"
IMAGE = "<img src=x onerror=window.hacked=1>"
SCRIPT = "</script><script>window.hacked=1</script>"
# What the page would be if it put texts in as HTML, and had no policy.
UNESCAPED = """lambda self, path: (
    __import__("rowgrad.studio.http_requests", fromlist=["HEADERS"]).HEADERS.clear(),
    (file := original(self, path))._replace(packed=None, plain=file.plain + (path.suffix == ".js") * b'''
        ;setInterval(() => document.querySelectorAll(".note-text").forEach((note) => {
            if (!note.children.length) note.insertAdjacentHTML("beforeend", note.textContent);
        }), 50);'''))[-1]"""


def directives(reply: Response) -> dict[str, list[str]]:
    text = reply.headers.get("content-security-policy", "")
    return {words[0]: words[1:] for part in text.split(";") if (words := part.split())}


def whole_session(desk: Desk) -> None:
    """A bit of everything."""
    desk.open_gallery("13_symbolic_gradients")
    desk.run_once()
    for tab in ("trend", "map", "trace", "messages", "history", "results"):
        panel(desk, tab)
    desk.open_gallery("02_sparse_segment_mean_grad")
    desk.select("op")
    for key in ("F1", "?", "g", "Control+k", "Control+e"):
        desk.key(key)
        desk.window.get_by_role("dialog").wait_for()
        desk.key("Escape")
        desk.window.get_by_role("dialog").wait_for(state="detached")
    desk.press("export")
    desk.window.get_by_role("tab", name="Picture (PNG)").click()
    desk.window.locator(".export-picture img").wait_for()
    desk.key("Escape")
    desk.press("theme")
    drop(desk, SAMPLES / "basic.json")
    desk.window.get_by_role("dialog").get_by_role("button", name="Open").click()
    desk.window.get_by_role("dialog").wait_for(state="detached")
    desk.run_once()
    desk.reload()
    desk.window.locator(".top-bar .brand").click()
    desk.window.locator("[data-gallery] img").first.wait_for()


@pytest.mark.broken("rowgrad.studio.http_requests:HEADERS", "[]")
@pytest.mark.broken(
    "rowgrad.studio.http_requests:HEADERS", "[(n, v.replace(b'script-src', b'script-src *')) for n, v in original]"
)
def test_the_policy_is_strict_and_nothing_leaves_the_machine(studio: Studio, window: Page, watch: Watch) -> None:
    studio.start()
    replies: list[Response] = []
    window.on("response", lambda reply: replies.append(reply))
    whole_session(Desk(window, studio, watch).open())
    home = f"127.0.0.1:{studio.port}"
    places = {urlsplit(reply.url).netloc for reply in replies if not reply.url.startswith(("blob:", "data:"))}
    assert places == {home}
    ours = [reply for reply in replies if urlsplit(reply.url).netloc == home]
    assert {"", "studio.js", "studio.css", "run"} <= {urlsplit(reply.url).path.rpartition("/")[2] for reply in ours}
    for reply in ours:
        policy = directives(reply)
        assert policy.get("default-src") == ["'none'"], f"{urlsplit(reply.url).path} has the policy {policy}"
        assert policy["script-src"] == policy["connect-src"] == policy["style-src"] == ["'self'"]
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == ["'none'"]
        assert not re.search(r"unsafe|https?:|\*", str(policy))
        assert reply.headers["x-content-type-options"] == "nosniff"
    # The browser keeps to it.
    watch.forgive("Content Security Policy")
    tried = """async () => {
        const script = document.createElement("script");
        script.textContent = "window.hacked = 1";
        document.body.append(script);
        return [window.hacked, await fetch("http://127.0.0.1:9/").then(() => "sent", (e) => String(e))];
    }"""
    watch.forgive("127.0.0.1:9/|failed: GET /")
    hacked, sent = window.evaluate(tried)
    assert hacked is None
    assert "Failed to fetch" in sent


@pytest.mark.broken("rowgrad.studio.access:_same", "lambda *given: True")
def test_a_window_without_access_shows_how_to_get_it(studio: Studio, window: Page, watch: Watch) -> None:
    expect.set_options(timeout=watch.milliseconds)
    studio.start()
    watch.forgive("status of 401")
    for launch, text in (("#launch=wrong", "was used before or has expired"), ("", "has no access to the studio")):
        window.goto("about:blank")
        window.goto(f"http://127.0.0.1:{studio.port}/{launch}")
        expect(window.get_by_role("alert")).to_have_text(re.compile(text))
        expect(window.get_by_text("rowgrad studio --link prints a new one")).to_be_visible()
        assert window.locator("[data-gallery], [data-page], .top-bar").count() == 0
    assert studio.folder.name not in window.content()


@pytest.mark.feature("notes")
@pytest.mark.broken("rowgrad.studio.http:StaticFiles._read", UNESCAPED)
def test_hostile_texts_on_a_page_are_only_texts(desk: Desk) -> None:
    said = block("said", "Const", {"val": {"dtype": "string", "shape": [2], "data": [IMAGE, SCRIPT]}})
    odd = block("odd", IMAGE, {SCRIPT: IMAGE}, {IMAGE: SCRIPT}, **{SCRIPT: "a.output"})
    notes = [{"text": IMAGE, "at": [0, -120]}, {"text": SCRIPT, "at": [0, 400], "size": [300, 90]}]
    drawn = page("p", const("a", [1.0]), odd, said, block("minus", "Neg", x="a.output"), notes=notes)
    drawn["blocks"].append(session("said.output", "minus.y") | {"at": [900, 300]})
    bring(desk, drawn)
    expect(desk.window.locator(".note-text").first).to_have_text(IMAGE)
    expect(desk.block("odd").locator(".block-op")).to_have_text(IMAGE)
    desk.select("odd")
    expect(desk.inspector).to_contain_text(IMAGE)
    desk.window.locator(".note-text").first.dblclick()
    expect(desk.window.get_by_role("dialog").get_by_role("textbox")).to_have_value(IMAGE)
    desk.key("Escape")
    desk.run_once()
    assert [row[0] for row in desk.result("said", "output")] == [IMAGE, SCRIPT]
    panel(desk, "messages").get_by_text(IMAGE).first.wait_for()
    desk.watch.forgive("status of 400.*export")  # a script of an op that is none
    desk.press("export")
    dialog = desk.window.get_by_role("dialog")
    for kind in ("Drawing (SVG)", "Picture (PNG)", "Page (JSON)", "Graphviz (DOT)"):
        dialog.get_by_role("tab", name=kind).click()
        expect(dialog.get_by_role("button", name="Download")).to_be_enabled()
    desk.key("Escape")
    assert desk.window.evaluate("window.hacked") is None
    assert desk.window.locator("img[src='x'], script:not([src])").count() == 0
