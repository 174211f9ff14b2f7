"""The called side, without a network."""

import unittest

from bifrost import layout, volatile, wire

A, B = "fd00:b1f0:0:2::a", "fd00:b1f0:0:2::b"
SLOT, CALLERS = 16, 5  # the slot, and the caller's incarnation


def message(count, slot=SLOT, flags=0, incarnation=7, source=A):
    number = wire.number_of(CALLERS, count)
    return wire.Message(
        type=layout.TYPE_CALL, flags=flags, call=wire.plain_id(source, slot, number), slot=slot, number=number, caller_incarnation=CALLERS,
        callee_incarnation=incarnation,
    )


class VolatileTest(unittest.TestCase):
    def setUp(self):
        self.core = volatile.Volatile(7)

    def receive(self, count, now=1.0, **options):
        return self.core.receive(now, A, message(count, **options))

    def test_at_most_once(self):
        verdict, entry, _ = self.receive(5)
        self.assertEqual(verdict, volatile.RUN)
        self.assertEqual(self.receive(5), (volatile.DUPLICATE, entry, None))
        self.core.finish(entry, b"reply")
        self.assertEqual((self.receive(5), entry.reply), ((volatile.ANSWER, entry, None), b"reply"))
        self.assertEqual(self.receive(5, slot=SLOT + 1)[0], volatile.RUN)
        self.assertEqual((self.receive(6)[0], entry.gone), (volatile.RUN, True))
        self.assertEqual(self.receive(5), (volatile.LATE, None, None))

    def test_given_up(self):
        entry = self.receive(5)[1]
        self.assertEqual(self.receive(5, flags=layout.FLAG_GIVEN_UP), (volatile.DUPLICATE, entry, entry))
        self.core.finish(entry, b"it closes the slot")
        self.assertEqual(self.receive(5, flags=layout.FLAG_GIVEN_UP), (volatile.ANSWER, entry, None))
        entry = self.receive(6)[1]
        verdict, _, abandoned = self.receive(8)
        self.assertEqual((verdict, abandoned), (volatile.RUN, entry))
        self.assertEqual(self.receive(7)[0], volatile.LATE)
        self.assertEqual(self.receive(9, flags=layout.FLAG_GIVEN_UP)[0], volatile.REFUSED)
        self.assertEqual(self.receive(9)[0], volatile.REFUSED)
        entry = self.receive(10)[1]
        self.receive(10, flags=layout.FLAG_GIVEN_UP)
        self.core.forget(entry)  # it has not come whole
        self.assertEqual(self.receive(10)[0], volatile.REFUSED)

    def ask(self, count, incarnation=7, asker=CALLERS + 1, **options):
        m = message(count, incarnation=incarnation, **options)
        m.type, m.caller_incarnation = layout.TYPE_ASK, asker
        return self.core.ask(A, m)

    def test_ask(self):
        entry = self.receive(5)[1]
        self.assertEqual(self.ask(5), (volatile.DUPLICATE, entry))
        self.core.finish(entry, b"reply")
        for incarnation in 7, 0:
            self.assertEqual(self.ask(5, incarnation), (volatile.ANSWER, entry))
        self.assertEqual(self.ask(5, 6)[0], volatile.GONE)
        self.assertEqual(self.ask(4)[0], volatile.LOST)
        self.assertEqual(self.ask(5, asker=CALLERS)[0], volatile.MALFORMED)
        self.assertEqual(self.ask(5, slot=1)[0], volatile.MALFORMED)
        self.assertEqual(self.receive(6)[0], volatile.RUN)
        self.assertEqual(self.ask(7), (volatile.UNBEGUN, None))
        self.assertEqual(self.receive(7)[0], volatile.LATE)  # nor does any other
        self.assertEqual(self.receive(1, slot=SLOT + 1)[0], volatile.LATE)
        self.assertEqual(self.receive(6)[0], volatile.DUPLICATE)

    def test_ask_about_what_is_forgotten(self):
        self.core.finish(self.receive(5)[1], b"first", b"all of it")
        self.core.settle(self.core.find(A, message(5).call))
        self.assertEqual(self.ask(5)[0], volatile.LOST)
        self.receive(1, now=1.1 + layout.SLOT_LIFETIME, slot=SLOT + 1)
        self.assertEqual(self.ask(5)[0], volatile.LOST)
        self.assertEqual(self.ask(5, 0)[0], volatile.UNBEGUN)

    def test_whose_calls(self):
        self.assertEqual(self.receive(5, incarnation=6)[0], volatile.GONE)
        self.assertEqual(self.receive(5, incarnation=8)[0], volatile.GONE)
        self.assertEqual(self.receive(5)[0], volatile.RUN)

    def test_misnamed(self):
        last = layout.BLOCKS * layout.BLOCK_SLOTS - 1
        for slot in SLOT - 1, 0, last + 1:
            self.assertEqual(self.receive(5, slot=slot)[0], volatile.MALFORMED)
        whole = message(5)
        theirs = wire.plain_id(B, whole.slot, whole.number)
        other = message(6)
        marked = whole.call[:8] + bytes([whole.call[8] | 0x80]) + whole.call[9:]
        for verdict, fields in (
            (volatile.MALFORMED, dict(callee_incarnation=0)), (volatile.MALFORMED, dict(caller_incarnation=CALLERS + 1)), (volatile.MALFORMED, dict(call=marked)),
            (volatile.FOREIGN, dict(call=theirs)), (volatile.FOREIGN, dict(call=other.call)), (volatile.FOREIGN, dict(slot=SLOT + 1)),
        ):
            m = message(5)
            for name, value in fields.items():
                setattr(m, name, value)
            self.assertEqual(self.core.receive(1.0, A, m), (verdict, None, None))
        self.assertEqual(self.core.receive(1.0, B, whole)[0], volatile.FOREIGN)
        self.assertEqual(self.receive(5, slot=last)[0], volatile.RUN)
        self.assertEqual(self.receive(5)[0], volatile.RUN)

    def test_two_nodes_one_slot(self):
        """A slot goes from a node to another one as it is."""
        entry = self.receive(5)[1]
        self.assertEqual(self.core.receive(1.0, B, message(5, source=B))[0], volatile.RUN)
        self.assertEqual(self.receive(5), (volatile.DUPLICATE, entry, None))

    def test_forget(self):
        entry = self.receive(5)[1]
        self.core.answer(entry, b"receipt")
        self.core.forget(entry)
        self.assertEqual(self.receive(5)[0], volatile.RUN)

    def test_large_answers(self):
        entry = self.receive(5)[1]
        self.core.finish(entry, b"first", b"all of it")
        self.assertIsNone(self.core.find(B, message(5).call))
        self.assertIsNone(self.core.find(A, message(6).call))
        self.assertIs(self.core.find(A, message(5).call), entry)
        self.assertTrue(self.core.owes())
        self.core.settle(entry)
        self.assertFalse(self.core.owes())
        self.assertEqual((self.receive(5)[0], entry.body), (volatile.LATE, b""))

    def test_room(self):
        small = volatile.Volatile(7, slots=3, node_slots=2, reply_bytes=5)

        def receive(source, slot):
            return small.receive(1.0, source, message(1, slot, source=source))

        first, second = (receive(A, SLOT + n)[1] for n in range(2))
        self.assertEqual(receive(A, SLOT + 2)[0], volatile.FULL)
        self.assertEqual(receive(B, SLOT)[0], volatile.RUN)
        self.assertEqual(receive(B, SLOT + 1)[0], volatile.FULL)
        small.finish(first, b"12345")
        small.finish(second, b"12345")
        self.assertEqual(receive(A, SLOT)[0], volatile.LOST)
        self.assertEqual(receive(A, SLOT + 1)[0], volatile.ANSWER)

    def test_silent_slots_are_forgotten(self):
        done, running = self.receive(5)[1], self.receive(5, slot=SLOT + 1)[1]
        self.core.finish(done, b"reply")
        now = 1.1 + layout.SLOT_LIFETIME
        self.assertEqual(self.receive(5, now=now)[0], volatile.RUN)
        self.assertEqual((done.gone, running.gone), (True, False))
        self.assertEqual(self.receive(5, now=now, slot=SLOT + 1)[0], volatile.DUPLICATE)


if __name__ == "__main__":
    unittest.main()
