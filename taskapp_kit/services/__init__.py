"""Services: a class whose methods run in several processes, on this machine or on a Ray cluster.

    class Counter(Actor):
        @endpoint
        async def add(self, amount: int) -> int: …

    async with Counter.options(num_replicas=4).as_service() as counter:
        await counter.add.route(2)

docs/services.md describes them.
"""

from taskapp_kit.services.actor import Actor
from taskapp_kit.services.dispatcher import ServiceStats
from taskapp_kit.services.endpoints import endpoint
from taskapp_kit.services.service import ServiceHandle, ServiceSession

__all__ = ["Actor", "ServiceHandle", "ServiceSession", "ServiceStats", "endpoint"]
