"""The page that drafts, in a real browser: the model in it guesses while a reply streams, and leaves."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from server.api.access import Access
from server.api.lending import BrowserLender, Lending
from server.api.middleware import Edge
from server.errors import DuoError
from server.lead.listening import ClientPolicy
from server.llama.packaged import SMOLLM2, fetched
from server.local.bundled import SMOLLM2_SMALL
from tests.fake_backend import FakeBackend, FakeModel
from tests.http_lead import Lead, serving
from tests.process.duo import Duo, run, until
from tests.server.lead.test_listening import self_signed

pytestmark = [pytest.mark.browser, pytest.mark.redis, pytest.mark.timeout(900)]

JOINS_MS = 90_000  # a browser compiles the model's code and joins in a tenth of it on an idle machine
BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Explain what a hash table is."}],
    "temperature": 0,
    "ignore_eos": True,
    "max_tokens": 700,
    "speculative": {"exactness": "width-stable"},
}


@pytest.fixture
def duo(tmp_path: Path) -> Iterator[Duo]:
    """Yield SmolLM2 before anybody drafts: a browser cannot keep up with the toy. No drafter rests."""
    try:
        model = fetched(SMOLLM2)
    except DuoError as error:
        pytest.skip(error.message)
    flags = ("--threads", "1", "--no-gate", "--no-lookup", "--drafters", "0", "--draft-mode", "async")
    with Duo(tmp_path, "up", "--model", str(model), *flags) as one:
        one.wait_until_ready()
        yield one


@contextmanager
def streaming(duo: Duo) -> Generator[Iterator[str]]:
    """Yield the parts of a reply's text as they come."""
    url, body = f"{duo.url}/v1/chat/completions", BODY | {"stream": True}
    with httpx.stream("POST", url, json=body, timeout=JOINS_MS / 1e3) as response:
        events = (line[6:] for line in response.iter_lines() if line.startswith("data: {"))
        yield (_text_of(json.loads(event)) for event in events)


def _text_of(chunk: dict[str, Any]) -> str:
    assert "error" not in chunk, chunk
    return "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])


def fact(page: Page, name: str) -> Any:
    return page.locator("dl div", has=page.get_by_text(name, exact=True)).locator("dd")


def n_accepted(duo: Duo) -> int:
    return sum(one["counts"].get("accepted", 0) for one in duo.drafters())


def open_lending(duo: Duo, page: Page) -> None:
    page.goto(f"{duo.url}/lend")
    expect(page.locator("#state")).to_have_text("drafting", timeout=JOINS_MS)


@pytest.mark.real
def test_browser_drafts_and_leaves_midway(duo: Duo, page: Page):
    """The text is that of the same request when nobody drafts, bit for bit."""
    open_lending(duo, page)
    page.get_by_role("button", name="Stop").click()
    until(lambda: not duo.drafters(), JOINS_MS / 1e3, "a stopped page still drafts")
    with streaming(duo) as reply:
        text = next(filter(None, reply))
        page.get_by_role("button", name="Draft").click()
        until(lambda: n_accepted(duo) > 8, JOINS_MS / 1e3, "no guess was accepted")
        [health] = duo.drafters()
        assert re.fullmatch(r".*draft.*\.gguf in a browser", health["model"])
        expect(fact(page, "Accepted")).to_contain_text(re.compile(r"^[1-9]"))
        expect(fact(page, "Server's tokens a second")).to_have_text(re.compile("^[1-9]"))
        expect(fact(page, "Server by its pace without guesses")).to_have_text(re.compile(r"^\d+\.\d+ times"))
        expect(page.locator("#guesses .right").first).to_be_attached(timeout=JOINS_MS)
        top = run("top", "--url", duo.url, "--once", "--interval", "0.1").stdout
        assert re.search(rf"^ *{health['name']} ", top, re.MULTILINE), top
        assert "browser" in top
        page.close()
        until(lambda: not duo.drafters(), JOINS_MS / 1e3, "the browser did not leave")
        assert (duo.health() or {})["slots"]["busy"] == 1, "the reply goes on"
        text += "".join(reply)
    alone = httpx.post(f"{duo.url}/v1/chat/completions", json=BODY, timeout=600).json()
    assert alone["choices"][0]["message"]["content"] == text


