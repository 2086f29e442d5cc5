"""Serves a model of this machine with OpenAI's chat completions, in a separate process.

model_server    the application of that process
serving_child   its program
process         starts and ends it; loads no torch
served_models   at most one such process at a time, for a backend: `ServedModels`
"""
