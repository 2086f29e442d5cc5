"""`/blobs/{sha256}`: an image that was too large for a response, by its hash."""

from __future__ import annotations

import re

from starlette.requests import Request

from taskapp_kit.net.error_response import RequestRefused
from taskapp_kit.net.response import EncodedResponse
from taskapp_kit.serve.route import RouteContext, RouteSpec

NAME = re.compile(r"[0-9a-f]{64}")


async def blob(context: RouteContext, request: Request) -> EncodedResponse:
    """Return PNG bytes, which never change under their hash, so clients may cache them."""
    name = request.path_params["sha256"]
    # checked first, because a store may use the name in a path or a query
    data = await context.service.stored.blob(name) if NAME.fullmatch(name) else None
    if data is None:
        raise RequestRefused(
            "not_found",
            "The image was not found.",
            hint="Use the SHA-256 from a response: 64 lower-case hex digits.",
        )
    return EncodedResponse(
        200,
        data,
        [
            (b"content-type", b"image/png"),
            (b"cache-control", b"private, max-age=31536000, immutable"),
            # a policy may have drawn the image, so no browser may interpret it as a page
            (b"x-content-type-options", b"nosniff"),
            (b"content-security-policy", b"default-src 'none'"),
        ],
    )


ROUTE = RouteSpec(
    "/blobs/{sha256}",
    "GET",
    blob,
    "An image of an observation",
    media_type="image/png",
    failures=(404, 500),
    parameters=(
        {"name": "sha256", "in": "path", "required": True, "schema": {"type": "string", "pattern": "^[0-9a-f]{64}$"}},
    ),
)
