"""What `duo up` starts, by the GPUs that there are."""

from __future__ import annotations

import shlex
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drafters.drafter_settings import DrafterSettings
from server.errors import StartupError
from server.flags import read
from server.lead.site import Site
from server.llama.options import tensor_places
from server.local import up as local_up
from server.local.up import up
from server.settings import LeadSettings, UpSettings

PROGRAM = local_up._program_name  # pyright: ignore[reportPrivateUsage]
ROOM = 10**9  # bytes, more than the bundled models want


class Started:
    def __init__(self) -> None:
        self.drafters: list[tuple[str, list[str], dict[str, str]]] = []
        self.lead: LeadSettings | None = None
        self.site: Site | None = None

    def drafter(self, name: str, flags: list[str], environment: dict[str, str]) -> SimpleNamespace:
        self.drafters.append((name, flags, environment))
        return SimpleNamespace(close=lambda: None)

    def run_lead(self, settings: LeadSettings, site: Site) -> int:
        self.lead, self.site = settings, site
        return 0


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    found = Started()

    def embedded(listen: str | None) -> nullcontext[SimpleNamespace]:
        elsewhere = f"redis://:secret@{listen}" if listen else None
        return nullcontext(SimpleNamespace(url="unix:///here", url_elsewhere=elsewhere))

    replaced: dict[str, Any] = {
        "free_memory_of_gpus": lambda: [ROOM, 2 * ROOM, ROOM],
        "n_cores": lambda: 8,
        "open_socket": lambda host, port: nullcontext(),  # pyright: ignore[reportUnknownLambdaType]
        "EmbeddedServer": embedded,
        "drafter": found.drafter,
        "run_lead": found.run_lead,
        "_program_name": lambda: "duo",
    }
    for name, value in replaced.items():
        monkeypatch.setattr(f"server.local.up.{name}", value)
    return found


def place_of(flags: list[str]) -> list[str]:
    return flags[flags.index("--split-mode") :][:4] if "--split-mode" in flags else []


def test_drafters_get_the_other_gpus(started: Started):
    assert up(UpSettings.model_validate({"drafters": 3})) == 0
    assert started.lead is not None
    assert (started.lead.split_mode, started.lead.main_gpu) == ("none", 1)
    assert [name for name, _, _ in started.drafters] == ["drafter-1", "drafter-2", "drafter-3"]
    gpus = [place_of(flags) for _, flags, _ in started.drafters]
    assert gpus == [["--split-mode", "none", "--main-gpu", gpu] for gpu in ("0", "2", "0")]


def test_drafters_are_told_where_their_experts_are(started: Started):
    up(UpSettings.model_validate({"override_tensor_draft": ["a=CPU"], "cpu_moe_draft": True}))
    ((_, flags, _),) = started.drafters
    told = flags[flags.index("--override-tensor") + 1]
    assert told.startswith("a=CPU,")
    assert read(DrafterSettings, ["--override-tensor", told]).weights.places == tensor_places(
        ["a=CPU"], cpu_moe=True, n_cpu_moe=0
    )


def test_explicit_draft_devices_are_kept(started: Started):
    up(UpSettings.model_validate({"draft_devices": "2"}))
    assert started.lead is not None
    assert started.lead.split_mode == "layer"
    ((_, flags, environment),) = started.drafters
    assert place_of(flags) == []
    assert environment["CUDA_VISIBLE_DEVICES"] == "2"


@pytest.mark.parametrize("cores", [2, 8])
def test_whatever_drafts_here_another_drafter_may_join(
    started: Started, cores: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("server.local.up.n_cores", lambda: cores)
    assert up(UpSettings.model_validate({"pool": "team"})) == 0
    assert started.site is not None
    assert started.site.redis_url == "unix:///here"
    assert started.site.join == "duo draft --redis unix:///here --pool team --model duo-tiny-draft-q8_0.gguf"
    assert started.site.join_elsewhere is None


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis://desk:6379/1", "redis://desk:6379/1"),
        ("redis://:secret@desk", "redis://:PASSWORD@desk"),
        ("rediss://me:s%40cret@desk:6379/0?timeout=3", "'rediss://me:PASSWORD@desk:6379/0?timeout=3'"),
        ("unix:///run/redis?password=secret", "'unix:///run/redis?password=PASSWORD'"),
        (
            "redis+sentinel://me:secret@a,b:2/duo?sentinel_password=secret&db=1",
            "'redis+sentinel://me:PASSWORD@a,b:2/duo?sentinel_password=PASSWORD&db=1'",
        ),
    ],
)
def test_no_password_is_logged(started: Started, url: str, told: str, monkeypatch: pytest.MonkeyPatch):
    def reachable(*_: object) -> None: ...

    monkeypatch.setattr("server.speculation.wire.redis_client.check", reachable)
    up(UpSettings.model_validate({"redis": url}))
    assert started.site is not None
    assert started.site.redis_url == url
    assert started.site.join == f"duo draft --redis {told} --model duo-tiny-draft-q8_0.gguf"


@pytest.mark.parametrize(
    ("listen", "reach"),
    [
        (None, "on this machine only"),
        ("127.0.0.1:6380", "on this machine only"),
        ("[::1]:6380", "on this machine only"),
        ("10.0.0.1", "from other machines too"),
        ("desktop:6380", "from other machines too"),
    ],
)
def test_join_command_says_from_where(started: Started, listen: str | None, reach: str):
    up(UpSettings.model_validate({"redis_listen": listen}))
    assert started.site is not None
    assert started.site.reach == reach


