"""An agent for OpenAI's Agents SDK. It reads the task from stdin and writes its answer to stdout. It calls `responses`.

The agent contains no code for training. OPENAI_BASE_URL is set to the address of the policy. The SDK raises an
exception when the model makes a mistake, for example when an answer is truncated. The agent then prints nothing,
because an agent that fails would not be scored.
"""

import sys

from agents import Agent, AgentsException, Runner, function_tool, set_tracing_disabled


@function_tool
def spell(word: str) -> str:
    """Spell a word.

    Args:
        word: What to spell.
    """
    return "-".join(word)


set_tracing_disabled(True)
agent = Agent(name="finder", instructions="Which key?", model="policy", tools=[spell] if "--tools" in sys.argv else [])
try:
    print(Runner.run_sync(agent, sys.stdin.read(), max_turns=4).final_output)
except AgentsException:
    print()
