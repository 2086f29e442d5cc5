"""Deployment: turns an author's file into a server that a trainer can reach.

`local`: a task app inside the program that trains on it: a thread, a server, a port; and the job that uses it.
`tunnel`: lets a remote backend reach a task app on this machine.
`packaging`: the files and packages of a container, and a check that the app can be imported with only these.
`modal`: Modal. Before a deploy: `settings`, `declared_requirements`, `plan`. For it: `deployment` makes Modal's
objects, `run` runs Modal's own client, `account` and `discovery` ask the account, `check` asks the deployed app. In the
container: `container`, `idempotency` with its entries in a modal.Dict, `sandboxes`.
"""
