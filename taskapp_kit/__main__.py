"""`python -m taskapp_kit` is the `taskapp` command."""

from taskapp_kit.cli.main import main

main(prog_name="taskapp")
