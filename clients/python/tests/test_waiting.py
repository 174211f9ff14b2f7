"""A node without a network: its calls that find no call slot free."""

import time
import unittest
from unittest import mock

from bifrost import direct, layout, node, service, wire
from bifrost.errors import Error
from harness import PATIENCE, SELF, A, B, NodeTest, serves


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

    def in_handler(self):
        """This thread is that of a handler, whose patience is short."""
        service.serving.set(service.Incoming(wire.Message(type=layout.TYPE_CALL), B, None, None))
        self.addCleanup(service.serving.set, None)
        return mock.patch.object(node, "SLOT_PATIENCE", 0.01)

    def test_a_handler_does_not_wait_for_long(self):
        self.session.most = 1  # block
        self.session.more.release(100)
        with self.in_handler(), self.assertRaises(Error) as caught:
            self.node.call("Adder", "add", b"", timeout=PATIENCE)
        self.assertEqual((caught.exception.code, caught.exception.never_began), (layout.OVERLOADED, True))
        self.assertEqual(self.node._caller.slots._waiting, {})

    def test_a_handler_waits_for_the_gatekeeper(self):
        with self.in_handler(), self.assertRaises(Error) as caught:
            self.node.call("Adder", "add", b"", timeout=0.1)
        self.assertEqual((caught.exception.code, caught.exception.never_began), (layout.DEADLINE_EXCEEDED, True))
        self.assertEqual(self.node._caller.slots._waiting, {})

    def test_the_node_ends(self):
        outcome = self.start()
        self.waits()
        self.node._fail()
        e = outcome()
        self.assertEqual((e.code, e.never_began), (layout.UNAVAILABLE, True))


if __name__ == "__main__":
    unittest.main()
