"""A node without a network: what its calls send, what becomes of them, and how it serves calls."""

import hmac
import os
import socket
import threading
import time
import unittest
from unittest import mock

from thrift.Thrift import TMessageType, TType

from bifrost import bulk, direct, layout, node, service, wire
from bifrost.errors import Error

KEY = bytes(range(32))
SELF, A, B = "fd00:b1f0:0:2::5", "fd00:b1f0:0:2::a", "fd00:b1f0:0:2::b"
PATIENCE = 20.0  # seconds until a test fails
POINTER = wire.make_pointer(16, 1, 64)


def serves(*nodes, incarnation=9, **options):
    """The Gatekeeper's answer."""
    return dict(nodes=list(nodes), incarnations=[incarnation] * len(nodes), **options)


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
        source, port, datagram = self._own.recv(n).split(b"|", 2)
        return datagram, (source.decode(), int(port))

    def sendto(self, datagram, to):
        with self.news:
            self.sent.append((to, bytes(datagram)))
            self.news.notify_all()

    def sendmsg(self, pieces, _ancillary, _flags, to):
        self.sendto(b"".join(pieces), to)

    def inject(self, datagram, source, port=None):
        self._other.send(b"%s|%d|%s" % (source.encode(), port or self.port, datagram))

    def close(self):
        self._own.close()
        self._other.close()


class Session:
    """A daemon's session, whose answers the test gives."""

    name, address, incarnation, blocks, mtu, rack, key = "test", SELF, 3, (4,), 1500, {}, KEY

    def __init__(self):
        self.done, self.on_end = threading.Event(), None
        self.endpoints = {}  # by port
        self.serving = serves(A)
        self.asked = []
        self.who = {}  # by address
        self.more = threading.Semaphore(0)  # for each question for blocks that is answered
        self.refuses = False  # to give any
        self.there = threading.Event()  # the Gatekeeper is
        self.there.set()

    def policy(self, *_):
        return None

    def listen(self, _, port):
        return self.endpoints.setdefault(port, Endpoint(port))

    def ask(self, op, **fields):
        self.there.wait(PATIENCE)
        self.asked.append((op, fields))
        if op == "blocks":
            self.more.acquire(timeout=PATIENCE)
            if self.refuses:
                raise Error(layout.UNAVAILABLE)
            return {"blocks": list(range(4, 4 + fields["want"]))}
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
        self.more.release(100)


class NodeTest(unittest.TestCase):
    """A node whose network and daemon are the test's."""

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
        answer.flags = m.flags & layout.FLAG_HELD | m.policy | flags
        for name, value in fields.items():
            setattr(answer, name, value)
        self.rpc.inject(answer.pack(), source)

    def until(self, true):
        end = time.monotonic() + PATIENCE
        while not true() and time.monotonic() < end:
            time.sleep(0.001)
        self.assertTrue(true())

    def forgotten(self):
        """Waits until nobody is to be told to forget anything."""
        self.until(lambda: self.node._forgets.due() is None)

    def refuse(self, m, source=A):
        self.reply(m, source, layout.FLAG_UNBEGUN, type=layout.TYPE_EXCEPTION, code=layout.UNAVAILABLE, payload=b"the node is closing")


class MovesOn:
    """What becomes of a call whose node closes is the same for all policies."""

    def test_a_node_that_closes(self):
        outcome = self.start()
        m = self.call()
        self.session.serving = serves(B)
        self.refuse(m)
        other = self.call(to=B)
        self.assertNotEqual(other.call, m.call)
        self.reply(other, source=B, payload=b"2")
        self.assertEqual(outcome(), ({}, b"2"))


