"""A node without a network, and its rights: what the switch turns around comes back."""

import os
import queue
import time
import types
import unittest
from unittest import mock

from bifrost import bulk, layout, wire
from bifrost.memory import Memory
from harness import PATIENCE, POINTER, REGION, SELF, A, B, NodeTest, serves
from test_serving import Serving

BRINGS = wire.make_pointer(16, 1, 64, 2)  # what an answer hands over
BROUGHT = wire.region_of(BRINGS)


class Rights(NodeTest):
    """A node that owns REGION."""

    def setUp(self):
        super().setUp()
        self.account, self.freed = self.node.memory.account, []
        self.account.add([REGION])
        self.node.memory.settle = lambda: None
        self.node.memory._run = self.run_memory

    def run_memory(self, requests, until=None):
        self.freed += [wire.with_op(r.to, 0) for r in requests if r.op == layout.OP_FREE]
        return types.SimpleNamespace(code=layout.OK, pieces={})

    def turn(self, m, why, source=A, endpoint=None):
        """The switch sends a message of the node's back."""
        m.turned = why
        (endpoint or self.direct).inject(m.pack(), source)
        m.turned = 0

    def idle(self, m):
        """Whether new calls may have a call's slot."""
        with self.node._lock:
            return m.slot in [s.number for s in self.node._caller.slots.idle]


