"""The parts of messages that exceed a packet, without socket, clock or thread.

The receiver asks for parts (a pull), and the sender obeys: it keeps nothing but the message. docs/wire.md tells the
protocol, and what counts as lost. A part that comes twice was not: the window is what it was before. Receiver.release may be called by any thread, all else by one at a time. Times are in seconds.
"""

import collections
import struct
import threading

from . import layout
from .endpoint import RTT
from .errors import FormatError

PART, PULL, DONE, GONE = layout.BULK_PART, layout.BULK_PULL, layout.BULK_DONE, layout.BULK_GONE

_HEADER = struct.Struct(layout.BULK_FORMAT)
_RANGE = struct.Struct(">QQ")
SIZE = _HEADER.size

REORDER = 3  # a part is lost when one has come that was asked for so many places later
AHEAD = 4  # times as much memory as has come of a message is taken for it
OVERTAKEN = 8  # parts further than that a part may lie, else it counts as lost
EARLY = 16  # parts that are kept although their message's first packet has not come


class Header:
    """A packet: the header's fields as attributes; ranges of a pull, (offset, length) each; data of a part."""

    __slots__ = layout.BULK_FIELDS + ("spans", "data")

    def __init__(self, **fields):
        for name in self.__slots__:
            setattr(self, name, fields.pop(name, 0))
        self.magic, self.version, self.spans, self.data = layout.BULK_MAGIC, layout.RPC_VERSION, self.spans or [], b""
        if fields:
            raise TypeError("no such fields: %s" % ", ".join(fields))

    def pack(self):
        """The datagram, without a part's data."""
        self.ranges = len(self.spans)
        return _HEADER.pack(*(getattr(self, name) for name in layout.BULK_FIELDS)) + b"".join(_RANGE.pack(*s) for s in self.spans)

    @classmethod
    def parse(cls, b):
        """Takes a datagram apart; FormatError for anything that is not a whole, consistent packet."""
        if len(b) < SIZE:
            raise FormatError("bulk header: %d bytes, want %d" % (len(b), SIZE))
        h = cls.__new__(cls)
        for name, value in zip(layout.BULK_FIELDS, _HEADER.unpack_from(b)):
            setattr(h, name, value)
        h.spans, h.data = [], memoryview(b)[SIZE:]
        if h.magic != layout.BULK_MAGIC or h.version != layout.RPC_VERSION or not PART <= h.kind <= GONE or h.answer > 1 or h.reserved:
            raise FormatError("bulk header: magic %#x, version %d, kind %d" % (h.magic, h.version, h.kind))
        if h.kind == PART:
            if h.ranges or not h.data or len(h.data) != h.size or h.offset < h.first or h.offset + h.size > h.total:
                raise FormatError("part: %d bytes at %d of %d" % (len(h.data), h.offset, h.total))
            return h
        if len(h.data) != h.ranges * _RANGE.size or (h.kind == PULL) != (h.ranges > 0) or h.ranges > layout.BULK_RANGES:
            raise FormatError("bulk header: kind %d with %d ranges in %d bytes" % (h.kind, h.ranges, len(h.data)))
        h.spans = list(_RANGE.iter_unpack(h.data))
        if h.kind == PULL:
            h._check_pull()
        return h

    def _check_pull(self):
        """Ranges are of whole parts, and ascend."""
        end = self.first
        for at, n in self.spans:
            if not n or not self.size or at < end or at + n > self.total or (at - self.first) % self.size or n % self.size and at + n < self.total:
                raise FormatError("pull: %s of %d in parts of %d" % (self.spans, self.total, self.size))
            end = at + n

    def of(self, kind, **changes):
        """A packet of another kind about the same message."""
        h = Header(**{name: getattr(self, name) for name in layout.BULK_FIELDS if name not in ("magic", "version")})
        h.kind, h.offset = kind, 0
        for name, value in changes.items():
            setattr(h, name, value)
        return h


def cut(spans, size):
    """The parts of size bytes that a pull asks for, (offset, length) each; not more than a pull may have."""
    left = layout.BULK_PULL_BYTES
    for at, n in spans:
        while n > 0:
            length = min(size, n)
            if length > left:
                return
            yield at, length
            at, n, left = at + length, n - length, left - length


