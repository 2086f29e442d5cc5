"""From an author's file to a server that a trainer reaches.

`local`: a task app inside the program that trains on it: a thread, a server, a port; and the job beside it.
`tunnel`: how a backend elsewhere reaches a task app on this machine.
`packaging`: what travels to a container, what is installed there, and whether the app imports with only that.
`modal`: Modal. Before a deploy: `settings`, `declared_requirements`, `plan`, `costs`. For it: `deployment` makes Modal's
objects, `run` runs Modal's own client, `account` and `discovery` ask the account, `check` asks the deployed app. In the
container: `container`, `idempotency` with its entries in a modal.Dict, `sandboxes`.
"""
