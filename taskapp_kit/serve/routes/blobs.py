"""`/blobs/{sha256}` returns an image that was too large for a response, by its hash."""

from __future__ import annotations

import re

from starlette.requests import Request

from taskapp_kit.net.error_response import RequestRefused
from taskapp_kit.net.response import EncodedResponse
from taskapp_kit.serve.route import RouteContext, RouteSpec

NAME = re.compile(r"[0-9a-f]{64}")


async def blob(context: RouteContext, request: Request) -> EncodedResponse:
    """Return an image as PNG. Clients may cache it, because a hash always identifies the same bytes."""
    name = request.path_params["sha256"]
    # checked first, because a store may use the hash in a path or a query
    data = await context.service.stored.blob(name) if NAME.fullmatch(name) else None
    if data is None:
        raise RequestRefused(
            "not_found",
            "The image was not found.",
            hint="Use a SHA-256 from a response, which has 64 lower-case hexadecimal digits.",
        )
    return EncodedResponse(
        200,
        data,
        [
            (b"content-type", b"image/png"),
            (b"cache-control", b"private, max-age=31536000, immutable"),
            # browsers must not interpret an image that a policy may have created as a page
            (b"x-content-type-options", b"nosniff"),
            (b"content-security-policy", b"default-src 'none'"),
        ],
    )


ROUTE = RouteSpec(
    "/blobs/{sha256}",
    "GET",
    blob,
    "Return an image in an observation",
    media_type="image/png",
    failures=(404, 500),
    parameters=(
        {"name": "sha256", "in": "path", "required": True, "schema": {"type": "string", "pattern": "^[0-9a-f]{64}$"}},
    ),
)
