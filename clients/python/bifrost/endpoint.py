"""The calling side, without socket, clock or thread: the shell (node.py) tells the time and does the I/O.

A Caller is not safe for concurrent use: the shell holds a lock. Times are in seconds, on one clock.
"""

from . import layout, wire

WAITS = 0.25  # after how long a pause between two copies it is asked whether the callee is there


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
        # Whom the lane's last call went to, and its id, if that node's ledger keeps it. The lane's next such call to that
        # node settles it, or word to the node (Caller.left).
        self.node = self.last = None


class Call:
    """A call that is out. The shell fills in message, held, expires and node, and waits as it likes.

    node is whom the call goes to. held: the switch holds the call, and the Gatekeeper keeps a record of it.
    """

    def __init__(self, message, rtt, node, held=False, expires=None):
        self.message, self.rtt, self.node, self.held, self.expires = message, rtt, node, held, expires
        self.deadline = None  # of whoever waits
        self.waiter = None  # the shell's
        self.lane = None
        self.body = b""  # the whole payload, if message is only its first packet
        self.begun = self.due = self.interval = 0.0
        self.restarted = 0.0  # before, no word of its node makes a copy due
        self.resent = False

    def waits(self):
        """Whether the call has waited for so long that somebody should ask whether its callee is there."""
        return self.interval >= WAITS

    def again(self, now):
        """The datagram to send again."""
        if self.deadline is not None:
            self.message.timeout = milliseconds(self.deadline - now)
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
        if call.message.policy != layout.POLICY_NONE:
            self._goes_to(lane, call.node, call.message.call)
        else:
            self._goes_to(lane, None)
        call.interval = call.rtt.timeout
        call.begun, call.due = now, now + call.interval
        self.calls[call.message.call] = call

    def _goes_to(self, lane, node, id=None):
        """Notes which node keeps a lane's next call. Nobody is told so of one to the node of the last one."""
        if lane.node not in (None, node):
            self._left.append((lane.node, lane.last))
        lane.node, lane.last = node, id

    def left(self, now):
        """Calls that their nodes are to be told to forget: (node, id) each. The lanes that they were in have gone on to
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
        Gatekeeper, the Gatekeeper has released; any other is answered by its node, or refused by the Gatekeeper."""
        call = self.calls.get(m.call)
        if call is None or m.type not in (layout.TYPE_REPLY, layout.TYPE_EXCEPTION) or not m.flags & layout.FLAG_SESSION:
            return None
        if not m.flags & layout.FLAG_RELEASED and (call.held or call.node != source):
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
