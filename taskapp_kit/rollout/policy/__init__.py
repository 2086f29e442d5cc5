"""Policies: the built-in ones, an app's own, and the conversation with a language model."""
