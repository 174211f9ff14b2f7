"""The called side, for calls of policy none, without socket, clock or thread: each runs at most once.

Nothing of it outlives the node. So each call is bound to the incarnation that its caller has chosen, and in a lane of a
caller one call at a time is out: a call with a higher number ends the one before it. A Volatile is not safe for
concurrent use: the shell (service.py) holds a lock. Times are in seconds, on one clock.
"""

import collections

from . import layout, wire

RUN = "run"  # it is new
ANSWER = "answer"  # it is done: the answer is sent again
DUPLICATE = "duplicate"  # it runs: the copy is dropped
LATE = "late"  # nobody waits for it any more, or it must not run any more
GONE = "gone"  # another incarnation may have run it: it is refused
LOST = "lost"  # it has run, and its answer is not kept any more: it is refused
FULL = "full"  # there is no room to remember it: it is dropped, and comes again
MALFORMED = "malformed"  # its id is none
FOREIGN = "foreign"  # its lane is another node's


class Entry:
    """A call that a Volatile knows."""

    def __init__(self, lane, number):
        self.lane, self.number = lane, number
        self.reply, self.body = None, b""  # the answer, a datagram; its whole payload, if that is only the first packet
        self.running, self.gone = True, False
        self.settled = False  # its caller has all of a large answer
        self.tag = None  # the shell's


class _Lane:
    """A lane of a caller: calls below the floor are over for good."""

    def __init__(self, node):
        self.node, self.floor, self.call, self.heard = node, 0, None, 0.0


class Volatile:
    """What a node's incarnation knows of the calls of policy none that it has got."""

    def __init__(self, incarnation, lanes=1 << 16, node_lanes=1 << 14, reply_bytes=64 << 20):
        self._incarnation, self._limit, self._node_limit, self._reply_limit = incarnation, lanes, node_lanes, reply_bytes
        self._lanes = collections.OrderedDict()  # by number, least recently heard of first
        self._per_node = collections.Counter()
        self._replies = collections.OrderedDict()  # entries with a reply, the oldest first
        self._reply_bytes = 0

    def receive(self, now, source, m):
        """Takes a copy of a call or one-way. Returns a verdict, the entry or None, and the entry of a running call that its
        caller has given up, or None. One with FLAG_GIVEN_UP ends the call, and is LATE."""
        self._forget_old(now)
        wrong = MALFORMED if m.callee_incarnation == 0 else self._wrong(source, m)
        if wrong:
            return wrong, None, None
        lane = self._lane(now, source, m.session)
        if lane is None:
            return FULL, None, None
        number, given_up = m.sequence, m.flags & layout.FLAG_GIVEN_UP
        if number < lane.floor:
            return LATE, None, None
        if lane.call is not None and lane.call.number == number and not given_up:
            return self._known(lane.call), lane.call, None
        if given_up:
            return LATE, None, self._raise(lane, number + 1)
        abandoned = self._raise(lane, number)
        lane.call = Entry(lane, number)
        return RUN, lane.call, abandoned

    def probe(self, now, source, m):
        """Takes the Gatekeeper's question what has become of a call, in its caller's name; returns what receive does. LATE:
        it has not come, and does not run any more."""
        wrong = self._wrong(source, m)
        if wrong:
            return wrong, None, None
        lane = self._lane(now, source, m.session)
        if lane is None:
            return FULL, None, None
        number = m.sequence
        if lane.call is not None and lane.call.number == number:
            return self._known(lane.call), lane.call, None
        if number < lane.floor:
            return LOST, None, None
        return LATE, None, self._raise(lane, number + 1)

    def _wrong(self, source, m):
        """The verdict on a call that is not this incarnation's, or that its caller has no lane for; None on others."""
        if not m.flags & layout.FLAG_SESSION or m.session == 0:
            return MALFORMED
        if not wire.owns(source, m.session):
            return FOREIGN
        return GONE if m.callee_incarnation != self._incarnation else None

    def _lane(self, now, source, number):
        """A lane, of which something is heard now; None if it is new and there is no room."""
        lane = self._lanes.get(number)
        if lane is None:
            if len(self._lanes) >= self._limit or self._per_node[source] >= self._node_limit:
                return None
            lane = self._lanes[number] = _Lane(source)
            self._per_node[source] += 1
        lane.heard = now
        self._lanes.move_to_end(number)
        return lane

    def _raise(self, lane, floor):
        """Moves a lane's floor up; returns its call if that runs, and is passed."""
        lane.floor = floor
        entry = lane.call
        if entry is None or entry.number >= floor:
            return None
        lane.call = None
        self._pass(entry)
        return entry if entry.running else None

    def _known(self, entry):
        if entry.settled:
            return LATE
        if entry.reply is not None:
            return ANSWER
        return DUPLICATE if entry.running else LOST

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
        lane, number = self._lanes.get(int.from_bytes(id[:8], "big")), int.from_bytes(id[8:], "big")
        return lane.call if lane is not None and lane.node == source and lane.call is not None and lane.call.number == number else None

    def owes(self):
        """Whether large answers are kept."""
        return any(entry.body for entry in self._replies)

    def settle(self, entry):
        """Forgets a large answer that the caller has; the call stays known."""
        if entry.body:
            self._drop(entry)
            entry.settled = True

    def forget(self, entry):
        """Undoes the RUN of a call that was not run after all: it is new when it comes again."""
        entry.running = False
        if not entry.gone:
            entry.lane.call = None
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
        while self._lanes:
            number, lane = next(iter(self._lanes.items()))
            if now - lane.heard <= layout.LANE_LIFETIME:
                return
            if lane.call is not None and lane.call.running:
                lane.heard = now
                self._lanes.move_to_end(number)
                continue
            if lane.call is not None:
                self._pass(lane.call)
            del self._lanes[number]
            self._per_node[lane.node] -= 1
            if not self._per_node[lane.node]:
                del self._per_node[lane.node]
