"""Routes below /lend: the draft model for browsers, and the socket between a browser and its drafter."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import Process
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from server.api.access import SOCKET_PROTOCOL, offered
from server.api.lend_link import lend_link, picture_of
from server.api.lending import BrowserLender, Lending, end, named
from server.api.services import Services
from server.errors import NotSupportedError

POLICY, FAILED, FULL = 1008, 1011, 1013  # close codes of RFC 6455, for rules, defects and "try again later"


async def model(request: Request, services: Services) -> Response:
    """Return the file of the draft model, or a range of it. Raises NotSupportedError if there is none."""
    lending = _lending_of(services)
    headers = {
        "etag": f'"{await lending.digest()}"',
        "cache-control": "no-store",  # the page stores the file itself
        "x-file-name": quote(lending.model.name),
    }
    return FileResponse(lending.model, headers=headers, media_type="application/octet-stream")


async def link(request: Request, services: Services) -> Response:
    """Return the link to /lend for other devices, and its QR code. Raises FieldError, NotSupportedError."""
    address, asked = _lending_of(services).address(), request.query_params
    keys = offered(request.headers) if asked.get("key") == "true" else []
    url = lend_link(asked.get("origin", ""), address, keys[0].decode(errors="replace") if keys else "")
    return JSONResponse({"url": url, "code": picture_of(url)}, headers={"cache-control": "no-store"})


def _lending_of(services: Services) -> Lending:
    if services.lending is None:
        raise NotSupportedError(
            "no browser can draft for this server: this needs a draft model in one file, and Redis; start it "
            "with duo up, or with duo serve --redis and --draft-model"
        )
    return services.lending


async def socket(websocket: WebSocket) -> None:
    """Connect a browser to a new drafter process until the browser or the process ends the connection."""
    services: Services = websocket.state.services
    lending = services.lending
    if lending is None or "ui" in services.hidden:
        await websocket.close(POLICY)
        return
    await websocket.accept(subprotocol=SOCKET_PROTOCOL)
    if lending.is_full:
        await websocket.close(FULL, f"{lending.most} browsers draft for this server already")
        return
    with lending.place():
        await _lend(websocket, lending)


async def _lend(websocket: WebSocket, lending: Lending) -> None:
    client = websocket.client
    lender = BrowserLender(
        named(websocket.query_params.get("name", "")),
        websocket.state.caller.salt(),
        client is not None and not _is_here(client.host),
    )
    process = await lending.start(lender)
    try:
        code, reason = await _relay(websocket, process, lending.per_second)
    finally:
        await asyncio.shield(end(process))
    if code:
        with suppress(WebSocketDisconnect):  # the browser has left meanwhile
            await websocket.close(code, reason)


async def _relay(websocket: WebSocket, process: Process, per_second: int) -> tuple[int, str]:
    """Pass messages both ways until one side ends.

    Returns the code and reason to close the WebSocket with; (0, "") if the browser has left.
    """
    both = _from_browser(websocket, process, per_second), _to_browser(websocket, process)
    ways = [asyncio.create_task(way) for way in both]
    try:
        done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


async def _from_browser(websocket: WebSocket, process: Process, per_second: int) -> tuple[int, str]:
    assert process.stdin is not None
    loop = asyncio.get_running_loop()
    second, n_messages = int(loop.time()), 0
    try:
        while True:
            text = await websocket.receive_text()
            if int(loop.time()) != second:
                second, n_messages = int(loop.time()), 0
            n_messages += 1
            if n_messages > per_second:
                return POLICY, f"more than {per_second} messages in a second"
            process.stdin.write(text.encode() + b"\n")
            await process.stdin.drain()
    except (WebSocketDisconnect, KeyError):  # KeyError: bytes instead of text
        return 0, ""
    except ConnectionError:
        return FAILED, "its drafter has ended: the server's log says why"


async def _to_browser(websocket: WebSocket, process: Process) -> tuple[int, str]:
    assert process.stdout is not None
    try:
        async for line in process.stdout:
            await websocket.send_text(line.decode().rstrip("\n"))
    except WebSocketDisconnect:
        return 0, ""
    return FAILED, "its drafter has ended: the server's log says why"


def _is_here(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
