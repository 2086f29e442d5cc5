"""The engine `local` runs each training job in a child process, so that the backend does not import torch.

local_engine    the parent's side: `LocalEngine`, which replaces a trainer that died
child_program   a child process that calls its parent over a socket
trainer_calls   the calls of a trainer: reading its order, and writing to the backend's ledger
trainer         the child's program
training_run    model, sampler, gateway, update and driver of one job
"""
