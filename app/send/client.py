"""Sign and deliver events to a running service, a few at a time."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import httpx

from app.errors import ConfigurationError
from app.providers.stripe.signature import HEADER, sign

CONCURRENCY = 16
TRIES = 5
"""Deliveries that get 503 are sent this often, as the provider would, after Retry-After."""
LONGEST_WAIT_SECONDS = 5.0
NO_ANSWER = 0
"""The status of a delivery whose answer did not come: it may have been stored or not."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One delivery's end: the answer's status, or `NO_ANSWER`, and what it said."""

    event_id: str
    type: str
    status: int
    outcome: str
    reason: str

    @property
    def taken(self) -> bool:
        """Whether the service acknowledged it."""
        return httpx.codes.is_success(self.status)


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
        ConfigurationError: nothing answers at the URL, or it is none.
    """
    limit = asyncio.Semaphore(CONCURRENCY)

    async def one(body: bytes) -> Sent:
        async with limit:
            sent = await _deliver_one(client, target, body, clock)
            told()
            return sent

    try:
        return list(await asyncio.gather(*(one(body) for body in bodies)))
    except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
        message = f"{target.url} is no URL to send to: it begins with http:// or https://, then a host"
        raise ConfigurationError(message) from error
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        message = f"nothing answers at {target.url}; start it with `make run`"
        raise ConfigurationError(message) from error


async def _deliver_one(client: httpx.AsyncClient, target: Target, body: bytes, clock: Callable[[], datetime]) -> Sent:
    """Deliver one body; the signature is made anew for each try, as the provider does."""
    event = json.loads(body)  # orjson would refuse what the service takes, lone surrogates for one
    try:
        answer = await _post(client, target, body, clock())
        for _ in range(TRIES - 1):
            if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                break
            await asyncio.sleep(_wait_seconds(answer))
            answer = await _post(client, target, body, clock())
    except (httpx.UnsupportedProtocol, httpx.ConnectError, httpx.ConnectTimeout):
        raise  # no delivery will fare better
    except httpx.TransportError as error:
        return Sent(event["id"], event["type"], NO_ANSWER, "no answer", type(error).__name__)
    said = _said(answer)
    outcome = said.get("outcome") or said.get("code") or "no answer that can be read"
    return Sent(event["id"], event["type"], answer.status_code, outcome, said.get("reason", ""))


def _wait_seconds(answer: httpx.Response) -> float:
    """What Retry-After asks for, within reason; a second where it is absent or a date, as proxies write it."""
    asked = answer.headers.get("retry-after", "")
    return min(float(asked), LONGEST_WAIT_SECONDS) if asked.isdecimal() else 1.0


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
