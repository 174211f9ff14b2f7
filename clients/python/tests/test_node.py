"""A node without a network: what its calls send, and what becomes of them."""

import os
import threading
import time
import unittest

from bifrost import bulk, layout, service, wire
from harness import PATIENCE, A, B, NodeTest, serves


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


class ExactlyOnceTest(MovesOn, NodeTest):
    """Exactly-once calls, and what both kinds have in common."""

    def test_goes_to_the_node(self):
        outcome = self.start(timeout=PATIENCE)
        m = self.call()
        self.assertEqual((m.type, m.flags, m.attempt, m.caller_incarnation), (layout.TYPE_CALL, layout.POLICY_RECOVER, 0, 3))
        self.assertEqual((m.payload, m.trailer), (b"1+1", b""))
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

    def test_nobody_waits_for_the_word_of_a_node_that_is_gone(self):
        for who in None, {"name": "", "blade": "", "left": True}:
            self.session.who[A] = who
            with self.node._lock:
                self.node._forgets.add(time.monotonic() + 10 * PATIENCE, A, bytes(16))
            self.node._ask_whether_there(A)
            end = time.monotonic() + PATIENCE
            while self.node._forgets.due() is not None and time.monotonic() < end:
                time.sleep(0.001)
            self.assertIsNone(self.node._forgets.due())

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

    def test_oneway(self):
        outcome = self.start(oneway=True)
        m = self.call()
        self.assertEqual(m.type, layout.TYPE_ONE_WAY)
        self.reply(m)
        self.assertEqual(outcome(), ({}, b""))

    def test_large(self):
        payload = os.urandom(5000)
        outcome = self.start(payload=payload)
        m = self.first()
        total, pushed, _, start = wire.opening(m)
        self.assertEqual((total, pushed, len(m.trailer)), (5000, 0, 8))
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
        for policy in "recover", "none":

            def call():
                service.serving.set(service.Incoming(served, B, None, None))
                self.node.call("Adder", "add", b"", policy=policy)

            thread = threading.Thread(target=call)
            thread.start()
            m = self.call()
            self.assertEqual(m.trailer, waits)
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
        self.assertEqual(m.trailer, b"")
        self.assertEqual(self.call().attempt, 0)  # again
        self.reply(m, source=B, payload=b"3")  # another node's
        self.reply(m, payload=b"2")
        self.assertEqual(outcome(), ({}, b"2"))
        self.assertEqual(self.rpc.sent, [])

    def test_what_may_have_run_is_not_made_again(self):
        outcome = self.start()
        self.reply(self.call(), type=layout.TYPE_EXCEPTION, code=layout.UNAVAILABLE, callee_incarnation=10)
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
        m = self.first()
        total, pushed, _, start = wire.opening(m)
        self.assertEqual((total, pushed, len(m.trailer)), (5000, 0, 0))
        size = self.node.budget - bulk.SIZE
        pull = bulk.Header(kind=bulk.PULL, call=m.call, caller_incarnation=3, total=5000, first=len(start), size=size, spans=[(len(start), size)])
        for source, kind in (B, bulk.GONE), (A, bulk.PART):
            self.bulk.inject(pull.pack(), source)
            self.assertEqual(bulk.Header.parse(self.take(self.bulk)[1]).kind, kind)
        self.reply(m, payload=b"2")
        self.assertEqual(outcome(), ({}, b"2"))


if __name__ == "__main__":
    unittest.main()
