"""Policies: the built-in policies, an app's own policies, and the conversation with a language model."""
