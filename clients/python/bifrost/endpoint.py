"""The calling side, without socket, clock or thread: the shell (node.py) tells the time and does the I/O.

A Caller is not safe for concurrent use: the shell holds a lock. Times are in seconds, on one clock.
"""

from . import layout, wire
from .slots import Slots

LENT_PAUSE, MAX_LENT_PAUSE = 0.001, 0.1  # until a call is sent again that the switch has turned around as lent: at first, and at most


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


class Note:
    """A plain call of a slot, and the node whose ledger keeps it. Nobody asks for it any more when it is over, and the node is told so when it
    is due."""

    def __init__(self, node, id, due):
        self.node, self.id, self.due = node, id, due


class Call:
    """A call that is out, or a question about a former incarnation's. The shell fills in message, expires and node, and waits as it likes.

    node is whom the call goes to. slot, and more of them for a
    message of more lists, are there while the call is out, and before, when it does not wait for them any more.
    """

    def __init__(self, message, rtt, node, expires=None):
        self.message, self.rtt, self.node, self.expires = message, rtt, node, expires
        self.deadline = None  # of whoever waits
        self.waiter = None  # the shell's
        self.slots, self.slot, self.more = max(1, len(message.listed)), None, ()
        self.body = b""  # the whole payload, if message is only its first packet
        self.lends = self.gives = ()  # regions of the node's that it lends, and those that a one-way hands over
        self.begun = self.due = self.interval = 0.0
        self.restarted = 0.0  # before, no word of its node makes a copy due
        self.resent = False
        self.lent, self.unsent = 0.0, False  # the last pause because it was turned around as lent; whether its last copy was

    def at(self, m):
        """Whether a message names the call's place."""
        return (m.slot, m.number) == (self.message.slot, self.message.number)

    def again(self, now):
        """The datagram to send again."""
        if self.deadline is not None:
            self.message.timeout = milliseconds(self.deadline - now)
        return self.message.pack()


def milliseconds(left):
    """The header's form of the time that is left: 0 would mean no deadline."""
    return min(max(int(left * 1000) + 1, 1), 0xFFFFFFFF)


class Caller:
    """The calling side of a node's incarnation: numbers calls within call slots, sends them again, takes their answers. served is
    that of its slots. The switch has the slots of a call open until the call is answered: so only an answer counts that names the call's slot and
    number, and a one-way that expires goes on."""

    def __init__(self, node, incarnation, served):
        self._node, self._incarnation = node, incarnation
        self.slots = Slots(served)
        self._left = []
        self.calls = {}

    def begin(self, now, call):
        """Gives a call that has a slot its id. The shell sends call.message at once."""
        slot, m = call.slot, call.message
        m.slot, m.number = slot.number, wire.number_of(self._incarnation, slot.count)
        m.call = wire.plain_id(self._node, m.slot, m.number)
        for other in call.more:
            if other.kept:
                other.kept = self._leave(other.kept)
        kept = m.policy != layout.POLICY_NONE  # in the node's ledger
        if slot.kept and not (kept and slot.kept.node == call.node):
            slot.kept = self._leave(slot.kept)
        if kept:
            slot.kept = Note(call.node, m.call, now + layout.FORGET_AFTER)
        self._start(now, call)

    def ask(self, now, call):
        """Begins the question what has become of a former incarnation's call, whose slots it has (Slots.hold). The shell sends call.message at
        once. That call's answer ends it."""
        m = call.message
        m.call = wire.plain_id(self._node, m.slot, m.number)
        self._start(now, call)

    def _start(self, now, call):
        call.interval = call.rtt.timeout
        call.begun, call.due = now, now + call.interval
        self.calls[call.message.call] = call

    def _leave(self, note):
        """Has a node told of a call. There is no note of it then."""
        self._left.append((note.node, note.id))

    def left(self, now):
        """Plain calls that nodes are to be told to forget: (node, id) each. The slots that they were in have
        gone on to others, or are idle."""
        for slot in self.slots.idle:
            if slot.kept and slot.kept.due <= now:
                slot.kept = self._leave(slot.kept)
        left, self._left = self._left, []
        return left

    def postpone(self, now, id):
        """Lets a call wait on that its callee is fetching, or whose answer is coming; returns it, None if it is not out."""
        call = self.calls.get(id)
        if call is not None:
            call.due = now + call.interval
        return call

    def end(self, call):
        """Gives a call up, or ends it; False if it is not out. Its slot is free."""
        if self.calls.pop(call.message.call, None) is None:
            return False
        self.slots.put_back(call)
        return True

    def find(self, source, m):
        """The call that an answer from an address is to, None if none is out. It is its node's, and names its slot and number."""
        call = self.calls.get(m.call)
        answers = m.type in (layout.TYPE_REPLY, layout.TYPE_EXCEPTION)
        return call if answers and call is not None and call.node == source and call.at(m) else None

    def receive(self, now, source, m):
        """Takes a reply or exception from an address; returns the call that it ends, or None."""
        call = self.find(source, m)
        return self._answered(now, call) if call is not None else None

    def turned(self, now, source, m):
        """Takes a call or question of the node's own that the switch has sent back, with the address that it was for. Returns the call, None if
        that is not out, and whether it is over: the shell makes the outcome. One that was turned around as lent is sent again, after a pause."""
        call = self.calls.get(m.call)
        if call is None or not call.at(m) or m.type != call.message.type or source != call.node:
            return None, False
        if m.turned != layout.TURNED_LENT:
            return call, self.end(call)
        call.lent = min(max(2 * call.lent, LENT_PAUSE), MAX_LENT_PAUSE)
        call.interval, call.due, call.unsent = call.rtt.timeout, now + call.lent, True
        return call, False

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
        note = call.slot.kept
        if note and note.id == call.message.call:
            note.due = now + layout.FORGET_AFTER
        self.end(call)
        return call

    def tick(self, now):
        """The calls to send again, and those that have expired: they go on, and do not expire any more."""
        resend, expired = [], []
        for call in list(self.calls.values()):
            if call.expires is not None and call.expires <= now:
                call.expires = None
                expired.append(call)
            elif call.due <= now:
                if call.unsent:  # the next copy counts as the first
                    call.unsent, call.resent, call.begun = False, False, now
                else:
                    call.resent, call.interval = True, min(2 * call.interval, layout.MAX_TIMEOUT)
                call.due = now + call.interval
                resend.append(call)
        return resend, expired

    def due(self):
        """When tick, or left, has something to do; None while they have not."""
        times = [c.due if c.expires is None else min(c.due, c.expires) for c in self.calls.values()]
        times += [slot.kept.due for slot in self.slots.idle if slot.kept]
        return min(times, default=None)