class SlotsTest(NodeTest):
    """Calls that find no slot free. The node has 16, and half of them are for one node."""

    def setUp(self):
        super().setUp()
        self.outcomes = [self.start() for _ in range(8)]
        self.out = {}
        while len(self.out) < 8:
            m = self.call()
            self.out[m.call] = m

    def next(self, to=A):
        """The first copy of a call that is not out yet."""
        return wire.Message.parse(self.take(self.direct, lambda t, b: t[0] == to and wire.Message.parse(b).call not in self.out)[1])

    def waits(self):
        self.until(lambda: A in self.node._caller.slots._waiting)

    def test_names(self):
        self.assertEqual({(m.slot, m.number) for m in self.out.values()}, {(64 + n, wire.number_of(3, 1)) for n in range(8)})
        for m in self.out.values():
            self.assertEqual(m.call, wire.plain_id(SELF, m.slot, m.number))
            self.reply(m)
        for outcome in self.outcomes:
            outcome()

    def test_waits_for_a_slot(self):
        outcome = self.start(timeout=PATIENCE)
        self.waits()
        first = next(iter(self.out.values()))
        self.reply(first)
        m = self.next()
        self.assertEqual((m.slot, m.number), (first.slot, first.number + 1))
        self.reply(m, payload=b"2")
        self.assertEqual(outcome(), ({}, b"2"))

    def test_until_its_deadline(self):
        for oneway in False, True:
            e = self.start(timeout=0.05, oneway=oneway)()
            self.assertEqual((e.code, e.never_began), (layout.DEADLINE_EXCEEDED, True))
        self.assertEqual(self.node._caller.slots._waiting, {})

    def test_another_node_has_slots(self):
        outcome = self.start()
        self.waits()
        self.session.serving = serves(B)
        with self.node._lock:
            self.node._servers.told(time.monotonic(), direct.Method("Adder", "add", False), [direct.Server(B, 9)])
        other = self.start()
        self.reply(self.next(to=B), source=B, payload=b"2")
        self.assertEqual(other(), ({}, b"2"))
        self.assertIn(A, self.node._caller.slots._waiting)
        self.reply(next(iter(self.out.values())))
        self.reply(self.next())
        outcome()

    def test_more_blocks(self):
        outcome = self.start()
        self.waits()
        self.until(lambda: ("blocks", {"want": 2}) in self.session.asked)
        self.assertEqual([op for op, _ in self.session.asked].count("blocks"), 1)
        self.session.more.release()
        m = self.next()
        self.assertEqual(m.number, wire.number_of(3, 1))
        self.reply(m)
        outcome()

    def test_no_blocks_at_first(self):
        outcome = self.start()
        self.session.refuses = True
        self.session.more.release()
        self.until(lambda: [op for op, _ in self.session.asked].count("blocks") == 2)
        self.assertIn(A, self.node._caller.slots._waiting)
        self.session.refuses = False
        self.session.more.release()
        self.reply(self.next())
        outcome()

    def test_a_handler_does_not_wait_for_long(self):
        service._current.call = service.Incoming(wire.Message(type=layout.TYPE_CALL, trailer=bytes(wire.ORIGIN)), B, None, None)
        self.addCleanup(setattr, service._current, "call", None)
        with mock.patch.object(node, "SLOT_PATIENCE", 0.01), self.assertRaises(Error) as caught:
            self.node.call("Adder", "add", b"", timeout=PATIENCE)
        self.assertEqual((caught.exception.code, caught.exception.never_began), (layout.OVERLOADED, True))
        self.assertEqual(self.node._caller.slots._waiting, {})

    def test_the_node_ends(self):
        outcome = self.start()
        self.waits()
        self.node._fail()
        e = outcome()
        self.assertEqual((e.code, e.never_began), (layout.UNAVAILABLE, True))


