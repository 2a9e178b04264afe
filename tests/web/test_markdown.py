"""Markdown in the page: as GitHub renders it, with what was guessed marked, and never live HTML."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, cast

import cmarkgfm
import pytest
from playwright.sync_api import Page

from tests.http_lead import Lead

pytestmark = pytest.mark.browser
UNSAFE = 1 << 17  # cmark's CMARK_OPT_UNSAFE: addresses are kept as they are

DOCUMENT = (Path(__file__).parent / "every_construct.md").read_text()

HTML_OF_PAGE = """([text, runs]) => import("/web/markdown.js").then(({ render }) => {
  const div = document.createElement("div");
  document.body.append(div);
  render(div, text, runs);
  const copy = div.cloneNode(true);
  copy.querySelectorAll(".bar, section.footnotes").forEach((node) => node.remove());
  return copy.innerHTML;
})"""


class Normal(HTMLParser):
    """Elements and text in order, without the page's additions: wrappers, classes, marks of guesses."""

    KEPT = ("href", "align", "start", "checked", "title")
    BLOCKS = frozenset(
        [
            "p",
            "h1",
            "h2",
            "h3",
            "h4",
            "h5",
            "h6",
            "ul",
            "ol",
            "li",
            "blockquote",
            "pre",
            "table",
            "thead",
            "tbody",
            "tr",
            "th",
            "td",
            "hr",
        ]
    )

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []
        self._text, self._n_pre = "", 0
        self.feed(html)
        self._flush()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("div", "span", "section", "button"):
            return
        self._flush(before_block=tag in self.BLOCKS)
        self._n_pre += tag == "pre"
        kept = {name: value or "" for name, value in attrs if name in self.KEPT}
        self.found.append(f"<{tag} {sorted(kept.items())}>")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("div", "span", "section", "button"):
            return
        self._flush(before_block=tag in self.BLOCKS)
        self._n_pre -= tag == "pre"
        if tag not in ("br", "hr", "input"):
            self.found.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        self._text += data

    def _flush(self, before_block: bool = True) -> None:
        text, self._text = self._text, ""
        if self._n_pre:
            text = text.rstrip("\n")
        else:
            text = re.sub(r"\s+", " ", text)
            after_block = not self.found or self.found[-1].strip("</>").split(" ")[0] in {
                *self.BLOCKS,
                "br",
                "input",
            }
            text = text.lstrip() if after_block else text
            text = text.rstrip() if before_block else text
        if text:
            self.found.append(text)


def shown(page: Page, text: str, runs: Any = ()) -> str:
    return page.evaluate(HTML_OF_PAGE, [text, list(runs)])


@pytest.fixture
def blank(page: Page, lead: Lead) -> Page:
    """Yield an empty page of the server."""
    page.route("**/favicon.ico", lambda route: route.fulfill(status=204))
    page.goto(f"{lead.url}/web/markdown.css")
    page.evaluate("() => { document.head.innerHTML = ''; document.body.replaceChildren(); }")
    return page


def test_markdown_equals_githubs(blank: Page):
    render = cast(Callable[[str, int], str], cmarkgfm.github_flavored_markdown_to_html)
    theirs = render(DOCUMENT, UNSAFE)
    assert Normal(shown(blank, DOCUMENT)).found == Normal(theirs).found


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("<script>alert(1)</script>", '<p class="raw">&lt;script&gt;alert(1)&lt;/script&gt;</p>'),
        ("a <b onclick=x>b</b>", "<p>a &lt;b onclick=x&gt;b&lt;/b&gt;</p>"),
        ("[a](javascript:alert(1))", "<p><span>a</span></p>"),
        ("[a](data:text/html,x)", "<p><span>a</span></p>"),
        ("[a](vbscript:x) <javascript:x>", "<p><span>a</span> <span>javascript:x</span></p>"),
    ],
)
def test_nothing_from_a_model_is_live(blank: Page, text: str, html: str):
    assert shown(blank, text) == html


def test_image_is_a_followable_link(blank: Page):
    html = shown(blank, "![a cat](https://example.org/cat.png)")
    assert '<a href="https://example.org/cat.png" target="_blank" rel="noopener noreferrer">a cat</a>' in html
    assert "<img" not in html


