"""What a node learns of arguments by reference."""

import unittest

from bifrost import learned


class LearnedTest(unittest.TestCase):
    def test_hysteresis(self):
        """Two answers in a row change what is believed; the last one is told on."""
        known, key = learned.Learned(), ("Lab", "count", "film")
        self.assertEqual((known.believed(key), known.last(key)), (-1, -1))
        for says, believed in (4, -1), (-1, -1), (4, 4), (4, 4), (2, 4), (2, 2), (7, 2), (-1, 2), (-1, -1):
            known.note(key, says)
            self.assertEqual((known.believed(key), known.last(key)), (believed, says))
        self.assertEqual(known.believed(("Lab", "count", "other")), -1)

    def test_below(self):
        for spares, again, least in (-1, True, (16 << 20) + 1), (1, True, (16 << 20) + 1), (2, False, 4 << 20), (2, True, 512 << 10), (3, False, 512 << 10), (14, True, 512 << 10):
            self.assertEqual(learned.below(spares, again), least, (spares, again))

    def test_numbers(self):
        """What rpc/stub makes of the same."""
        for spares, number in ([], 0), ([-1, -1], 0), ([2], 3), ([-1, 14, 0], 0x1F0), ([-9, 99], 0xF0), ([-1] * 15 + [14], -1 << 60), ([-1] * 16 + [5], 0):
            self.assertEqual(learned.pack(spares), number)
            self.assertEqual(learned.unpack(number, len(spares)), [max(-1, min(s, 14)) if i < 16 else -1 for i, s in enumerate(spares)])


if __name__ == "__main__":
    unittest.main()
