"""The called side, for calls of policy none, without socket, clock or thread: each runs at most once.

Nothing of it outlives the node. So each call is bound to the incarnation that its caller has chosen, and in a call slot
one call at a time is out: a call with a higher number ends the one before it. A Volatile is not safe for
concurrent use: the shell (service.py) holds a lock. Times are in seconds, on one clock.
"""

import collections

from . import layout, wire

RUN = "run"  # it is new
ANSWER = "answer"  # it is done: the answer is sent again
DUPLICATE = "duplicate"  # it runs: the copy is dropped
REFUSED = "refused"  # its caller has given it up before it began, and it never will
UNBEGUN = "unbegun"  # the call that is asked about has not come, and does not begin any more
LATE = "late"  # nobody waits for it any more, or it must not run any more
GONE = "gone"  # another incarnation may have run it: it is refused
LOST = "lost"  # it has run, and its answer is not kept any more: it is refused
FULL = "full"  # there is no room to remember it: it is dropped, and comes again
MALFORMED = "malformed"  # it is not named as a call is
FOREIGN = "foreign"  # its id is another node's


class Entry:
    """A call that a Volatile knows."""

    def __init__(self, slot, m):
        self.slot, self.number, self.id = slot, m.number, m.call
        self.reply, self.body = None, b""  # the answer, a datagram; its whole payload, if that is only the first packet
        self.running, self.gone = True, False
        self.given_up = self.refused = False  # its caller has given it up; before it began
        self.settled = False  # its caller has all of a large answer
        self.tag = None  # the shell's


class _Slot:
    """A call slot of a caller: calls below the floor are over for good."""

    def __init__(self, node):
        self.node, self.floor, self.call, self.heard = node, 0, None, 0.0


