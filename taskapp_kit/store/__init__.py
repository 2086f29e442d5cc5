"""Stores for rollouts: `open_store(url)`. SQLAlchemy is imported when a store is opened, not before."""

from taskapp_kit.store.open import open_store

__all__ = ["open_store"]
