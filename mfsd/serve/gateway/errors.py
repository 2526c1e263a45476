"""Starlette responses as JSON, and its errors in OpenAI's form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from mfsd.serve.gateway.answer import INTERNAL, problem


def json_page(fields: object) -> Response:
    return Response(msgspec.json.encode(fields), media_type="application/json")


def error_page(status: int, message: str, kind: str, code: str, headers: Mapping[str, str] | None = None) -> Response:
    return Response(problem(message, kind, code), status, headers, media_type="application/json")


async def _http_error(request: Request, error: Exception) -> Response:
    """Answers for an unknown path or a wrong method."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return error_page(404, f"there is no page {request.url.path!r:.120}", "invalid_request_error", "not_found")
    text = f"{request.method} is not allowed for {request.url.path!r:.120}"
    code = "method_not_allowed" if error.status_code == 405 else "invalid_request"
    return error_page(error.status_code, text, "invalid_request_error", code, error.headers)


async def _own_error(_: Request, error: Exception) -> Response:
    return error_page(INTERNAL.status, INTERNAL.message, INTERNAL.kind, INTERNAL.code)


ERROR_PAGES: Final[dict[Any, Any]] = {HTTPException: _http_error, Exception: _own_error}
