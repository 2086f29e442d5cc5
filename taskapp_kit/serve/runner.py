"""Old import path of `taskapp_kit.serve.uvicorn_server`, retained because the documentation named it."""

from taskapp_kit.serve.uvicorn_server import BackgroundServer

__all__ = ["BackgroundServer"]
