"""The protocol of calls, without socket, clock or thread: the shell (node.py) tells the time and does the I/O.

Caller and Callee are not safe for concurrent use: the shell holds a lock. Times are in seconds, on one clock.
"""

import collections

from . import layout, wire


class RTT:
    """Estimates how long the answers to a method take, as TCP does its round trips (RFC 6298)."""

    def __init__(self):
        self.mean = self.deviation = 0.0
        self.timeout = layout.INITIAL_TIMEOUT

    def answered(self, d, resent):
        """Learns from a call that was answered after d seconds."""
        if resent:  # which copy was answered nobody knows
            self.timeout = max(self.timeout, min(2 * self.timeout, d, layout.MAX_TIMEOUT))
            return
        if not self.mean:
            self.mean, self.deviation = d, d / 2
        else:
            self.deviation += (abs(self.mean - d) - self.deviation) / 4
            self.mean += (d - self.mean) / 8
        self.timeout = min(max(self.mean + 4 * self.deviation, layout.MIN_TIMEOUT), layout.MAX_TIMEOUT)


class Lane:
    """A session in which one call at a time is out."""

    def __init__(self, session, sequence):
        self.session, self.sequence = session, sequence
        self.owes = False  # the Gatekeeper keeps a record of a call, which the next call will settle
        self.due = self.interval = 0.0
        # Whom the lane's last call went to, if that was direct, and its id. The lane's next call to that node settles
        # it, or word to the node (Caller.left).
        self.node = self.last = None


class Call:
    """A call that is out. The shell fills in message, held, expires and node, and waits as it likes.

    held: the switch holds the call, and the Gatekeeper keeps a record of it. node is whom a direct call goes to, None for others.
    """

    def __init__(self, message, rtt, held=False, expires=None, node=None):
        self.message, self.rtt, self.held, self.expires, self.node = message, rtt, held, expires, node
        self.deadline = None  # of whoever waits
        self.waiter = None  # the shell's
        self.lane = None
        self.body = b""  # the whole payload, if message is only its first packet
        self.begun = self.due = self.interval = 0.0
        self.restarted = 0.0  # before, no word of its node makes a copy due
        self.resent = False

    def waits(self):
        """Whether the call has waited for as long as it does at most between two copies."""
        return self.interval >= layout.MAX_TIMEOUT

    def again(self, now):
        """The datagram to send again."""
        if self.deadline is not None:
            self.message.timeout = milliseconds(self.deadline - now)
        if self.message.policy == layout.POLICY_NONE:  # a callee refuses what began before itself
            self.message.attempt = min(max(int((now - self.begun) / 0.01) + 1, 1), 0xFFFF)
        return self.message.pack()


def milliseconds(left):
    """The header's form of the time that is left: 0 would mean no deadline."""
    return min(max(int(left * 1000) + 1, 1), 0xFFFFFFFF)


class Caller:
    """The calling side: numbers calls within sessions, sends them again, takes their answers."""

    def __init__(self, node, random64):
        self._node, self._random64, self._drawn = node, random64, random64()
        self._idle = []
        self._left = []
        self.calls = {}

    def _lane(self):
        self._drawn += 1
        return Lane(wire.session_of(self._node, self._drawn), self._random64() >> 16)

    def begin(self, now, call):
        """Gives a call its id. The shell sends call.message at once."""
        lane = self._idle.pop() if self._idle else self._lane()
        lane.sequence += 1
        if call.held or not lane.owes:
            lane.due, lane.interval = now + layout.SETTLE_AFTER, layout.SETTLE_AFTER
        lane.owes = lane.owes or call.held
        call.lane = lane
        call.message.flags |= layout.FLAG_SESSION
        call.message.call, call.message.floor = wire.session_id(lane.session, lane.sequence), lane.sequence
        self._goes_to(lane, call.node, call.message.call)
        call.interval = call.rtt.timeout
        call.begun, call.due = now, now + call.interval
        self.calls[call.message.call] = call

    def _goes_to(self, lane, node, id=None):
        """Notes whom a lane's next call goes to. Nobody is told so of one to the node of the last one."""
        if lane.node not in (None, node):
            self._left.append((lane.node, lane.last))
        lane.node, lane.last = node, id

    def left(self, now):
        """Direct calls that their nodes are to be told to forget: (node, id) each. The lanes that they were in have gone on to
        others, or are idle."""
        for lane in self._idle:
            if lane.node is not None and lane.due <= now:
                self._goes_to(lane, None)
        left, self._left = self._left, []
        return left

    def postpone(self, now, id):
        """Lets a call wait on that its callee is fetching, or whose answer is coming; returns it, None if it is not out."""
        call = self.calls.get(id)
        if call is not None:
            call.due = now + call.interval
        return call

    def end(self, call):
        """Gives a call up, or ends it; False if it is not out."""
        if self.calls.pop(call.message.call, None) is None:
            return False
        self._idle.append(call.lane)
        return True

    def find(self, source, m):
        """The call that an answer from an address is to, None if none is out. What answers a call that the switch holds for the
        Gatekeeper, the Gatekeeper has released; a direct call is answered by its node."""
        call = self.calls.get(m.call)
        if call is None or m.type not in (layout.TYPE_REPLY, layout.TYPE_EXCEPTION) or not m.flags & layout.FLAG_SESSION:
            return None
        if not m.flags & layout.FLAG_RELEASED and (call.message.exact or call.node not in (None, source)):
            return None  # forged
        return call

    def receive(self, now, source, m):
        """Takes a reply or exception from an address; returns the call that it ends, or None."""
        call = self.find(source, m)
        return self._answered(now, call) if call is not None else None

    def settled(self, m):
        """Takes the Gatekeeper's word that it knows that a session is idle."""
        for lane in self._idle:
            if lane.session == m.session and lane.sequence + 1 == m.floor:
                lane.owes = False

    def restarted(self, now, node):
        """Takes a node's word that it has restarted: what is out to it is sent again at once, but MIN_TIMEOUT after the node's
        last word at the earliest."""
        for call in self.calls.values():
            if call.node == node:
                call.interval = min(call.interval, call.rtt.timeout)
                at = max(now, call.restarted)
                if at < call.due:
                    call.due, call.restarted = at, at + layout.MIN_TIMEOUT

    def _answered(self, now, call):
        call.rtt.answered(now - call.begun, call.resent)
        if call.held or not call.lane.owes:
            call.lane.due = now + layout.SETTLE_AFTER
        self.end(call)
        return call

    def tick(self, now):
        """The calls to send again, those that have expired, and the settlements to send: (session, floor)."""
        resend, expired, settle = [], [], []
        for call in list(self.calls.values()):
            if call.expires is not None and call.expires <= now:
                self.end(call)
                expired.append(call)
            elif call.due <= now:
                call.resent, call.interval = True, min(2 * call.interval, layout.MAX_TIMEOUT)
                call.due = now + call.interval
                resend.append(call)
        for lane in self._idle:
            if lane.owes and lane.due <= now:
                settle.append((lane.session, lane.sequence + 1))
                lane.interval = min(2 * lane.interval, 60.0)
                lane.due = now + lane.interval
        return resend, expired, settle

    def due(self):
        """When tick has something to do; None while it has not."""
        times = [c.due if c.expires is None else min(c.due, c.expires) for c in self.calls.values()]
        times += [lane.due for lane in self._idle if lane.owes or lane.node is not None]
        return min(times, default=None)