def test_maths_is_shown_as_text(blank: Page):
    text = (
        "Let \\(a_1 * b_2 * c\\) be $$x_1 * y$$, it costs $5 and $6.\n\n\\[\na_1 * b * c\n\\]\n\n`\\(code\\)`"
    )
    html = shown(blank, text)
    assert '<code class="math">a_1 * b_2 * c</code>' in html
    assert '<code class="math">x_1 * y</code>' in html
    assert "it costs $5 and $6." in html
    assert re.search(r'<pre class="math"[^>]*><code>a_1 \* b \* c</code></pre>', html)
    assert "<code>\\(code\\)</code>" in html
    assert "<em>" not in html


def test_footnotes_end_the_text_linked(blank: Page):
    shown(blank, "A claim[^1].\n\n[^1]: Its *source*.")
    assert blank.locator("section.footnotes li em").inner_text() == "source"
    target = blank.locator("sup a").get_attribute("href") or ""
    assert blank.locator(target).count() == 1


@pytest.mark.parametrize("mark", [">", "[", "*", "- ", "((", "![", "`", "\\(", "_a", "|", "<"])
def test_hostile_text_renders_quickly(blank: Page, mark: str):
    assert "end" in shown(blank, mark * 10_000 + " end")


# -- what was guessed

MARKED = """() =>
  [...document.querySelectorAll(".guess")].map((node) => [node.textContent, node.className, node.title])"""


def run(start: int, end: int, colour: int = 0, label: str = "laptop") -> dict[str, Any]:
    return {"start": start, "end": end, "colour": colour, "label": label}


def test_guessed_parts_are_marked_inside_every_construct(blank: Page):
    words = re.finditer(
        r"\b(code|stress|strong|emphasis|deleted|link|nested|deeper|return|quote|done|left|right|indented|fence)\b",
        DOCUMENT,
    )
    found = [(match.start(), match.end()) for match in words]
    shown(blank, DOCUMENT, [run(*place) for place in found])
    assert [text for text, *_ in blank.evaluate(MARKED)] == [DOCUMENT[a:b] for a, b in found]


def test_guesses_have_their_own_colours(blank: Page):
    shown(blank, "one two", [run(0, 3, 0, "laptop"), run(4, 7, 1, "the text above")])
    assert blank.evaluate(MARKED) == [
        ["one", "guess by0", "guessed by laptop"],
        ["two", "guess by1", "guessed by the text above"],
    ]


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_marking_keeps_text_and_elements(blank: Page, n: int):
    """Tokens end anywhere, also inside marks, words and escapes."""
    pieces = [run(at, at + n, at % 4) for at in range(0, len(DOCUMENT), 2 * n)]
    assert Normal(shown(blank, DOCUMENT, pieces)).found == Normal(shown(blank, DOCUMENT)).found


def test_highlighted_code_is_marked(blank: Page):
    text = '```python\ndef f():\n    return "a"\n```'
    start = text.index("f():")
    shown(blank, text, [run(start, text.index('"a"') + 2)])
    assert "".join(text for text, *_ in blank.evaluate(MARKED)) == 'f():\n    return "a'
    assert blank.locator(".hljs-keyword").all_inner_texts() == ["def", "return"]


# -- while it streams

STREAM = """([text, runs, n]) => import("/web/markdown.js").then(({ render }) => {
  const [grown, whole] = [document.createElement("div"), document.createElement("div")];
  const upTo = (at) => runs.filter(({ start }) => start < at);
  for (let at = 0; at <= text.length; at += n) render(grown, text.slice(0, at), upTo(at));
  render(grown, text, runs);
  render(whole, text, runs);
  const html = (div) => div.innerHTML.replace(/"#?f\\d+-/g, '"f-');
  return [html(grown), html(whole)];
})"""


@pytest.mark.parametrize("n", [1, 4, 37])
def test_streamed_reply_equals_whole_reply(blank: Page, n: int):
    text = DOCUMENT + "\nNote[^a] and \\(x_1\\).\n\n[^a]: why\n"
    runs = [run(at, at + 5, at % 4) for at in range(0, len(text), 11)]
    grown, whole = blank.evaluate(STREAM, [text, runs, n])
    assert grown == whole