@pytest.mark.real
def test_hidden_page_leaves_and_returns(duo: Duo, page: Page):
    asked: list[str] = []
    page.on("request", lambda request: asked.append(f"{request.method} {request.url}"))
    open_lending(duo, page)
    until(lambda: duo.drafters(), JOINS_MS / 1e3, "the browser did not join")
    hide = """(hidden) => {
        Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(hide, True)
    expect(page.locator("#state")).to_have_text("this page is hidden, so it does not draft")
    until(lambda: not duo.drafters(), JOINS_MS / 1e3, "a hidden page still drafts")
    page.evaluate(hide, False)
    expect(page.locator("#state")).to_have_text("drafting", timeout=JOINS_MS)
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#state")).to_have_text("stopped")
    until(lambda: not duo.drafters(), JOINS_MS / 1e3, "a stopped page still drafts")
    page.reload()
    expect(page.locator("#state")).to_have_text("drafting", timeout=JOINS_MS)
    assert asked.count(f"GET {duo.url}/lend/model") == 1, "the file is kept in the browser"
    assert asked.count(f"HEAD {duo.url}/lend/model") == 2


# What a page has in Safari, and over HTTP from another machine
NOT_ISOLATED = """
    Object.defineProperty(self, "crossOriginIsolated", { value: false });
    delete self.SharedArrayBuffer;
"""


@pytest.mark.real
@pytest.mark.parametrize("isolated", [True, False], ids=["isolated", "alone"])
def test_threads_where_they_share_memory(isolated: bool, duo: Duo, page: Page):
    page.add_init_script("Object.defineProperty(navigator, 'hardwareConcurrency', { value: 4 })")
    loaded: list[str] = []
    page.on("request", lambda request: loaded.append(request.url.rpartition("/")[2]))
    if not isolated:
        page.add_init_script(NOT_ISOLATED)
    open_lending(duo, page)
    assert page.evaluate("crossOriginIsolated") == isolated
    build, n_threads = ("multi", "2") if isolated else ("single", "1")
    expect(fact(page, "Threads")).to_have_text(n_threads)
    assert f"wllama-{build}.wasm" in loaded
    with streaming(duo) as reply:
        next(filter(None, reply))
        until(lambda: n_accepted(duo) > 8, JOINS_MS / 1e3, "no guess was accepted")


DRAFTER = """
import json, sys
assert json.loads(sys.stdin.readline())["n_ctx"] == 4096
for message in ({"drafter": "over-tls"}, {"id": 1, "keep": 0, "add": [504, 3575], "draft": 2}):
    print(json.dumps(message), flush=True)
said = [json.loads(sys.stdin.readline()) for _ in range(3)]
open(sys.argv[1], "w").write(json.dumps(said))
sys.stdin.read()
"""


def test_page_drafts_over_tls(browser: Browser, tmp_path: Path):
    async def start(_: BrowserLender) -> Process:
        command = (sys.executable, "-c", DRAFTER, str(tmp_path / "said"))
        return await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)

    tls, _ = self_signed(tmp_path)
    door = ClientPolicy(Edge(access=Access(("sk-anna",))), tls, 0)
    lending = Lending(SMOLLM2_SMALL, start)
    with serving(FakeBackend(FakeModel()), door=door, lending=lending) as lead:
        context = browser.new_context(ignore_https_errors=True)
        page = context.new_page()
        page.goto(f"{lead.url}/lend#key=sk-anna")
        expect(page.locator("#state")).to_have_text("drafting", timeout=JOINS_MS)
        until((tmp_path / "said").exists, JOINS_MS / 1e3, "nothing was guessed")
        assert page.evaluate("crossOriginIsolated")
        context.close()
        until(lambda: not lending.n_now, JOINS_MS / 1e3, "the browser did not leave")
    *guesses, end = json.loads((tmp_path / "said").read_text())
    assert [len(guess["said"]) for guess in guesses] == [1, 1]
    assert end == {"id": 1, "end": False}


def test_page_says_why_nobody_can_lend(page: Page, lead: Lead, problems: list[str]):
    page.goto(f"{lead.url}/lend")
    expect(page.locator("#state")).to_contain_text("no browser can draft for this server")
    assert Axe().run(page).response["violations"] == []
    assert all("501" in problem for problem in problems)
    problems.clear()


FAKE = """async ([steps, chosen]) => {
    const { TextModel } = await import("/lend/page/text_model.js");
    const log = [], told = [];
    let kv = [];
    let model;
    const engine = {
        kvClear: async () => { kv = []; log.push("clear"); },
        kvRemove: async (n) => { kv = kv.slice(0, n); log.push(`remove ${n}`); },
        decode: async (tokens) => {
            kv = [...kv, ...tokens];
            log.push(`read ${tokens}`);
            const step = steps.shift();
            if (step?.fails) throw new Error("full");
            if (step) model.take(step);
        },
        getLogits: async () => [{ token: chosen[kv.join(",")] ?? 99, p: 0.5 }],
        isTokenEOG: (token) => token === 0,
    };
    model = new TextModel(engine, (message) => told.push(message));
    for (const request of steps.splice(0, 1)) model.take(request);
    while (model.running) await null;
    return { log, told, text: model.text, kv };
}"""


def ran(page: Page, lead: Lead, steps: list[dict[str, Any]], chosen: dict[str, int]) -> dict[str, Any]:
    """Return what the page's model did: the first request, then one during each reading of tokens."""
    page.goto(f"{lead.url}/status")
    return page.evaluate(FAKE, [steps, chosen])