class ExactlyOnceTest(MovesOn, NodeTest):
    """Exactly-once calls, and what both kinds have in common."""

    def test_goes_to_the_node(self):
        outcome = self.start(timeout=PATIENCE)
        m = self.call()
        self.assertEqual((m.type, m.flags, m.attempt, m.caller_incarnation), (layout.TYPE_CALL, layout.POLICY_RECOVER, 0, 3))
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
        self.assertEqual((to, word.payload), ((A, layout.PORT_DIRECT), m.call + m.call[4:]))
        self.take(self.direct, lambda to, b: wire.Message.parse(b).payload == word.payload)  # again
        ack = wire.Message(type=layout.TYPE_ACK, flags=layout.FLAG_SETTLED | layout.POLICY_RECOVER, payload=m.call)
        self.direct.inject(ack.pack(), B)
        self.take(self.direct, lambda to, b: wire.Message.parse(b).payload == word.payload)  # nobody believes another node
        self.direct.inject(ack.pack(), A)
        self.forgotten()

    def test_a_node_that_is_gone(self):
        outcome = self.start()
        self.call()
        self.session.who[A] = None
        e = outcome()
        self.assertEqual((e.code, e.never_began), (layout.UNAVAILABLE, False))

    def test_a_node_that_has_left_in_order(self):
        outcome = self.start()
        self.call()
        self.session.serving = serves(B)
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
        self.assertEqual((m.flags, m.pointers), (layout.FLAG_HELD | layout.POLICY_RECOVER, [POINTER]))
        self.reply(m, pointers=[])  # nobody has released it
        self.reply(m, flags=layout.FLAG_RELEASED, pointers=[], payload=b"2")
        self.assertEqual(outcome(), ({}, b"2"))
        to, b = self.take(self.rpc, lambda to, b: to[0] == layout.GATEKEEPER)
        word = wire.Message.parse(b)
        self.assertEqual((to, word.type), ((layout.GATEKEEPER, layout.PORT_RPC), layout.TYPE_ONE_WAY))
        self.assertEqual((word.flags, word.caller_incarnation), (layout.FLAG_SETTLED | layout.FLAG_HELD | layout.POLICY_RECOVER, 3))
        self.assertEqual(word.payload, m.call + m.slot.to_bytes(4, "big") + m.number.to_bytes(8, "big"))
        ack = wire.Message(type=layout.TYPE_ACK, flags=layout.FLAG_SETTLED | layout.POLICY_RECOVER, payload=m.call)
        self.direct.inject(ack.pack(), A)  # who is to forget it, too
        self.take(self.rpc, lambda to, b: to[0] == layout.GATEKEEPER and wire.Message.parse(b).payload == word.payload)  # again
        before = self.node.counters["malformed"]
        self.rpc.inject(ack.pack(), layout.GATEKEEPER)  # nobody has released it
        self.until(lambda: self.node.counters["malformed"] > before)
        self.assertIsNotNone(self.node._forgets.due())
        ack.flags = layout.FLAG_SETTLED | layout.FLAG_RELEASED
        self.rpc.inject(ack.pack(), layout.GATEKEEPER)
        self.forgotten()
        self.assertNotIn("who", [op for op, _ in self.session.asked])

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
        total, pushed, start = wire.opening(m)
        self.assertEqual((total, pushed, len(m.trailer)), (5000, 0, wire.ORIGIN + 8))
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
        served = wire.Message(type=layout.TYPE_CALL, trailer=bytes(wire.ORIGIN) + waits)
        for policy in "recover", "none":

            def call():
                service._current.call = service.Incoming(served, B, None, None)
                self.node.call("Adder", "add", b"", policy=policy)

            thread = threading.Thread(target=call)
            thread.start()
            m = self.call()
            self.assertEqual(m.trailer[wire.ORIGIN :], waits)
            self.reply(m)
            thread.join(PATIENCE)


