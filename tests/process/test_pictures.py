"""A lead with --mmproj, as a user starts it: a chat about a picture or sound, kept over a restart."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from tests.model.kinds import GEMMA3
from tests.model.projectors import GEMMA, QWEN2_VL, QWEN_VL, ULTRAVOX, write_projector
from tests.model.random_models import words_added, write
from tests.process.duo import Duo, run
from tests.server.llama.hugging_face import hugging_face
from tests.server.pictures.recorded import heard, tone

pytestmark = [pytest.mark.model, pytest.mark.timeout(180)]

LONG = (
    "Look closely, since all that follows is about this picture and nothing else that you may know of. " * 2
)


VISION = words_added("<|vision_start|>", "<|vision_end|>")
KINDS = {
    "gemma3": (GEMMA3, GEMMA),
    "qwenvl": (QWEN2_VL._replace(fields={**QWEN2_VL.fields, **VISION}), QWEN_VL),
    "ultravox": (GEMMA3, ULTRAVOX),
}


@pytest.fixture(scope="module", params=KINDS)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Return flags for a model with a projector."""
    try:
        importlib.import_module("llama_cpp.mtmd_cpp")
    except (OSError, RuntimeError) as error:
        pytest.skip(f"this llama.cpp was built without libmtmd ({error})")
    folder = tmp_path_factory.mktemp("files")
    model, projector = KINDS[request.param]
    write(folder / "model.gguf", model)
    path = folder / f"mmproj-{request.param}.gguf"
    write_projector(path, projector)
    return "--model", str(folder / "model.gguf"), "--mmproj", str(path)


TONES = {"red": 440, "blue": 3000}  # hertz: noises of two seeds sound the same
DRAWN = {"max_tokens": 80, "temperature": 1.0, "seed": 3}  # the likeliest tokens of random weights repeat


def parts(colour: str, files: tuple[str, ...]) -> Any:
    """Return a question about a picture of this colour, or a sound that stands for it."""
    from tests.server.pictures.drawn import drawn, file_of, url_of

    picture = {"type": "image_url", "image_url": {"url": url_of(file_of(drawn(colour, (90, 60))))}}
    given = heard(tone(TONES[colour])) if "ultravox" in files[-1] else picture
    return [{"type": "text", "text": LONG}, given, {"type": "text", "text": "What is it?"}]


def test_pictures_are_seen_and_kept(files: tuple[str, ...], tmp_path: Path):
    flags = ("serve", *files, "--threads", "1", "--cache-dir", str(tmp_path / "cache"))
    with Duo(tmp_path, *flags) as duo:
        duo.wait_until_ready()
        red, blue = (duo.ask(parts(colour, files), **DRAWN) for colour in ("red", "blue"))
        again = duo.ask(parts("red", files), **DRAWN)
    texts = [one["choices"][0]["message"]["content"] for one in (red, blue, again)]
    assert texts[0] == texts[2] != texts[1]
    n_prompt = red["usage"]["prompt_tokens"]
    with Duo(tmp_path, *flags) as duo:
        duo.wait_until_ready()
        later = duo.ask(parts("red", files), **DRAWN)
    assert later["choices"][0]["message"]["content"] == texts[0]
    assert later["usage"]["prompt_tokens_details"]["cached_tokens"] == n_prompt - 1


def test_projectors_of_repositories_are_used(
    files: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    names = {"model-Q8_0.gguf": files[1], "mmproj-F16.gguf": files[3]}
    flags = ("serve", "-hf", "somebody/model", "--threads", "1")
    monkeypatch.delenv("DUO_MODEL", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    with hugging_face({name: Path(path).read_bytes() for name, path in names.items()}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        with Duo(tmp_path, *flags) as duo:
            duo.wait_until_ready()
            online = duo.ask(parts("red", files), **DRAWN)
        assert sorted(hub.downloads) == sorted(names)
    with Duo(tmp_path, *flags, "--offline") as duo:
        duo.wait_until_ready()
        assert duo.ask(parts("red", files), **DRAWN)["choices"] == online["choices"]
        assert "pictures mmproj-F16.gguf, found beside the model" in duo.log.read_text()


def test_unusable_projectors_end_the_start(files: tuple[str, ...], tmp_path: Path):
    model = files[:2]
    for flags, why in (
        (("--mmproj", str(tmp_path / "none.gguf")), "no projector at"),
        (("--mmproj", files[1]), "llama.cpp cannot use"),
    ):
        ended = run("serve", *model, *flags, "--port", "0")
        assert ended.returncode == 1
        assert why in ended.stderr + ended.stdout
        assert "Traceback" not in ended.stderr
