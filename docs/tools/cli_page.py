"""Prints docs/reference/cli.md, made from the commands themselves."""

from __future__ import annotations

import inspect

import click

from taskapp_kit.cli.main import GROUPS, main

HEAD = """# The command line

<!-- Made by `python docs/tools/cli_page.py > docs/reference/cli.md`; a test fails when it is stale. -->

`taskapp COMMAND APP`, also installed as `taskapp-kit`. APP is an existing path (`adder.py`, or `adder.py:app`),
`module:attribute`, the name of a bundled app (`taskapp list`) or of an installed plugin, and for `info` and `rollout`
also the URL of a running server.

- Exit status: 0 success; 1 the command failed; 2 the command line, a setting or the request is wrong.
- Results go to stdout, errors to stderr, in one paragraph that says what to do. When a rollout of a local app fails,
  the author's part of the traceback stands before it.
- No command prompts for input without a terminal.
- A setting is taken from the first of: flag, process environment, `--env-file` (a later file wins), `.env` in the
  working directory, `taskapp.toml` there, default. `taskapp serve APP --show-config` says where each value came from.
"""


def reference() -> str:
    """The page, as Markdown."""
    parts = [HEAD]
    context = click.Context(main, info_name="taskapp")
    for group, names in GROUPS.items():
        parts.append(f"## {group}\n")
        for name in names:
            command = main.get_command(context, name)
            assert command is not None, f"group {group} names the command {name}, which has no module"
            parts.append(_command(name, command))
    return "\n".join(parts)


def _command(name: str, command: click.Command) -> str:
    arguments = [
        item.metavar or (item.name or "").upper() for item in command.params if isinstance(item, click.Argument)
    ]
    lines = [
        f"### taskapp {' '.join([name, *arguments])}\n",
        inspect.cleandoc(command.help or "").replace("\b\n", ""),
        "",
    ]
    options = [item for item in command.params if isinstance(item, click.Option)]
    if options:
        lines += ["| option | what it does |", "|---|---|"]
        lines += [f"| `{_flag(option)}` | {_help(option)} |" for option in options]
        lines.append("")
    examples = (command.epilog or "").partition(":\n")[2]
    lines += ["```text", *(line.strip() for line in examples.splitlines()), "```", ""]
    inner = command.commands if isinstance(command, click.Group) else {}
    return "\n".join([*lines, *(_command(f"{name} {below}", command) for below, command in inner.items())])


def _flag(option: click.Option) -> str:
    metavar = "" if option.is_flag else f" {option.metavar or _kind(option)}"
    return f"{', '.join(option.opts)}{metavar}".replace("|", "\\|")


def _kind(option: click.Option) -> str:
    return (
        "|".join(option.type.choices) if isinstance(option.type, click.Choice) else option.type.name.split()[0].upper()
    )


def _help(option: click.Option) -> str:
    text = (
        (option.help or "")
        .replace("  [default: ", " Default: ")
        .replace("]", "" if "[default:" in (option.help or "") else "]")
    )
    if isinstance(option.default, str | int | float) and not option.is_flag:
        text += f" Default: {option.default}"
    return text.replace("|", "\\|")


if __name__ == "__main__":
    click.echo(reference(), nl=False)
