"""Packets as Python objects: the call header, the memory header, pointers, parts of messages. No I/O."""

import hashlib
import hmac
import ipaddress
import struct

from . import layout
from .errors import FormatError

_RPC = struct.Struct(layout.RPC_FORMAT)
_DSM = struct.Struct(layout.DSM_FORMAT)
RPC_SIZE = _RPC.size
DSM_SIZE = _DSM.size
NO_ID = bytes(16)


class Message:
    """A call packet: the header's fields as attributes, pointers (16 bytes each), payload and trailer."""

    __slots__ = layout.RPC_FIELDS + ("pointers", "payload", "trailer")

    def __init__(self, **fields):
        for name in self.__slots__:
            setattr(self, name, fields.pop(name, 0))
        self.magic, self.version = layout.RPC_MAGIC, layout.RPC_VERSION
        for name, empty in (("method", NO_ID), ("call", NO_ID), ("parent", NO_ID), ("pointers", ()), ("payload", b""), ("trailer", b"")):
            setattr(self, name, getattr(self, name) or empty)
        if fields:
            raise TypeError("no such fields: %s" % ", ".join(fields))

    @property
    def policy(self):
        return self.flags & 3

    @property
    def refuses(self):
        """Whether an answer says that the call did not begin, since its node is gone or closes: another node may take it. What
        the Gatekeeper refuses, no other node can take; it alone puts no incarnation into a released answer."""
        gatekeepers = self.flags & layout.FLAG_RELEASED and self.callee_incarnation == 0
        return self.type == layout.TYPE_EXCEPTION and self.code == layout.UNAVAILABLE and self.flags & layout.FLAG_UNBEGUN != 0 and not gatekeepers

    def pack(self):
        """The datagram."""
        self.pointer_count, self.pointer = len(self.pointers), self.pointers[0] if self.pointers else NO_ID
        self.payload_length, self.trailer_length = len(self.payload), len(self.trailer)
        header = _RPC.pack(*(getattr(self, name) for name in layout.RPC_FIELDS))
        return b"".join((header, *self.pointers[1:], self.payload, self.trailer))

    @classmethod
    def parse(cls, b):
        """Takes a datagram apart; FormatError for anything that is not a whole, consistent call packet."""
        if len(b) < RPC_SIZE:
            raise FormatError("call header: %d bytes, want %d" % (len(b), RPC_SIZE))
        m = cls.__new__(cls)
        for name, value in zip(layout.RPC_FIELDS, _RPC.unpack_from(b)):
            setattr(m, name, value)
        if m.magic != layout.RPC_MAGIC or m.version != layout.RPC_VERSION or not layout.TYPE_CALL <= m.type <= layout.TYPE_ACK:
            raise FormatError("call header: magic %#x, version %d, type %d" % (m.magic, m.version, m.type))
        if m.reserved:
            raise FormatError("call header: the reserved field is %#x" % m.reserved)
        n = m.pointer_count
        start = RPC_SIZE + 16 * max(0, n - 1)
        if n > layout.MAX_POINTERS or (n == 0) != (m.pointer == NO_ID):
            raise FormatError("call header: %d pointers, the first is %s" % (n, m.pointer.hex()))
        if start + m.payload_length + m.trailer_length != len(b):
            raise FormatError("call header: the lengths do not add up to %d bytes" % len(b))
        m.pointers = [m.pointer] * min(n, 1) + [bytes(b[at : at + 16]) for at in range(RPC_SIZE, start, 16)]
        for p in m.pointers:
            if not is_stored(p):
                raise FormatError("call header: %s is not a global pointer" % p.hex())
        end = start + m.payload_length
        m.payload, m.trailer = bytes(b[start:end]), bytes(b[end:])
        return m