def test_guesses_follow_the_text(page: Page, lead: Lead):
    done = ran(page, lead, [{"id": 1, "keep": 0, "add": [5, 6], "draft": 2}], {"5,6": 7, "5,6,7": 8})
    assert done["told"] == [
        {"id": 1, "said": [[7, 0.5]]},
        {"id": 1, "said": [[8, 0.5]]},
        {"id": 1, "end": False},
    ]
    assert done["log"] == ["read 5,6", "read 7"]


def test_end_of_text_ends_guesses(page: Page, lead: Lead):
    done = ran(page, lead, [{"id": 1, "keep": 0, "add": [5], "draft": 9}], {"5": 0})
    assert done["told"] == [{"id": 1, "end": True}]


def test_another_text_rolls_back(page: Page, lead: Lead):
    steps: list[dict[str, Any]] = [
        {"id": 1, "keep": 0, "add": [1, 2, 3], "draft": 1},
        {"id": 2, "keep": 2, "add": [4], "draft": 1},
    ]
    done = ran(page, lead, steps, {"1,2,4": 8})
    assert done["log"] == ["read 1,2,3", "remove 2", "read 4"]
    assert done["told"] == [{"id": 2, "said": [[8, 0.5]]}, {"id": 2, "end": False}]
    assert (done["text"], done["kv"]) == ([1, 2, 4, 8], [1, 2, 4])


def test_stop_ends_guesses(page: Page, lead: Lead):
    done = ran(page, lead, [{"id": 1, "keep": 0, "add": [1], "draft": 9}, {"stop": 1}], {"1": 2})
    assert done["told"] == []


def test_failure_is_told_and_forgotten(page: Page, lead: Lead):
    steps: list[dict[str, Any]] = [{"id": 1, "keep": 0, "add": [1], "draft": 9}, {"fails": True}]
    assert ran(page, lead, steps, {})["told"] == [{"id": 1, "failed": "full"}]


def test_tablets_are_recognised(page: Page, lead: Lead, problems: list[str]):
    """Safari on an iPad calls itself a Macintosh."""
    page.goto(f"{lead.url}/lend")
    named = """async ([userAgent, maxTouchPoints]) =>
        (await import("/lend/page/lend.js")).device({ userAgent, maxTouchPoints })"""
    mac = "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 Version/18.0 Safari/605.1.15"
    assert page.evaluate(named, [mac, 5]) == "iPad"
    assert page.evaluate(named, [mac, 0]) == "Macintosh"
    assert page.evaluate(named, ["Mozilla/5.0 (Linux; Android 15) Chrome/150", 5]) == "Android"
    expect(page.locator("#state")).to_contain_text("no browser can draft")
    problems.clear()
