"""Call slots, without socket, clock or thread: each call that is out has one, and a number in it.

The Gatekeeper gives slots to the node in blocks. A call that finds none free waits for one. A Slots is not safe for
concurrent use: the shell (node.py) holds a lock. Times are in seconds, on one clock.
"""

import collections

from . import layout

FIRST_PAUSE, MAX_PAUSE = 0.1, 10.0  # between two questions for more blocks, while the Gatekeeper has none: at first, and at most
MAX_COUNT = (1 << layout.COUNT_BITS) - 1


class Slot:
    """A call slot of the node."""

    def __init__(self, number):
        self.number, self.count = number, 0  # count of the last call
        self.used = False
        self.kept = None  # the Caller's


class Slots:
    """The call slots of a node. served is called with each call that gets a slot after it has waited for one."""

    def __init__(self, served):
        self._served = served
        self._blocks, self._total = {}, 0  # slots of each block; how many slots there are
        self.idle = []  # the last used is the last, and used first, so that few stay in use
        self._taken = collections.Counter()  # by calls to each node
        self._waiting = collections.OrderedDict()  # calls by node; the nodes take turns
        self._asking, self._again, self._pause = False, 0.0, FIRST_PAUSE
        self._none = False  # the Gatekeeper had none when it last answered

    def grant(self, blocks):
        """Adds the slots of blocks, as far as the node does not have them; tells whether there are new ones."""
        new = [b for b in dict.fromkeys(blocks) if b not in self._blocks]
        for b in new:
            first = b * layout.BLOCK_SLOTS
            self._blocks[b] = [Slot(n) for n in range(first, first + layout.BLOCK_SLOTS)]
            self.idle[:0] = reversed(self._blocks[b])
            self._total += layout.BLOCK_SLOTS
        self._serve()
        return bool(new)

    def want(self, now):
        """How many blocks the Gatekeeper is to be asked for now: more as soon as half of the slots are used. 0 if it is not to be
        asked; else told is to follow."""
        want = self._wanted()
        if not want or self._asking or now < self._again:
            return 0
        self._asking = True
        return want

    def told(self, now, blocks):
        """Takes the Gatekeeper's answer: all blocks that the node has; None if it has not answered."""
        self._asking = False
        news = self.grant(blocks or ())
        if blocks is not None:
            self._none = not news
        if news:
            self._again, self._pause = now, FIRST_PAUSE
        else:
            self._again, self._pause = now + self._pause, min(2 * self._pause, MAX_PAUSE)

    def hopes(self):
        """Whether the node may get more: it needs some, and the Gatekeeper has not said that there are none."""
        return bool(self._wanted()) and not self._none

    def due(self):
        """When want has something to ask for; None while it has not."""
        return self._again if not self._asking and self._wanted() else None

    def _wanted(self):
        need = 2 * (self._total - len(self.idle) + sum(map(len, self._waiting.values())))
        want = min(max(-(-need // layout.BLOCK_SLOTS), len(self._blocks) + 1), layout.MAX_BLOCKS)
        return want if need > self._total and want > len(self._blocks) else 0

    def take(self, call):
        """Gives a call its slots, as many as it has lists, next to each other; False if it has to wait until it is served, or leaves.
        Calls to one node have half of the slots at most, so that one that does not answer does not keep the others from being called."""
        if not self._give(call):
            self._waiting.setdefault(call.node, collections.deque()).append(call)
        return call.slot is not None

    def leave(self, call):
        """Takes back that a call waits for a slot."""
        calls = self._waiting[call.node]
        calls.remove(call)
        if not calls:
            del self._waiting[call.node]

    def put_back(self, call):
        """Takes the slots of a call that is over."""
        slots, call.slot, call.more = [call.slot, *call.more], None, ()
        self._taken[call.node] -= len(slots)
        if not self._taken[call.node]:
            del self._taken[call.node]
        for slot in reversed(slots):
            if slot.count < MAX_COUNT:
                slot.used = False
                self.idle.append(slot)
            else:  # the node's next incarnation may use it again
                self._total -= 1
        self._serve()

    def _give(self, call):
        """Gives a call slots next to each other in a block, and one count there; False if there are none."""
        if self._taken[call.node] + call.slots > self._total // 2:
            return False
        for first in reversed(self.idle):
            block, at = divmod(first.number, layout.BLOCK_SLOTS)
            slots = self._blocks[block][at : at + call.slots]
            if len(slots) == call.slots and not any(s.used for s in slots):
                break
        else:
            return False
        count = max(s.count for s in slots) + 1
        for s in slots:
            s.count = count
        self._occupy(call, slots)
        return True

    def _occupy(self, call, slots):
        for s in slots:
            s.used = True
            self.idle.remove(s)
        self._taken[call.node] += call.slots
        call.slot, *call.more = slots

    def hold(self, call, first):
        """Gives a question the slots, from the first one on, of the former incarnation's call that it is about: the switch may have them
        open. False if they are not the node's, or used."""
        block, at = divmod(first, layout.BLOCK_SLOTS)
        slots = self._blocks.get(block, [])[at : at + call.slots]
        if len(slots) < call.slots or any(s.used for s in slots):
            return False
        self._occupy(call, slots)
        return True

    def _serve(self):
        """Gives free slots to calls that wait, to one node after the other."""
        passed = 0
        while passed < len(self._waiting):
            node, calls = self._waiting.popitem(last=False)
            call = calls.popleft() if self._give(calls[0]) else None
            if calls:
                self._waiting[node] = calls
            if call is None:
                passed += 1
                continue
            passed = 0
            self._served(call)
