"""Pictures on the chat page: pasted, dropped and chosen, shown, sent, and kept with their conversation."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import FilePayload, Locator, Page, expect

from tests.http_lead import Lead
from tests.server.api.test_pictures import seeing
from tests.server.pictures.drawn import Image, drawn, file_of, url_of
from tests.web.scripted import SCREENS, Reply, Script, ask, asked, asked_and_kept

pytestmark = pytest.mark.browser

RED = file_of(drawn("red", (60, 40)))
BLUE = file_of(drawn("blue", (40, 60)), "JPEG")
PASTE = "(data) => new ClipboardEvent('paste', { clipboardData: data, bubbles: true, cancelable: true })"
DROP = "(data) => new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true })"


@pytest.fixture(scope="module")
def seeing_lead() -> Iterator[Lead]:
    with seeing() as one:
        yield one


@pytest.fixture
def shown(page: Page, seeing_lead: Lead) -> Page:
    """Return the page of a model that reads pictures."""
    page.goto(seeing_lead.url)
    expect(page.locator("#attach")).to_be_visible()
    return page


def chosen(name: str, data: bytes, media: str = "image/png") -> FilePayload:
    return {"name": name, "mimeType": media, "buffer": data}


def choose(page: Page, *files: FilePayload) -> None:
    page.locator("#pictures").set_input_files(list(files))


def bring(page: Page, how: str, *files: FilePayload, text: str = "") -> None:
    """Paste or drop these files, beside a text if there is one."""
    told = [[one["name"], one["mimeType"], base64.b64encode(one["buffer"]).decode()] for one in files]
    page.evaluate(
        f"""([files, text]) => {{
      const data = new DataTransfer();
      for (const [name, type, body] of files) {{
        const bytes = Uint8Array.from(atob(body), (letter) => letter.charCodeAt(0));
        data.items.add(new File([bytes], name, {{ type }}));
      }}
      if (text) data.setData("text/plain", text);
      document.getElementById("text").dispatchEvent(({how})(data));
    }}""",
        [told, text],
    )


def waiting(page: Page) -> Locator:
    return page.locator("#shots img")


def sent(script: Script) -> Any:
    return script.asked[-1]["messages"][-1]["content"]


def picture(url: str) -> Any:
    return {"type": "image_url", "image_url": {"url": url}}


def test_chosen_pasted_and_dropped_pictures_are_sent(shown: Page):
    script = Script(shown)
    choose(shown, chosen("red.png", RED))
    expect(waiting(shown)).to_have_count(1)
    bring(shown, PASTE, chosen("image.png", RED))
    expect(waiting(shown)).to_have_count(2)
    bring(shown, DROP, chosen("blue.jpg", BLUE, "image/jpeg"))
    expect(waiting(shown)).to_have_count(3)
    shown.get_by_role("button", name="Leave out picture 2").click()
    expect(waiting(shown)).to_have_count(2)
    asked(shown, "what are these?")
    urls = url_of(RED), url_of(BLUE, "image/jpeg")
    assert sent(script) == [*map(picture, urls), {"type": "text", "text": "what are these?"}]
    expect(waiting(shown)).to_have_count(0)
    seen = shown.locator(".turn.user img")
    assert [one.get_attribute("src") for one in seen.all()] == list(urls)
    asked(shown, "and now?")
    assert sent(script) == "and now?"
    assert script.asked[-1]["messages"][0]["content"][0] == picture(urls[0])


def test_the_model_sees_what_is_sent(shown: Page, seeing_lead: Lead):
    replies: list[str] = []
    for file in (RED, BLUE, RED):
        choose(shown, chosen("a", file))
        expect(waiting(shown)).to_have_count(1)
        reply = asked(shown, "what is it?")
        expect(reply.locator(".cost")).to_be_visible()
        replies.append(reply.locator(".text").inner_text())
        shown.locator("#new").click()
    assert replies[0] == replies[2] != replies[1]
    seeing_lead.until_idle()


def test_a_picture_needs_no_text(shown: Page):
    script = Script(shown)
    choose(shown, chosen("red.png", RED))
    shown.get_by_role("button", name="Send").click()  # while it is read
    expect(shown.get_by_role("button", name="Regenerate")).to_be_visible()
    assert sent(script) == [picture(url_of(RED))]


def test_pictures_stay_with_their_conversation(shown: Page):
    script = Script(shown, Reply((("red", None),)))
    choose(shown, chosen("red.png", RED))
    expect(waiting(shown)).to_have_count(1)
    asked_and_kept(shown, "which colour?")
    shown.reload()
    expect(shown.locator(".turn.user img")).to_have_attribute("src", url_of(RED))
    expect(shown.locator("#attach")).to_be_visible()
    choose(shown, chosen("blue.jpg", BLUE, "image/jpeg"))
    expect(waiting(shown)).to_have_count(1)
    shown.locator("#new").click()
    expect(waiting(shown)).to_have_count(0)
    shown.get_by_role("button", name="which colour?", exact=True).click()
    expect(waiting(shown)).to_have_count(1)
    asked(shown, "and this?")
    contents = [one["content"] for one in script.asked[-1]["messages"]]
    assert contents[0][0] == picture(url_of(RED))
    assert contents[2][0] == picture(url_of(BLUE, "image/jpeg"))


def test_exported_pictures_are_imported(shown: Page):
    Script(shown)
    choose(shown, chosen("red.png", RED))
    expect(waiting(shown)).to_have_count(1)
    asked_and_kept(shown, "export me")
    with shown.expect_download() as download:
        shown.get_by_role("button", name="Export export me").click()
    shown.get_by_role("button", name="Delete export me").click()
    expect(shown.locator(".turn")).to_have_count(0)
    shown.locator("#import").set_input_files(download.value.path())
    expect(shown.locator(".turn.user img")).to_have_attribute("src", url_of(RED))


def test_edited_questions_keep_or_leave_out_pictures(shown: Page):
    script = Script(shown)
    choose(shown, chosen("red.png", RED), chosen("blue.jpg", BLUE, "image/jpeg"))
    expect(waiting(shown)).to_have_count(2)
    asked(shown, "first")
    shown.locator(".turn.user").get_by_role("button", name="Edit").click()
    shown.locator(".turn.user").get_by_role("button", name="Leave out picture 1").click()
    shown.get_by_label("Edit the message").fill("better")
    shown.get_by_label("Edit the message").press("Enter")
    expect(shown.locator(".turn.user .versions")).to_contain_text("2/2")
    expect(shown.get_by_role("button", name="Regenerate")).to_be_visible()
    assert sent(script) == [picture(url_of(BLUE, "image/jpeg")), {"type": "text", "text": "better"}]
    shown.get_by_role("button", name="Earlier version").click()
    expect(shown.locator(".turn.user img")).to_have_count(2)


def test_large_pictures_are_made_smaller(shown: Page):
    script = Script(shown)
    noise = Image.effect_noise((3000, 1500), 90).convert("RGB")
    for data, media, size in (
        (file_of(noise, "JPEG"), "image/jpeg", (2048, 1024)),
        (file_of(noise.resize((1600, 1400))), "image/png", (1600, 1400)),  # only its file is too large
        (file_of(drawn("red", (30, 20)), "BMP"), "image/bmp", (30, 20)),
    ):
        choose(shown, chosen("large", data, media))
        expect(waiting(shown)).to_have_count(1)
        asked(shown, "and?")
        url = sent(script)[0]["image_url"]["url"]
        assert url.startswith("data:image/jpeg;base64,")
        seen = shown.locator(".turn.user img").last
        assert seen.evaluate("(image) => [image.naturalWidth, image.naturalHeight]") == list(size)


def test_other_files_are_refused_by_name(shown: Page):
    files = chosen("notes.txt", b"no picture", "text/plain"), chosen("red.png", RED)
    choose(shown, *files)
    expect(waiting(shown)).to_have_count(1)
    expect(shown.get_by_role("alert")).to_have_text(
        "Left out: notes.txt (not a picture that this browser reads)."
    )
    shown.evaluate("""() => {
      const data = new DataTransfer();
      const file = new File(["x"], "film.png", { type: "image/png" });
      Object.defineProperty(file, "size", { value: 51e6 });
      const event = new Event("drop", { bubbles: true });
      event.dataTransfer = { files: [file] };
      document.dispatchEvent(event);
    }""")
    expect(shown.get_by_role("alert")).to_have_text("Left out: film.png (too large: at most 50 MB).")
    expect(waiting(shown)).to_have_count(1)


def test_pasted_texts_count_before_their_pictures(shown: Page):
    bring(shown, PASTE, chosen("cells.png", RED), text="a table")
    bring(shown, DROP, chosen("red.png", RED))
    expect(waiting(shown)).to_have_count(1)


def test_refusals_are_shown_and_mended(shown: Page, seeing_lead: Lead, problems: list[str]):
    choose(shown, chosen("strip.png", file_of(drawn("red", (330, 10)))))
    expect(waiting(shown)).to_have_count(1)
    ask(shown, "what is it?")
    failed = shown.locator(".turn.failed")
    expect(failed).to_contain_text("the picture has 330 x 10 pixels: send one with at most")
    shown.locator(".turn.user").get_by_role("button", name="Edit").click()
    shown.get_by_role("button", name="Leave out picture 1").click()
    shown.get_by_label("Edit the message").press("Enter")
    expect(shown.locator(".turn").last.locator(".cost")).to_be_visible()
    problems.clear()  # of the browser, about the 400
    seeing_lead.until_idle()


def test_models_without_projectors_take_none(page: Page, lead: Lead):
    page.goto(lead.url)
    expect(page.locator("#model")).to_contain_text("toy")
    expect(page.locator("#attach")).to_be_hidden()
    bring(page, DROP, chosen("cat.png", RED))
    expect(page.get_by_role("alert")).to_contain_text("Left out: cat.png. This model reads text only.")
    expect(waiting(page)).to_have_count(0)


@pytest.mark.parametrize("screen", SCREENS)
def test_pictures_fit_every_screen(shown: Page, screen: str):
    width, height = SCREENS[screen]
    shown.set_viewport_size({"width": width, "height": height})
    Script(shown)
    large = chosen("wide.png", file_of(drawn("red", (1600, 400))))
    choose(shown, large, chosen("blue.jpg", BLUE, "image/jpeg"))
    expect(waiting(shown)).to_have_count(2)
    asked(shown, "fine?")
    choose(shown, *[large] * 4)
    expect(waiting(shown)).to_have_count(4)
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    expect(shown.get_by_role("button", name="Send")).to_be_in_viewport()
