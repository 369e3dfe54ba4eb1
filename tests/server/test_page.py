"""The page in a real browser: chat, history, dashboard, text that tries to be more than text."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

import browsing
import canned_page
from browsing import Reader, until

pytestmark = pytest.mark.skipif(bool(browsing.why_not()), reason=browsing.why_not() or "-")

ENTER, SHIFT, CONTROL, ALT, ESCAPE, UP = "\ue007", "\ue008", "\ue009", "\ue00a", "\ue00c", "\ue013"


def test_an_answer_streams_and_ends_with_its_numbers(reader: Reader, page_app: Any) -> None:
    reader.send("endless")
    until(lambda: "word3" in reader.text(".message.assistant .markdown"), "text streams in")
    assert reader.all(".message.running"), "the answer is shown before it is complete"
    reader.press(ESCAPE)
    reader.wait_end()
    assert "Stopped." in reader.text(".notice")
    words = reader.text(".message.assistant .markdown")
    assert reader.ask("hello") == "You said: hello (3)"
    assert reader.text(".message.assistant .markdown").startswith(words), "it really stopped"
    facts = reader.all(".facts")[-1].get_property("textContent")
    assert "tokens/s" in facts and "first token" in facts and "≈" not in facts
    roles = [message["role"] for message in page_app.state.bodies[-1]["messages"]]
    assert roles == ["user", "assistant", "user"]


def test_stop_by_the_button(reader: Reader) -> None:
    reader.send("endless")
    until(lambda: "word1" in reader.text(".markdown"), "text streams in")
    assert reader.one("#send").get_attribute("aria-label") == "Stop"
    reader.click("#send")
    reader.wait_end()
    assert reader.one("#send").get_attribute("aria-label") == "Send"


def test_keys_of_the_box(reader: Reader, page_app: Any) -> None:
    reader.press("one", SHIFT + ENTER)
    reader.press("two", ENTER)
    reader.wait_end()
    assert page_app.state.bodies[-1]["messages"] == [{"role": "user", "content": "one\ntwo"}]
    reader.press(UP)  # edits the last message
    until(lambda: reader.all(".edit"), "the message can be edited")
    reader.press("!", ENTER, css=".edit")
    reader.wait(".bubble", "two!")
    reader.wait_end()
    assert page_app.state.bodies[-1]["messages"] == [{"role": "user", "content": "one\ntwo!"}]
    reader.press(CONTROL + "/")
    assert reader.one("#help-dialog").get_property("open")
    reader.press(ESCAPE, css="#help-dialog button")
    until(lambda: not reader.one("#help-dialog").get_property("open"), "the help is closed")
    reader.press(ALT + "n")
    until(lambda: reader.all(".welcome"), "a new conversation")


def test_generate_again_keeps_both_versions(reader: Reader, page_app: Any) -> None:
    reader.ask("hello")
    reader.click("[aria-label='Generate again']")
    reader.wait(".versions", "2 / 2")
    assert len(page_app.state.bodies[-1]["messages"]) == 1, (
        "the first version is no part of the prompt"
    )
    reader.click("[aria-label='Version before']")
    reader.wait(".versions", "1 / 2")
    reader.reload()
    reader.wait(".versions", "1 / 2")


def test_history_outlives_a_reload(reader: Reader) -> None:
    reader.ask("first question")
    reader.click("#new")
    until(lambda: reader.all(".welcome"), "a new conversation")
    reader.ask("markdown")
    reader.reload()
    reader.wait(".markdown", "A loaf needs time")
    titles = [link.get_property("textContent") for link in reader.all(".conversation .title")]
    assert titles == ["markdown", "first question"]
    reader.all(".conversation .title")[1].click()
    reader.wait(".markdown", "You said: first question")
    reader.js("document.querySelector('.current [aria-label^=Rename]').click()")
    reader.press(CONTROL + "a", css=".rename")
    reader.press("Renamed", ENTER, css=".rename")
    reader.wait(".conversation.current .title", "Renamed")
    exported = reader.module(
        "const {Store} = await import('/page/store.js'); return new Store().exported();"
    )
    reader.js("document.querySelector('.current [aria-label^=Delete]').click()")
    reader.click("#confirm-yes")
    until(lambda: len(reader.all(".conversation")) == 1, "the conversation is gone")
    kept = [one["title"] for one in json.loads(exported)["conversations"]]
    assert sorted(kept) == ["Renamed", "markdown"]


def test_export_and_import(reader: Reader, tmp_path: Any) -> None:
    file = tmp_path / "talk.json"
    version = {"content": "**yes**", "calls": "wrong", "tokens": "many"}
    messages = [
        {"role": "user", "content": "<b>hi</b>"},
        {"role": "assistant", "chosen": 7, "versions": [version]},
    ]
    conversation = {"title": "From a file", "messages": messages}
    broken = {"title": "no", "messages": [{"role": "assistant"}]}
    whole = {"format": "qeff-conversations", "conversations": [conversation, broken, None]}
    file.write_text(json.dumps(whole))
    reader.press(str(file), css="#import-file")
    reader.wait("#notes", "One conversation was imported.")
    reader.click(".conversation .title")
    reader.wait(".bubble", "<b>hi</b>")
    assert reader.text(".markdown strong") == "yes"
    file.write_text("{}")
    reader.press(str(file), css="#import-file")
    reader.wait("#notes", "is no file of exported conversations")


def test_theme_switch(reader: Reader) -> None:
    colours = set()
    for theme in ("light", "dark"):
        reader.click("#theme")
        assert reader.js("return document.documentElement.dataset.theme") == theme
        colours.add(reader.js("return getComputedStyle(document.body).backgroundColor"))
    reader.reload()
    assert reader.js("return getComputedStyle(document.body).backgroundColor") in colours
    assert reader.js("return document.documentElement.dataset.theme") == "dark"
    assert len(colours) == 2


def test_text_of_a_model_or_a_person_stays_text(reader: Reader) -> None:
    reader.ask("probe")
    reader.ask("<img src=x onerror=\"window.harmed='user'\">")
    reader.click("#new")
    reader.all(".conversation .title")[0].click()
    shown = reader.text(".message.assistant .markdown")
    assert "<script>window.harmed='script'</script>" in shown
    assert reader.js("return window.harmed === undefined")
    assert not reader.all("#thread img, #thread script, #thread svg[onload], #thread b[onclick]")
    addresses = [link.get_attribute("href") for link in reader.all("#thread a")]
    assert addresses == ["https://example.org/tracker.png"], "a link, and nothing that is fetched"
    assert reader.text("#thread a") == "pic"


def test_reasoning_is_folded_and_not_sent_back(reader: Reader, page_app: Any) -> None:
    reader.ask("think")
    assert reader.text(".reasoning .markdown") == "First I think about it."
    assert not reader.one(".reasoning").get_property("open")
    reader.ask("more")
    assert "First I think" not in json.dumps(page_app.state.bodies[-1])


def test_calls_of_tools_and_their_results(reader: Reader, page_app: Any) -> None:
    reader.ask("tools")
    assert "get_weather" in reader.text(".call") and '"city": "Oslo"' in reader.text(".call pre")
    reader.press("rain", css=".call textarea")
    reader.click(".calls .main")
    reader.wait(".message.assistant:last-child .markdown", "You said: rain")
    call = {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    sent = page_app.state.bodies[-1]["messages"]
    assert sent[1]["tool_calls"] == [{"id": "call_1", "type": "function", "function": call}]
    assert sent[2] == {
        "role": "tool",
        "tool_call_id": "call_1",
        "name": "get_weather",
        "content": "rain",
    }


def test_settings_go_into_the_request(reader: Reader, page_app: Any) -> None:
    reader.click("#toggle-settings")
    reader.press("Be short.", css="#system-prompt")
    for name, value in {"temperature": "0.3", "top_k": "7", "seed": "11", "top_p": "9"}.items():
        reader.press(value, css=f"#sampling-{name}")
    reader.js("document.querySelectorAll('#settings details').forEach(d => { d.open = true })")
    reader.press('{"type": "object"', css="#json-schema")
    assert "this is no JSON" in reader.text("#json-schema-note")
    reader.press("}", css="#json-schema")
    assert reader.text("#json-schema-note") == ""
    reader.js("document.getElementById('model').value = 'calm-1b'")
    reader.ask("hello")
    body = page_app.state.bodies[-1]
    assert body["messages"][0] == {"role": "system", "content": "Be short."}
    assert (body["temperature"], body["top_k"], body["seed"]) == (0.3, 7, 11)
    assert "top_p" not in body, "a value out of its range is not sent"
    assert body["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert body["model"] == "calm-1b"
    reader.reload()
    assert reader.one("#sampling-top_k").get_property("value") == "7"


def test_errors_are_sentences(reader: Reader) -> None:
    for asked, said in {
        "refuse": "The prompt is too long.",
        "busy": "The server is busy. Try again in 7 seconds.",
        "plain error": "The server answered with the error 502.",
        "break": "The engine stopped.",
        "cut": "The connection ended before the answer was complete.",
    }.items():
        reader.ask(asked)
        assert reader.text(".message:last-child .notice.wrong") == said


def test_a_key_is_asked_for_and_kept_in_the_tab(reader: Reader, page_app: Any) -> None:
    page_app.state.wants_key = True
    try:
        reader.send("hello")
        until(lambda: reader.one("#key-dialog").get_property("open"), "a key is asked for")
        assert "no API key" in reader.text("#key-note")
        reader.press("wrong-key", ENTER, css="#key-field")
        reader.wait("#key-note", "The key was refused.")
        until(lambda: reader.one("#key-dialog").get_property("open"), "it is asked for again")
        reader.press(canned_page.KEY, ENTER, css="#key-field")
        reader.wait(".markdown", "You said: hello")
        reader.reload()
        reader.wait_end()
        assert canned_page.KEY not in reader.js("return JSON.stringify(localStorage)")
    finally:
        page_app.state.wants_key = False


def test_the_dashboard_draws_and_asks_only_while_it_is_seen(reader: Reader, page_app: Any) -> None:
    page_app.state.num_stats = 0
    reader.ask("hello")
    assert page_app.state.num_stats == 0
    reader.click("#to-dashboard")
    reader.wait(".live", "Live")
    assert "47.2" in reader.text(".tile") and "63%" in reader.text(".tile")
    paths = reader.js(
        "return [...document.querySelectorAll('.plot path.line')].map(p => p.getTotalLength())"
    )
    assert len(paths) >= 4 and min(paths) > 100
    assert len(reader.all(".plot rect.bar")) == 12
    labels = [plot.get_attribute("aria-label") for plot in reader.all(".plot")]
    assert labels[4] == "Time to first token: p50 210 ms, p90 520 ms, p95 740 ms, p99 1.31 s."
    assert "p99 not known" in labels[6]
    until(lambda: page_app.state.num_stats >= 2, "it asks again")
    reader.click("#to-chat")
    reader.wait(".markdown", "You said: hello")
    before = page_app.state.num_stats
    reader.module("await new Promise((done) => setTimeout(done, 1300));")
    assert page_app.state.num_stats <= before + 1, "at most the one that was on its way"


def test_a_phone_has_room_for_everything(reader: Reader) -> None:
    size = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    reader.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        reader.reload()
        reader.send("markdown")
        reader.wait_end()
        for step in ("#toggle-settings", "#settings [data-close-panel]", "#to-dashboard"):
            reader.click(step)
            # Scrolling sideways is for tables and code alone.
            assert reader.js("return document.documentElement.scrollWidth") <= 360
            assert reader.js("return document.getElementById('middle').scrollWidth") <= 360
        reader.click("#toggle-side")
        reader.click(".conversation .title")
        reader.wait(".markdown", "A loaf needs time")
        assert not reader.one("#side").is_displayed(), "the panel gives way to what was opened"
    finally:
        reader.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_keyboard_reaches_the_box_first(reader: Reader) -> None:
    first = "document.querySelector('a, button, input, select, textarea, [tabindex]')"
    assert reader.js(f"{first}.focus(); return {first}.id") == "skip"
    assert reader.js("return document.activeElement.getBoundingClientRect().top") > 0, "it is seen"
    reader.press(ENTER, css="#skip")
    assert reader.js("return document.activeElement.id") == "message"
    outline = "return getComputedStyle(document.activeElement).outlineStyle"
    reader.js("document.getElementById('theme').focus()")
    assert reader.js(outline) == "solid"


def test_a_screen_reader_hears_whole_pieces(reader: Reader) -> None:
    reader.ask("hello")
    spoken = [node.get_property("textContent") for node in reader.all("#speaking p")]
    assert spoken == ["The answer begins.", "You said: hello (1)", "The answer is complete."]
    nameless = reader.js(
        "return [...document.querySelectorAll('button, input, select, textarea, a')].filter("
        "  (node) => !node.textContent.trim() && !node.ariaLabel && !node.labels?.length"
        ").map((node) => node.outerHTML)"
    )
    assert nameless == []


def test_before_a_real_server(driver: Any, server: Any) -> None:
    reader = Reader(driver, server.url)
    reader.open()
    assert reader.one("#model").get_property("value") == "tiny"

    def num_counted() -> int:
        found = re.search(r"(\d+) in all", reader.text(".tile"))
        return int(found[1]) if found else -1

    reader.click("#to-dashboard")
    before = until(lambda: num_counted() + 1, "the dashboard draws") - 1
    reader.click("#to-chat")
    reader.js("document.getElementById('sampling-max_tokens').value = 24")
    reader.ask("hello")
    assert "24 tokens" in reader.text(".facts") and "tokens/s" in reader.text(".facts")
    reader.click("#to-dashboard")
    reader.wait(".live", "Live")
    reader.wait(".models tbody", "tiny")
    until(lambda: num_counted() == before + 24, "the tokens are counted")
    reader.check_quiet()