@pytest.mark.parametrize("found", [True, False])
def test_the_commands_can_be_pasted(
    started: Started, found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "duo").touch()
    monkeypatch.setattr("sys.executable", str(programs / "python"))

    def which(_: str) -> str | None:
        return "/usr/bin/duo" if found else None

    monkeypatch.setattr("shutil.which", which)
    monkeypatch.setattr("server.local.up._program_name", PROGRAM)
    up(UpSettings.model_validate({"redis_listen": "10.0.0.1"}))
    assert started.site is not None
    assert shlex.split(started.site.join or "")[0] == ("duo" if found else str(programs / "duo"))
    elsewhere = shlex.split(started.site.join_elsewhere or "")
    assert elsewhere[0] == ("duo" if found else ".venv/bin/duo"), "another machine has it elsewhere"


@pytest.mark.parametrize("flags", [{}, {"drafters": 2}, {"verify": "rejection"}])
def test_few_cores_draft_in_the_lead_alone(
    started: Started, flags: dict[str, object], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("server.local.up.n_cores", lambda: 2)
    monkeypatch.setattr("server.local.up.free_memory_of_gpus", list)
    up(UpSettings.model_validate(flags))
    assert started.site is not None
    assert (started.drafters, started.site.draft_model is not None) == ([], True)
    said = "2 cores: the draft model runs inside the lead; --redis-listen 0.0.0.0 lets another machine draft"
    assert (started.site.remark or "").startswith(said)


def test_our_default_drafts_only_where_it_fits(started: Started, monkeypatch: pytest.MonkeyPatch):
    def nobody(*_: object) -> None: ...

    monkeypatch.setattr("server.local.up.draft_for", nobody)
    assert up(UpSettings.model_validate({})) == 0
    assert started.site is not None
    assert (started.drafters, started.site.draft_model) == ([], None)
    assert (
        started.site.remark
        == "lookups in what was said; --draft-model FILE adds a draft model of the same family"
    )
    assert started.site.join == "duo draft --redis unix:///here", "drafters of another machine may join"


def test_sync_drafting_needs_a_draft_model(started: Started, monkeypatch: pytest.MonkeyPatch):
    def nobody(*_: object) -> None: ...

    monkeypatch.setattr("server.local.up.draft_for", nobody)
    with pytest.raises(StartupError, match="--draft-mode sync needs a draft model"):
        up(UpSettings.model_validate({"draft_mode": "sync"}))


def test_password_is_on_no_command_line(started: Started):
    assert up(UpSettings.model_validate({"redis_listen": "10.0.0.1"})) == 0
    assert started.site is not None
    assert started.site.join_elsewhere == (
        "duo draft --redis redis://:secret@10.0.0.1 --model duo-tiny-draft-q8_0.gguf"
    )
    assert started.drafters
    for _, flags, environment in started.drafters:
        assert "--redis" not in flags
        assert environment["DUO_REDIS"] == "unix:///here"


def test_own_redis_keeps_its_address(started: Started):
    with pytest.raises(StartupError, match="leave out --redis"):
        up(UpSettings.model_validate({"redis": "redis://there", "redis_listen": "10.0.0.1"}))


def test_printed_commands_name_draft_model(started: Started, tmp_path: Path):
    model = tmp_path / "a draft.gguf"
    model.write_bytes(b"GGUF")
    assert up(UpSettings.model_validate({"draft_model": model, "redis_listen": "10.0.0.1"})) == 0
    assert started.site is not None
    assert shlex.split(started.site.join or "")[-2:] == ["--model", str(model)]
    assert shlex.split(started.site.join_elsewhere or "")[-2:] == ["--model", "a draft.gguf"]


def test_other_drafters_do_not_load_an_assistant(
    started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    model = tmp_path / "assistant.gguf"
    model.write_bytes(b"GGUF")

    def architecture(path: Path) -> str:
        return "gemma4-assistant"

    monkeypatch.setattr("server.lead.heads.architecture", architecture)
    assert up(UpSettings.model_validate({"draft_model": model, "redis_listen": "10.0.0.1"})) == 0
    assert started.site is not None
    assert started.site.draft_model == model  # in the lead
    assert not started.drafters
    assert started.site.join == "duo draft --redis unix:///here"
    assert started.site.join_elsewhere == "duo draft --redis redis://:secret@10.0.0.1"


def test_drafters_with_cores_spare_the_lead(started: Started, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("server.local.up.free_memory_of_gpus", list)
    monkeypatch.setattr("server.local.up.n_cores", lambda: 12)
    assert up(UpSettings.model_validate({"cpu_range_draft": "12-14", "cpu_mask_draft": "1000"})) == 0
    assert started.site is not None
    assert started.site.n_threads == 12
    [(_, flags, _)] = started.drafters
    assert flags[flags.index("--threads") + 1] == "3"
    assert flags[flags.index("--cpu-mask") + 1] == "7000"
    assert up(UpSettings.model_validate({"cpu_range": "0-11"})) == 0
    assert "--cpu-mask" not in started.drafters[-1][1], "they inherit it"
    assert started.site.n_threads == 9, "a quarter is the drafter's"
