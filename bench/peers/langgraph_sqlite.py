"""LangChain's create_agent with LangGraph's SQLite checkpointer, as both come."""

from __future__ import annotations

import asyncio
from pathlib import Path

import core
from langchain.agents import create_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver


class Scripted(BaseChatModel):
    """The harness's script as a chat model."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools, **settings):
        return self

    def _generate(self, messages, stop=None, run_manager=None, **settings):
        raise NotImplementedError

    async def _agenerate(self, messages, stop=None, run_manager=None, **settings):
        await asyncio.sleep(0)
        fresh = []
        for message in reversed(messages):
            if not isinstance(message, ToolMessage):
                break
            fresh.append((message.tool_call_id, message.content))
        calls = core.CURRENT.get().next(fresh)
        if calls is None:
            answer = AIMessage(core.FINAL)
        else:
            answer = AIMessage("", tool_calls=[{"id": c.id, "name": c.name, "args": c.args} for c in calls])
        return ChatResult(generations=[ChatGeneration(message=answer)])


def clerk(spec, saver):
    """The agent of a workload."""
    return create_agent(Scripted(), [core.TOOLS[spec.tool]], system_prompt=core.SYSTEM, checkpointer=saver)


async def build(spec):
    opened = AsyncSqliteSaver.from_conn_string(str(Path(spec.durable, "peer.db")))
    saver = await opened.__aenter__()
    await saver.setup()
    return clerk(spec, saver), opened


async def run(built, script, number):
    settings = {"configurable": {"thread_id": f"thread-{number}"}, "recursion_limit": 1_000_000}
    found = await built[0].ainvoke({"messages": [("user", core.PROMPT)]}, settings)
    return found["messages"][-1].content


async def close(built):
    await built[1].__aexit__(None, None, None)
