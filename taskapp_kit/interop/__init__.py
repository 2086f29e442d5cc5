"""Adapters for other frameworks, one package each.

They serve apps to a framework, import from it, or generate files for it.
"""
