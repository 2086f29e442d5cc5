"""Deployment: makes a task app available to a trainer.

- `local` runs a task app inside the program that trains on it, together with the job that uses it.
- `tunnel` lets a remote backend reach a task app on this machine.
- `packaging` collects the files and packages of a container, and checks that the app can be imported with only these.
- `modal` deploys to Modal. `modal_settings`, `declared_requirements` and `plan` prepare a deployment, `deployment` creates
  Modal's objects, `run` runs Modal's own client, `account` and `discovery` query the account, and `check` tests the
  deployed app. `container`, `idempotency`, `idempotency_record` and `sandboxes` run in the container.
"""
