"""The sessions of a service. Opens, finds, expires and closes sessions for all protocols, without HTTP."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import Callable

from taskapp_kit.declare.episode_selection import find_environment
from taskapp_kit.declare.specs import AppSpec, EnvironmentSpec
from taskapp_kit.errors import Failure, Saturated
from taskapp_kit.records.protocols import Clock
from taskapp_kit.rollout.admission import ANYONE, Caller, with_id
from taskapp_kit.rollout.driven_episode import Run
from taskapp_kit.rollout.policy.options import SESSION
from taskapp_kit.rollout.session import Admit, EnvironmentSession, no_such_session

log = logging.getLogger("taskapp_kit.service")

CLOSED = "closed"
IDLE = "session_idle"
KEY_REVOKED = "key_revoked"

QUEUE_SECONDS = 5.0
"""How long `open` waits for a free slot."""
# More callers would wait longer than their clients' timeouts, and each occupies a connection.
MAX_WAITING = 64
"""The maximum number of callers that wait for a slot."""
RETRY_SECONDS = 5
TICK_SECONDS = 1.0
"""The interval between checks for idle sessions and revoked keys."""


class EnvironmentSessions:
    """All sessions of one service. Use it on the service's event loop, and call `close` at the end.

    Attributes:
        idle_seconds: After how many seconds without use a session is closed.
        queue_seconds: How long `open` waits for a free slot.
        is_valid: A function, set by a server, that returns whether a caller's key is still valid. Sessions of revoked keys
            are closed.
        opened: The number of sessions opened since the start.
        ended: The number of sessions closed since the start, by cause.
    """

    def __init__(
        self,
        app: AppSpec,
        clock: Clock,
        *,
        admit: Admit,
        run: Run,
        check_open: Callable[[], None],
        capacity: Callable[[EnvironmentSpec], int],
        idle_seconds: float,
        max_seconds: float,
    ) -> None:
        """Create the sessions of a service.

        Args:
            app: The app whose environments are opened.
            clock: The clock for idle times.
            admit: A function that admits the rollout of an episode.
            run: A function that runs an admitted rollout.
            check_open: A function that raises Saturated while the server is stopping.
            capacity: A function that returns how many sessions may be open in all environments that run like the given
                environment: in threads, in worker processes, or in dedicated processes.
            idle_seconds: After how many seconds without use a session is closed.
            max_seconds: The time limit of one call.
        """
        self.idle_seconds = idle_seconds
        self.queue_seconds = QUEUE_SECONDS
        self.is_valid: Callable[[Caller], bool] = lambda caller: True
        self.opened = 0
        self.ended = {CLOSED: 0, IDLE: 0, KEY_REVOKED: 0}
        self._app = app
        self._clock = clock
        self._admit = admit
        self._run = run
        self._check_open = check_open
        self._capacity = capacity
        self._max_seconds = max_seconds
        self._sessions: dict[str, EnvironmentSession] = {}
        self._places: dict[bool, asyncio.Semaphore] = {}
        self._waiting: Counter[str | None] = Counter()  # waiting callers by key label
        self._watching: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._sessions)

    async def open(
        self,
        environment: str | None = None,
        *,
        caller: Caller = ANYONE,
        protocol: str = "python",
        run_id: str | None = None,
        policy: str = SESSION,
        exclusive: bool = False,
    ) -> EnvironmentSession:
        """Open a session, which occupies a slot until it is closed. Its first `reset` begins an episode.

        Args:
            environment: The environment's name. Defaults to the app's first environment.
            caller: The client that opens the session.
            protocol: The name of the protocol, stored with the session's rollouts.
            run_id: The run id of the session's rollouts. Defaults to the session's id.
            policy: The policy's stored name, one of `CALLERS`.
            exclusive: Whether only `protocol` may drive the session, so that a policy cannot reset it or read rewards.

        Raises:
            RequestError: The environment is unknown.
            Saturated: No slot became free within `queue_seconds`, the key has reached its limit on rollouts in flight
                (waiting sessions count), or the server is stopping.
        """
        spec = find_environment(self._app, environment)
        self._check_open()
        places = self._places_of(spec)
        await self._take_place(places, caller)
        session_id = uuid.uuid4().hex

        def gone(session: EnvironmentSession, failure: Failure | None) -> None:
            self.ended[CLOSED if failure is None else failure.code] += 1
            del self._sessions[session.session_id]
            places.release()

        session = EnvironmentSession(
            session_id,
            self._app,
            spec,
            caller,
            protocol=protocol,
            policy=policy,
            run_id=run_id or session_id,
            exclusive=exclusive,
            admit=self._admit,
            run=self._run,
            clock=self._clock,
            max_seconds=self._max_seconds,
            gone=gone,
        )
        self._sessions[session_id] = session
        self.opened += 1
        # the task ends with the last session, so that a service that is never closed leaves no task behind
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())
        return session

    def find(
        self, session_id: str, caller: Caller = ANYONE, *, drives: bool = True, protocol: str | None = None
    ) -> EnvironmentSession:
        """Return an open session and mark it as used. Raises SessionError if the caller has no such session.

        Only the key label that opened a session may drive it, and an exclusive session only with its protocol. With
        `drives=False`, an admin may find any session, to see or close it.
        """
        session = self._sessions.get(session_id)
        if session is None:
            # the same error as for a session of another key, so that ids cannot be probed
            raise no_such_session(session_id)
        own = caller.key_label == session.caller.key_label
        if (drives and (not own or (session.exclusive and protocol != session.protocol))) or not (own or caller.admin):
            raise no_such_session(session_id)
        # a ping prevents expiry, but an admin who looks at a session must not
        if own:
            session.touch()
        return session

    def listed(self, caller: Caller = ANYONE) -> list[EnvironmentSession]:
        """Return the open sessions that the caller may see, in the order in which they were opened."""
        return [
            session
            for session in self._sessions.values()
            if caller.admin or caller.key_label == session.caller.key_label
        ]

    def health(self) -> dict[str, int]:
        """Return the number of open sessions, and the totals of opened sessions and of closed sessions by cause."""
        return {"open": len(self._sessions), "opened": self.opened, **self.ended}

    async def expire(self) -> None:
        """Close sessions that were idle for too long, and sessions of revoked keys."""
        await asyncio.gather(*(self._expire(session) for session in list(self._sessions.values())))

    async def close(self) -> None:
        """Close all sessions and cancel running episodes."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait((self._watching,))
        await asyncio.gather(*(session.close(at_once=True) for session in list(self._sessions.values())))

    async def _watch(self) -> None:
        """Expire sessions until none is open."""
        # one task for all sessions, because every call would restart a timer per session
        while self._sessions:
            await asyncio.sleep(TICK_SECONDS)
            try:
                await self.expire()
            except Exception:
                log.exception("sessions could not be expired")

    async def _expire(self, session: EnvironmentSession) -> None:
        if not self.is_valid(session.caller):
            failure = _revoked()
        elif session.used_at <= self._clock.monotonic() - self.idle_seconds and not session.busy:
            failure = _idle(self.idle_seconds)
        else:
            return
        log.info("session closed cause=%s session_id=%s", failure.code, session.session_id)
        await session.close(failure)

    def _places_of(self, environment: EnvironmentSpec) -> asyncio.Semaphore:
        """Return the slots that this environment shares with all environments that run in the same way."""
        # separate slots, so that sessions in threads cannot use up the few processes of isolated environments
        isolated = environment.isolation == "process"
        places = self._places.get(isolated)
        if places is None:
            places = self._places[isolated] = asyncio.Semaphore(self._capacity(environment))
        return places

    async def _take_place(self, places: asyncio.Semaphore, caller: Caller) -> None:
        limit = caller.max_in_flight
        own = sum(session.caller.key_label == caller.key_label for session in self._sessions.values()) if limit else 0
        # waiting callers also count, or one key could fill the whole queue
        own += self._waiting[caller.key_label]
        if limit is not None and own >= limit:
            raise Saturated(
                f"The key {caller.key_label!r} has reached its limit of {own} open or waiting sessions.",
                code="key_quota_reached",
            )
        if not places.locked():
            await places.acquire()
            return
        full = Saturated(
            "The server has no free session slot. A slot becomes free when an open session is closed or expires.",
            retry_after_seconds=RETRY_SECONDS,
        )
        if self._waiting.total() >= MAX_WAITING:
            raise full
        self._waiting[caller.key_label] += 1
        try:
            async with asyncio.timeout(self.queue_seconds):
                await places.acquire()
        except TimeoutError:
            raise full from None
        finally:
            self._waiting[caller.key_label] -= 1


def _idle(seconds: float) -> Failure:
    message = f"the session was not used for {seconds:g} s while its episode was running"
    hint = "Close sessions that you no longer need. Any request to a session, including GET, keeps it open."
    return with_id(Failure("timeout", IDLE, message, hint))


def _revoked() -> Failure:
    return with_id(Failure("cancelled", KEY_REVOKED, "the key that opened the session was revoked"))