class AtMostOnceTest(MovesOn, NodeTest):
    """Calls of policy none."""

    def start(self, **options):
        return super().start(policy="none", **options)

    def test_goes_to_the_incarnation(self):
        outcome = self.start(timeout=PATIENCE)
        m = self.call()
        self.assertIn(("serving", {"serving": {"service": "Adder", "method": "add", "at_most_once": True}}), self.session.asked)
        self.assertEqual((m.type, m.flags, m.attempt, m.callee_incarnation), (layout.TYPE_CALL, 0, 0, 9))
        self.assertEqual(m.trailer, hmac.digest(KEY, m.call, "sha256")[:16] + bytes(8))
        self.assertEqual(self.call().attempt, 0)  # again
        self.reply(m, source=B, payload=b"3")  # another node's
        self.reply(m, payload=b"2")
        self.assertEqual(outcome(), ({}, b"2"))
        self.assertEqual(self.rpc.sent, [])

    def test_what_may_have_run_is_not_made_again(self):
        for flags, incarnation in (0, 10), (layout.FLAG_UNBEGUN | layout.FLAG_RELEASED, 0):
            outcome = self.start()
            self.reply(self.call(), flags=flags, type=layout.TYPE_EXCEPTION, code=layout.UNAVAILABLE, callee_incarnation=incarnation)
            e = outcome()
            self.assertEqual((e.code, e.never_began), (layout.UNAVAILABLE, bool(flags)))

    def test_an_incarnation_that_has_failed(self):
        for who in dict(incarnation=10), dict(incarnation=9, away=True), dict(left=True):
            self.session.who[A] = dict(name="n", incarnation=9)
            outcome = self.start()
            self.call()
            self.session.who[A] = dict(name="n", **who)
            e = outcome()
            self.assertEqual((e.code, e.never_began), (layout.UNAVAILABLE, False))

    def test_a_node_that_has_restarted(self):
        outcome = self.start()
        m = self.call()
        self.session.serving = serves(A, incarnation=10)
        self.reply(m, type=layout.TYPE_EXCEPTION, code=layout.UNAVAILABLE, callee_incarnation=10)
        self.assertEqual(outcome().code, layout.UNAVAILABLE)
        outcome = self.start()
        m = self.call()
        self.assertEqual(m.callee_incarnation, 10)
        self.reply(m)
        outcome()

    def test_waits_for_a_node_that_moves(self):
        self.session.serving = serves(A, awaited=True)
        outcome = self.start()
        end = time.monotonic() + PATIENCE
        while sum(op == "serving" for op, _ in self.session.asked) < 3 and time.monotonic() < end:
            time.sleep(0.001)
        self.assertEqual(self.direct.sent, [])
        self.session.serving = serves(A, incarnation=10)
        m = self.call()
        self.assertEqual(m.callee_incarnation, 10)
        self.reply(m)
        outcome()

    def test_nobody_serves(self):
        self.session.serving = {"why": "deploy it"}
        e = self.start()()
        self.assertEqual((e.code, e.never_began), (layout.UNAVAILABLE, True))

    def test_pointers_pass_the_gatekeeper(self):
        self.node.memory.settle = lambda: None
        outcome = self.start(pointers=[POINTER], timeout=PATIENCE)
        m = self.call(self.rpc)
        self.assertEqual((m.flags, m.pointers, m.callee_incarnation), (layout.FLAG_HELD, [POINTER], 9))
        self.reply(m, pointers=[])  # nobody has released it
        self.reply(m, flags=layout.FLAG_RELEASED, pointers=[], payload=b"2")
        self.assertEqual(outcome(), ({}, b"2"))
        self.assertEqual(self.direct.sent, [])

    def test_nobody_asks_where_the_gatekeeper_is(self):
        with mock.patch.object(direct, "REPEAT", layout.MAX_TIMEOUT):  # so it is silent for long at once
            self.node.memory.settle = lambda: None
            outcome = self.start(pointers=[POINTER])
            m = self.call(self.rpc)
            self.reply(m, flags=layout.FLAG_RELEASED, pointers=[])
            outcome()
            self.take(self.rpc, lambda to, b: to[0] == layout.GATEKEEPER)
        self.rpc.inject(wire.Message(type=layout.TYPE_ACK, flags=layout.FLAG_SETTLED | layout.FLAG_RELEASED, payload=m.call).pack(), layout.GATEKEEPER)
        self.forgotten()
        asked = threading.Event()
        self.node._inquiries.put(lambda _: asked.set(), "who", address=B)
        self.assertTrue(asked.wait(PATIENCE))
        self.assertEqual([fields for op, fields in self.session.asked if op == "who"], [{"address": B}])

    def test_oneway(self):
        self.assertEqual(self.start(oneway=True)(), ({}, b""))  # at once
        m = self.call()
        self.assertEqual(m.type, layout.TYPE_ONE_WAY)
        self.assertEqual(self.call().call, m.call)
        self.reply(m, flags=layout.FLAG_DONE)
        end = time.monotonic() + PATIENCE
        while self.node._caller.calls and time.monotonic() < end:
            time.sleep(0.001)
        self.assertEqual(self.node._caller.calls, {})

    def test_large(self):
        payload = os.urandom(5000)
        outcome = self.start(payload=payload)
        m = self.call()
        total, pushed, start = wire.opening(m)
        self.assertEqual((total, pushed, len(m.trailer)), (5000, 0, wire.ORIGIN))
        size = self.node.budget - bulk.SIZE
        pull = bulk.Header(kind=bulk.PULL, call=m.call, caller_incarnation=3, total=5000, first=len(start), size=size, spans=[(len(start), size)])
        for source, kind in (B, bulk.GONE), (A, bulk.PART):
            self.bulk.inject(pull.pack(), source)
            self.assertEqual(bulk.Header.parse(self.take(self.bulk)[1]).kind, kind)
        self.reply(m, payload=b"2")
        self.assertEqual(outcome(), ({}, b"2"))