def pushes(size):
    """How many parts every node takes unasked."""
    return max(1, layout.BULK_PUSH // cost(size))


def pushed(total, first, size, parts):
    """How many bytes behind the first packet's follow it without being asked for, in so many parts at most."""
    n = min(total - first, parts * size)
    return total - first if total - first - n <= min(layout.BULK_PUSH_REST, size) else n


def cost(size):
    """What a part of size bytes takes of a receive buffer."""
    return size + 1024


class Transfer:
    """A message that is being received. tag is the shell's."""

    def __init__(self, now, key, header, size, window, tag):
        self.key, self.header, self.tag = key, header, tag
        self.total, self.first, self.size = header.total, header.first, size
        self.places = -(-(self.total - self.first) // size)
        self.came = self.first  # bytes
        self.body = bytearray(min(self.total, AHEAD * self.came))
        self.asked = {}  # place: (number, when it was asked for or None), the oldest first
        self.again = []  # places that are lost
        self.next = 0  # the first place that was never asked for
        self.numbers = 0
        self.out = 0  # bytes under way, as cost counts them
        self.most, self.slow = window, window  # the window grows up to most, fast up to slow
        self.window = min(window, 2 * layout.BULK_PUSH)
        self.after_loss = 0  # what was asked for from here on has not seen the last loss
        self.before = 0  # the window before the losses of which it is not known that they were
        self.rtt, self.tries = RTT(), 0
        self.doublings = 0  # of the wait, since a part has come that was asked for once
        self.due = now + self.wait()

    def length(self, place):
        return min(self.size, self.total - self.first - place * self.size)

    def wait(self):
        """For how long nothing may come."""
        return min(self.rtt.timeout * 2**self.doublings, layout.MAX_TIMEOUT)

    def expect(self, place, when):
        """Notes that a part is under way."""
        self.numbers += 1
        self.asked[place] = self.numbers, when
        self.out += cost(self.length(place))

    def whole(self):
        return self.next == self.places and not self.asked and not self.again

    def take(self, now, h):
        """Takes a part in; False if it is known, or nobody has asked for it. FormatError: it contradicts the first packet."""
        place, rest = divmod(h.offset - self.first, self.size)
        if h.total != self.total or h.first != self.first or rest or h.size != self.length(place):
            raise FormatError("part: %d bytes at %d of %d" % (h.size, h.offset, h.total))
        if h.offset > AHEAD * self.came + OVERTAKEN * self.size:
            return False
        if place in self.asked:
            number, when = self.asked.pop(place)
            self.out -= cost(h.size)
            if when is not None:
                self.rtt.answered(now - when, False)
                self.doublings = 0
                if number > self.after_loss:
                    self.before = 0
        elif place in self.again:
            self.again.remove(place)
            number = 0
        else:
            if place < self.next:  # it comes again: what counted as lost was not
                self.window, self.before = max(self.window, self.before), 0
            return False
        self.came += h.size
        end = h.offset + h.size
        if end > len(self.body):
            self.body.extend(bytes(min(self.total, max(end, AHEAD * self.came)) - len(self.body)))
        self.body[h.offset : end] = h.data
        c = cost(h.size)
        self.window = min(self.most, self.window + (c if self.window < self.slow else c * c // self.window))
        self._lost(number)
        self.tries = 0
        self.due = now + self.wait()
        return True

    def _lost(self, number):
        """Gives up what was asked for well before the part with this number."""
        while self.asked:
            place, (n, _) = next(iter(self.asked.items()))
            if n + REORDER > number:
                return
            self._give_up(place)

    def _give_up(self, place):
        number, _ = self.asked.pop(place)
        if number > self.after_loss:  # losses of what was under way together count once
            self.after_loss = self.numbers
            self._shrink()
        self.out -= cost(self.length(place))
        self.again.append(place)

    def _shrink(self):
        self.before = self.before or self.window
        self.window = self.slow = max(self.window // 2, 2 * cost(self.size))

    def silent(self, now):
        """Gives up all that is under way, since nothing has come in time; True if it was too often."""
        self.tries += 1
        self.doublings += 1
        for place in list(self.asked):
            self._give_up(place)
        self.due = now + self.wait()
        return self.tries > layout.BULK_TRIES

    def ask(self, now, room):
        """The ranges to ask for: what is lost, and what comes next once half of the window is free. room is what
        other transfers leave of the receive buffer."""
        spans, most = [], min(self.window, room)
        self.again.sort()
        while self.again and len(spans) < layout.BULK_RANGES and (not self.out or self.out + cost(self.size) <= most):
            self._join(spans, self.again.pop(0), None)
        if self.out <= self.window // 2 and not self.again and len(spans) < layout.BULK_RANGES:
            while self.next < self.places and (not self.out or self.out + cost(self.size) <= most):
                self._join(spans, self.next, now)
                self.next += 1
        return spans

    def _join(self, spans, place, when):
        self.expect(place, when)
        at, n = self.first + place * self.size, self.length(place)
        if spans and sum(spans[-1]) == at:
            spans[-1] = spans[-1][0], spans[-1][1] + n
        else:
            spans.append((at, n))


class Receiver:
    """The receiving side of a node. window is how many bytes may be under way; message how many a message has at
    most, and the messages of one sender together; those of all have at most four times as many."""

    def __init__(self, window, message):
        self._window, self.message = window, message
        self.open = {}
        self._early = collections.deque(maxlen=EARLY)
        self._lock = threading.Lock()  # over what follows
        self._claims, self.claimed = collections.Counter(), 0

    def begin(self, now, key, header, start, size, parts, tag):
        """Takes a first packet, and what has come of its parts: key is (sender, call id, whether it is an answer), header has incarnations, total and
        first, start is the first bytes, and so many parts at most follow unasked. Returns the transfer, None if there is no room now or it is known."""
        if key in self.open or size < 1 or not self._claim(key[0], header.total):
            return None
        t = self.open[key] = Transfer(now, key, header, size, self._window, tag)
        t.body[: len(start)] = start
        if parts:
            t.next = -(-pushed(t.total, t.first, size, min(parts, pushes(size))) // size)  # it says in no pull that it takes more
            for place in range(t.next):
                t.expect(place, None)
        for k, h in [e for e in self._early if e[0] == key]:
            self._early.remove((k, h))
            try:
                t.take(now, h)
            except FormatError:
                continue
        return t

    def _claim(self, peer, n):
        with self._lock:
            if self._claims[peer] + n > self.message or self.claimed + n > 4 * self.message:
                return False
            self._claims[peer] += n
            self.claimed += n
            return True

    def release(self, peer, n):
        """Gives back what a message counts for that is whole, when nobody uses it any more."""
        with self._lock:
            self.claimed -= n
            self._claims[peer] -= n
            if not self._claims[peer]:
                del self._claims[peer]

    def end(self, key):
        """Gives a transfer up; returns it, None if there is none."""
        t = self.open.pop(key, None)
        if t is not None:
            self.release(key[0], t.total)
        return t

    def receive(self, now, key, h):
        """Takes a part in, and returns its transfer; None if it is known, or nobody has asked for it."""
        t = self.open.get(key)
        if t is None:
            self._early.append((key, h))
            return None
        return t if t.take(now, h) else None

    def finish(self, t):
        """Ends a transfer that is whole. Its bytes count until release."""
        del self.open[t.key]

    def asks(self, now):
        """The pulls to send: (transfer, packet) each."""
        pulls, out = [], sum(t.out for t in self.open.values())
        for t in self.open.values():
            others = out - t.out
            spans = t.ask(now, self._window - others)
            out = others + t.out
            if spans:
                pulls.append((t, t.header.of(PULL, offset=t.header.offset, size=t.size, spans=spans)))
        return pulls

    def tick(self, now):
        """Has what has not come asked for again; returns the transfers whose senders are silent, which have ended."""
        late = [t for t in self.open.values() if t.due <= now]
        return [self.end(t.key) for t in late if t.silent(now)]

    def due(self):
        """When tick has something to do; None while it has not."""
        return min((t.due for t in self.open.values()), default=None)
