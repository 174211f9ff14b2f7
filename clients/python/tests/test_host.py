"""The child's end of a host, where the test is the host."""

import asyncio
import json
import logging
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import unittest

from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.Thrift import TApplicationException, TMessageType
from thrift.transport.TTransport import TMemoryBuffer, TTransportException

from bifrost import host, layout
from bifrost.errors import Error

PATIENCE = 20.0  # seconds until a test fails
IDL = """
exception NotEnough { 1: i64 has }
service Bank {
  i64 deposit(1: string account, 2: i64 amount)
  string transfer(1: string source, 2: i64 amount) throws (1: NotEnough short)
  oneway void forget(1: string account)
}
"""


def setUpModule():
    global Bank, NotEnough, generated
    if not shutil.which("thrift"):
        raise unittest.SkipTest("no thrift on PATH")
    generated = tempfile.TemporaryDirectory()
    pathlib.Path(generated.name, "hostbank.thrift").write_text(IDL)
    subprocess.run(["thrift", "--gen", "py", "-out", generated.name, "hostbank.thrift"], cwd=generated.name, check=True)
    sys.path.insert(0, generated.name)
    from hostbank import Bank
    from hostbank.ttypes import NotEnough

    logging.disable(logging.CRITICAL)


def tearDownModule():
    logging.disable(logging.NOTSET)
    sys.path.remove(generated.name)
    generated.cleanup()


def text(s):
    return struct.pack(">I", len(s.encode())) + s.encode()


class FakeHost:
    """A host whose answers the test gives."""

    def __init__(self, service, max_message=1 << 20):
        ours, theirs = socket.socketpair()
        ours.settimeout(PATIENCE)
        self.sock, self.ready = ours, []
        self.thread = threading.Thread(target=host.serve, args=(service,), kwargs={"name": "bank", "sock": theirs, "ready": self.ready.append})
        self.thread.start()
        kind, call, body = self.read()
        self.hello = json.loads(body)
        assert (kind, call) == (layout.HOST_HELLO, 0)
        self.send(layout.HOST_WELCOME, 0, json.dumps({"version": 1, "node": "n", "address": "fd00::1", "calls": 9, "max_message": max_message}).encode())
        self.number = 0

    def send(self, kind, call, body=b""):
        self.sock.sendall(struct.pack(">IBI", len(body) + 5, kind, call) + body)

    def read(self):
        def exactly(n):
            b = b""
            while len(b) < n:
                more = self.sock.recv(n - len(b))
                if not more:
                    raise EOFError
                b += more
            return b

        length, kind, call = struct.unpack(">IBI", exactly(9))
        return kind, call, exactly(length - 5)

    def call(self, method, *args, timeout=0, service="Bank", headers=()):
        """Begins a call of a method; returns its number."""
        out = TMemoryBuffer()
        protocol = TBinaryProtocol(out, strictWrite=True)
        client = Bank.Client(TBinaryProtocol(TMemoryBuffer()), protocol)
        getattr(client, "send_" + method)(*args)
        self.number += 1
        body = struct.pack(">BI", 1 if method == "forget" else 0, timeout) + text(service) + text("id%d" % self.number) + text("fd00::9")
        body += struct.pack(">I", len(headers)) + b"".join(text(k) + text(v) for k, v in headers)
        self.send(layout.HOST_CALL, self.number, body + out.getvalue())
        return self.number

    def expect(self, kind, call=None):
        """Reads a frame, which must be of the kind; returns its body."""
        got, number, body = self.read()
        assert (got, number) == (kind, call or self.number), (got, number, body)
        return body

    def result(self, data=b"", code=0, flags=0):
        self.send(layout.HOST_RESULT, self.number, bytes([code, flags]) + data)

    def answer(self, method):
        """Reads the call's answer, as a generated client does."""
        body = self.expect(layout.HOST_ANSWER)
        return getattr(Bank.Client(TBinaryProtocol(TMemoryBuffer(body), strictRead=True)), "recv_" + method)()

    def close(self):
        self.sock.close()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


class Handler:
    """Does in deposit what the test says."""

    def __init__(self, do):
        self.deposit = do
        self.forgotten = []

    def transfer(self, source, amount):
        raise NotEnough(amount)

    def forget(self, account):
        self.forgotten.append(account)