class Echo:
    """A processor that answers with what it is called with, when it may."""

    _processMap = {"echo": None}

    def __init__(self):
        self.may, self.seen = threading.Semaphore(0), []

    def process(self, iprot, oprot):
        _, kind, seqid = iprot.readMessageBegin()
        iprot.readStructBegin()
        iprot.readFieldBegin()
        value = iprot.readString()
        self.seen.append(service.current())
        self.may.acquire(timeout=PATIENCE)
        if kind == TMessageType.ONEWAY:
            return
        oprot.writeMessageBegin("echo", TMessageType.REPLY, seqid)
        oprot.writeStructBegin("echo_result")
        oprot.writeFieldBegin("success", TType.STRING, 0)
        oprot.writeString(value)
        oprot.writeFieldStop()
        oprot.writeMessageEnd()


class ServeTest(NodeTest):
    """Calls of policy none that come."""

    def setUp(self):
        super().setUp()
        self.echo = Echo()
        self.node.export("Echo", self.echo)
        self.addCleanup(self.echo.may.release, 100)

    def message(self, count, value="hello", kind=layout.TYPE_CALL, slot=16, **fields):
        p = service.protocol_of(b"\x80\x01")(service.TMemoryBuffer())
        p.writeMessageBegin("echo", TMessageType.ONEWAY if kind == layout.TYPE_ONE_WAY else TMessageType.CALL, 0)
        p.writeStructBegin("echo_args")
        p.writeFieldBegin("value", TType.STRING, 1)
        p.writeString(value)
        p.writeFieldStop()
        p.writeMessageEnd()
        number = wire.number_of(5, count)
        m = wire.Message(
            type=kind, call=wire.plain_id(A, slot, number), slot=slot, number=number, service=wire.service_hash("Echo"),
            method=wire.method_of("echo"), name_length=4, callee_incarnation=3, caller_incarnation=5, payload=p.trans.getvalue(), trailer=bytes(wire.ORIGIN),
        )
        for name, v in fields.items():
            setattr(m, name, v)
        return m

    def send(self, m, source=A, port=layout.PORT_DIRECT):
        self.direct.inject(m.pack(), source, port)

    def answer(self):
        to, b = self.take(self.rpc)
        self.assertEqual(to, (A, layout.PORT_RPC))
        return wire.Message.parse(b)

    def counts(self, name, m, **options):
        """Sends what the node drops, and counts so."""
        before = self.node.counters[name]
        self.send(m, **options)
        self.until(lambda: self.node.counters[name] > before)

    def test_runs_once(self):
        m = self.message(7)
        self.send(m)
        self.counts("duplicates", m)
        self.echo.may.release()
        answer = self.answer()
        self.assertEqual((answer.type, answer.call, answer.callee_incarnation, answer.flags), (layout.TYPE_REPLY, m.call, 3, 0))
        self.assertEqual((answer.slot, answer.number), (m.slot, m.number))
        self.assertIn(b"hello", answer.payload)
        self.send(m)
        self.assertEqual(self.answer().payload, answer.payload)
        self.assertEqual(len(self.echo.seen), 1)

    def test_given_up(self):
        m = self.message(7)
        self.send(m)
        self.until(lambda: self.echo.seen)
        self.assertFalse(self.echo.seen[0].canceled.is_set())
        m.flags, m.payload, m.trailer = m.flags | layout.FLAG_GIVEN_UP, b"", b""
        self.counts("duplicates", m)
        self.assertTrue(self.echo.seen[0].canceled.is_set())

    def test_another_incarnations(self):
        self.send(self.message(7, callee_incarnation=2))
        answer = self.answer()
        self.assertEqual((answer.code, answer.flags & layout.FLAG_UNBEGUN), (layout.UNAVAILABLE, 0))

    def test_malformed(self):
        held = layout.FLAG_HELD
        released = held | layout.FLAG_RELEASED
        for fields in (
            dict(callee_incarnation=0), dict(attempt=1), dict(trailer=b""), dict(pointers=[POINTER]), dict(flags=8), dict(flags=held), dict(flags=released),
            dict(flags=layout.FLAG_REPLAY), dict(flags=layout.POLICY_RECOVER), dict(kind=layout.TYPE_REPLY),
            dict(slot=15), dict(slot=1 << 20), dict(number=wire.number_of(4, 7)), dict(caller_incarnation=6), dict(call=wire.plain_id(B, 16, wire.number_of(5, 7))),
        ):
            self.counts("malformed", self.message(7, **fields))
        self.counts("malformed", self.message(7), source=B)
        self.counts("malformed", self.message(7, flags=held, pointers=[POINTER]), port=layout.PORT_RPC)
        self.counts("stale", self.message(7, service=1))
        self.assertEqual((self.echo.seen, self.rpc.sent), ([], []))

    def test_what_the_gatekeeper_lets_through(self):
        released = layout.FLAG_HELD | layout.FLAG_RELEASED
        self.echo.may.release()
        question = self.message(7, flags=released | layout.FLAG_REPLAY, payload=b"", trailer=b"")
        self.send(self.message(7, flags=released, pointers=[POINTER]), port=layout.PORT_RPC)
        answer = self.answer()
        self.assertEqual((answer.type, answer.flags), (layout.TYPE_REPLY, layout.FLAG_HELD))
        self.send(question, port=layout.PORT_RPC)
        self.assertEqual(self.answer().payload, answer.payload)
        question.call, question.number = self.message(8).call, self.message(8).number
        self.send(question, port=layout.PORT_RPC)
        answer = self.answer()
        self.assertEqual((answer.type, answer.code, answer.flags), (layout.TYPE_EXCEPTION, layout.UNAVAILABLE, layout.FLAG_HELD | layout.FLAG_UNBEGUN))
        self.counts("duplicates", self.message(8, flags=released, pointers=[POINTER]), port=layout.PORT_RPC)
        self.assertEqual(len(self.echo.seen), 1)

    def test_oneway(self):
        self.send(self.message(7, kind=layout.TYPE_ONE_WAY))
        answer = self.answer()
        self.assertEqual((answer.type, answer.flags), (layout.TYPE_REPLY, layout.FLAG_DONE))
        self.until(lambda: self.echo.seen)

    def test_large(self):
        self.echo.may.release()
        m = self.message(7, "x" * 5000)
        body = wire.first(m, self.node.budget)
        start = wire.opening(m)[2]
        self.send(m)
        pull = bulk.Header.parse(self.take(self.bulk)[1])
        self.assertEqual((pull.kind, pull.offset, pull.callee_incarnation), (bulk.PULL, 0, 3))
        for at, n in bulk.cut([(len(start), len(body) - len(start))], pull.size):
            self.bulk.inject(pull.of(bulk.PART, offset=at, size=n).pack() + body[at : at + n], A)
        first = self.answer()
        total, _, start = wire.opening(first)
        ask = bulk.Header(
            kind=bulk.PULL, answer=1, call=m.call, caller_incarnation=5, callee_incarnation=3, total=total, first=len(start), size=pull.size,
            spans=[(len(start), total - len(start))],
        )
        for source, kind in (B, bulk.GONE), (A, bulk.PART):
            self.bulk.inject(ask.pack(), source)
            self.assertEqual(bulk.Header.parse(self.take(self.bulk, lambda to, b: bulk.Header.parse(b).answer)[1]).kind, kind)
        self.bulk.inject(ask.of(bulk.DONE, size=0).pack(), A)
        self.until(lambda: not self.node._calls.owes())

    def test_closes(self):
        self.send(self.message(7))
        self.until(lambda: self.echo.seen)
        thread = threading.Thread(target=self.node.close, args=(PATIENCE,))
        thread.start()
        self.until(lambda: self.node._calls._closing)
        self.assertTrue(any(op == "export" and f["export"].get("withdraw") for op, f in self.session.asked))
        self.send(self.message(1, slot=17))
        refusal = self.answer()
        self.assertTrue(refusal.refuses)
        self.echo.may.release()
        self.assertEqual(self.answer().type, layout.TYPE_REPLY)
        thread.join(PATIENCE)
        self.assertTrue(self.node.done.is_set())


if __name__ == "__main__":
    unittest.main()
