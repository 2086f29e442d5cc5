"""A LangGraph agent. It reads the task from stdin, calls `messages` or chat completions, and prints its answer.

The agent contains no code for training. ANTHROPIC_BASE_URL and OPENAI_BASE_URL are set to the address of the policy.
"""

import sys

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


@tool
def spell(word: str) -> str:
    """Spell a word."""
    return "-".join(word)


tools = [spell] if "--tools" in sys.argv else []
model = ChatOpenAI(model="policy") if "--chat" in sys.argv else ChatAnthropic(model="policy", max_tokens=64)
model = model.bind_tools(tools) if tools else model


def call_model(state: MessagesState) -> dict[str, list]:
    return {"messages": [model.invoke(state["messages"])]}


graph = StateGraph(MessagesState)
graph.add_node("model", call_model)
graph.add_node("tools", ToolNode([spell]))
graph.add_edge(START, "model")
graph.add_conditional_edges("model", tools_condition)
graph.add_edge("tools", "model")
asked = [SystemMessage("Which key?"), HumanMessage(sys.stdin.read())]
state = graph.compile().invoke({"messages": asked}, {"recursion_limit": 8})
print(state["messages"][-1].text)
