"""Adapters for other frameworks, one package each.

An adapter serves apps to a framework, imports environments from it, or generates files for it.
"""
