"""`python -m taskapp_kit` is the `taskapp` command."""

from taskapp_kit.child_python import leave_working_directory

leave_working_directory()  # before the imports below, which a file there could shadow

from taskapp_kit.cli.main import main  # noqa: E402

main(prog_name="taskapp")
