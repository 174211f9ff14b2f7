"""A node without a network: what its calls send, and what becomes of them."""

import hmac
import os
import socket
import threading
import time
import unittest

from bifrost import bulk, layout, node, service, wire
from bifrost.errors import Error

KEY = bytes(range(32))
SELF, A, B = "fd00:b1f0:0:2::5", "fd00:b1f0:0:2::a", "fd00:b1f0:0:2::b"
PATIENCE = 20.0  # seconds until a test fails
POINTER = wire.make_pointer(16, 1, 64)


class Endpoint:
    """A socket of the node whose other end is the test's."""

    def __init__(self, port):
        self.port = port
        self._own, self._other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._own.setblocking(False)
        self.sent = []
        self.news = threading.Condition()

    def fileno(self):
        return self._own.fileno()

    def setblocking(self, _):
        pass

    def getsockopt(self, *_):
        return 1 << 20

    def recvfrom(self, n):
        source, datagram = self._own.recv(n).split(b"|", 1)
        return datagram, (source.decode(),)

    def sendto(self, datagram, to):
        with self.news:
            self.sent.append((to, bytes(datagram)))
            self.news.notify_all()

    def sendmsg(self, pieces, _ancillary, _flags, to):
        self.sendto(b"".join(pieces), to)

    def inject(self, datagram, source):
        self._other.send(source.encode() + b"|" + datagram)

    def close(self):
        self._own.close()
        self._other.close()


class Session:
    """A daemon's session, whose answers the test gives."""

    name, address, incarnation, mtu, rack, key = "test", SELF, 3, 1500, {}, KEY

    def __init__(self):
        self.done, self.on_end = threading.Event(), None
        self.endpoints = {}  # by port
        self.serving = {"nodes": [A]}
        self.who = {}  # by address
        self.there = threading.Event()  # the Gatekeeper is
        self.there.set()

    def policy(self, *_):
        return None

    def listen(self, _, port):
        return self.endpoints.setdefault(port, Endpoint(port))

    def ask(self, op, **fields):
        self.there.wait(PATIENCE)
        if op == "serving":
            return {"serving": self.serving}
        if op == "who":
            answer = self.who.get(fields["address"], {"name": "n"})
            if answer is None:
                raise Error(layout.NOT_FOUND)
            return {"who": answer}
        return {}

    def leave(self):
        self.there.set()


