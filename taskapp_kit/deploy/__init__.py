"""Makes task apps available to trainers.

- `local` runs a task app in the program that trains on it, and submits the job that uses the app.
- `tunnel` lets a remote backend reach a task app on this machine.
- `packaging` collects the files and packages for a container, and checks that the app can be imported with only these
  files and packages.
- `modal` deploys to Modal. `modal_settings`, `declared_requirements` and `plan` prepare a deployment, `deployment`
  creates Modal's objects, `run` runs Modal's command line, `account` and `discovery` query the account, and `check`
  tests the deployed app. `container`, `idempotency`, `idempotency_record` and `sandboxes` run in the container.
"""
