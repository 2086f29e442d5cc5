"""Check whether a backend can be used for a job. If it cannot, find out whether the address or the key is wrong.

The check creates nothing. Findings never contain a key, a part of a key, or raw text from a server.
"""

from __future__ import annotations

import base64
import binascii
import json

from taskapp_kit.client.checks import SECONDS, Finding, Prober, ProbeResult
from taskapp_kit.errors import ConfigError
from taskapp_kit.jobs.client.backend import EXAMPLE, api_base
from taskapp_kit.net.http import header_key

BACKEND_START = "Start it (`taskapp backend serve`), or check the host and the port."
PUBLIC_KEY_BYTES = 32


async def check_backend(
    url: str, key: str | None, task_app_url: str | None = None, *, timeout_seconds: float = SECONDS
) -> list[Finding]:
    """Check the backend's address, its responses, the key and the optional features, in this order.

    Args:
        url: The backend's address, with or without `/api`.
        key: The backend's key (SYNTH_API_KEY), or None to send no key.
        task_app_url: If set, also check whether the backend can reach this task app.
        timeout_seconds: The time limit of each request.
    """
    try:
        address = api_base(url)
    except ConfigError as error:
        return [Finding("backend", False, f"The backend's address cannot be used. {error.message}", error.hint)]
    try:
        sent = header_key(key, "The backend's key")
    except ConfigError as error:
        return [Finding("key", False, error.message, error.hint)]
    prober = Prober.at(address, {"Authorization": f"Bearer {sent}"} if sent else {}, timeout_seconds)
    try:
        return await _backend(prober, sent, task_app_url)
    finally:
        await prober.aclose()


async def _backend(prober: Prober, key: str | None, task_app_url: str | None) -> list[Finding]:
    url, asked = prober.url, "rl/jobs"
    jobs = await prober.ask("/rl/jobs?limit=1")
    if jobs.status in (404, 405):
        other = await prober.ask("/learning/jobs?limit=1")
        if other.status not in (0, 404, 405):
            jobs, asked = other, "learning/jobs"
    if jobs.answer is None:
        return [Finding("backend", False, f"{url} {jobs.words}.", jobs.do_without_answer(BACKEND_START))]
    here = Finding("backend", True, f"The server at {url} is a backend.")
    if jobs.status in (401, 403):
        if key:
            do = "Set SYNTH_API_KEY to the backend's key. Check whether your .env file contains an old key."
            return [here, Finding("key", False, f"The backend rejects the key ({jobs.status}).", do)]
        return [here, Finding("key", False, "The backend requires a key, but none is set.", "Set SYNTH_API_KEY.")]
    if jobs.status != 200 or not _is_json(jobs):
        found = f"{url} responds, but is not a backend: GET {asked} returns {jobs.words}."
        do = f"Check that this is the address of a backend, such as {EXAMPLE}. If it is, read the backend's log."
        return [Finding("backend", False, found, do)]
    accepted = Finding("key", True, "The backend accepts the key.")
    if not key:
        accepted = Finding(
            "key", True, "The backend requires no key.", "Anyone who knows the address can run jobs on this backend."
        )
    return [here, accepted, await _public_key(prober), await _verifies(prober, task_app_url)]


def _is_json(reply: ProbeResult) -> bool:
    try:
        return reply.answer is not None and isinstance(reply.answer.json(), dict | list)
    except ValueError:
        return False


async def _public_key(prober: Prober) -> Finding:
    reply = await prober.ask("/v1/crypto/public-key")
    encoded = (reply.object or {}).get("public_key")
    try:
        size = len(base64.b64decode(encoded, validate=True)) if isinstance(encoded, str) else 0
    except (binascii.Error, ValueError):
        size = 0
    if reply.status == 200 and size == PUBLIC_KEY_BYTES:
        return Finding("backend", True, "The backend has a public key, so a task app's key can be uploaded.")
    found = f"The backend has no usable public key (GET v1/crypto/public-key returns {reply.words})."
    return Finding("backend", True, found, "Set ENVIRONMENT_API_KEY on the backend, because no key can be uploaded.")


async def _verifies(prober: Prober, task_app_url: str | None) -> Finding:
    if task_app_url is None:
        reply = await prober.ask("/rl/verify_task_app")  # a GET tests whether the route exists, and verifies nothing
        if reply.status not in (0, 404):
            return Finding("backend", True, "The backend can verify task apps.")
        found = f"The backend cannot verify task apps (rl/verify_task_app returns {reply.words})."
        return Finding("backend", True, found, "The SDK's `train` does not work with it. Use `taskapp train`.")
    body = json.dumps({"endpoint_base_url": task_app_url}).encode()
    reply = await prober.ask("/rl/verify_task_app", verb="POST", body=body)
    answer = reply.object or {}
    if reply.status == 200 and answer.get("any_ok") is True:
        return Finding("backend", True, "The backend can reach the task app.")
    if reply.status == 404:
        return Finding(
            "backend", True, "The backend cannot verify task apps (404).", "Whether it can reach yours is unknown."
        )
    if reply.status == 200:
        do = "Check that the backend can reach the task app's address, and that it has the task app's key."
        return Finding("backend", False, "The backend cannot reach the task app, or its key is rejected.", do)
    found = f"The backend could not verify the task app: rl/verify_task_app returns {reply.words}."
    return Finding("backend", False, found, "Read the backend's log.")