UNSETTLED = (  # read otherwise when the next characters come
    "1. first\n\n2. second\n\n   of it\n\n10. third",
    "a\n***bold***, and\n#include\n```x``` and\n---x",
    "- a\n---x\n\n- b\n\n\n- c\n\nend\n- d",
    "a\n\n    code\n\n\n    more\n\nb\n===\n\n| a |\n| - |\n| b |",
    "x \\[\n- a\n\\] y\n\n\\[\na\n\\]\n\n$$\nb\n\nc\n$$",
    "<pre\nx>\n\ny</pre>\n<divx>\n\n> q\nlazy\n\n> r\n- s",
    "> [a]: https://example.org\n\n[a] and [b]\n\n- [b]: https://example.org/b\n",
    "~~~\na\n\n~~\n~~~x\n~~~\nb",
)


@pytest.mark.parametrize("text", [*UNSETTLED, DOCUMENT.replace("[ref]: ", "ref ")])
def test_changed_text_is_parsed_again(blank: Page, text: str):
    """Most of these have no definition; with one the whole text is parsed anew each time."""
    runs = [run(at, at + 2, at % 4) for at in range(0, len(text), 5)]
    grown, whole = blank.evaluate(STREAM, [text, runs, 1])
    assert grown == whole


def test_a_selection_stays_while_the_reply_grows(blank: Page):
    blank.evaluate("""() => import("/web/markdown.js").then(({ render }) => {
      window.reply = document.createElement("div");
      document.body.append(reply);
      window.grow = (text) => render(reply, text);
      grow("first words\\n\\nsecond wor");
    })""")
    for text, selected in (("first", "first words"), ("second", "second wor")):
        blank.evaluate(
            """(text) => {
              const paragraph = [...reply.children].find((p) => p.textContent.startsWith(text));
              getSelection().selectAllChildren(paragraph);
            }""",
            text,
        )
        for end in ("ds", "ds and *more*", "ds and *more*\n\n- third"):
            blank.evaluate("(end) => grow('first words\\n\\nsecond wor' + end)", end)
        assert blank.evaluate("() => getSelection().toString()").startswith(selected)
        blank.evaluate("() => grow('first words\\n\\nsecond wor')")


def test_code_can_be_copied(blank: Page):
    blank.context.grant_permissions(["clipboard-read", "clipboard-write"])
    shown(blank, "- in a list\n\n  ```py\n  print('a')\n    b()\n  ```")
    button = blank.get_by_role("button", name="Copy this code")
    button.click()
    blank.wait_for_function("() => document.querySelector('button.copy').textContent === 'Copied'")
    assert blank.evaluate("() => navigator.clipboard.readText()") == "print('a')\n  b()"


def test_coloured_languages_have_usual_names(blank: Page):
    names = [
        "python",
        "py",
        "javascript",
        "js",
        "typescript",
        "ts",
        "json",
        "bash",
        "sh",
        "c",
        "cpp",
        "c++",
        "rust",
        "rs",
        "go",
        "java",
        "sql",
        "html",
        "xml",
        "yaml",
        "yml",
        "diff",
        "ini",
        "toml",
        "dockerfile",
        "shell",
        "console",
    ]
    for name in names:
        shown(blank, f"```{name}\nx = 1 # a\n```")
    known = blank.evaluate(
        """(names) => import("/web/vendor/highlight.js").then(({ default: hljs }) =>
          names.filter((name) => hljs.getLanguage(name)))""",
        names,
    )
    assert known == names


def test_earlier_blocks_are_kept(blank: Page):
    blank.evaluate("""() => import("/web/markdown.js").then(({ render }) => {
      window.reply = document.createElement("div");
      window.grow = (text) => render(reply, text);
      grow("# a\\n\\nb\\n\\nc");
      window.first = [...reply.children];
    })""")
    for end in itertools.accumulate([" more", "\n\n```py\nx", " = 1\n```", "\n\nd"]):
        blank.evaluate("(end) => grow('# a\\n\\nb\\n\\nc' + end)", end)
    assert blank.evaluate("() => first.map((node, i) => node === reply.children[i])") == [True, True, True]