class CallTest(Rights):
    """Calls that the node makes."""

    def test_pointers_go_to_the_node(self):
        for policy, flags in ("none", 0), ("recover", layout.POLICY_RECOVER):
            outcome = self.start(pointers=[POINTER], policy=policy, timeout=PATIENCE)
            m = self.call()
            self.assertEqual((m.flags, m.regions), (flags, [REGION]))
            self.assertTrue(self.account.lends(REGION))
            for place in dict(slot=m.slot + 1), dict(number=m.number - 1):
                self.reply(m, regions=[], payload=b"not the answer in this slot", **place)
            self.reply(m, regions=[BROUGHT], payload=b"2")
            self.assertEqual(outcome(), ({}, b"2"))
            self.assertEqual((self.account.lends(REGION), self.account.owns(BROUGHT)), (False, True))
            self.account.drop([BROUGHT])
        time.sleep(layout.FORGET_AFTER)
        self.assertEqual(self.rpc.sent, [], "the Gatekeeper is told nothing")

    def test_large_with_pointers(self):
        outcome = self.start(pointers=[POINTER], payload=os.urandom(5000))
        m = self.first()
        self.assertEqual(m.regions, [REGION])
        self.turn(m, layout.TURNED_LENT, endpoint=self.bulk)
        m, answer = self.first(), os.urandom(1500)
        self.reply(m, flags=layout.FLAG_MORE, regions=[BROUGHT], payload=(1500).to_bytes(8, "big") + bytes(8) + answer[:1000])
        ask = bulk.Header.parse(self.take(self.bulk, lambda _, b: b[:2] == layout.BULK_MAGIC.to_bytes(2, "big"))[1])
        for at, n in bulk.cut(ask.spans, ask.size):
            self.bulk.inject(ask.of(bulk.PART, offset=at, size=n).pack() + answer[at : at + n], A)
        self.assertEqual(outcome(), ({}, answer))

    def test_what_is_not_the_nodes(self):
        for oneway in False, True:
            e = self.start(pointers=[POINTER, BRINGS], oneway=oneway)()
            self.assertEqual((e.code, e.never_began), (layout.PERMISSION_DENIED, True))
        self.assertEqual(self.direct.sent, [])

    def test_given_up(self):
        """The call stays out until it is answered, and what its answer hands over is freed."""
        for policy, mark in ("none", layout.FLAG_GIVEN_UP), ("recover", 0):
            outcome = self.start(pointers=[POINTER], policy=policy, timeout=0.2)
            m = self.call()
            self.assertEqual(outcome().code, layout.DEADLINE_EXCEEDED)
            self.assertFalse(self.account.lends(REGION))

            def says_so(_, b):
                again = wire.Message.parse(b)
                return (again.call, again.timeout, again.flags & layout.FLAG_GIVEN_UP) == (m.call, 1, mark)

            self.take(self.direct, says_so)
            self.assertFalse(self.idle(m))
            self.reply(m, regions=[BROUGHT])
            self.until(lambda: self.idle(m))
            self.until(lambda: self.freed == [BRINGS])
            self.freed.clear()
            self.assertFalse(self.account.owns(BROUGHT))

    def test_given_up_with_a_large_answer(self):
        """Nobody reads it."""
        outcome = self.start(timeout=0.1)
        m = self.call()
        self.assertEqual(outcome().code, layout.DEADLINE_EXCEEDED)
        self.reply(m, flags=layout.FLAG_MORE, regions=[BROUGHT], payload=(3000).to_bytes(8, "big") + bytes(8) + b"start")
        self.until(lambda: self.idle(m) and self.freed == [BRINGS])
        self.assertEqual(self.node._incoming.open, {})

    def test_a_larger_answer_than_the_caller_takes(self):
        """Nobody gets what it hands over."""
        self.node.max_message = 2000
        outcome = self.start()
        self.reply(self.call(), flags=layout.FLAG_MORE, regions=[BROUGHT], payload=(3000).to_bytes(8, "big") + bytes(8) + b"start")
        self.assertEqual(outcome().code, layout.BAD_REQUEST)
        self.until(lambda: self.freed == [BRINGS])

    def test_lent(self):
        outcome = self.start(pointers=[POINTER])
        m = self.call()
        for _ in range(3):
            self.turn(m, layout.TURNED_LENT)
            again = self.call()
            self.assertEqual((again.call, again.slot, again.number), (m.call, m.slot, m.number))
        self.turn(m, layout.TURNED_DENIED, source=B)  # no answer of the switch's
        self.reply(m, payload=b"2", regions=[])
        self.assertEqual(outcome(), ({}, b"2"))

    def test_turned_around_for_good(self):
        for why, code, never in (layout.TURNED_DENIED, layout.PERMISSION_DENIED, True), (layout.TURNED_GONE, layout.UNAVAILABLE, False):
            for policy in "none", "recover":
                outcome = self.start(pointers=[POINTER], policy=policy)
                m = self.call()
                self.turn(m, why)
                e = outcome()
                self.assertEqual((e.code, e.never_began), (code, never))
                self.assertEqual((self.idle(m), self.account.lends(REGION), self.account.owns(REGION)), (True, False, True))

    def test_never_begun(self):
        """Another node takes the call."""
        outcome = self.start(pointers=[POINTER])
        m = self.call()
        self.session.serving = serves(B)
        self.turn(m, layout.TURNED_NEVER_BEGUN)
        other = self.call(to=B)
        self.assertGreater((other.slot, other.number), (m.slot, m.number))
        self.reply(other, source=B, regions=[], payload=b"2")
        self.assertEqual(outcome(), ({}, b"2"))

    def test_a_result_that_was_the_callers(self):
        """It would free its own region as the result. Others of that answer are freed: nobody gets them. A copy of an answer says so of each region, and is
        believed."""
        outcome = self.start(pointers=[POINTER])
        self.reply(self.call(), listed=[(wire.NO_USE, [BROUGHT, REGION])], had=0b10)
        self.assertEqual(outcome().code, layout.PERMISSION_DENIED)
        self.until(lambda: self.freed == [BRINGS])
        self.assertTrue(self.account.owns(REGION))
        outcome = self.start()
        self.reply(self.call(), listed=[(wire.NO_USE, [BROUGHT])], had=0b1, payload=b"2")
        self.assertEqual(outcome(), ({}, b"2"))
        self.assertTrue(self.account.owns(BROUGHT))

    def test_oneway(self):
        """It hands its regions over. They come back if it does not begin, and go when nobody knows of them."""
        outcome = self.start(oneway=True, pointers=[POINTER], policy="recover")
        m = self.call()
        self.assertFalse(self.account.owns(REGION))
        self.reply(m, regions=[])
        self.assertEqual(outcome(), ({}, b""))
        self.assertFalse(self.account.owns(REGION))
        self.account.add([REGION])
        outcome = self.start(oneway=True, pointers=[POINTER], policy="recover")
        self.turn(self.call(), layout.TURNED_GONE)
        self.assertEqual(outcome().code, layout.UNAVAILABLE)
        self.assertTrue(self.account.owns(REGION))

    def test_a_oneway_that_nobody_takes(self):
        """Of policy none, its regions are freed: nobody waits for it."""
        for fails in lambda m: self.turn(m, layout.TURNED_GONE), self.refuse, lambda m: self.reply(m, type=layout.TYPE_EXCEPTION, code=layout.BAD_REQUEST):
            self.account.add([REGION])
            self.start(oneway=True, pointers=[POINTER], policy="none")()
            m = self.call()
            self.assertFalse(self.account.owns(REGION))
            fails(m)
            self.until(lambda: self.freed == [POINTER])
            self.freed.clear()
            self.assertFalse(self.account.owns(REGION))

    def test_a_oneway_that_does_not_leave(self):
        self.session.serving = {"why": "deploy it"}
        e = self.start(oneway=True, pointers=[POINTER], policy="none")()
        self.assertEqual((e.code, e.never_began, self.account.owns(REGION)), (layout.UNAVAILABLE, True, True))

    def test_a_node_that_is_gone(self):
        """The switch says so of each call that is out to it."""
        plain, lends = self.start(), self.start(pointers=[POINTER])
        for m in self.calls(2).values():
            self.turn(m, layout.TURNED_GONE)
        for outcome in plain, lends:
            e = outcome()
            self.assertEqual((e.code, e.never_began), (layout.UNAVAILABLE, False))
        self.assertEqual(self.node._caller.calls, {})


