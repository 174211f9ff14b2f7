"""Messages in parts, without a network."""

import os
import random
import unittest

from bifrost import bulk, layout, wire
from bifrost.errors import FormatError

PEER, CALL = "fd00::2", bytes(15) + b"\2"
KEY = PEER, CALL, True
SIZE = 1000


class Sender:
    """Obeys pulls; drops says which of the parts get lost."""

    def __init__(self, body, first, drops=lambda: False):
        self.body, self.first, self.drops, self.sent = body, first, drops, 0

    def header(self, **fields):
        return bulk.Header(call=CALL, answer=1, total=len(self.body), first=self.first, **fields)

    def part(self, at, n):
        self.sent += 1
        return bulk.Header.parse(self.header(kind=bulk.PART, offset=at, size=n).pack() + self.body[at : at + n])

    def obey(self, pull):
        parts = [self.part(at, n) for at, n in bulk.cut(pull.spans, pull.size)]
        return [p for p in parts if not self.drops()]


class BulkTest(unittest.TestCase):
    def setUp(self):
        self.receiver = bulk.Receiver(50000, 1 << 21)

    def begin(self, sender, now=0.0, pushed=False):
        return self.receiver.begin(now, KEY, sender.header(), sender.body[: sender.first], SIZE, bulk.pushes(SIZE) if pushed else 0, None)

    def run_all(self, sender, parts=(), shuffle=False):
        """Moves parts until the message is whole, and returns it; None if the sender counts as silent."""
        now, parts = 0.0, list(parts)
        t = self.receiver.open[KEY]
        while not t.whole():
            now += 0.001
            for _, pull in self.receiver.asks(now):
                self.assertLessEqual(t.out, 50000)
                parts += sender.obey(bulk.Header.parse(pull.pack()))
            if shuffle:
                random.Random(now).shuffle(parts)
            if parts:
                self.receiver.receive(now, KEY, parts.pop(0))
                continue
            now = self.receiver.due()
            if self.receiver.tick(now):
                return None
        self.receiver.finish(t)
        self.receiver.release(PEER, t.total)
        self.assertEqual((self.receiver.open, self.receiver.claimed, t.out), ({}, 0, 0))
        return t.body

    def test_comes_whole(self):
        rng = random.Random(1)
        for length in 601, 1600, 1601, 300000:
            for loss in 0, 0.05, 0.5:
                sender = Sender(os.urandom(length), 600, lambda: rng.random() < loss)
                self.begin(sender)
                self.assertEqual(self.run_all(sender, shuffle=loss == 0.05), sender.body, (length, loss))
                if not loss:
                    self.assertEqual(sender.sent, -(-(length - 600) // SIZE))

    def test_pushed_parts_may_overtake(self):
        sender = Sender(os.urandom(300000), 600)
        n = bulk.pushed(300000, 600, SIZE, bulk.pushes(SIZE))
        parts = [sender.part(at, length) for at, length in bulk.cut([(600, n)], SIZE)]
        for p in parts[:5]:
            self.assertIsNone(self.receiver.receive(0.0, KEY, p))
        self.begin(sender, pushed=True)
        self.assertEqual(self.run_all(sender, parts[3:]), sender.body)
        self.assertEqual(sender.sent, 300)
        self.assertEqual(bulk.pushed(5000, 600, SIZE, bulk.pushes(SIZE)), 4400)
        self.assertEqual(bulk.pushed(3 * 64000 + 4600, 600, 64000, bulk.pushes(64000)), 3 * 64000 + 4000)

    def test_silent_sender(self):
        sender = Sender(bytes(5000), 600, lambda: True)
        self.begin(sender)
        self.assertIsNone(self.run_all(sender))
        self.assertEqual((self.receiver.open, self.receiver.claimed), ({}, 0))
        self.assertLess(sender.sent, 100)

    def test_parts_that_are_wrong(self):
        sender = Sender(os.urandom(5000), 600)
        t = self.begin(sender)
        self.receiver.asks(0.0)
        for wrong in sender.part(601, SIZE), sender.part(600, SIZE - 1), Sender(bytes(5001), 600).part(600, SIZE), Sender(bytes(5000), 599).part(1599, SIZE):
            self.assertRaises(FormatError, self.receiver.receive, 0.0, KEY, wrong)
        part = sender.part(600, SIZE)
        self.assertIs(self.receiver.receive(0.0, KEY, part), t)
        self.assertIsNone(self.receiver.receive(0.0, KEY, part))
        self.assertIsNone(self.receiver.receive(0.0, ("fd00::3", CALL, True), sender.part(1600, SIZE)))
        self.assertEqual(self.run_all(sender, [sender.part(at, n) for at, n in bulk.cut([(600, 4400)], SIZE)]), sender.body)

    def test_what_was_not_lost_does_not_count(self):
        sender = Sender(os.urandom(300000), 600)
        t = self.begin(sender)
        window, ((_, pull),) = t.window, self.receiver.asks(0.0)
        late, *others = sender.obey(pull)
        for p in others[:4]:
            self.receiver.receive(0.001, KEY, p)  # each of them was asked for later
        self.assertLess(t.window, window)
        self.receiver.asks(0.001)
        self.receiver.receive(0.002, KEY, late)  # it was only late
        self.receiver.receive(0.003, KEY, late)  # and so it comes twice
        self.assertGreaterEqual(t.window, window)

    def test_wait_doubles_until_it_is_measured(self):
        sender = Sender(os.urandom(300000), 600)
        t = self.begin(sender)
        self.receiver.asks(0.0)
        first, now = t.due, 0.0
        for _ in range(3):
            now = self.receiver.due()
            self.assertEqual(self.receiver.tick(now), [])
        ((_, again),) = self.receiver.asks(now)
        self.receiver.receive(now, KEY, sender.obey(again)[0])  # nobody knows which copy it is
        self.assertAlmostEqual(t.due - now, 8 * first)
        while t.next < t.places and t.due - now > first:  # until one comes that was asked for once
            for _, pull in self.receiver.asks(now):
                for p in sender.obey(pull):
                    self.receiver.receive(now, KEY, p)
        self.assertLess(t.due - now, first)

    def test_transfers_share_the_buffer(self):
        for call in range(3):
            h = bulk.Header(call=call.to_bytes(16, "big"), total=1 << 19, first=600)
            self.receiver.begin(0.0, (PEER, h.call, False), h, bytes(600), SIZE, False, None)
        self.assertEqual(len(self.receiver.asks(0.0)), 3)
        out = [t.out for t in self.receiver.open.values()]
        self.assertLessEqual(sum(out), 50000 + 2 * bulk.cost(SIZE))  # whoever has nothing under way may ask for one part
        self.assertEqual(self.receiver.asks(0.0), [])

    def test_memory_is_bounded(self):
        def begin(peer, call, total):
            h = bulk.Header(call=call.to_bytes(16, "big"), total=total, first=600)
            return self.receiver.begin(0.0, (peer, h.call, False), h, bytes(600), SIZE, False, None)

        self.assertIsNone(begin("a", 1, (1 << 21) + 1))
        whole = [begin(peer, 1, 1 << 21) for peer in "abcd"]
        self.assertTrue(all(whole))
        self.assertIsNone(begin("a", 2, 601))
        self.assertIsNone(begin("e", 1, 601))
        self.receiver.end(whole[0].key)
        self.assertIsNotNone(begin("e", 1, 601))
        large = bulk.Receiver(50000, 1 << 40).begin(0.0, KEY, bulk.Header(total=1 << 40, first=600), bytes(600), SIZE, False, None)
        self.assertEqual(len(large.body), 600 * bulk.AHEAD)  # memory grows with what comes

    def test_headers(self):
        h = bulk.Header(kind=bulk.PULL, call=CALL, caller_incarnation=3, total=100, size=20, first=10, spans=[(10, 40), (90, 10)])
        whole = h.pack()
        got = bulk.Header.parse(whole)
        self.assertEqual((got.call, got.spans, got.size, got.pack()), (CALL, h.spans, 20, whole))
        self.assertEqual(len(whole), bulk.SIZE + 32)
        bad = [whole[:n] for n in range(len(whole))] + [whole + b"x", b"\0" + whole[1:], whole[:3] + b"\5" + whole[4:], whole[:4] + b"\2" + whole[5:]]
        for spans in [(10, 40), (10, 40)], [(90, 10), (10, 40)], [(11, 40)], [(10, 10)], [(9, 1)], [(10, 91)], [(10, 0)], [(1 << 63, 1 << 63)], [(10, 1)] * 65, []:
            h.spans = spans
            bad.append(h.pack())
        bad.append(bulk.Header(kind=bulk.PART, call=CALL, total=100, first=10, offset=10, size=5).pack() + b"1234")
        bad.append(bulk.Header(kind=bulk.PART, call=CALL, total=100, first=10, offset=9, size=4).pack() + b"1234")
        for b in bad:
            self.assertRaises(FormatError, bulk.Header.parse, b)
        self.assertEqual(sum(n for _, n in bulk.cut([(0, 1 << 30)], 60000)), layout.BULK_PULL_BYTES // 60000 * 60000)

    def test_first_packets(self):
        m = wire.Message(type=layout.TYPE_CALL, payload=os.urandom(5000), regions=[1, 2, 3])
        whole = wire.first(m, 1232)
        self.assertEqual(len(m.pack()), 1232)
        total, to, _, start = wire.opening(wire.Message.parse(m.pack()))
        self.assertEqual((total, to, start), (5000, 0, whole[: len(start)]))
        regions = list(range(1, 18))  # one too many
        self.assertRaises(ValueError, wire.Message, regions=regions)
        m = wire.Message(type=layout.TYPE_CALL, payload=whole, regions=regions[1:], trailer=bytes(304))
        wire.first(m, 1232)
        self.assertEqual(len(m.pack()), 1232)
        for payload in b"", bytes(16), (5).to_bytes(8, "big") + bytes(13):
            m.payload = payload
            self.assertRaises(FormatError, wire.opening, m)


if __name__ == "__main__":
    unittest.main()
