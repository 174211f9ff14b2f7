"""Call slots, without a network."""

import types
import unittest

from bifrost import layout, slots

BLOCK = layout.BLOCK_SLOTS


class SlotsTest(unittest.TestCase):
    def setUp(self):
        self.served = []
        self.slots = slots.Slots(self.served.append)

    def take(self, node="a", n=1, lists=1):
        """Calls to a node, the first of which have slots."""
        calls = [types.SimpleNamespace(node=node, slot=None, slots=lists, more=()) for _ in range(n)]
        for call in calls:
            self.slots.take(call)
        return calls

    def test_the_last_used_is_used_first(self):
        self.slots.grant([4])
        first, second = self.take(n=2)
        self.assertEqual([(c.slot.number, c.slot.count) for c in (first, second)], [(4 * BLOCK, 1), (4 * BLOCK + 1, 1)])
        self.slots.put_back(first)
        [third] = self.take()
        self.assertEqual((third.slot.number, third.slot.count), (4 * BLOCK, 2))
        self.slots.grant([9])
        [fourth] = self.take()
        self.assertEqual(fourth.slot.number, 4 * BLOCK + 2)

    def test_a_block_is_granted_once(self):
        self.assertTrue(self.slots.grant([4, 9]))
        self.assertFalse(self.slots.grant([9, 4]))
        self.assertEqual(len({c.slot.number for node in "ab" for c in self.take(node, BLOCK)}), 2 * BLOCK)

    def test_waiting(self):
        [call] = self.take()
        self.assertIsNone(call.slot)
        self.slots.grant([4])
        self.assertEqual((self.served, call.slot.number), ([call], 4 * BLOCK))

    def test_slots_of_a_former_incarnation(self):
        """No call gets the slots that a question has, until it is answered."""
        self.slots.grant([4])
        question, other = (types.SimpleNamespace(node="a", slot=None, slots=2, more=()) for _ in range(2))
        self.assertTrue(self.slots.hold(question, 4 * BLOCK))
        self.assertEqual([question.slot.number, *(s.number for s in question.more)], [4 * BLOCK, 4 * BLOCK + 1])
        for first in 4 * BLOCK + 1, 5 * BLOCK - 1, 9 * BLOCK:
            self.assertFalse(self.slots.hold(other, first))
        self.assertEqual([c.slot.number for c in self.take(n=2)], [4 * BLOCK + 2, 4 * BLOCK + 3])
        self.slots.put_back(question)
        self.assertEqual(len(self.slots.idle), BLOCK - 2)

    def test_slots_next_to_each_other(self):
        """A call of several lists has as many slots, next to each other in a block, and one count there."""
        self.slots.grant([4, 9])
        first, second, third = self.take(n=3)
        self.slots.put_back(second)
        [call] = self.take(lists=3)  # they go where none of them is used
        numbers = [call.slot.number, *(s.number for s in call.more)]
        self.assertEqual(numbers, list(range(numbers[0], numbers[0] + 3)))
        self.assertEqual(len({s.number // BLOCK for s in (call.slot, *call.more)}), 1)
        self.assertFalse({first.slot.number, third.slot.number}.intersection(numbers))
        self.slots.put_back(call)
        again = next(c for c in self.take("b", 8) if c.slot.number == numbers[0])
        self.assertEqual((again.slot.count, len(again.more)), (2, 0))
        [wide] = self.take("c", lists=4)
        self.assertEqual({s.count for s in (wide.slot, *wide.more)}, {1})
        out = self.take("d", 40)
        self.assertIsNone(out[-1].slot)
        all = [s.number for c in (first, third, wide, *out) if c.slot for s in (c.slot, *c.more)]
        self.assertEqual(len(set(all)), len(all))

    def test_waits_for_slots_next_to_each_other(self):
        self.slots.grant([4, 9])
        for n in range(4):
            self.take("abcd"[n], 8)
        [call] = self.take("e", lists=4)
        self.assertIsNone(call.slot)
        self.slots.grant([11])
        self.assertEqual((self.served, len(call.more)), ([call], 3))

    def test_half_are_for_one_node(self):
        self.slots.grant([4])
        a = self.take("a", BLOCK // 2 + 2)
        b = self.take("b", BLOCK // 2 + 1)
        self.assertEqual([[c.slot is not None for c in calls].count(True) for calls in (a, b)], [BLOCK // 2] * 2)
        self.slots.put_back(b[0])
        self.assertEqual(self.served, [b[-1]])
        self.slots.put_back(a[0])
        self.assertEqual(self.served, [b[-1], a[-2]])

    def test_nodes_take_turns(self):
        self.slots.grant([4])
        out = [c for node in "cd" for c in self.take(node, BLOCK // 2)]
        waiting = self.take("a", 3) + self.take("b", 2)
        for call in out[:5]:
            self.slots.put_back(call)
        self.assertEqual(self.served, [waiting[n] for n in (0, 3, 1, 4, 2)])

    def test_leaving(self):
        first, second = self.take(n=2)
        self.slots.leave(first)
        self.slots.grant([4])
        self.assertEqual(self.served, [second])
        self.slots.leave(self.take("a", BLOCK)[-1])
        self.assertEqual(self.slots.want(1.0), 2)  # for those that are out, and the others that wait

    def test_more_are_asked_for_when_half_are_used(self):
        self.slots.grant([4, 9])
        calls = self.take("a", BLOCK)
        self.assertEqual((self.slots.want(1.0), self.slots.due()), (0, None))
        calls += self.take("b", 1)
        self.assertIsNotNone(self.slots.due())
        self.assertEqual((self.slots.want(1.0), self.slots.due()), (3, None))
        self.assertEqual(self.slots.want(1.0), 0)  # it is asked
        self.slots.told(2.0, [4, 9, 11])
        self.assertEqual((self.slots.want(2.0), self.slots.due()), (0, None))
        self.take("b", 40)
        self.assertEqual(self.slots.want(2.0), -(-2 * (BLOCK + 41) // BLOCK))

    def test_the_gatekeeper_has_none(self):
        self.take()
        pauses = []
        for _ in range(9):
            now = self.slots.due()
            self.assertEqual(self.slots.want(now), 1)
            self.slots.told(now, [])
            self.assertEqual(self.slots.want(now), 0)
            pauses.append(round(self.slots.due() - now, 3))
        self.assertEqual(pauses, [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0])
        self.assertFalse(self.slots.hopes())
        now = self.slots.due()
        self.slots.want(now)
        self.slots.told(now, [4])
        self.take("b", BLOCK)
        self.assertTrue(self.slots.hopes())
        self.slots.want(now)
        self.slots.told(now + 1, None)  # it is away
        self.assertTrue(self.slots.hopes())
        self.slots._again = now
        self.assertEqual(self.slots.due(), now)  # it has some now

    def test_a_node_has_so_many_at_most(self):
        self.slots.grant(range(1, layout.MAX_BLOCKS))
        self.take("a", 2000)
        self.assertEqual(self.slots.want(1.0), layout.MAX_BLOCKS)
        self.slots.told(1.0, range(1, layout.MAX_BLOCKS + 1))
        self.assertEqual((self.slots.want(2.0), self.slots.due()), (0, None))

    def test_a_slot_is_used_up(self):
        self.slots.grant([4])
        [call] = self.take()
        call.slot.count = slots.MAX_COUNT
        used = call.slot
        self.slots.put_back(call)
        calls = self.take("a", BLOCK) + self.take("b", BLOCK)
        self.assertEqual(len([c for c in calls if c.slot]), 2 * ((BLOCK - 1) // 2))
        self.assertNotIn(used, [c.slot for c in calls])


if __name__ == "__main__":
    unittest.main()