class ServeTest(Serving, Rights):
    """Calls of policy none that come."""

    def setUp(self):
        super().setUp()
        self.echo.process, self.process = self.handle, self.echo.process
        self.hands = POINTER

    def handle(self, read, out):
        """Answers with a pointer."""
        self.process(read, out)
        out.regions = [wire.region_of(self.hands)]

    def test_regions(self):
        self.echo.may.release()
        m = self.message(7, regions=[wire.region_of(BRINGS)])
        self.send(m)
        answer = self.answer()
        self.assertEqual((answer.flags, answer.regions), (0, [REGION]))
        self.assertEqual((answer.slot, answer.number, answer.callee_incarnation), (m.slot, m.number, 3))
        self.assertFalse(self.account.owns(REGION))
        self.turn(answer, layout.TURNED_LENT, endpoint=self.rpc)
        self.send(m)  # the next copy asks again
        self.assertEqual(self.answer().regions, [REGION])
        for _ in range(2):
            self.turn(answer, layout.TURNED_DENIED, endpoint=self.rpc)
            instead = self.answer()
            self.assertEqual((instead.type, instead.code, instead.regions, instead.turned), (layout.TYPE_EXCEPTION, layout.PERMISSION_DENIED, [], 0))
            self.assertEqual((instead.call, instead.slot, instead.number, instead.callee_incarnation), (m.call, m.slot, m.number, 3))
        self.turn(instead, layout.TURNED_DENIED, endpoint=self.rpc)
        self.send(m)
        self.assertEqual(self.answer().regions, [REGION], "nothing is said in the place of that exception")

    def test_hands_over_what_is_not_its_own(self):
        self.hands = BRINGS
        self.echo.may.release(2)
        self.send(self.message(7))
        answer = self.answer()
        self.assertEqual((answer.type, answer.code), (layout.TYPE_EXCEPTION, layout.PERMISSION_DENIED))
        self.send(self.message(8, regions=[BROUGHT]))  # but what it was lent is for the switch to judge
        self.assertEqual(self.answer().regions, [BROUGHT])

    def test_a_oneway_brings_regions(self):
        self.echo.may.release()
        self.send(self.message(7, kind=layout.TYPE_ONE_WAY, regions=[BROUGHT]))
        self.assertEqual(self.answer().flags, layout.FLAG_DONE)
        self.assertTrue(self.account.owns(BROUGHT))

    def test_a_oneway_for_which_there_is_no_room(self):
        """It brings nothing. When it comes again there may be room."""
        self.echo.may.release()
        m = self.message(7, kind=layout.TYPE_ONE_WAY, regions=[BROUGHT])
        (echo,) = self.node._calls._services.values()
        with mock.patch.object(echo._queue, "put_nowait", side_effect=queue.Full) as full:
            self.send(m)
            self.until(lambda: full.called)
            self.until(lambda: not self.account.owns(BROUGHT))
        self.send(m)
        self.assertEqual(self.answer().flags, layout.FLAG_DONE)
        self.assertTrue(self.account.owns(BROUGHT))

    def test_a_oneway_that_is_too_large_brings_nothing(self):
        self.node.max_message = 2000
        m = self.message(7, kind=layout.TYPE_ONE_WAY, regions=[BROUGHT], flags=layout.FLAG_MORE)
        m.payload = (3000).to_bytes(8, "big") + bytes(8) + b"start"
        self.bulk.inject(m.pack(), A, layout.PORT_BULK)
        answer = self.answer()
        self.assertEqual((answer.type, answer.code), (layout.TYPE_EXCEPTION, layout.BAD_REQUEST))
        self.assertFalse(self.account.owns(BROUGHT))

    def test_given_up_before_it_begins(self):
        self.send(self.message(7, flags=layout.FLAG_GIVEN_UP))
        answer = self.answer()
        self.assertEqual((answer.type, answer.code, answer.flags), (layout.TYPE_EXCEPTION, layout.UNAVAILABLE, layout.FLAG_UNBEGUN))
        self.assertEqual(self.echo.seen, [])

    def question(self, count, incarnation=3, call=None, flags=0):
        m = self.message(count, callee_incarnation=incarnation)
        return wire.Message(
            type=layout.TYPE_ASK, call=m.call if call is None else call, slot=m.slot, number=m.number, flags=flags, caller_incarnation=6,
            callee_incarnation=incarnation,
        )

    def test_questions(self):
        m = self.message(7)
        self.send(m)
        self.counts("duplicates", self.question(7))
        self.echo.may.release()
        self.answer()
        for q in self.question(7), self.question(7, 0), self.question(7, 0, wire.NO_ID, layout.FLAG_RELEASED):
            self.send(q)
            answer = self.answer()
            self.assertEqual((answer.type, answer.call, answer.regions), (layout.TYPE_REPLY, m.call, [REGION]))
        for q, flags in (self.question(8), layout.FLAG_UNBEGUN), (self.question(7, 2), 0), (self.question(6), 0):
            self.send(q)
            answer = self.answer()
            self.assertEqual((answer.type, answer.code, answer.flags), (layout.TYPE_EXCEPTION, layout.UNAVAILABLE, flags))
            self.assertEqual((answer.slot, answer.number), (q.slot, q.number))
        self.counts("duplicates", self.message(8))  # it does not begin any more
        self.assertEqual(len(self.echo.seen), 1)


