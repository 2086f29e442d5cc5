"""Stores for rollouts: `open_store(url)`. SQLAlchemy is only imported when a store is opened."""

from taskapp_kit.store.open import open_store

__all__ = ["open_store"]
