"""Five tasks in Harbor's format, written for the tests."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

TASK_TOML = """\
version = "1.0"

[metadata]
author_name = "The tests of taskapp-kit"
difficulty = "{difficulty}"
category = "files"
tags = ["{tag}"]

[verifier]
timeout_sec = 30.0
{verifier}

[agent]
timeout_sec = 120.0

[environment]
build_timeout_sec = 600.0
cpus = 1
memory_mb = 512
"""

ONE_OR_NOTHING = (
    "if {condition}; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi\n"
)

TASKS: dict[str, dict[str, str]] = {
    "hello": {
        "instruction.md": "Create a file called hello.txt in /app with the one line: Hello, world!\n",
        "environment/Dockerfile": "FROM ubuntu:24.04\n\nWORKDIR /app\n",
        "solution/solve.sh": "#!/bin/bash\necho 'Hello, world!' > /app/hello.txt\n",
        "tests/test.sh": ONE_OR_NOTHING.format(condition='[ "$(cat /app/hello.txt)" = "Hello, world!" ]'),
    },
    "word-count": {
        "instruction.md": "Write into /app/count.txt how many words /app/data/poem.txt has, and into /app/lines.txt how many lines.\n",
        "environment/Dockerfile": """\
            # the poem
            FROM debian:bookworm-slim
            LABEL purpose="a test"
            WORKDIR /app
            COPY data ./data
            CMD ["bash"]
            """,
        "environment/data/poem.txt": "one two three\nfour five\n",
        "solution/solve.sh": "wc -w < /app/data/poem.txt > /app/count.txt\nwc -l < /app/data/poem.txt > /app/lines.txt\n",
        "tests/test.sh": """\
            words=0; lines=0
            [ "$(cat /app/count.txt)" -eq 5 ] && words=1
            [ "$(cat /app/lines.txt)" -eq 2 ] && lines=1
            echo "{\\"reward\\": 0.$(( (words + lines) * 5 )), \\"words\\": $words, \\"lines\\": $lines}" > /logs/verifier/reward.json
            [ $((words + lines)) -eq 2 ] && echo '{"reward": 1.0, "words": 1, "lines": 1}' > /logs/verifier/reward.json
            exit 0
            """,
    },
    "fix-the-script": {
        "instruction.md": "The script /srv/add.sh should print the sum of its two arguments. Fix it.\n",
        "environment/Dockerfile": """\
            FROM docker.io/library/python:3.11-slim
            WORKDIR /srv
            COPY add.sh /srv/add.sh
            RUN chmod 755 add.sh && \\
                mkdir -p backup && \\
                cp add.sh backup/
            """,
        "environment/add.sh": "#!/bin/sh\necho $(( $1 - $2 ))\n",
        "solution/solve.sh": "sed -i 's/ - / + /' /srv/add.sh\n",
        "tests/test.sh": ONE_OR_NOTHING.format(condition='[ "$(./add.sh 2 3)" = 5 ] && [ -f backup/add.sh ]'),
    },
    "sorted-log": {
        "instruction.md": "Sort the lines of the file that the variable LOG names, in place.\n",
        "environment/Dockerfile": """\
            FROM ubuntu:24.04
            ENV FOLDER=/workspace LOG=/workspace/logs/app.log
            WORKDIR $FOLDER/logs
            RUN for number in 3 1 2; do echo "line $number" >> app.log; done
            """,
        "solution/solve.sh": 'sort -o "$LOG" "$LOG"\n',
        "tests/test.sh": "cmp app.log /tests/expected.log && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n",
        "tests/expected.log": "line 1\nline 2\nline 3\n",
    },
    "secret-number": {
        "instruction.md": "Write the product of 6 and 7 into answer.txt.\n",
        "solution/solve.sh": "echo 42 > answer.txt\n",
        "tests/test.sh": ONE_OR_NOTHING.format(condition='[ "$(cat answer.txt)" = "$EXPECTED" ]'),
        "verifier": '[verifier.env]\nEXPECTED = "42"\n',
    },
}


def write_task(folder: Path, files: dict[str, str]) -> Path:
    """Write a task directory. verifier: a part of its task.toml."""
    given = {
        "task.toml": TASK_TOML.format(difficulty="easy", tag=folder.name, verifier=files.get("verifier", "")),
        **files,
    }
    for name, text in given.items():
        if name != "verifier":
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(text))
    return folder


def write_tasks(folder: Path) -> Path:
    """Write the five."""
    for name, files in TASKS.items():
        write_task(folder / name, files)
    return folder