class Volatile:
    """What a node's incarnation knows of the calls of policy none that it has got."""

    def __init__(self, incarnation, slots=1 << 16, node_slots=layout.MAX_BLOCKS * layout.BLOCK_SLOTS, reply_bytes=64 << 20):
        self._incarnation, self._limit, self._node_limit, self._reply_limit = incarnation, slots, node_slots, reply_bytes
        self._dead = collections.Counter()  # by caller: of its incarnations up to this one no call begins any more
        self._forgot = collections.Counter()  # by caller: of its incarnations up to this one calls may have been forgotten
        self._slots = collections.OrderedDict()  # by node and number, least recently heard of first
        self._per_node = collections.Counter()
        self._replies = collections.OrderedDict()  # entries with a reply, the oldest first
        self._reply_bytes = 0

    def receive(self, now, source, m):
        """Takes a copy of a call or one-way. Returns a verdict, the entry or None, and the entry of a running call that its
        caller has given up, or None. One with FLAG_GIVEN_UP is REFUSED unless the call has begun."""
        self._forget_old(now)
        wrong = self._wrong(source, m)
        if wrong:
            return wrong, None, None
        number, given_up = m.number, bool(m.flags & layout.FLAG_GIVEN_UP)
        slot = self._slots.get((source, m.slot))
        if m.caller_incarnation <= self._dead[source] and (slot is None or slot.call is None or slot.call.number != number):
            return LATE, None, None
        slot = self._slot(now, source, m.slot)
        if slot is None:
            return FULL, None, None
        if number < slot.floor:
            return LATE, None, None
        entry = slot.call
        if entry is not None and entry.number == number:
            entry.given_up = entry.given_up or given_up
            return self._known(entry), entry, entry if given_up and entry.running else None
        abandoned = self._raise(slot, number)
        entry = slot.call = Entry(slot, m)
        if given_up:
            entry.running, entry.given_up, entry.refused = False, True, True
            return REFUSED, None, abandoned
        return RUN, entry, abandoned

    def ask(self, source, m):
        """Takes a question what has become of a call, of its caller's later incarnation or of the Gatekeeper in its name, which names slot
        and number. Returns a verdict, and the entry or None. UNBEGUN: it has not come, and does not begin any more."""
        incarnation = m.number >> layout.COUNT_BITS
        if not _is_slot(m.slot) or incarnation >= m.caller_incarnation:
            return MALFORMED, None
        if m.callee_incarnation not in (0, self._incarnation):
            return GONE, None
        slot = self._slots.get((source, m.slot))
        entry = slot.call if slot is not None else None
        if entry is not None and entry.number == m.number:
            return LOST if entry.settled else self._known(entry), entry  # what an incarnation has that has died since, is lost
        if m.callee_incarnation and (slot is not None and m.number < slot.floor or incarnation <= self._forgot[source]):
            return LOST, None
        self._dead[source] = max(self._dead[source], m.caller_incarnation - 1)
        return UNBEGUN, None

    def _wrong(self, source, m):
        """The verdict on a call that is not this incarnation's, or is no plain call of its caller's; None on others."""
        if not _is_slot(m.slot) or m.number >> layout.COUNT_BITS != m.caller_incarnation or wire.derived(m.call) or m.callee_incarnation == 0:
            return MALFORMED
        if m.call != wire.plain_id(source, m.slot, m.number):
            return FOREIGN
        return GONE if m.callee_incarnation != self._incarnation else None

    def _slot(self, now, source, number):
        """A slot, of which something is heard now; None if it is new and there is no room."""
        slot = self._slots.get((source, number))
        if slot is None:
            if len(self._slots) >= self._limit or self._per_node[source] >= self._node_limit:
                return None
            slot = self._slots[source, number] = _Slot(source)
            self._per_node[source] += 1
        slot.heard = now
        self._slots.move_to_end((source, number))
        return slot

    def _raise(self, slot, floor):
        """Moves a slot's floor up; returns its call if that runs, and is passed."""
        slot.floor = floor
        entry = slot.call
        if entry is None or entry.number >= floor:
            return None
        slot.call = None
        self._pass(entry)
        return entry if entry.running else None

    def _known(self, entry):
        if entry.settled:
            return LATE
        if entry.reply is not None:
            return ANSWER
        if entry.running:
            return DUPLICATE
        return REFUSED if entry.refused else LOST

    def answer(self, entry, reply, body=b""):
        """Keeps the answer to a call; more calls than there is room for lose theirs, the oldest first."""
        if entry.gone or entry.reply is not None:
            return
        entry.reply, entry.body = reply, body
        self._replies[entry] = None
        self._reply_bytes += len(reply) + len(body)
        while self._reply_bytes > self._reply_limit and len(self._replies) > 1:
            self._drop(next(iter(self._replies)))

    def finish(self, entry, reply, body=b""):
        """Ends a call; reply is None if it has an answer already. body is the whole payload of a large answer."""
        entry.running = False
        if reply is not None:
            self.answer(entry, reply, body)

    def find(self, source, id):
        """The entry of a call that is known, or None."""
        slot = self._slots.get((source, wire.slot_in(id)))
        return slot.call if slot is not None and slot.call is not None and slot.call.id == id else None

    def calls(self):
        """The entries of all calls that are known, with an answer or without."""
        return [slot.call for slot in self._slots.values() if slot.call is not None]

    def owes(self):
        """Whether large answers are kept."""
        return any(entry.body for entry in self._replies)

    def settle(self, entry):
        """Forgets a large answer that the caller has; the call stays known."""
        if entry.body:
            self._drop(entry)
            entry.settled = True

    def forget(self, entry):
        """Undoes the RUN of a call that was not run after all: when it comes again it is new, or REFUSED if its caller has given it up."""
        entry.running, entry.refused = False, entry.given_up and not entry.gone
        if entry.refused:
            return
        if not entry.gone:
            entry.slot.call = None
        self._pass(entry)

    def _pass(self, entry):
        self._drop(entry)
        entry.gone = True

    def _drop(self, entry):
        if entry.reply is not None:
            del self._replies[entry]
            self._reply_bytes -= len(entry.reply) + len(entry.body)
            entry.reply, entry.body = None, b""

    def _forget_old(self, now):
        while self._slots:
            at, slot = next(iter(self._slots.items()))
            if now - slot.heard <= layout.SLOT_LIFETIME:
                return
            if slot.call is not None and slot.call.running:
                slot.heard = now
                self._slots.move_to_end(at)
                continue
            if slot.call is not None:
                self._pass(slot.call)
            self._forgot[slot.node] = max(self._forgot[slot.node], slot.floor >> layout.COUNT_BITS)
            del self._slots[at]
            self._per_node[slot.node] -= 1
            if not self._per_node[slot.node]:
                del self._per_node[slot.node]


def _is_slot(slot):
    return layout.BLOCK_SLOTS <= slot < layout.BLOCKS * layout.BLOCK_SLOTS
