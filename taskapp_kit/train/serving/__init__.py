"""Serves a model on this machine with OpenAI's chat completions API, in a separate process.

model_server    the application of the serving process
serving_child   the program of the serving process
process         starts and ends the serving process, without importing torch
served_models   `ServedModels`, which runs at most one serving process at a time for a backend
"""
