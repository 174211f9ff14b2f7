"""Calls and handlers for asyncio.

    async with bifrost.aio.join("adder") as node:
        counter = node.client(Counter.Client, "Counter", timeout=10)
        one, two = await asyncio.gather(counter.add(0, b"\\x01"), counter.add(1, b"\\x01"))
        await node.export("Adder", Adder.Processor(bifrost.aio.handler(Handler())))

Each call takes a thread while it is out. A task that is cancelled does not wait for its call any more; the call goes on.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import inspect
from collections.abc import Callable
from typing import Any

from . import layout
from . import node as nodes
from .service import serving


def join(name: str | None = None, socket_name: str | None = None, max_message: int = layout.MAX_MESSAGE, calls: int = 64) -> Node:
    """Like bifrost.join, for `async with`. calls is how many calls and other operations are out at once; further ones wait."""
    return Node(lambda: nodes.join(name, socket_name, max_message), calls)


class Node:
    """A node whose operations are awaited. It belongs to the event loop that it was entered in. node is the bifrost.Node."""

    node: nodes.Node

    def __init__(self, make: Callable[[], nodes.Node], calls: int) -> None:
        self._make = make
        self._threads = concurrent.futures.ThreadPoolExecutor(calls, "bifrost call")

    async def __aenter__(self) -> Node:
        self.node = await self.run(self._make)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.node.close)  # all of the node's own threads may have calls that only this ends
        self._threads.shutdown(wait=False)

    async def run(self, f: Callable[..., Any], *args: Any) -> Any:
        """Awaits a function that waits, such as an operation of node.memory. A handler's stays the handler's."""
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: context.run(f, *args))

    def client(self, make: type, service: str, policy: str | None = None, timeout: float | None = None, headers: dict[str, str] | None = None) -> Any:
        """A client whose methods are those of a generated one, as coroutines; any number of tasks may use it. The rest is as in
        bifrost.Node.client."""
        return _Client(self, make, service, policy, timeout, headers)

    async def export(self, service: str, processor: Any, workers: int = 16, queue: int = 1024) -> None:
        """Serves a service, as bifrost.Node.export does. The processor's handler may be one of bifrost.aio.handler."""
        await self.run(self.node.export, service, processor, workers, queue)


class _Client:
    """Makes a generated client for each call."""

    def __init__(self, node, make, service, policy, timeout, headers):
        self._node, self._make, self._service, self._policy, self._timeout, self._headers = node, make, service, policy, timeout, headers

    def __getattr__(self, method):
        def call(*args):
            protocol = self._node.node.client(self._service, self._policy, self._timeout)
            protocol.headers = dict(self._headers or {})
            return getattr(self._make(protocol), method)(*args)

        async def awaited(*args):
            return await self._node.run(call, *args)

        return awaited


def handler(h: Any) -> Any:
    """A handler for a generated processor, of one whose methods may be coroutines: they run in the event loop that this is called in. A
    worker of the service waits for each. bifrost.current() is the call that it serves."""
    return _Handler(h, asyncio.get_running_loop())


class _Handler:
    def __init__(self, handler, loop):
        self._handler, self._loop = handler, loop

    def __getattr__(self, method):
        f = getattr(self._handler, method)

        def call(*args):
            result = f(*args)
            if not inspect.isawaitable(result):
                return result
            served = serving.get()

            async def run():
                serving.set(served)
                return await result

            return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

        return call
