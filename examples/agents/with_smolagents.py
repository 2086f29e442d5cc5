"""An agent for smolagents. It reads the task from stdin and writes its answer to stdout. It calls chat completions.

The agent contains no code for training. OPENAI_BASE_URL is set to the address of the policy. The library's prompts are
replaced, because they are longer than the context of a small model.
"""

import os
import sys

from smolagents import LogLevel, OpenAIServerModel, ToolCallingAgent, tool
from smolagents.agents import EMPTY_PROMPT_TEMPLATES


@tool
def spell(word: str) -> str:
    """Spells a word.

    Args:
        word: What to spell.
    """
    return "-".join(word)


prompts = {
    **EMPTY_PROMPT_TEMPLATES,
    "system_prompt": "Which key?",
    "final_answer": {"pre_messages": "Which key?", "post_messages": "{{task}}"},
}
model = OpenAIServerModel("policy", api_base=os.environ["OPENAI_BASE_URL"], api_key="none")
agent = ToolCallingAgent([spell], model, prompt_templates=prompts, max_steps=1, verbosity_level=LogLevel.OFF)
print(agent.run(sys.stdin.read()))
