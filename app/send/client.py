"""Sign and deliver events to a running service, a few at a time."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import httpx
import orjson

from app.errors import ConfigurationError
from app.providers.stripe.signature import HEADER, sign

CONCURRENCY = 16
TRIES = 5
"""Deliveries that get 503 are sent again this often, as the provider would, after Retry-After."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One delivery's end: the answer's status and what it said."""

    event_id: str
    type: str
    status: int
    outcome: str
    reason: str


@dataclass(frozen=True, slots=True)
class Target:
    """Where to send, and the secret to sign with."""

    url: str
    secret: bytes


async def deliver(
    client: httpx.AsyncClient,
    target: Target,
    bodies: Sequence[bytes],
    clock: Callable[[], datetime],
    *,
    told: Callable[[], None],
) -> list[Sent]:
    """Deliver all bodies, in their order but up to `CONCURRENCY` at once; `told` is called after each.

    Raises:
        ConfigurationError: nothing answers at the URL.
    """
    limit = asyncio.Semaphore(CONCURRENCY)

    async def one(body: bytes) -> Sent:
        async with limit:
            sent = await _deliver_one(client, target, body, clock)
            told()
            return sent

    try:
        return list(await asyncio.gather(*(one(body) for body in bodies)))
    except httpx.TransportError as error:
        message = f"nothing answers at {target.url}: is the service running? `make run` starts it"
        raise ConfigurationError(message) from error


async def _deliver_one(client: httpx.AsyncClient, target: Target, body: bytes, clock: Callable[[], datetime]) -> Sent:
    """Deliver one body; the signature is made anew for each try, as the provider does."""
    answer = await _post(client, target, body, clock())
    for _ in range(TRIES - 1):
        if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
            break
        await asyncio.sleep(min(float(answer.headers.get("retry-after", "1")), 5.0))
        answer = await _post(client, target, body, clock())
    event = orjson.loads(body)
    said = _said(answer)
    outcome = said.get("outcome") or said.get("code") or "no answer that can be read"
    return Sent(event["id"], event["type"], answer.status_code, outcome, said.get("reason", ""))


async def _post(client: httpx.AsyncClient, target: Target, body: bytes, now: datetime) -> httpx.Response:
    signature = sign(target.secret, int(now.timestamp()), body)
    headers = {"content-type": "application/json; charset=utf-8", HEADER: signature}
    return await client.post(target.url, content=body, headers=headers)


def _said(answer: httpx.Response) -> dict[str, str]:
    try:
        found = answer.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