class Memory:
    """A memory packet: the header's fields as attributes, and the data behind it."""

    __slots__ = layout.DSM_FIELDS + ("data",)
    DENIAL = layout.KIND_NACK << 8 | layout.PERMISSION_DENIED

    def __init__(self, **fields):
        for name in self.__slots__:
            setattr(self, name, fields.pop(name, 0))
        self.magic, self.version = layout.DSM_MAGIC, layout.DSM_VERSION
        self.verdict, self.denial = self.verdict or layout.KIND_REQUEST << 8, self.DENIAL
        self.execution, self.reserved, self.data = self.execution or NO_ID, bytes(6), self.data or b""
        if fields:
            raise TypeError("no such fields: %s" % ", ".join(fields))

    kind = property(lambda self: self.verdict >> 8)
    status = property(lambda self: self.verdict & 0xFF)
    more = property(lambda self: self.flags >> 4)

    def pack(self):
        """The datagram."""
        return _DSM.pack(*(getattr(self, name) for name in layout.DSM_FIELDS)) + self.data

    @classmethod
    def parse(cls, b):
        """Takes a datagram apart; FormatError for anything that is not a memory packet."""
        if len(b) < DSM_SIZE:
            raise FormatError("memory header: %d bytes, want %d" % (len(b), DSM_SIZE))
        m = cls.__new__(cls)
        for name, value in zip(layout.DSM_FIELDS, _DSM.unpack_from(b)):
            setattr(m, name, value)
        if m.magic != layout.DSM_MAGIC or m.version != layout.DSM_VERSION or not layout.KIND_REQUEST <= m.kind <= layout.KIND_NACK:
            raise FormatError("memory header: magic %#x, version %d, kind %d" % (m.magic, m.version, m.kind))
        if m.members > 2 or m.copy >= max(m.members, 1):
            raise FormatError("memory header: copy %d of %d" % (m.copy, m.members))
        m.data = bytes(b[DSM_SIZE:])
        return m


def method_of(name):
    """The 16 bytes that stand for a method's name in the header."""
    b = name.encode()
    if not 1 <= len(b) <= 255 or not name.isprintable() or any(c.isspace() for c in name):
        raise ValueError("method name %r: must have 1 to 255 bytes of printable characters without spaces" % name)
    if len(b) <= 16:
        return b.ljust(16, b"\0")
    return b[:7] + b"~" + hashlib.sha256(b).digest()[:8]


def service_hash(name):
    """The low half of a service's address."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


# A call is named by a call slot and a number, in which the caller's incarnation stands above the count of its calls in the slot.


def number_of(incarnation, count):
    """The number of an incarnation's call in a slot."""
    return incarnation << layout.COUNT_BITS | count


def plain_id(node, slot, number):
    """The id of a call that no execution makes, and of one of policy none: the number of its node, slot, number. So nobody else can
    use it."""
    return ipaddress.IPv6Address(node).packed[12:] + slot.to_bytes(4, "big") + number.to_bytes(8, "big")


def slot_in(id):
    """The slot in the id of a plain call."""
    return int.from_bytes(id[4:8], "big")


def derived(id):
    """Whether an id follows from an execution's. No number has that bit."""
    return bool(id[8] & 0x80)


# A global pointer is 16 bytes, an IPv6 address:
# bytes 0-3 zero | 4 prefix | 5 machine | 6 operation | 7-15 slot, generation, offset


def make_pointer(prefix, machine, slot, generation):
    """The pointer to a region's first byte; 0 and 0 name no region of the machine."""
    return bytes((0, 0, 0, 0, prefix, machine, 0)) + (((slot << layout.GENERATION_BITS) | generation) << layout.OFFSET_BITS).to_bytes(9, "big")


def is_stored(p):
    """Whether 16 bytes can be a stored pointer."""
    return len(p) == 16 and p[:4] == bytes(4) and p[4] != 0 and p[6] == 0 and generation(p) > 0


def generation(p):
    """Which region of its slot a pointer names."""
    return int.from_bytes(p[7:], "big") >> layout.OFFSET_BITS & (1 << layout.GENERATION_BITS) - 1


def offset(p):
    """How many bytes of the region lie before the one that a pointer names."""
    return int.from_bytes(p[7:], "big") & (1 << layout.OFFSET_BITS) - 1


def with_op(p, op):
    """The address of an operation on a pointer."""
    return p[:6] + bytes((op,)) + p[7:]


def add(p, n):
    """A pointer moved by n bytes; zeros, which are no pointer, if no region is as large."""
    if not 0 <= offset(p) + n < 1 << layout.OFFSET_BITS:
        return bytes(16)
    return p[:7] + (int.from_bytes(p[7:], "big") + n).to_bytes(9, "big")


def pack_headers(headers):
    """The bytes in front of a message with FLAG_HEADERS; ValueError beyond the limits."""
    b = b"".join(len(s).to_bytes(2, "big") + s for pair in headers.items() for s in map(str.encode, pair))
    if len(headers) > layout.MAX_HEADERS or len(b) > layout.MAX_HEADER_BYTES or "" in headers:
        raise ValueError("%d headers with %d bytes: at most %d with %d bytes, each with a key" % (len(headers), len(b), layout.MAX_HEADERS, layout.MAX_HEADER_BYTES))
    return len(b).to_bytes(2, "big") + b