class HoldingsTest(Rights):
    """What a former incarnation has left."""

    def slot(number, at, **fields):
        return dict(slot=at, number=wire.number_of(2, number), callee=A, state=layout.SLOT_OPEN, **fields)

    options = dict(
        before=2,
        held=(
            [
                slot(1, 64), slot(2, 65), dict(slot(2, 66), place=1), dict(slot(3, 67), state=2), dict(slot(4, 68, given=True), regions=["::1001:0:400:0:4000:0"]),
                slot(5, 69), dict(slot(6, 70), callee=None),
            ],
            [POINTER],
        ),
    )

    def setUp(self):
        self.free_later = []
        patch = mock.patch.object(Memory, "free_later", lambda _, pointers: self.free_later.extend(pointers))
        patch.start()
        self.addCleanup(patch.stop)
        super().setUp()

    def test_asks(self):
        self.assertEqual(self.free_later, [POINTER])
        self.free_later.clear()
        asks = self.calls(4)
        self.assertEqual(sorted(asks), [64, 65, 68, 69])
        idle = [64 + n for n in (3, *range(7, 16))]
        self.assertEqual(sorted(s.number for s in self.node._caller.slots.idle), idle)
        for m in asks.values():
            self.assertEqual((m.type, m.call, m.caller_incarnation, m.callee_incarnation), (layout.TYPE_ASK, wire.plain_id(SELF, m.slot, m.number), 3, 0))
        self.assertEqual(self.call().type, layout.TYPE_ASK)  # again, until it is answered
        self.reply(asks[64], slot=65)
        self.reply(asks[64], listed=[(wire.NO_USE, [BROUGHT])])
        self.until(lambda: self.free_later == [BRINGS])
        self.refuse(asks[65])
        self.turn(asks[69], layout.TURNED_GONE)
        self.refuse(asks[68])  # a one-way that never began: what it lists is the node's again
        self.until(lambda: len(self.free_later) == 2)
        self.assertEqual(self.free_later[1], bytes.fromhex("00000000100100000400000040000000"))
        self.until(lambda: len(self.node._caller.slots.idle) == 15)
        self.assertFalse(self.idle(types.SimpleNamespace(slot=70)))  # nobody can be asked


if __name__ == "__main__":
    unittest.main()
