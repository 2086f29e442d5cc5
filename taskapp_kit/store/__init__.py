"""Stores for rollouts, opened with `open_store(url)`. SQLAlchemy is imported only when a store is opened."""

from taskapp_kit.store.open import open_store

__all__ = ["open_store"]
