"""An OpenAI-compatible model server for tests."""
