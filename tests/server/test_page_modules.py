"""The page's modules, run by a browser: markdown, the colours of code, event streams."""

from __future__ import annotations

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

import browsing
import canned_page
from browsing import Reader

pytestmark = pytest.mark.skipif(bool(browsing.why_not()), reason=browsing.why_not() or "-")


def test_markdown_in_pieces_is_markdown_as_a_whole(reader: Reader) -> None:
    reader.js("window.sample = arguments[0]", canned_page.MARKDOWN)
    found = reader.module(
        """
        const {MarkdownView} = await import("/page/markdown.js");
        const [whole, grown] = [new MarkdownView(), new MarkdownView()];
        whole.update(sample, false);
        const halves = [];
        for (let end = 0; end <= sample.length; end += 1) {
          grown.update(sample.slice(0, end), true);
          // Marks whose other half is on its way are not shown; the code has some of its own.
          const prose = [...grown.node.childNodes].filter((node) => node.tagName !== "FIGURE");
          const text = prose.map((node) => node.textContent).join(" ");
          if (/[*~`|#]|\\]\\(/.test(text)) halves.push(text);
        }
        const first = grown.node.firstChild;
        grown.update(sample, false);
        return {
          isSame: whole.node.innerHTML === grown.node.innerHTML,
          isKept: first === grown.node.firstChild,
          halves,
          code: whole.node.querySelector("pre").textContent,
        };
        """
    )
    assert found["isSame"] and found["isKept"], "what is complete is not made again"
    assert found["halves"] == []
    assert "\n\treturn" in found["code"], "code keeps its tabs"


MARKDOWN_CASES = {
    "a*b*c and 2 * 3 * 4": "<p>a<em>b</em>c and 2 * 3 * 4</p>",
    "snake_case_name __init__": "<p>snake_case_name <strong>init</strong></p>",
    "***both***": "<p><em><strong>both</strong></em></p>",
    "**a *b* c**": "<p><strong>a <em>b</em> c</strong></p>",
    "`` a`b `` \\*no\\*": "<p><code>a`b</code> *no*</p>",
    "one\ntwo<br>three": "<p>one<br>two<br>three</p>",
    "## A *b* ##": '<h4 class="level-2">A <em>b</em></h4>',
    "- a\n\n- b": "<ul><li>a</li><li>b</li></ul>",
    "- a\n\n  b": "<ul><li><p>a</p><p>b</p></li></ul>",
    "3. a\n4. b\n\ntext": '<ol start="3"><li>a</li><li>b</li></ol><p>text</p>',
    "> a\n> > b": "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>",
    "[x](javascript:alert(1))": "<p><span>x</span></p>",
    "[x]( java\nscript:1 )": "<p>[x]( java<br>script:1 )</p>",
    "a\n\n---\n\n<b>c</b>": "<p>a</p><hr><p>&lt;b&gt;c&lt;/b&gt;</p>",
    "|a|b|\n|-|-|\n|1|\n|2|3|4|": (
        '<div class="table-frame" tabindex="0" role="region" aria-label="Table"><table><thead><tr>'
        '<th scope="col">a</th><th scope="col">b</th></tr></thead><tbody><tr><td>1</td><td></td>'
        "</tr><tr><td>2</td><td>3 | 4</td></tr></tbody></table></div>"
    ),
    "text | with | bars": "<p>text | with | bars</p>",
}


def test_markdown_cases(reader: Reader) -> None:
    reader.js("window.cases = arguments[0]", list(MARKDOWN_CASES))
    found = reader.module(
        """
        const {MarkdownView} = await import("/page/markdown.js");
        return cases.map((text) => {
          const view = new MarkdownView();
          view.update(text, false);
          return view.node.innerHTML;
        });
        """
    )
    assert dict(zip(MARKDOWN_CASES, found, strict=True)) == MARKDOWN_CASES


def test_no_text_breaks_or_stalls_the_page(reader: Reader) -> None:
    found = reader.module(
        """
        const {MarkdownView} = await import("/page/markdown.js");
        const {colourCode} = await import("/page/code_colours.js");
        const marks = ["*", "_", "`", "```", "[", "](", ")", "|", "-", "\\n", " ", "#", ">", "1.",
                       "<", "http://a", "~~", "\\\\", "x", "\\t", "é", "|--|", "    "];
        let seed = 7;
        const draw = (most) => (seed = (seed * 48271) % 2147483647) % most;
        const texts = ["[", "*a ", "> ", "- ", "`a``", "|", "![](", "<http://", "~~", "1. a\\n  "]
          .map((part) => part.repeat(1500));
        for (let number = 0; number < 600; number += 1) {
          texts.push(Array.from({length: 1 + draw(40)}, () => marks[draw(marks.length)]).join(""));
        }
        let slowest = 0;
        for (const text of texts) {
          const began = performance.now();
          for (const open of [true, false]) new MarkdownView().update(text, open);
          for (const language of ["python", "js", "sh", "html", "diff", "json"]) {
            const joined = colourCode(text, language).map(([, part]) => part).join("");
            if (joined !== text) return `lost code of ${language}: ${JSON.stringify(text)}`;
          }
          slowest = Math.max(slowest, performance.now() - began);
        }
        return slowest;
        """
    )
    assert isinstance(found, (int, float)) and found < 3000, found


def test_events_are_read_however_they_are_cut(reader: Reader) -> None:
    found = reader.module(
        """
        const {events} = await import("/page/event_stream.js");
        const bytes = new TextEncoder().encode(
          ": hi\\r\\n\\r\\ndata: é1\\r\\n\\r\\ndata:two\\ndata: lines\\n\\n" +
          "event: x\\rdata: 3\\r\\rdata: half");
        const read = [];
        for (let cut = 0; cut <= bytes.length; cut += 1) {
          const body = new ReadableStream({start(control) {
            control.enqueue(bytes.slice(0, cut));
            control.enqueue(bytes.slice(cut));
            control.close();
          }});
          const all = [];
          for await (const data of events(body)) all.push(data);
          read.push(JSON.stringify(all));
        }
        return [...new Set(read)];
        """
    )
    assert found == ['["é1","two\\nlines","3"]']