RUN, RESEND, DROP, GONE, LOST, FULL = "run", "resend", "drop", "gone", "lost", "full"


class Entry:
    """A call that a Callee knows."""

    def __init__(self, session, sequence):
        self.session, self.sequence = session, sequence
        self.reply, self.body = None, b""  # the answer, a datagram; its whole payload, if that is only the first packet
        self.running, self.gone = True, False
        self.settled = False  # its caller has all of a large answer
        self.tag = None  # the shell's


class Session:
    """The window of a caller's session: what lies below floor is settled and refused for ever."""

    def __init__(self):
        self.floor, self.calls, self.heard = 0, {}, 0.0


class Callee:
    """The called side, for calls of policy none: each runs at most once and is answered as often as asked."""

    def __init__(self, incarnation, sessions=1 << 16, window=1 << 10, reply_bytes=64 << 20):
        self._incarnation, self._limit, self._window, self._reply_limit = incarnation, sessions, window, reply_bytes
        self._sessions = collections.OrderedDict()  # least recently heard of first
        self._replies = collections.OrderedDict()  # entries with a reply, the oldest first
        self._reply_bytes = 0

    def receive(self, now, since, source, m):
        """What to do with a call for a service that runs since then: a verdict, the entry or None, and the
        entries of calls that run although their caller has given them up."""
        self._forget_old(now)
        if m.callee_incarnation not in (0, self._incarnation):
            return (DROP if m.flags & layout.FLAG_RELEASED else GONE), None, []
        seq = m.sequence
        if not m.flags & layout.FLAG_SESSION or m.floor == 0 or m.floor - 1 > seq:
            return DROP, None, []
        key = (source, m.session)
        session = self._sessions.get(key)
        if session is None:
            if len(self._sessions) >= self._limit:
                return FULL, None, []
            session = self._sessions[key] = Session()
        self._sessions.move_to_end(key)
        session.heard = now
        abandoned = self._raise_floor(session, m.floor)
        if seq < session.floor:
            return DROP, None, abandoned
        entry = session.calls.get(seq)
        if entry is not None:
            if entry.reply is not None:
                return RESEND, entry, abandoned
            return (DROP if entry.running or entry.settled else LOST), entry, abandoned
        if m.attempt and (m.attempt - 1) * 0.01 > now - since:
            return GONE, None, abandoned  # a predecessor may have run it
        if len(session.calls) >= self._window:
            return FULL, None, abandoned
        entry = session.calls[seq] = Entry(session, seq)
        return RUN, entry, abandoned

    def _raise_floor(self, session, floor):
        abandoned = []
        if floor > session.floor:
            session.floor = floor
            for seq in [s for s in session.calls if s < floor]:
                entry = session.calls.pop(seq)
                self._drop(entry)
                entry.gone = True
                if entry.running:
                    abandoned.append(entry)
        return abandoned

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
        session = self._sessions.get((source, int.from_bytes(id[:8], "big")))
        return session.calls.get(int.from_bytes(id[8:], "big")) if session is not None else None

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
        self._drop(entry)
        if not entry.gone:
            del entry.session.calls[entry.sequence]
            entry.gone = True

    def _drop(self, entry):
        if entry.reply is not None:
            del self._replies[entry]
            self._reply_bytes -= len(entry.reply) + len(entry.body)
            entry.reply, entry.body = None, b""

    def _forget_old(self, now):
        while self._sessions:
            key, session = next(iter(self._sessions.items()))
            if now - session.heard <= layout.SESSION_LIFETIME:
                return
            if any(e.running for e in session.calls.values()):
                session.heard = now
                self._sessions.move_to_end(key)
                continue
            for entry in session.calls.values():
                self._drop(entry)
                entry.gone = True
            del self._sessions[key]