def take_headers(m):
    """The headers of a message, a dictionary, and the Thrift message behind them."""
    if not m.flags & layout.FLAG_HEADERS:
        return {}, m.payload
    b, message = _take_bytes(m.payload)
    headers = {}
    while b:
        key, b = _take_bytes(b)
        value, b = _take_bytes(b)
        if not key or len(headers) == layout.MAX_HEADERS:
            raise FormatError("headers: too many, or one without a key")
        headers[key.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
    return headers, message


def _take_bytes(b):
    n = int.from_bytes(b[:2], "big")
    if len(b) < 2 + n:
        raise FormatError("headers: %d bytes are left, too few" % len(b))
    return b[2 : 2 + n], b[2 + n :]


# The trailer of a call: its origin, and the ids of the executions that wait for it. The origin shows that the call
# is its caller's: a proof, and a service's hash, which is 0 for a plain call.

PROOF = 16
ORIGIN = PROOF + 8
MAX_LINEAGE = 17 * 16


def prove(m, key):
    """Puts the proof of a plain call into its trailer; a rack whose nodes have no keys has none."""
    proof = hmac.digest(key, m.call, "sha256")[:PROOF] if any(key) else bytes(PROOF)
    m.trailer = proof + m.trailer[PROOF:]


def lineage(m):
    """The ids of the executions that wait for a call of policy none, as they stand behind the origin in its trailer;
    FormatError if it has none."""
    rest = m.trailer[ORIGIN:]
    if len(m.trailer) < ORIGIN or len(rest) % 16 or len(rest) > MAX_LINEAGE:
        raise FormatError("trailer: %d bytes" % len(m.trailer))
    return rest


def arguments(m):
    """A hash of a message's arguments, in which the trailer of the first packet of an exactly-once call ends."""
    h = hashlib.blake2b(m.service.to_bytes(8, "big") + m.method, digest_size=8)
    for b in (*m.pointers, m.payload):
        h.update(b)
    return h.digest()


_ITEM = 28  # bytes of a call that is to be forgotten: id, slot, number


def forgets(calls, incarnation, budget, held=False):
    """The datagrams that tell a node to forget plain calls. If they are held, they are for the Gatekeeper."""
    most = (budget - RPC_SIZE) // _ITEM
    flags = layout.FLAG_SETTLED | layout.POLICY_RECOVER | (layout.FLAG_HELD if held else 0)
    out = []
    for at in range(0, len(calls), most):
        some = calls[at : at + most]
        m = Message(type=layout.TYPE_ONE_WAY, flags=flags, call=some[0], caller_incarnation=incarnation)
        m.payload = b"".join(id + id[4:] for id in some)  # the id, and the slot and the number in it
        out.append(m.pack())
    return out


def forgotten(m):
    """The calls that a node says it has forgotten."""
    if len(m.payload) % 16:
        raise FormatError("forgotten calls: %d bytes" % len(m.payload))
    return [m.payload[at : at + 16] for at in range(0, len(m.payload), 16)]


# The first packet of a larger message (FLAG_MORE): its payload is the length of the whole one (8 bytes), the low half of the
# address of the node to which the next parts were sent without being asked for (8; 0 is none), and the first bytes.

_OPENING = struct.Struct(">QQ")


def check_pointers(m, budget):
    """Raises ValueError if a message has more than half a packet of pointers: its first packet may have no room for them."""
    most = budget // 2 // 16
    if len(m.pointers) > most:
        raise ValueError("%d global pointers in a message, which has %d at most at this MTU: keep the data in fewer regions, or make several calls" % (len(m.pointers), most))


def first(m, budget):
    """Makes a message the first packet of itself; returns its whole payload. ValueError if it has too many pointers."""
    check_pointers(m, budget)
    whole = m.payload
    room = budget - RPC_SIZE - 16 * max(0, len(m.pointers) - 1) - len(m.trailer) - _OPENING.size
    m.flags |= layout.FLAG_MORE
    m.payload = _OPENING.pack(len(whole), 0) + whole[:room]
    return whole


def opening(m):
    """What a first packet says: the length of the whole payload, the low half of the address of the node to which the next
    parts were sent, the first bytes."""
    if len(m.payload) <= _OPENING.size:
        raise FormatError("first packet: a payload of %d bytes" % len(m.payload))
    total, to = _OPENING.unpack_from(m.payload)
    start = m.payload[_OPENING.size :]
    if total <= len(start):
        raise FormatError("first packet: %d bytes of %d" % (len(start), total))
    return total, to, start
