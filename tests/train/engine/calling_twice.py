"""A child that makes two calls at once: the program of a child process."""

from __future__ import annotations

import asyncio
import sys

from taskapp_kit.train.engine.child_program import ParentCalls


async def main() -> None:
    async with ParentCalls(int(sys.argv[1])) as parent:
        await asyncio.gather(parent.call("one"), parent.call("two"))


if __name__ == "__main__":
    asyncio.run(main())
