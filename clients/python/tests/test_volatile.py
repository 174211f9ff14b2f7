"""The called side, without a network."""

import unittest

from bifrost import layout, volatile, wire

A, B = "fd00:b1f0:0:2::a", "fd00:b1f0:0:2::b"
LANE = wire.session_of(A, 1)


def message(number, lane=LANE, flags=0, incarnation=7):
    return wire.Message(type=layout.TYPE_CALL, flags=layout.FLAG_SESSION | flags, call=wire.session_id(lane, number), callee_incarnation=incarnation)


class VolatileTest(unittest.TestCase):
    def setUp(self):
        self.core = volatile.Volatile(7)

    def receive(self, number, now=1.0, source=A, **options):
        return self.core.receive(now, source, message(number, **options))

    def probe(self, number, **options):
        return self.core.probe(1.0, A, message(number, **options))

    def test_at_most_once(self):
        verdict, entry, _ = self.receive(5)
        self.assertEqual(verdict, volatile.RUN)
        self.assertEqual(self.receive(5), (volatile.DUPLICATE, entry, None))
        self.core.finish(entry, b"reply")
        self.assertEqual((self.receive(5), entry.reply), ((volatile.ANSWER, entry, None), b"reply"))
        self.assertEqual(self.receive(5, lane=LANE + 1)[0], volatile.RUN)
        self.assertEqual((self.receive(6)[0], entry.gone), (volatile.RUN, True))
        self.assertEqual(self.receive(5), (volatile.LATE, None, None))

    def test_given_up(self):
        entry = self.receive(5)[1]
        self.assertEqual(self.receive(5, flags=layout.FLAG_GIVEN_UP), (volatile.LATE, None, entry))
        self.core.finish(entry, b"nobody wants it")
        self.assertEqual(self.receive(5), (volatile.LATE, None, None))
        entry = self.receive(6)[1]
        verdict, _, abandoned = self.receive(8)
        self.assertEqual((verdict, abandoned), (volatile.RUN, entry))
        self.assertEqual(self.receive(7)[0], volatile.LATE)

    def test_whose_calls(self):
        self.assertEqual(self.receive(5, incarnation=6)[0], volatile.GONE)
        self.assertEqual(self.receive(5, incarnation=8)[0], volatile.GONE)
        self.assertEqual(self.receive(5, incarnation=0)[0], volatile.MALFORMED)
        self.assertEqual(self.receive(5, lane=0)[0], volatile.MALFORMED)
        self.assertEqual(self.receive(5, source=B)[0], volatile.FOREIGN)
        self.assertEqual(self.core.receive(1.0, A, wire.Message(call=wire.session_id(LANE, 5), callee_incarnation=7))[0], volatile.MALFORMED)
        self.assertEqual(self.receive(5)[0], volatile.RUN)

    def test_probe(self):
        entry = self.receive(5)[1]
        self.assertEqual(self.probe(5), (volatile.DUPLICATE, entry, None))
        self.core.finish(entry, b"reply")
        self.assertEqual(self.probe(5), (volatile.ANSWER, entry, None))
        self.assertEqual(self.probe(4)[0], volatile.LOST)
        self.assertEqual(self.probe(5, incarnation=6)[0], volatile.GONE)
        running = self.receive(6)[1]
        self.assertEqual(self.probe(7), (volatile.LATE, None, running))
        self.assertEqual(self.receive(7)[0], volatile.LATE)  # it does not run any more
        self.assertEqual(self.receive(8)[0], volatile.RUN)

    def test_forget(self):
        entry = self.receive(5)[1]
        self.core.answer(entry, b"receipt")
        self.core.forget(entry)
        self.assertEqual(self.receive(5)[0], volatile.RUN)

    def test_large_answers(self):
        entry = self.receive(5)[1]
        self.core.finish(entry, b"first", b"all of it")
        self.assertIsNone(self.core.find(B, wire.session_id(LANE, 5)))
        self.assertIsNone(self.core.find(A, wire.session_id(LANE, 6)))
        self.assertIs(self.core.find(A, wire.session_id(LANE, 5)), entry)
        self.assertTrue(self.core.owes())
        self.core.settle(entry)
        self.assertFalse(self.core.owes())
        self.assertEqual((self.receive(5)[0], entry.body), (volatile.LATE, b""))

    def test_room(self):
        small = volatile.Volatile(7, lanes=3, node_lanes=2, reply_bytes=5)
        first, second = (small.receive(1.0, A, message(1, LANE + n))[1] for n in range(2))
        self.assertEqual(small.receive(1.0, A, message(1, LANE + 2))[0], volatile.FULL)
        other = wire.session_of(B, 1)
        self.assertEqual(small.receive(1.0, B, message(1, other))[0], volatile.RUN)
        self.assertEqual(small.receive(1.0, B, message(1, other + 1))[0], volatile.FULL)
        small.finish(first, b"12345")
        small.finish(second, b"12345")
        self.assertEqual(small.receive(1.0, A, message(1))[0], volatile.LOST)
        self.assertEqual(small.receive(1.0, A, message(1, LANE + 1))[0], volatile.ANSWER)

    def test_silent_lanes_are_forgotten(self):
        done, running = self.receive(5)[1], self.receive(5, lane=LANE + 1)[1]
        self.core.finish(done, b"reply")
        now = 1.1 + layout.LANE_LIFETIME
        self.assertEqual(self.receive(5, now=now)[0], volatile.RUN)
        self.assertEqual((done.gone, running.gone), (True, False))
        self.assertEqual(self.receive(5, now=now, lane=LANE + 1)[0], volatile.DUPLICATE)


if __name__ == "__main__":
    unittest.main()
