"""The region slots in which a node may allocate on one memory machine.

The Gatekeeper gives slots to the node in batches. The machine tells which slots of a batch are free. A Batches is not safe for
concurrent use.
"""

import collections

from . import layout

LIVE, RESTS = 1 << 31, 1 << 30  # bits of what the machine tells of a slot, beside its last generation


class Batches:
    def __init__(self):
        self._numbers, self._last, self._free = [], {}, collections.deque()
        self._resting = set()  # batches with slots that were freed just before the machine told

    def __len__(self):
        return len(self._numbers)

    def __iter__(self):
        return iter(list(self._numbers))

    @property
    def rests(self):
        """Whether slots are to be free soon."""
        return bool(self._resting)

    def add(self, numbers):
        """Takes in all batches that the node has; returns those that are new."""
        new = [n for n in dict.fromkeys(numbers) if n not in self._numbers]
        self._numbers += new
        return new

    def take(self):
        """A slot that is free and the generation that its next region has; None if no slot is free."""
        if not self._free:
            return None
        slot = self._free.popleft()
        self._last[slot] += 1
        return slot, self._last[slot]

    def refused(self, slot):
        """A slot was not free: what is known of its batch is old."""
        self._free = collections.deque(s for s in self._free if s // layout.BATCH_SLOTS != slot // layout.BATCH_SLOTS)

    def learn(self, number, data):
        """Takes in what the machine tells of a batch. No allocation may be under way there."""
        self._resting.discard(number)
        known = set(self._free)
        for i in range(layout.BATCH_SLOTS):
            told, slot = int.from_bytes(data[4 * i : 4 * i + 4], "big"), number * layout.BATCH_SLOTS + i
            if slot in known:
                continue
            last = told & ~(LIVE | RESTS)
            self._last[slot] = max(last, min(self._last.get(slot, 0), last + layout.MOST_AHEAD - 1))
            if told & RESTS:
                self._resting.add(number)
            elif not told & LIVE and self._last[slot] < layout.MAX_GENERATION:
                self._free.append(slot)
