"""`python -m taskapp_kit` is the `taskapp` command."""

from taskapp_kit.system.child_python import leave_working_directory

# before the imports below, which a file in this directory could shadow; the package's own imports have already run
# (unless `-P` is set)
leave_working_directory()

from taskapp_kit.cli.main import main  # noqa: E402

main(prog_name="taskapp")
