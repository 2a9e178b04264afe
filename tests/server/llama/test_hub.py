"""Which file of a repository, and its download from a server that plays Hugging Face."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from drafters.drafter_settings import DrafterSettings
from server.errors import StartupError
from server.flags import read
from server.lead.loading import prepared
from server.llama.hub import KINDS, Source, choose, fetch, heads, projector, source
from server.llama.model_settings import downloaded
from server.settings import BUNDLED_DRAFT, LeadSettings
from tests.model.block_kinds import DFLASH, DSPARK
from tests.model.kinds import QWEN3, QWEN35, QWEN35_BLOCK, Kind
from tests.model.random_models import write
from tests.server.llama.hugging_face import hugging_face

NAMES = [
    "README.md",
    "mmproj-Q4_K_M.gguf",
    "model-F16.gguf",
    "model-Q8_0.gguf",
    "model-q4_k_m.gguf",
    "model-IQ4_XS.gguf",
    "Q6_K/model-Q6_K-00001-of-00002.gguf",
    "Q6_K/model-Q6_K-00002-of-00002.gguf",
]
FILES = {name: b"GGUF " + name.encode() for name in NAMES}


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        (Source("a/b"), ["model-q4_k_m.gguf"]),
        (Source("a/b", quant="q8_0"), ["model-Q8_0.gguf"]),
        (Source("a/b", quant="Q6_K"), NAMES[-2:]),
        (Source("a/b", file="model-F16.gguf"), ["model-F16.gguf"]),
        (Source("a/b", file=NAMES[-1]), NAMES[-2:]),
    ],
)
def test_which_file(wanted: Source, chosen: list[str]):
    assert choose(NAMES, wanted) == chosen


def test_missing_quantisation_takes_first_file():
    assert choose(["z.gguf", "imatrix.gguf", "b-Q8_0.gguf"], Source("a/b")) == ["b-Q8_0.gguf"]


@pytest.mark.parametrize("head", ["mtp", "MTP", "eagle3", "dflash", "dspark", "mmproj", "imatrix"])
@pytest.mark.parametrize("folder", ["", "heads/"])
def test_heads_are_no_models(head: str, folder: str):
    names = [f"{folder}{head}-Model-Q8_0.gguf", f"Model-{head}-Q8_0.gguf", "Model-Q8_0.gguf", "z-Q4_0.gguf"]
    assert choose(names, Source("a/b", quant="Q8_0")) == ["Model-Q8_0.gguf"]
    assert choose(names, Source("a/b")) == ["Model-Q8_0.gguf"]
    assert choose(names, Source("a/b", file=names[0])) == [names[0]]


@pytest.mark.parametrize("head", KINDS)
def test_repositories_of_heads_alone_give_one(head: str):
    names = [f"{head}-Model-Q8_0.gguf", f"{head}-Model-Q4_K_M.gguf", "imatrix.gguf"]
    assert choose(names, Source("a/b")) == [f"{head}-Model-Q4_K_M.gguf"]


@pytest.mark.parametrize(
    ("names", "model", "found"),
    [
        (["mtp-m-Q8_0.gguf", "eagle3-m.gguf"], "m.gguf", {"mtp": 0, "eagle3": 1}),
        (["mtp-m-BF16.gguf", "mtp-m-Q4_0.gguf", "MTP-m-Q8_0.gguf"], "m-Q8_0.gguf", {"mtp": 2}),
        (["mtp-m-BF16.gguf", "mtp-m-Q8_0.gguf", "mtp-m-Q2_K.gguf"], "m-IQ4_XS.gguf", {"mtp": 2}),
        (["mtp-m-Q8_0.gguf", "a/mtp-m-Q4_0.gguf", "b/mtp-m-Q8_0.gguf"], "a/m-Q8_0.gguf", {"mtp": 1}),
        (["b/mtp-m.gguf", "mtp-m.txt", "mmproj-mtp-m.gguf"], "a/m.gguf", {}),
        (["dflash-m.gguf", "m-dspark-Q8_0.gguf"], "m.gguf", {"dflash": 0, "dspark": 1}),
        (["mtp-m.gguf"], "mtp-m.gguf", {}),
    ],
)
def test_heads_beside_a_model(names: list[str], model: str, found: dict[str, int]):
    assert heads([*names, model], model) == {kind: names[i] for kind, i in found.items()}


@pytest.mark.parametrize(
    ("names", "model", "found"),
    [
        (["mmproj-F16.gguf", "mmproj-BF16.gguf", "mmproj-F32.gguf"], "m-Q4_K_M.gguf", 1),
        (["mmproj-m-f16.gguf", "mmproj-m-Q8_0.gguf"], "m-Q4_K_M.gguf", 1),
        (["mmproj-m-f16.gguf", "mmproj-m-Q8_0.gguf"], "m-BF16.gguf", 0),
        (["mmproj-m-f16.gguf", "mmproj-m-Q8_0.gguf"], "m-500M.gguf", 0),
        (["mmproj-F16.gguf", "a/mmproj-F32.gguf", "b/mmproj-Q8_0.gguf"], "a/m-Q8_0-00001-of-00002.gguf", 1),
        (["m.mmproj-Q8_0.gguf"], "m-Q8_0.gguf", 0),
        (["b/mmproj-F16.gguf", "mmproj-F16.bin", "mtp-m.gguf"], "a/m.gguf", None),
    ],
)
def test_projector_beside_a_model(names: list[str], model: str, found: int | None):
    assert projector([*names, model], model) == (None if found is None else names[found])


@pytest.mark.parametrize(
    ("names", "wanted", "said"),
    [
        (NAMES, Source("a/b", quant="Q4_0"), "has no file in Q4_0: it has Q6_K/model.*model-F16.gguf"),
        (NAMES, Source("a/b", quant="Q4_K"), "has no file in Q4_K:"),
        (NAMES, Source("a/b", file="model.gguf"), r"has no model\.gguf: it has"),
        (["README.md"], Source("a/b"), "has no GGUF file"),
        (["README.md"], Source("a/b", file="m.gguf"), "it has no GGUF file"),
        (NAMES[:-1], Source("a/b", quant="Q6_K"), "has no Q6_K/model-Q6_K-00002-of-00002.gguf"),
    ],
)
def test_missing_file_lists_existing_ones(names: list[str], wanted: Source, said: str):
    with pytest.raises(StartupError, match=said):
        choose(names, wanted)


def test_how_a_repository_is_written():
    assert source("some.body/model-1_x:Q8_0") == Source("some.body/model-1_x", quant="Q8_0")
    assert source("a/b", "c.gguf") == Source("a/b", file="c.gguf")
    for text in ("model", "a/b/c", "/b", "a/", "https://there/a/b"):
        with pytest.raises(StartupError, match="USER/MODEL"):
            source(text)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Return a function that points huggingface_hub to an address, with a cache of the test's own."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "no-token"))
    for name in ("HF_TOKEN", "DUO_MODEL", "DUO_DRAFTER_MODEL"):
        monkeypatch.delenv(name, raising=False)

    def use(url: str) -> None:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
        monkeypatch.setattr(
            "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
            url + "/{repo_id}/resolve/{revision}/{filename}",
        )

    return use


def test_a_file_is_downloaded_once(use: Callable[[str], None]):
    with hugging_face(FILES) as hub:
        use(hub.url)
        path = fetch(source("somebody/model"))
        assert path.read_bytes() == FILES["model-q4_k_m.gguf"]
        assert fetch(source("somebody/model")) == path
        assert hub.downloads == ["model-q4_k_m.gguf"]


def test_all_parts_are_downloaded(use: Callable[[str], None]):
    with hugging_face(FILES) as hub:
        use(hub.url)
        path = fetch(source("somebody/model:Q6_K"))
        assert path.name == "model-Q6_K-00001-of-00002.gguf"
        assert path.with_name("model-Q6_K-00002-of-00002.gguf").read_bytes() == FILES[NAMES[-1]]
        assert hub.downloads == NAMES[-2:]


def test_settings_accept_repositories_everywhere(use: Callable[[str], None]):
    with hugging_face(FILES) as hub:
        use(hub.url)
        flags = ["-hf", "somebody/model:Q8_0", "--hf-repo-draft", "somebody/model:IQ4_XS"]
        settings = prepared(read(LeadSettings, flags))
        assert settings.model.read_bytes() == FILES["model-Q8_0.gguf"]
        assert settings.draft_model is not None
        assert settings.draft_model.read_bytes() == FILES["model-IQ4_XS.gguf"]
        assert settings.name == "model-Q8_0"
        drafter = read(DrafterSettings, ["--hf-repo", "somebody/model", "--hf-file", "model-F16.gguf"])
        assert downloaded(drafter).model.read_bytes() == FILES["model-F16.gguf"]


BLOCK_ALONE = QWEN35_BLOCK._replace(layers=[*[{}] * len(QWEN35.layers), QWEN35_BLOCK.layers[-1]])
ENOUGH = "dflash-model.gguf (one is enough)"


@pytest.mark.parametrize(
    ("model", "head", "flags", "said"),
    [
        (QWEN35, BLOCK_ALONE, [], f"mtp-model-Q8_0.gguf, found beside the model; left out: {ENOUGH}"),
        (QWEN35, BLOCK_ALONE, ["--mtp", "off"], "none; left out: mtp-model-Q8_0.gguf (--mtp off)"),
        (QWEN35, BLOCK_ALONE, ["--draft-max", "0"], "none; left out: mtp-model-Q8_0.gguf (--draft-max 0)"),
        (QWEN35, BLOCK_ALONE, ["--mmproj", "m.gguf"], f"found beside the model; left out: {ENOUGH}"),
        (QWEN35, QWEN35, [], "mtp-model-Q8_0.gguf (it is a model of its own)"),
        (QWEN35_BLOCK, BLOCK_ALONE, [], "mtp-model-Q8_0.gguf (the model's file has a prediction block)"),
    ],
)
def test_head_beside_its_model_drafts(
    model: Kind,
    head: Kind,
    flags: list[str],
    said: str,
    use: Callable[[str], None],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.INFO)
    files = {"dflash-model.gguf": b"GGUF"}
    for name, kind in {"model-Q8_0.gguf": model, "mtp-model-Q8_0.gguf": head}.items():
        write(tmp_path / name, kind)
        files[name] = (tmp_path / name).read_bytes()
    with hugging_face(files) as hub:
        use(hub.url)
        settings = prepared(read(LeadSettings, ["-hf", "somebody/model", *flags]))
    assert settings.model.name == "model-Q8_0.gguf"
    drafts = "found beside" in said
    assert settings.draft_mode == ("sync" if drafts else "auto")
    assert (settings.draft_model and settings.draft_model.name) == ("mtp-model-Q8_0.gguf" if drafts else None)
    assert said in caplog.text
    assert "dflash-model.gguf (" in caplog.text
    assert ("dflash-model.gguf" in hub.downloads) == (head is model), (
        "it is tried if the other one is no head"
    )


@pytest.mark.parametrize("kind", [DFLASH, DSPARK], ids=["dflash", "dspark"])
def test_flash_heads_beside_a_model_draft(
    kind: Kind, use: Callable[[str], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    name = f"{'dspark' if kind is DSPARK else 'dflash'}-model.gguf"
    write(tmp_path / "model.gguf", QWEN3)
    write(tmp_path / name, kind)
    with hugging_face({path.name: path.read_bytes() for path in tmp_path.glob("*.gguf")}) as hub:
        use(hub.url)
        settings = prepared(read(LeadSettings, ["-hf", "somebody/model"]))
    assert (settings.draft_mode, settings.draft_model and settings.draft_model.name) == ("sync", name)
    assert f"{name}, found beside the model" in caplog.text


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ((), True),
        (("--mmproj-auto",), True),
        (("--hf-file", "model-F16.gguf"), True),
        (("--no-mmproj",), False),
        (("--no-mmproj-auto",), False),
        (("-mm", "mine.gguf"), False),
    ],
)
def test_projector_beside_its_model_is_used(
    flags: tuple[str, ...], found: bool, use: Callable[[str], None], caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    name = "mmproj-Q4_K_M.gguf"
    with hugging_face(FILES) as hub:
        use(hub.url)
        settings = prepared(read(LeadSettings, ["-hf", "somebody/model", *flags]))
    assert (f"pictures {name}, found beside the model" in caplog.text) == (name in hub.downloads) == found
    assert settings.mmproj_auto == found
    named = Path("mine.gguf") if "-mm" in flags else None
    assert (settings.mmproj and settings.mmproj.name) == (name if found else named and named.name)
    offline = prepared(read(LeadSettings, ["-hf", "somebody/model", *flags]))
    assert offline.mmproj == settings.mmproj


def test_projectors_not_fetched_are_none_offline(use: Callable[[str], None]):
    with hugging_face(FILES) as hub:
        use(hub.url)
        prepared(read(LeadSettings, ["-hf", "somebody/model", "--no-mmproj"]))
    assert prepared(read(LeadSettings, ["-hf", "somebody/model"])).mmproj is None


def test_draft_models_precede_heads_beside(
    use: Callable[[str], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    files = FILES | {"mtp-model-Q8_0.gguf": b"GGUF"}
    with hugging_face(files) as hub:
        use(hub.url)
        flags = ["-hf", "somebody/model:Q8_0", "--no-mmproj", "--draft-model", str(BUNDLED_DRAFT)]
        assert prepared(read(LeadSettings, flags)).draft_model == BUNDLED_DRAFT
    assert "left out: mtp-model-Q8_0.gguf (a draft model is given)" in caplog.text
    assert hub.downloads == ["model-Q8_0.gguf"]


def test_offline_uses_earlier_download(use: Callable[[str], None]):
    with hugging_face(FILES) as hub:
        use(hub.url)
        path = fetch(source("somebody/model:Q8_0"))
    assert fetch(source("somebody/model:Q8_0")) == path
    assert fetch(source("somebody/model", "model-Q8_0.gguf")) == path


def test_offline_error_gives_advice(use: Callable[[str], None]):
    with hugging_face(FILES) as hub:
        use(hub.url)
    for wanted in (source("somebody/model"), source("somebody/model", "model-F16.gguf")):
        with pytest.raises(StartupError, match=r"check the connection, or download.*--model") as raised:
            fetch(wanted)
        assert "\n" not in raised.value.message


def test_offline_by_choice(use: Callable[[str], None], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with hugging_face(FILES) as hub:
        use(hub.url)
        with pytest.raises(StartupError, match="HF_HUB_OFFLINE"):
            fetch(source("somebody/model"))


def test_a_repository_for_some_needs_a_token(use: Callable[[str], None], monkeypatch: pytest.MonkeyPatch):
    with hugging_face(FILES, token="hf_secret") as hub:
        use(hub.url)
        with pytest.raises(StartupError, match=r"not for everybody.*HF_TOKEN"):
            fetch(source("somebody/model"))
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        assert fetch(source("somebody/model")).read_bytes() == FILES["model-q4_k_m.gguf"]


def test_a_repository_that_there_is_not(use: Callable[[str], None]):
    with hugging_face(FILES) as hub:
        use(hub.url)
        with pytest.raises(StartupError, match="nobody/model is not on Hugging Face"):
            fetch(source("nobody/model"))
