"""`taskapp`: the commands in their groups, and how errors are printed.

Each command in GROUPS is a module in one of the PACKAGES. Its `command` attribute is a click command. A module is
imported only when its command is used. Dependencies that `--help` does not need are imported as modules (`from
taskapp_kit.evaluate import source`), so that they are loaded only when the command runs.

The exit status is 0 for success, 1 if the command failed, 2 if the command line, a setting or the request is wrong, and 3 if
the operating system is not supported.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import LazyLoader
from types import ModuleType

import click

from taskapp_kit.cli.options import ARGUMENTS
from taskapp_kit.cli.output.terminal import clean, complain, exit_status
from taskapp_kit.cli.support import marked, with_level
from taskapp_kit.errors import KitError, closest
from taskapp_kit.version import __version__

GROUPS: dict[str, dict[str, str]] = {
    "Author": {
        "init": "Create a new project in the directory NAME.",
        "list": "List the bundled apps, the installed plugins and the templates.",
        "info": "Show an app's environments, actions, scoring, splits, limits, configuration and policies.",
        "play": "Play an episode yourself and see its scorecard.",
        "doctor": "Check an app or a running task app, and with --backend also a backend.",
        "mock-model": "Serve a mock OpenAI-compatible model with configurable replies, delays and faults.",
        "judge": "Compare the scores of an app's judges with people's labels.",
    },
    "Serve": {
        "serve": "Serve an app over HTTP, protected by a key.",
        "mcp": "Serve an episode to an MCP client over stdin and stdout.",
        "rollout": "Play and score one episode, in this process or on a running server.",
        "keys": "Create, rotate, list and revoke API keys, and upload the task app's key to a backend.",
    },
    "Evaluate": {
        "eval": "Play many rollouts and summarize them.",
        "show": "List stored rollouts, or show one of them turn by turn.",
        "view": "Show stored rollouts as web pages, on this machine only.",
        "compare": "Compare the rewards of policies that played the same episodes.",
        "rescore": "Score stored rollouts again with the current rubrics and judges.",
        "replay": "Replay stored rollouts and report every difference from the originals.",
        "export": "Write stored rollouts to a file for other programs.",
        "generate": "Generate a package that makes an app available to another library.",
        "store": "Measure, check and prune a store of rollouts.",
    },
    "Train and deploy": {
        "train": "Submit an RL job and follow it until it ends, or fine-tune a model on this machine.",
        "jobs": "List, follow, cancel and restart the jobs of a backend.",
        "models": "List, export, import and remove the trained models on this machine.",
        "backend": "Serve a backend for training jobs.",
        "setup": "Write an .env file (mode 600) that `taskapp train`, `serve`, `eval` and `deploy` read.",
        "modal-serve": "Run an app on Modal until Ctrl-C, with live reload.",
        "deploy": "Deploy an app to Modal.",
    },
}
"""The commands of each group, in the order of `taskapp --help`, with the first sentence of each command's help."""
PACKAGES = {"Author": "author", "Serve": "serve", "Evaluate": "evaluate", "Train and deploy": "train"}
"""The package below `taskapp_kit.cli` that contains a group's modules."""
HELP = ("-h", "--help")


class Commands(click.Group):
    """The root command. It imports commands on demand, lists them by group, and prints a KitError as one paragraph."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, and store them for messages that suggest the same command with another option."""
        ctx.meta[ARGUMENTS] = list(args)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order of `--help`."""
        return [name for names in GROUPS.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command. Return None if the name is unknown."""
        package = next((PACKAGES[group] for group, commands in GROUPS.items() if cmd_name in commands), None)
        if package is None:
            return None
        module = f"taskapp_kit.cli.{package}.{cmd_name.replace('-', '_')}"
        for_help = any(word in HELP for word in ctx.meta.get(ARGUMENTS, ()))
        if for_help:
            sys.meta_path.insert(0, _LoadedOnUse)
        try:
            command: click.Command = importlib.import_module(module).command
        finally:
            if for_help:
                sys.meta_path.remove(_LoadedOnUse)
        return with_level(cmd_name, command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first argument names. Raises UsageError, with a suggestion, if the name is unknown."""
        names = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in names:
            close = closest(args[0], names)
            suggestion = f"Did you mean {close!r}?" if close else f"The commands are {', '.join(names)}."
            ctx.fail(f"Unknown command {args[0]!r}. {suggestion}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one section for each group of commands."""
        for group, commands in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(name, marked(name, summary)) for name, summary in commands.items()])

    def invoke(self, ctx: click.Context) -> object:
        """Run the command. On a KitError, print one paragraph on stderr and exit with its status."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            sentence = error.format_message()
            if sentence == clean(sentence):
                raise
            raise click.UsageError(clean(sentence), error.ctx) from error
        except KitError as error:
            name = ctx.invoked_subcommand
            complain(error, self.get_command(ctx, name) if name is not None else None)
            ctx.exit(exit_status(error))


class _LoadedOnUse(MetaPathFinder):
    """An import hook that runs a module's code only when one of its names is used, so that `--help` starts fast."""

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's spec, wrapped in the standard library's LazyLoader."""
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = LazyLoader(spec.loader)
        return spec


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True},
    epilog="\b\nExample:\n  taskapp rollout crafter --policy scripted --seed 7",
)
@click.version_option(__version__, prog_name="taskapp")
def main() -> None:
    """Declare a reinforcement-learning environment once, then play it, serve it, and use it to evaluate and train models.

    APP is a path (adder.py or adder.py:app), module:attribute, or the name of a bundled app or installed plugin. `info`,
    `doctor`, `rollout` and `eval` also accept the URL of a running server.
    """
