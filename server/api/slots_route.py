"""GET /slots and POST /slots/{id}?action=save|restore|erase, as in llama-server.

The engine copies states on its thread. Files are read and written on another thread, so streams continue.
"""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from server.api.body import Body
from server.api.delivery import Json
from server.api.generation_fields import MAX_SALT
from server.api.generation_settings import defaults_json
from server.api.services import AskEngine, Services
from server.api.stages.validate import read
from server.cache.named import MAX_NAME_BYTES, FullError, NamedFiles, NamedState, fault
from server.cache.record import CorruptError, ForeignError
from server.engine.slots import Slot
from server.errors import DuoError, FieldError, InvalidRequestError, NotFoundError, NotSupportedError


class FileBody(Body):
    """Body of save and restore."""

    filename: Annotated[str, Field(json_schema_extra={"minLength": 1, "maxLength": MAX_NAME_BYTES})]
    """Name of at most 128 printable bytes, without `/`, `\\`, `:` or `..`, not beginning with a dot. Saving
    replaces a file with the same name and salt."""
    cache_salt: Annotated[str, Field(max_length=MAX_SALT)] = ""
    """The cache_salt of the slot's conversation."""

    def contradiction(self) -> tuple[str, str] | None:
        why = fault(self.filename)
        return ("filename", why) if why else None


async def list_slots(_: Request, services: Services) -> Response:
    """Answer with all slots: counts and parameters, never any text."""
    if "slots" in services.hidden:
        raise NotSupportedError("this server does not list its slots: start it without --no-slots")
    slots = await _engine_question(services)(lambda engine: engine.slots.list())
    return Json([_slot_json(slot, services) for slot in slots])


async def act(request: Request, services: Services) -> Response:
    """Save a slot to a file, restore it from one, or erase it, as `action` in the query says."""
    action = request.query_params.get("action")
    if action not in ("save", "restore", "erase"):
        raise FieldError("action", "must be save, restore or erase")
    id = _slot_id(request.path_params["id"])
    if action == "erase":
        n_erased = await _engine_question(services)(lambda engine: engine.slots.erase(id))
        return Json({"id_slot": id, "n_erased": n_erased})
    if services.slot_files is None:
        raise NotSupportedError("this server keeps no files: start it with --cache-dir to save slots")
    body = await read(request, FileBody)
    began = time.perf_counter()
    counts = await (_save_slot if action == "save" else _restore_slot)(
        services, services.slot_files, id, body
    )
    ms = round((time.perf_counter() - began) * 1e3, 3)
    request_fields = {"id_slot": id, "filename": body.filename, **counts, "timings": {f"{action}_ms": ms}}
    return Json(request_fields)


async def _save_slot(services: Services, files: NamedFiles, id: int, body: FileBody) -> dict[str, int]:
    tokens, data = await _engine_question(services)(lambda engine: engine.slots.save(id, body.cache_salt))
    n_written = await asyncio.to_thread(_write_file, files, body, tokens, data)
    return {"n_saved": len(tokens), "n_written": n_written}


async def _restore_slot(services: Services, files: NamedFiles, id: int, body: FileBody) -> dict[str, int]:
    stored = await asyncio.to_thread(_read_file, files, body)
    salt = body.cache_salt
    await _engine_question(services)(
        lambda engine: engine.slots.restore(id, stored.tokens, stored.data, salt)
    )
    return {"n_restored": len(stored.tokens), "n_read": stored.n_read}


def _engine_question(services: Services) -> AskEngine:
    if services.ask is None:
        raise NotSupportedError("this server has no slots")
    return services.ask


def _write_file(files: NamedFiles, body: FileBody, tokens: list[int], data: bytes) -> int:
    try:
        return files.write(body.filename, tokens, data, body.cache_salt)
    except FullError as error:
        why = f"there is no room for {body.filename!r}: {error} (--cache-disk)"
        raise DuoError(why, status=507) from error
    except OSError as error:
        raise DuoError(f"{body.filename!r} cannot be written: {error.strerror}") from error


def _read_file(files: NamedFiles, body: FileBody) -> NamedState:
    try:
        return files.read(body.filename, body.cache_salt)
    except FileNotFoundError as error:
        raise NotFoundError(
            f"there is no file {body.filename!r}: save a slot first", param="filename"
        ) from error
    except (ForeignError, CorruptError) as error:
        raise InvalidRequestError(
            f"{body.filename!r} cannot be restored: {error}", param="filename"
        ) from error
    except OSError as error:
        raise DuoError(f"{body.filename!r} cannot be read: {error.strerror}") from error


def _slot_id(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise NotFoundError(f"there is no slot {text!r}: slots are numbered from 0", param="id")
    return int(text)


def _slot_json(slot: Slot, services: Services) -> dict[str, Any]:
    """Return a slot as llama-server lists it, with fields about its latest reply, if any."""
    request_fields: dict[str, Any] = {
        "id": slot.id,
        "n_ctx": services.model.n_ctx,
        "speculative": slot.speculative,
        "is_processing": slot.busy,
        "n_past": slot.n_past,
    }
    if (task := slot.task) is None:
        return request_fields
    piece = services.vocabulary.piece
    next_token = {
        "has_next_token": slot.busy and task.n_remaining != 0,
        "has_new_line": any(b"\n" in piece(token) for token in task.generated),
        "n_remain": task.n_remaining if slot.busy else -1,  # -1 once the task has ended
        "n_decoded": task.n_decoded if slot.busy else 0,
    }
    return request_fields | {
        "id_task": task.id,
        "n_prompt_tokens": slot.n_past,
        "n_prompt_tokens_processed": task.n_evaluated,
        "n_prompt_tokens_cache": task.n_cached,
        "params": {**defaults_json(task.request.sampling), **task.request.request_fields},
        "next_token": [next_token],
    }
