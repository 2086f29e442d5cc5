"""Old import path of `taskapp_kit.contract.protocols`, kept because the documentation named it."""

from taskapp_kit.contract.protocols import (
    Claim,
    Clock,
    IdempotencyRecord,
    IdempotencyStore,
    LocalPolicy,
    PolicyStops,
    PrunableStore,
    QueryableStore,
    RolloutQuery,
    RolloutSummaryRow,
    Store,
    StoredResult,
    StoredRollout,
    SystemClock,
    Tool,
    View,
)

__all__ = [
    "Claim",
    "Clock",
    "IdempotencyRecord",
    "IdempotencyStore",
    "LocalPolicy",
    "PolicyStops",
    "PrunableStore",
    "QueryableStore",
    "RolloutQuery",
    "RolloutSummaryRow",
    "Store",
    "StoredResult",
    "StoredRollout",
    "SystemClock",
    "Tool",
    "View",
]
