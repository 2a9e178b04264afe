"""/slots: conversations seen, saved, restored and erased by hand, over the toy model."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.cache.named import NamedFiles
from server.cache.snapshots import Snapshots
from server.engine import thread
from server.engine.generate import Generation
from server.engine.request import Exactness, GenerationRequest, Speculation
from server.errors import BackendError
from tests.checks import check_engine
from tests.contract.contract import validate
from tests.fake_backend import FakeBackend, FakeModel
from tests.gated import Gated, at_command
from tests.server.api.scripted import N_CTX, services
from tests.server.api.slots_scene import ENOUGH, N_PLACES, app_of, endless, serving
from tests.support import request as generation_request


def text_of(reply: dict[str, Any]) -> str:
    return reply["choices"][0]["message"]["content"]


def cached_of(reply: dict[str, Any]) -> int:
    return reply["usage"]["prompt_tokens_details"]["cached_tokens"]


def continued(reply: dict[str, Any]) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text_of(reply)}, {"role": "user", "content": "and then?"}]


async def test_slots_are_the_places_of_the_cache(tmp_path: Path):
    async with serving(tmp_path) as server:
        empty = await server.list()
        assert [slot["id"] for slot in empty] == list(range(N_PLACES))
        assert {(slot["n_past"], slot["is_processing"], slot["n_ctx"]) for slot in empty} == {
            (0, False, N_CTX)
        }
        usage = (await server.chat())["usage"]
        held = [slot for slot in await server.list() if slot["n_past"]]
        assert [slot["n_past"] for slot in held] == [usage["prompt_tokens"] + usage["completion_tokens"] - 1]
        assert not held[0]["is_processing"]
        assert not any("id_task" in slot for slot in empty)


async def test_slot_reports_without_the_text(tmp_path: Path):
    async with serving(tmp_path, endless()) as server:
        prompt = tuple(b"a secret that nobody shall read")
        request = replace(generation_request(prompt, max_tokens=None), salt="its salt")
        generation = await server.begun(request)
        await anext(aiter(generation))  # its first tokens at least
        response = await server.http.get("/slots")
        (busy,) = [slot for slot in response.json() if slot["is_processing"]]
        [token] = busy["next_token"]
        assert token["n_decoded"] >= 1
        assert token["has_next_token"]
        assert busy["n_past"] == busy["n_prompt_tokens"] == len(prompt) + token["n_decoded"] - 1
        assert busy["n_prompt_tokens_processed"] == len(prompt)
        assert isinstance(busy["id_task"], int)
        assert busy["speculative"]
        assert "secret" not in response.text
        assert "salt" not in response.text
        generation.cancel()
        await server.until_idle()
        assert not any(slot["is_processing"] for slot in await server.list())


async def test_slots_equal_parallel_replies(tmp_path: Path):
    async with serving(tmp_path, n_slots=2) as server:
        first = await server.chat()
        for more in ("one", "two", "three"):  # in turn all sequences of the cache
            await server.chat({"role": "user", "content": more * 20})
        listed = await server.list()
        assert [slot["id"] for slot in listed] == [0, 1]
        assert all(slot["n_past"] == slot["n_prompt_tokens"] > 0 for slot in listed)
        assert len({slot["id_task"] for slot in listed}) == 2
        again = (await server.chat(*continued(first), id_slot=0))["usage"]
        assert again["prompt_tokens_details"]["cached_tokens"] > 0
        busiest = max(await server.list(), key=lambda slot: slot["id_task"])
        assert busiest["id"] == 0
        assert busiest["n_prompt_tokens_cache"] == again["prompt_tokens_details"]["cached_tokens"]
        [token] = busiest["next_token"]
        assert (token["has_next_token"], token["n_decoded"], token["n_remain"]) == (False, 0, -1)
        assert busiest["params"]["n_predict"] == 40
        assert (await server.http.post("/slots/2?action=erase", json={})).status_code == 404


async def test_an_empty_slot_is_saved_and_restored(tmp_path: Path):
    async with serving(tmp_path) as server:
        assert (await server.done(1, "save", filename="nothing"))["n_saved"] == 0
        await server.chat()
        held = await server.occupied()
        assert (await server.done(held, "restore", filename="nothing"))["n_restored"] == 0
        assert not any(slot["n_past"] for slot in await server.list())


async def test_saved_conversation_survives_restart(tmp_path: Path):
    async with serving(tmp_path) as server:
        first = await server.chat()
        id = await server.occupied()
        saved = await server.done(id, "save", filename="story")
        second = await server.chat(*continued(first))
    assert saved["id_slot"] == id
    assert saved["n_written"] == (tmp_path / "slots" / "story").stat().st_size
    assert saved["n_saved"] == first["usage"]["total_tokens"] - 1
    async with serving(tmp_path) as server:
        restored = await server.done(2, "restore", filename="story")
        assert (restored["n_restored"], restored["n_read"]) == (saved["n_saved"], saved["n_written"])
        assert (await server.list())[2]["n_past"] == saved["n_saved"]
        again = await server.chat(*continued(first))
    assert cached_of(again) == saved["n_saved"]
    assert text_of(again) == text_of(second)


async def test_restore_keeps_replaced_conversation(tmp_path: Path):
    async with serving(tmp_path) as server:
        await server.chat()
        await server.done(await server.occupied(), "save", filename="story")
    tiers = Snapshots(memory_bytes=ENOUGH)
    async with serving(tmp_path, tiers=tiers) as server:
        other = [{"role": "user", "content": "something else entirely, at some length. " * 4}]
        body = {"messages": other, "max_tokens": 20}
        (await server.http.post("/v1/chat/completions", json=body)).raise_for_status()
        await server.until_idle()
        id = await server.occupied()
        restored = await server.done(id, "restore", filename="story")
        assert await server.occupied() == id
        assert (await server.list())[id]["n_past"] == restored["n_restored"]
        assert tiers.counters().memory_snapshots == 1
        check_engine(server.thread.engine)


async def test_restoring_over_itself_and_into_two_slots(tmp_path: Path):
    async with serving(tmp_path) as server:
        first = await server.chat()
        id = await server.occupied()
        saved = await server.done(id, "save", filename="story")
        for target in range(N_PLACES):
            await server.done(target, "restore", filename="story")
        assert [slot["n_past"] for slot in await server.list()] == [saved["n_saved"]] * N_PLACES
        assert server.backend.n_used == saved["n_saved"] * N_PLACES
        second = await server.chat(*continued(first))
        assert cached_of(second) == saved["n_saved"]
        check_engine(server.thread.engine)


async def test_restored_conversation_finds_room(tmp_path: Path):
    async with serving(tmp_path) as server:
        await server.chat()
        saved = await server.done(await server.occupied(), "save", filename="story")
    n_cells = saved["n_saved"] * 3 // 2
    small = FakeBackend(FakeModel(seed=3), n_seqs=N_PLACES, n_cells=n_cells)
    async with serving(tmp_path, small) as server:
        await server.done(0, "restore", filename="story")
        await server.done(1, "restore", filename="story")
        assert [slot["n_past"] for slot in await server.list()] == [0, saved["n_saved"], 0]
        assert server.backend.n_used == saved["n_saved"]


async def test_an_erased_conversation_is_forgotten(tmp_path: Path):
    async with serving(tmp_path, files=False) as server:  # llama-server's needs no directory either
        first = await server.chat()
        id = await server.occupied()
        erased = await server.done(id, "erase")
        assert erased == {"id_slot": id, "n_erased": first["usage"]["total_tokens"] - 1}
        assert server.backend.n_used == 0
        assert (await server.done(id, "erase"))["n_erased"] == 0
        again = await server.chat()
        assert cached_of(again) == 0
        assert text_of(again) == text_of(first)


@pytest.mark.parametrize("action", ["save", "restore", "erase"])
async def test_a_busy_slot_is_left_alone(tmp_path: Path, action: str):
    async with serving(tmp_path) as server:
        await server.chat()
        await server.done(await server.occupied(), "save", filename="story")
    async with serving(tmp_path, endless()) as server:
        generation = await server.begun(generation_request(max_tokens=None))
        (busy,) = [slot["id"] for slot in await server.list() if slot["is_processing"]]
        problem = await server.refused(busy, action, 409, filename="story")
        assert "busy" in problem["message"]
        idle = next(slot["id"] for slot in await server.list() if not slot["is_processing"])
        await server.done(idle, "restore", filename="story")
        generation.cancel()
        await server.until_idle()
        await server.done(busy, "erase")
        check_engine(server.thread.engine)


async def test_lent_slots_are_busy(tmp_path: Path):
    async with serving(tmp_path, endless()) as server:
        await server.begun(replace(generation_request(max_tokens=3000), n_beams=2))
        busy = [slot for slot in await server.list() if slot["is_processing"]]
        assert sorted("id_task" not in slot for slot in busy) == [False, True]
        for slot in busy:
            await server.refused(slot["id"], "erase", 409)


async def test_running_replies_keep_their_cells(tmp_path: Path):
    async with serving(tmp_path) as server:
        await server.chat()
        await server.done(await server.occupied(), "save", filename="story")
    backend = Gated(FakeModel(eog_rate=0.0), n_cells=300, n_ctx=300, n_seqs=N_PLACES)
    backend.allow(12)  # more than the prompt's chunks
    async with serving(tmp_path, backend) as server:
        with backend:
            await server.begun(generation_request(range(1, 150), max_tokens=None))
            await asyncio.to_thread(backend.until_step, 13)
            with at_command(server.thread, lambda: backend.allow(1)):
                problem = await server.refused(2, "restore", 409, filename="story")
        assert "cells" in problem["message"]


@pytest.mark.parametrize("exactness", ["width-stable", "default"])
async def test_stable_reply_owns_the_cache(tmp_path: Path, exactness: Exactness):
    async with serving(tmp_path) as server:
        await server.chat()
        await server.done(await server.occupied(), "save", filename="story")
    async with serving(tmp_path, endless()) as server:
        request = generation_request(max_tokens=None)
        await server.begun(replace(request, speculation=Speculation(exactness=exactness)))
        response = await server.act(2, "restore", filename="story")
        assert response.status_code == (409 if exactness == "width-stable" else 200), response.text


async def test_oversized_conversation_is_refused(tmp_path: Path):
    async with serving(tmp_path) as server:
        await server.chat()
        await server.done(await server.occupied(), "save", filename="story")
    async with serving(tmp_path, FakeBackend(n_ctx=64, n_seqs=N_PLACES)) as server:
        problem = await server.refused(0, "restore", 400, filename="story")
        assert "64" in problem["message"]


async def test_a_salted_conversation_needs_its_salt(tmp_path: Path):
    async with serving(tmp_path) as server:
        await server.chat(cache_salt="mine")
        id = await server.occupied()
        for salt in (None, "", "another"):
            await server.refused(id, "save", 400, filename="story", cache_salt=salt)
        assert not (tmp_path / "slots").exists()
        await server.done(id, "save", filename="story", cache_salt="mine")
        await server.done(id, "erase")
        for salt in (None, "", "another"):
            await server.refused(id, "restore", 404, filename="story", cache_salt=salt)
        await server.done(id, "restore", filename="story", cache_salt="mine")
        assert cached_of(await server.chat()) == 0
        again = await server.chat(cache_salt="mine")
        assert cached_of(again) == again["usage"]["prompt_tokens"] - 1


async def test_without_a_directory_nothing_is_saved(tmp_path: Path):
    async with serving(tmp_path, files=False) as server:
        for action in ("save", "restore"):
            problem = await server.refused(0, action, 501, filename="story")
            assert problem["type"] == "not_supported_error"
            assert "--cache-dir" in problem["message"]
        assert len(await server.list()) == N_PLACES


@pytest.mark.parametrize("action", ["save", "restore"])
@pytest.mark.parametrize(
    "name", ["", "../a", "a/b", "/a", "a\\b", "..", ".a", "a\0b", "x" * 129, 7, None, ["a"]]
)
async def test_file_names_lead_nowhere_else(tmp_path: Path, action: str, name: object):
    async with serving(tmp_path) as server:
        await server.chat()
        problem = await server.refused(await server.occupied(), action, 400, filename=name)
        assert problem["param"] == "filename"
        assert list(tmp_path.iterdir()) == []


async def test_bad_slot_files_are_refused(tmp_path: Path):
    async with serving(tmp_path, model="another") as other:
        await other.chat()
        await other.done(await other.occupied(), "save", filename="foreign")
    async with serving(tmp_path) as server:
        await server.chat()
        id = await server.occupied()
        await server.done(id, "save", filename="story")
        whole = (tmp_path / "slots" / "story").read_bytes()
        (tmp_path / "slots" / "damaged").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        (tmp_path / "slots" / "text").write_text("Once upon a time")
        before = await server.list()
        for name in ("foreign", "damaged", "text"):
            problem = await server.refused(id, "restore", 400, filename=name)
            assert name in problem["message"]
        await server.refused(id, "restore", 404, filename="nowhere")
        assert await server.list() == before
        assert text_of(await server.chat()) == text_of(await server.chat())


@pytest.mark.parametrize("id", [N_PLACES, 999999999, "x", "-1", "1.0", "9" * 40, "%C2%B2"])
@pytest.mark.parametrize("action", ["save", "restore", "erase"])
async def test_unknown_slots(tmp_path: Path, id: object, action: str):
    async with serving(tmp_path) as server:
        await server.chat()
        await server.done(await server.occupied(), "save", filename="story")
        await server.refused(id, action, 404, filename="story")


async def test_requests_that_make_no_sense(tmp_path: Path):
    async with serving(tmp_path) as server:
        assert (await server.refused(0, "drop", 400))["param"] == "action"
        assert (await server.http.post("/slots/0")).status_code == 400
        for content in (b"", b"{", b"[]", b"7", b"null"):
            response = await server.http.post("/slots/0?action=save", content=content)
            assert response.status_code == 400, content
            validate("Error", response.json())
        assert not (tmp_path / "slots").exists()


async def test_full_directory_is_reported(tmp_path: Path):
    async with serving(tmp_path) as server:
        await server.chat()
        tight = NamedFiles(tmp_path / "slots", budget_bytes=100, fingerprint="toy")
        object.__setattr__(server.state, "slot_files", tight)
        problem = await server.refused(await server.occupied(), "save", 507, filename="story")
        assert "--cache-disk" in problem["message"]


class Failing(FakeBackend):
    """A model whose states can be neither fetched nor loaded."""

    def save(self, seq: int) -> bytes:
        raise BackendError("no state")

    def load(self, seq: int, data: bytes) -> None:
        super().load(seq, data[:80])
        raise BackendError("it does not fit")


async def test_engine_survives_refused_restore(tmp_path: Path):
    async with serving(tmp_path) as server:
        first = await server.chat()
        await server.done(await server.occupied(), "save", filename="story")
    async with serving(tmp_path, Failing(FakeModel(seed=3, eog_rate=0.0), n_seqs=N_PLACES)) as server:
        assert "does not fit" in (await server.refused(0, "restore", 400, filename="story"))["message"]
        assert server.backend.n_used == 0
        again = await server.chat()
        assert (text_of(again), cached_of(again)) == (text_of(first), 0)
        await server.refused(await server.occupied(), "save", 500, filename="other")
        check_engine(server.thread.engine)


async def test_event_loop_never_waits(tmp_path: Path):
    held = threading.Event()
    async with serving(tmp_path) as server:
        server.hold(held)
        listing = asyncio.ensure_future(server.list())
        health = await server.http.get("/health")
        assert health.status_code == 200
        assert not listing.done()
        held.set()
        assert len(await listing) == N_PLACES


async def test_abandoned_restore_never_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    held = threading.Event()
    async with serving(tmp_path) as server:
        await server.chat()
        id = await server.occupied()
        with monkeypatch.context() as patch:
            patch.setattr(thread, "QUESTION_TIMEOUT_S", 0.01)
            server.hold(held)
            await server.refused(id, "erase", 503)
        held.set()
        assert await server.occupied() == id


async def test_a_server_without_an_engine_says_so():
    class Nobody:
        def submit(self, request: GenerationRequest) -> Generation:
            raise AssertionError

    transport = httpx.ASGITransport(app=app_of(services(Nobody())))
    async with httpx.AsyncClient(transport=transport, base_url="http://duo") as http:
        for response in (await http.get("/slots"), await http.post("/slots/0?action=erase")):
            assert response.status_code == 501
            validate("Error", response.json())