class HostTest(unittest.TestCase):
    def serve(self, do, max_message=1 << 20, **options):
        self.handler = Handler(do)
        self.host = FakeHost(host.Service("Bank", Bank.Processor, self.handler, **options), max_message)
        self.addCleanup(self.host.close)
        return self.host

    def test_hello(self):
        h = self.serve(None, idl=IDL, state=True, workers=3, policies={"": "recover"}, max_failures={"deposit": 2})
        self.assertEqual(h.hello["version"], layout.HOST_VERSION)
        self.assertEqual((h.hello["name"], h.hello["services"]), ("bank", [{"name": "Bank", "methods": ["deposit", "forget", "transfer"], "idl": IDL, "state": True,
                         "workers": 3, "queue": 0, "policies": {"": "recover"}, "max_failures": {"deposit": 2}}]))
        self.assertEqual(h.ready, [])
        h.send(layout.HOST_READY, 0)
        h.call("transfer", "ada", 3)
        with self.assertRaises(NotEnough) as caught:
            h.answer("transfer")
        self.assertEqual((caught.exception.has, h.ready), (3, ["fd00::1"]))

    def test_call(self):
        seen = []

        def deposit(account, amount):
            call = host.current()
            seen.append((call.service, call.id, call.caller, call.headers, call.deadline is not None, call.oneway))
            return amount + 1

        h = self.serve(deposit)
        h.call("deposit", "ada", 5, timeout=1000, headers=[("tenant", "blue")])
        self.assertEqual(h.answer("deposit"), 6)
        self.assertEqual(seen, [("Bank", "id1", "fd00::9", {"tenant": "blue"}, True, False)])
        h.call("forget", "bob")
        self.assertEqual((h.expect(layout.HOST_ANSWER), self.handler.forgotten), (b"", ["bob"]))
        with self.assertRaises(Error):
            host.current()

    def test_state(self):
        def deposit(account, amount):
            s = host.state()
            if "none" in s or s.get("none") is not None:
                return -1
            s[account] = b"%d" % (int(s[account]) + amount)
            del s[account]
            return len(s)

        h = self.serve(deposit, state=True)
        h.call("deposit", "ada", 5)
        for _ in range(2):
            self.assertEqual(h.expect(layout.HOST_GET), b"none")
            h.result(b"\0")
        self.assertEqual(h.expect(layout.HOST_GET), b"ada")
        h.result(b"\x0137")
        self.assertEqual(h.expect(layout.HOST_SET), text("ada") + b"42")
        h.result()
        self.assertEqual(h.expect(layout.HOST_GET), b"ada")
        h.result(b"\x01")
        self.assertEqual(h.expect(layout.HOST_DELETE), b"ada")
        h.result()
        self.assertEqual(h.expect(layout.HOST_KEYS), b"")
        h.result(text("a") + text("b"))
        self.assertEqual(h.answer("deposit"), 2)

    def test_refused_here(self):
        """What cannot be is refused before it comes to the host, and the call goes on."""

        def deposit(account, amount):
            s = host.state()
            refused = 0
            for what in (lambda: s.__setitem__("k", "text"), lambda: s[3], lambda: s.__setitem__("k", b"x" * 2000), lambda: s["k" * 5000], lambda: host.random(1 << 20),
                         lambda: host.client("Bank", policy="twice"), lambda: Bank.Client(host.client("Bank")).deposit("x" * 2000, 1)):
                try:
                    what()
                except (TypeError, Error):
                    refused += 1
            return refused

        h = self.serve(deposit, max_message=1000)
        h.call("deposit", "ada", 5)
        self.assertEqual(h.answer("deposit"), 7)

    def test_world(self):
        def deposit(account, amount):
            return int(host.now().timestamp()) + len(host.random(3))

        h = self.serve(deposit)
        h.call("deposit", "ada", 5)
        h.expect(layout.HOST_NOW)
        h.result(struct.pack(">q", 1_000_000_000_123_456_789))
        self.assertEqual(h.expect(layout.HOST_RANDOM), b"\0\0\0\3")
        h.result(b"abc")
        self.assertEqual(h.answer("deposit"), 1_000_000_003)

    def test_effect(self):
        ran = []

        def deposit(account, amount):
            def f():
                ran.append(account)
                if amount == 2:
                    raise Error(layout.NO_SPACE, "full")
                if amount == 3:
                    host.state()  # is found
                    host.now()  # is refused: the effect is under way
                if amount == 4:
                    sys.exit("leaves")
                return b"receipt"

            return len(host.effect("mail " + account, f))

        h = self.serve(deposit)
        h.call("deposit", "known", 1)
        self.assertEqual(h.expect(layout.HOST_EFFECT), b"mail known")
        h.result(b"before")
        self.assertEqual((h.answer("deposit"), ran), (6, []))
        for account, amount, outcome in ("new", 1, b"\0receipt"), ("fails", 2, bytes([layout.NO_SPACE]) + b"full"), ("asks", 3, bytes([layout.BAD_REQUEST])):
            h.call("deposit", account, amount)
            h.expect(layout.HOST_EFFECT)
            h.send(layout.HOST_RUN, h.number)
            done = h.expect(layout.HOST_EFFECT_DONE)
            self.assertTrue(done.startswith(outcome), done)
            h.result(done[1:], done[0])
            if amount == 1:
                self.assertEqual(h.answer("deposit"), 7)
            else:
                self.assertEqual(h.expect(layout.HOST_FAIL)[:1], outcome[:1])
        h.call("deposit", "leaves", 4)
        h.expect(layout.HOST_EFFECT)
        h.send(layout.HOST_RUN, h.number)
        h.result(h.expect(layout.HOST_EFFECT_DONE)[1:], layout.APPLICATION)
        self.assertIn(b"SystemExit", h.expect(layout.HOST_BROKEN))
        self.assertEqual(ran, ["new", "fails", "asks", "leaves"])

    def test_client(self):
        def deposit(account, amount):
            protocol = host.client("Other", policy="recover", timeout=1.5)
            protocol.headers = {"tenant": "blue"}
            client = Bank.Client(protocol)
            client.forget("x")
            try:
                return client.deposit(account, amount) + 1
            except TApplicationException as e:
                return -e.type
            except Error as e:
                return 1000 * e.code + e.remote + 2 * e.never_began

        h = self.serve(deposit)

        def reply(kind, write):
            out = TMemoryBuffer()
            protocol = TBinaryProtocol(out, strictWrite=True)
            protocol.writeMessageBegin("deposit", kind, 0)
            write.write(protocol)
            return out.getvalue()

        success = Bank.deposit_result()
        success.success = 41
        for result, want in ((reply(TMessageType.REPLY, success), 0), 42), ((reply(TMessageType.EXCEPTION, TApplicationException(6, "no")), 0), -6), (
                (b"nobody", layout.UNAVAILABLE), 1000 * layout.UNAVAILABLE + 3):
            h.call("deposit", "ada", 5)
            body = h.expect(layout.HOST_INVOKE)
            self.assertEqual(body[:23], b"\1" + struct.pack(">I", 1500) + text("Other") + struct.pack(">I", 1) + text("tenant")[:5])
            h.result()  # of the one-way
            h.expect(layout.HOST_INVOKE)
            h.result(result[0], result[1], 3 if result[1] else 0)
            self.assertEqual(h.answer("deposit"), want)

    def test_failures(self):
        def deposit(account, amount):
            if amount == 1:
                raise Error(layout.NOT_FOUND, "no account")
            if amount == 2:
                raise TApplicationException(TApplicationException.INTERNAL_ERROR, "mine")
            if amount == 3:
                raise TTransportException(TTransportException.NOT_OPEN, "another client of the handler's")
            if amount == 4:
                sys.exit("leaves")
            return 1 // 0

        h = self.serve(deposit)
        h.call("deposit", "ada", 1)
        self.assertEqual(h.expect(layout.HOST_FAIL), bytes([layout.NOT_FOUND]) + b"no account")
        h.call("deposit", "ada", 2)
        with self.assertRaises(TApplicationException):
            h.answer("deposit")
        for amount, why in (3, b"TTransportException"), (4, b"SystemExit('leaves')"), (5, b"ZeroDivisionError"):
            h.call("deposit", "ada", amount)
            self.assertIn(why, h.expect(layout.HOST_BROKEN))

    def test_too_long(self):
        h = self.serve(lambda account, amount: amount, max_message=10)
        h.call("deposit", "ada", 1)
        self.assertEqual(h.expect(layout.HOST_FAIL)[:1], bytes([layout.BAD_REQUEST]))

    def test_cancel(self):
        h = self.serve(lambda account, amount: int(host.current().canceled.wait(PATIENCE)))
        h.call("deposit", "ada", 1)
        h.send(layout.HOST_CANCEL, 99, bytes([layout.CANCELED]))  # of a call that has been answered
        h.send(layout.HOST_CANCEL, h.number, bytes([layout.CANCELED]))
        self.assertEqual(h.answer("deposit"), 1)

    def test_many_calls_at_once(self):
        """Each call has a thread, however many wait; and the results come to the calls that they are for."""
        h = self.serve(lambda account, amount: int(host.state()[account]))
        numbers = [h.call("deposit", "n%d" % n, 0) for n in range(100)]
        asked = dict(h.read()[1:] for _ in numbers)
        self.assertEqual(asked, {n: b"n%d" % (n - 1) for n in numbers})
        for n in reversed(numbers):
            h.send(layout.HOST_RESULT, n, b"\0\0\1%d" % n)
        for _ in numbers:
            kind, n, body = h.read()
            self.assertEqual(kind, layout.HOST_ANSWER)
            self.assertEqual(Bank.Client(TBinaryProtocol(TMemoryBuffer(body))).recv_deposit(), n)

    def test_asyncio(self):
        refused = threading.Event()

        async def deposit(account, amount):
            accounts = host.state()
            has = int(await host.run(accounts.get, account))

            async def mail():
                await asyncio.sleep(0)
                return b"sent"

            sent = await host.aeffect("mail", mail)
            more = await host.aclient(Bank.Client, "Other").deposit(account, has)
            waits = asyncio.create_task(host.run(accounts.get, "a"))
            while not host.current()._asking.locked():
                await asyncio.sleep(0)
            try:
                await host.run(accounts.get, "b")
            except Error as e:  # two things at a time
                refused.set()
                waits.cancel()  # what it waits for comes all the same
                return more + len(sent) + 100 * (e.code == layout.BAD_REQUEST)

        h = self.serve(deposit)
        h.call("deposit", "ada", 5)
        h.expect(layout.HOST_GET)
        h.result(b"\x0137")
        h.expect(layout.HOST_EFFECT)
        h.send(layout.HOST_RUN, h.number)
        h.result(h.expect(layout.HOST_EFFECT_DONE)[1:])
        h.expect(layout.HOST_INVOKE)
        success = Bank.deposit_result()
        success.success = 3
        out = TMemoryBuffer()
        protocol = TBinaryProtocol(out, strictWrite=True)
        protocol.writeMessageBegin("deposit", TMessageType.REPLY, 0)
        success.write(protocol)
        h.result(out.getvalue())
        self.assertEqual(h.expect(layout.HOST_GET), b"a")
        self.assertTrue(refused.wait(PATIENCE))
        h.result(b"\0")  # the answer waits for that
        self.assertEqual(h.answer("deposit"), 107)

    def test_log(self):
        def deposit(account, amount):
            host.log("half way", logging.WARNING)
            return 0

        h = self.serve(deposit)
        h.call("deposit", "ada", 5)
        self.assertEqual(h.expect(layout.HOST_LOG), b"\2half way")
        self.assertEqual(h.answer("deposit"), 0)

    def test_host_ends(self):
        """Handlers that wait when the host ends go no further, and serve returns."""
        further, ended = [], threading.Event()

        def deposit(account, amount):
            try:
                host.now()
                further.append(account)
            finally:
                ended.set()

        h = self.serve(deposit)
        h.call("deposit", "ada", 5)
        h.expect(layout.HOST_NOW)
        h.close()
        self.assertTrue(ended.wait(PATIENCE))
        self.assertEqual(further, [])

    def test_other_version(self):
        ours, theirs = socket.socketpair()
        body = b'{"version": 2}'
        ours.sendall(struct.pack(">IBI", len(body) + 5, layout.HOST_WELCOME, 0) + body)
        with ours, self.assertRaisesRegex(RuntimeError, "version 2"):
            host.serve(host.Service("Bank", Bank.Processor, Handler(None)), sock=theirs)

    def test_no_host(self):
        with self.assertRaisesRegex(Error, "bifrost host -- "):
            host.serve(host.Service("Bank", Bank.Processor, Handler(None)))


if __name__ == "__main__":
    unittest.main()
