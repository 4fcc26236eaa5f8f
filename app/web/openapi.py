"""The webhook route's place in the OpenAPI document: it is served outside FastAPI, for speed."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from app.outcomes import Outcome, Reason
from app.web.problems import STATUS

_PROBLEM = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}


def document_webhooks(api: FastAPI) -> None:
    """Make `api.openapi` tell of `POST /webhooks/{source}` too."""

    def openapi() -> dict[str, Any]:
        if api.openapi_schema is None:
            schema = get_openapi(title=api.title, version=api.version, summary=api.summary, routes=api.routes)
            schema.setdefault("paths", {})["/webhooks/{source}"] = {"post": _operation()}
            schema.setdefault("components", {}).setdefault("schemas", {}).update(_schemas())
            api.openapi_schema = schema
        return api.openapi_schema

    api.openapi = openapi  # type: ignore[method-assign]


def _operation() -> dict[str, Any]:
    codes: dict[int, list[str]] = {}
    for kind, status in STATUS.items():
        codes.setdefault(status, []).append(kind.code)
    refusals = {
        str(status): {"description": "Nothing was stored: " + ", ".join(found), "content": _PROBLEM}
        for status, found in sorted(codes.items())
    }
    accepted = {"application/json": {"schema": {"$ref": "#/components/schemas/Accepted"}}}
    return {
        "summary": "Take one delivery of a provider",
        "description": "The body is verified as it was sent. 200 is answered after COMMIT, and says what happened.",
        "tags": ["webhooks"],
        "parameters": [{"name": "source", "in": "path", "required": True, "schema": {"type": "string"}}],
        "requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}},
        "responses": {"200": {"description": "Committed", "content": accepted}, **refusals},
    }


def _schemas() -> dict[str, Any]:
    return {
        "Accepted": {
            "type": "object",
            "required": ["outcome", "event_id"],
            "properties": {
                "outcome": {"type": "string", "enum": [outcome.value for outcome in Outcome]},
                "event_id": {"type": "string"},
                "reason": {"type": "string", "enum": [reason.value for reason in Reason]},
            },
        },
        "Problem": {
            "type": "object",
            "required": ["type", "title", "status", "code"],
            "properties": {
                "type": {"type": "string"},
                "title": {"type": "string"},
                "status": {"type": "integer"},
                "code": {"type": "string", "enum": sorted({kind.code for kind in STATUS})},
                "detail": {"type": "string"},
            },
        },
    }
