"""`taskapp`: the commands in their groups, and how an error is shown.

A command is a module of this package, named in GROUPS, whose `command` is a click command. It is imported when it is
needed, and imports what is heavy inside its function.

Exit status: 0 success; 1 the command failed; 2 the command line, a setting or the request is wrong.
"""

from __future__ import annotations

import importlib

import click

from taskapp_kit.cli.options import ARGUMENTS
from taskapp_kit.cli.terminal import clean, complain, exit_status
from taskapp_kit.errors import TaskappError, closest
from taskapp_kit.version import __version__

GROUPS: dict[str, tuple[str, ...]] = {
    "Author": ("init", "list", "info", "play", "check", "doctor", "mock-model", "judge"),
    "Serve": ("serve", "mcp", "rollout", "keys"),
    "Evaluate": ("eval", "show", "view", "compare", "rescore", "replay", "export", "generate", "store"),
    "Train and deploy": ("train", "jobs", "models", "backend", "setup", "modal-serve", "deploy"),
}
"""Group to its commands, in the order of `taskapp --help`; a dash in a name is an underscore in its module's."""


class Commands(click.Group):
    """The root: finds commands by name, shows them by group, prints the kit's errors in one paragraph."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keeps the words, for messages that repeat the command with one option more."""
        ctx.meta[ARGUMENTS] = list(args)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command, in order."""
        return [name for names in GROUPS.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, None when there is none."""
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"taskapp_kit.cli.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the first argument names. Raises UsageError with *did you mean*."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            names = self.list_commands(ctx)
            close = closest(args[0], names)
            meant = f"Did you mean {close!r}?" if close else f"The commands are {', '.join(names)}."
            ctx.fail(f"There is no command {args[0]!r}. {meant}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One section for each group."""
        for group, names in GROUPS.items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(group):
                formatter.write_dl([(name, found.get_short_help_str(90)) for name, found in commands if found])

    def invoke(self, ctx: click.Context) -> object:
        """Runs the command; an error of the kit becomes one paragraph on stderr and an exit status."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            sentence = error.format_message()
            if sentence == clean(sentence):
                raise
            raise click.UsageError(clean(sentence), error.ctx) from error
        except TaskappError as error:
            name = ctx.invoked_subcommand
            complain(error, self.get_command(ctx, name) if name is not None else None)
            ctx.exit(exit_status(error))


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True},
    epilog="\b\nExample:\n  taskapp rollout crafter --policy scripted --seed 7",
)
@click.version_option(__version__, prog_name="taskapp")
def main() -> None:
    """Declare a reinforcement-learning environment once; play it, serve it, roll it out.

    APP is a path (adder.py, or adder.py:app), module:attribute, the name of a bundled app or of an installed plugin,
    and for `info` and `rollout` also the URL of a running server.
    """