class NodeTest(unittest.TestCase):
    def setUp(self):
        self.session = Session()
        self.node = node.Node(self.session)
        self.rpc, self.direct, self.bulk = (self.session.endpoints[p] for p in (layout.PORT_RPC, layout.PORT_DIRECT, layout.PORT_BULK))
        self.addCleanup(self.node.close, 0.0)

    def start(self, **options):
        """Makes a call in a thread; returns what waits for its outcome."""
        outcome = []

        def call():
            try:
                outcome.append(self.node.call("Adder", "add", options.pop("payload", b"1+1"), **options))
            except Error as e:
                outcome.append(e)

        thread = threading.Thread(target=call)
        thread.start()

        def wait():
            thread.join(PATIENCE)
            self.assertEqual(len(outcome), 1)
            return outcome[0]

        return wait

    def take(self, endpoint, meant=lambda to, b: True):
        """The first datagram that is sent and meant, and not taken yet: where to, and the datagram."""
        with endpoint.news:

            def find():
                return next((i for i, s in enumerate(endpoint.sent) if meant(*s)), None)

            self.assertTrue(endpoint.news.wait_for(lambda: find() is not None, PATIENCE), endpoint.sent)
            return endpoint.sent.pop(find())

    def call(self, endpoint=None, to=A):
        """The next copy of a call to a node."""
        return wire.Message.parse(self.take(endpoint or self.direct, lambda t, b: t[0] == to and wire.Message.parse(b).flags & layout.FLAG_SETTLED == 0)[1])

    def reply(self, m, source=A, flags=0, **fields):
        answer = wire.Message(**{name: getattr(m, name) for name in layout.RPC_FIELDS if name not in ("magic", "version")})
        answer.type, answer.timeout, answer.callee_incarnation = layout.TYPE_REPLY, 0, 9
        answer.flags = m.flags & (layout.FLAG_SESSION | layout.FLAG_HELD) | m.policy | flags
        for name, value in fields.items():
            setattr(answer, name, value)
        self.rpc.inject(answer.pack(), source)

    def refuse(self, m, source=A):
        self.reply(m, source, layout.FLAG_UNBEGUN, type=layout.TYPE_EXCEPTION, code=layout.UNAVAILABLE, payload=b"the node is closing")

    def test_goes_to_the_node(self):
        outcome = self.start(timeout=PATIENCE)
        m = self.call()
        self.assertEqual((m.type, m.flags, m.attempt, m.caller_incarnation), (layout.TYPE_CALL, layout.FLAG_SESSION | layout.POLICY_RECOVER, 0, 3))
        self.assertEqual((m.payload, m.trailer), (b"1+1", hmac.digest(KEY, m.call, "sha256")[:16] + bytes(8)))
        again = self.call()
        self.assertEqual((again.call, again.trailer, again.attempt), (m.call, m.trailer, 0))
        self.reply(m, source=B, payload=b"3")  # another node's
        self.reply(m, payload=b"2")
        self.assertEqual(outcome(), ({}, b"2"))
        self.assertEqual([to for to, _ in self.rpc.sent], [])

    def test_forgotten(self):
        outcome = self.start()
        m = self.call()
        self.reply(m)
        outcome()
        to, b = self.take(self.direct, lambda to, b: wire.Message.parse(b).flags & layout.FLAG_SETTLED)
        word = wire.Message.parse(b)
        self.assertEqual((to, word.payload), ((A, layout.PORT_DIRECT), m.call + m.call))
        self.take(self.direct, lambda to, b: wire.Message.parse(b).payload == word.payload)  # again
        ack = wire.Message(type=layout.TYPE_ACK, flags=layout.FLAG_SETTLED | layout.POLICY_RECOVER, payload=m.call)
        self.direct.inject(ack.pack(), B)
        self.take(self.direct, lambda to, b: wire.Message.parse(b).payload == word.payload)  # nobody believes another node
        self.direct.inject(ack.pack(), A)
        end = time.monotonic() + PATIENCE
        while self.node._forgets.due() is not None and time.monotonic() < end:
            time.sleep(0.001)
        self.assertIsNone(self.node._forgets.due())

    def test_a_node_that_closes(self):
        outcome = self.start()
        m = self.call()
        self.session.serving = {"nodes": [B]}
        self.refuse(m)
        other = self.call(to=B)
        self.assertNotEqual(other.call, m.call)
        self.reply(other, source=B, payload=b"2")
        self.assertEqual(outcome(), ({}, b"2"))

    def test_a_node_that_is_gone(self):
        outcome = self.start()
        self.call()
        self.session.who[A] = None
        e = outcome()
        self.assertEqual((e.code, e.never_began), (layout.UNAVAILABLE, False))

    def test_a_node_that_has_left_in_order(self):
        outcome = self.start()
        self.call()
        self.session.serving = {"nodes": [B]}
        self.session.who[A] = {"name": "", "blade": "", "left": True}
        self.reply(self.call(to=B), source=B, payload=b"2")
        self.assertEqual(outcome(), ({}, b"2"))

    def test_a_node_that_restarts(self):
        outcome = self.start()
        m = self.call()
        call = self.node._caller.calls[m.call]
        call.due = time.monotonic() + 10 * PATIENCE
        self.direct.sent.clear()
        hello = wire.Message(type=layout.TYPE_ACK, flags=layout.FLAG_UNBEGUN | layout.POLICY_RECOVER, caller_incarnation=10)
        self.direct.inject(hello.pack(), A)
        self.reply(self.call())
        outcome()

    def test_nobody_serves(self):
        self.session.serving = {"why": "deploy it"}
        e = self.start()()
        self.assertEqual((e.code, e.never_began), (layout.UNAVAILABLE, True))
        self.assertIn("deploy it", e.reason)

    def test_without_a_gatekeeper(self):
        self.session.there.clear()
        e = self.start(timeout=0.3)()
        self.assertEqual((e.code, e.never_began), (layout.DEADLINE_EXCEEDED, True))
        outcome = self.start(timeout=PATIENCE)
        self.session.there.set()
        self.reply(self.call())
        outcome()
        self.session.there.clear()  # it has said who serves
        outcome = self.start(timeout=PATIENCE)
        self.reply(self.call())
        outcome()

    def test_the_node_ends_while_it_waits(self):
        self.session.there.clear()
        outcome = self.start()
        self.node.done.set()
        self.node._fail()
        self.assertEqual(outcome().code, layout.UNAVAILABLE)

    def test_pointers_pass_the_gatekeeper(self):
        self.node.memory.settle = lambda: None
        outcome = self.start(pointers=[POINTER], timeout=PATIENCE)
        m = self.call(self.rpc)
        self.assertEqual((m.flags, m.pointers), (layout.FLAG_HELD | layout.FLAG_SESSION | layout.POLICY_RECOVER, [POINTER]))
        self.reply(m, pointers=[])  # nobody has released it
        self.reply(m, flags=layout.FLAG_RELEASED, pointers=[], payload=b"2")
        self.assertEqual(outcome(), ({}, b"2"))
        settled = wire.Message.parse(self.take(self.rpc, lambda to, b: to[0] == layout.GATEKEEPER)[1])
        self.assertEqual((settled.floor, settled.sequence), (m.sequence + 1, 0))

    def test_oneway(self):
        for pointers, endpoint, flags in ((), self.direct, 0), ([POINTER], self.rpc, layout.FLAG_RELEASED):
            self.node.memory.settle = lambda: None
            outcome = self.start(oneway=True, pointers=pointers)
            m = self.call(endpoint)
            self.assertEqual(m.type, layout.TYPE_ONE_WAY)
            self.reply(m, flags=flags, pointers=[])
            self.assertEqual(outcome(), ({}, b""))

    def test_large(self):
        payload = os.urandom(5000)
        outcome = self.start(payload=payload)
        m = self.call()
        total, token, _, start = wire.opening(m)
        self.assertEqual((total, token, len(m.trailer)), (5000, 0, wire.ORIGIN + 8))
        size = self.node.budget - bulk.SIZE
        pull = bulk.Header(kind=bulk.PULL, call=m.call, caller_incarnation=3, total=5000, first=len(start), size=size, spans=[(len(start), 2 * size)])
        self.bulk.inject(pull.pack(), B)  # which has not got the call
        self.assertEqual(bulk.Header.parse(self.take(self.bulk)[1]).kind, bulk.GONE)
        self.bulk.inject(pull.of(bulk.PULL, size=1, spans=[(len(start), 2 * size)]).pack(), A)  # in more packets than parts
        self.assertEqual(bulk.Header.parse(self.take(self.bulk)[1]).kind, bulk.GONE)
        self.bulk.inject(pull.pack(), A)
        for at in 0, size:
            part = bulk.Header.parse(self.take(self.bulk)[1])
            self.assertEqual((part.kind, bytes(part.data)), (bulk.PART, payload[len(start) + at :][:size]))
        answer = os.urandom(3000)
        self.reply(m, flags=layout.FLAG_MORE, payload=(3000).to_bytes(8, "big") + bytes(8) + answer[:1000])
        ask = bulk.Header.parse(self.take(self.bulk)[1])
        for at, n in bulk.cut(ask.spans, ask.size):
            self.bulk.inject(ask.of(bulk.PART, offset=at, size=n).pack() + answer[at : at + n], A)
        self.assertEqual(outcome(), ({}, answer))

    def test_too_large(self):
        self.node.max_message = 4999
        self.assertEqual(self.start(payload=bytes(5000))().code, layout.BAD_REQUEST)

    def test_the_calls_of_a_handler(self):
        waits = bytes(range(32))
        served = wire.Message(type=layout.TYPE_CALL, trailer=waits)
        for policy, endpoint, to, at in ("recover", self.direct, A, wire.ORIGIN), ("none", self.rpc, wire.service_address("Adder"), 0):

            def call():
                service._current.call = service.Incoming(served, B, None, None)
                self.node.call("Adder", "add", b"", policy=policy)

            thread = threading.Thread(target=call)
            thread.start()
            m = self.call(endpoint, to)
            self.assertEqual(m.trailer[at:], waits)
            self.reply(m)
            thread.join(PATIENCE)

    def test_serves_no_exactly_once_calls(self):
        m = wire.Message(type=layout.TYPE_CALL, flags=layout.FLAG_SESSION | layout.POLICY_RECOVER, call=wire.session_id(1, 1), floor=1)
        self.direct.inject(m.pack(), B)
        end = time.monotonic() + PATIENCE
        while not self.node.counters["malformed"] and time.monotonic() < end:
            time.sleep(0.001)
        self.assertEqual(self.node.counters["malformed"], 1)


if __name__ == "__main__":
    unittest.main()
