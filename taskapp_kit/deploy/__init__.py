"""Roads: how a task app gets from its author's file to a server that a trainer reaches.

In this program: `in_process` (a thread, a port) with `sources`, `local_server` and `health`; `in_process_job` adds the job.
From outside to here: `tunnel_plan` decides, `tunnel` opens, `cloudflared` and `leash` run the one program that it takes.
To containers: `needs` reads what an app says it needs, `cargo` which files travel, `packages` and `wheel` what is installed,
`rehearsal` whether the app imports with only that. `python` starts the processes of ours that do such work.
On Modal: `modal_settings`, `modal_plan` and `modal_costs` before anything is sent; `modal` makes the objects, `modal_run`
runs Modal's own client, `modal_account` and `modal_discovery` ask the account, `modal_check` the deployed app. In the
container: `modal_container`, with `modal_coordinator` (`modal_entries`, `modal_ticket`) and `modal_sandbox`.
"""
