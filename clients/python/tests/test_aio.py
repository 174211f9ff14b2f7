"""Calls and handlers for asyncio, without a network."""

import asyncio
import threading
import unittest

import test_serving
from bifrost import aio, layout, service, wire
from bifrost.errors import Error
from harness import POINTER, REGION, A, NodeTest


class Client:
    """What is generated: it calls, and waits."""

    def __init__(self, protocol):
        self._protocol = protocol

    def add(self, payload):
        return self._protocol._node.call("Adder", "add", payload, headers=self._protocol.headers, timeout=self._protocol.timeout)[1]


class AioTest(NodeTest):
    def run_in(self, f):
        """Runs a coroutine with the test's node."""

        async def main():
            async with aio.Node(lambda: self.node, 8) as node:
                return await f(node)

        return asyncio.run(main())

    def test_calls(self):
        """Calls are out at the same time, and each has its own answer and headers."""

        def answer():
            for m in reversed(self.calls(5).values()):
                headers, payload = wire.take_headers(m)
                self.assertEqual(headers, {"tenant": "blue"})
                self.reply(m, payload=payload + b"!", flags=0)

        answering = threading.Thread(target=answer)
        answering.start()

        async def main(node):
            client = node.client(Client, "Adder", timeout=20.0, headers={"tenant": "blue"})
            return await asyncio.gather(*(client.add(b"%d" % n) for n in range(5)))

        self.assertEqual(self.run_in(main), [b"%d!" % n for n in range(5)])
        answering.join()

    def test_errors_and_cancelling(self):
        """A call's error is its task's. Who is cancelled does not wait."""

        async def main(node):
            client = node.client(Client, "Adder", timeout=0.3)
            with self.assertRaises(Error) as caught:
                await client.add(b"")
            task = asyncio.create_task(node.client(Client, "Adder", timeout=5.0).add(b""))
            m = await node.run(self.call)
            m = await node.run(self.call)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            self.reply(m)
            return caught.exception.code

        self.assertEqual(self.run_in(main), layout.DEADLINE_EXCEEDED)

    def test_leaving_ends_calls(self):
        """Who leaves does not wait for calls that nobody answers, also if they are as many as may be out at once."""

        async def main():
            async with aio.Node(lambda: self.node, 1) as node:
                task = asyncio.create_task(node.client(Client, "Adder").add(b""))
                await asyncio.to_thread(self.call)
            with self.assertRaises(Error) as caught:
                await task
            return caught.exception.code

        self.assertEqual(asyncio.run(asyncio.wait_for(main(), 20)), layout.UNAVAILABLE)


class HandlerTest(NodeTest):
    message, send = test_serving.ServeTest.message, test_serving.ServeTest.send

    def test_a_coroutine_serves(self):
        """A coroutine runs in the loop, knows its call, and what it lends on names that."""
        seen = []

        class Handler:
            async def work(handler):
                await asyncio.sleep(0)
                seen.append((service.current(), threading.current_thread() is threading.main_thread()))
                with self.assertRaises(Error):
                    await node.run(lambda: self.node.call("Adder", "add", b"", pointers=[POINTER], policy="none", timeout=0.2))
                return "done"

            def quick(handler):
                return "at once"

        async def main():
            nonlocal node
            self.node.memory.settle = lambda: None
            async with aio.Node(lambda: self.node, 8) as node:
                wrapped = aio.handler(Handler())
                echo = test_serving.Echo()
                echo.process = lambda *_: seen.append((wrapped.quick(), wrapped.work()))
                await node.export("Echo", echo)
                m = self.message(7, regions=[REGION])
                self.send(m)
                _, b = await node.run(self.take, self.direct, lambda to, b: wire.Message.parse(b).type == layout.TYPE_CALL)
                self.assertEqual(wire.Message.parse(b).listed, [(wire.Use(16, m.number), [REGION])])
                await node.run(self.take, self.rpc, lambda to, b: wire.Message.parse(b).type != layout.TYPE_CALL)

        node = None
        asyncio.run(main())
        (call, in_loop), answer = seen
        self.assertEqual((call.caller, in_loop, answer), (A, True, ("at once", "done")))
        self.assertIsNone(service.current())


if __name__ == "__main__":
    unittest.main()
