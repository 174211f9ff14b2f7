"""Packets as Python objects: the call header, the memory header, pointers, parts of messages. No I/O."""

import hashlib
import ipaddress
import struct
import typing

from . import layout
from .errors import FormatError

_RPC = struct.Struct(layout.RPC_FORMAT)
_DSM = struct.Struct(layout.DSM_FORMAT)
_LIST = struct.Struct(layout.LIST_FORMAT)
RPC_SIZE = _RPC.size
DSM_SIZE = _DSM.size
NO_ID = bytes(16)
REF_SUFFIX = ".ref"  # behind the name of a method, in the form by reference
TELLS = 32767  # number of a field in that form: of arguments, what their caller takes; of an answer, what became of the arguments


class Message:
    """A call packet: the header's fields as attributes, payload and trailer, and listed: the regions that it lists (numbers, region_of), in
    lists of a Use and regions each (lists_of)."""

    __slots__ = layout.RPC_FIELDS + ("listed", "payload", "trailer")

    def __init__(self, **fields):
        regions = fields.pop("regions", ())
        for name in self.__slots__:
            setattr(self, name, fields.pop(name, 0))
        if regions:
            self.regions = regions
        self.magic, self.version = layout.RPC_MAGIC, layout.RPC_VERSION
        for name, empty in (("method", NO_ID), ("call", NO_ID), ("parent", NO_ID), ("listed", ()), ("payload", b""), ("trailer", b"")):
            setattr(self, name, getattr(self, name) or empty)
        if fields:
            raise TypeError("no such fields: %s" % ", ".join(fields))

    @property
    def policy(self):
        return self.flags & 3

    @property
    def regions(self):
        """All regions that the message lists. To set them lists regions of the sender's own."""
        return [r for _, some in self.listed for r in some]

    @regions.setter
    def regions(self, regions):
        self.listed = lists_of(regions)

    def lent_by(self, region):
        """The Use of a slot in which the call has lent its callee a region; NO_USE if it has not. A one-way hands its regions over."""
        if self.type == layout.TYPE_CALL:
            for at, (_, some) in enumerate(self.listed):
                if region in some:
                    return Use(self.slot + at, self.number)
        return NO_USE

    @property
    def had_before(self):
        """The regions of a reply of which the switch says that they were its receiver's before."""
        return [r for at, (_, some) in enumerate(self.listed) for i, r in enumerate(some) if self.had >> layout.LIST_REGIONS * at + i & 1]

    @property
    def refuses(self):
        """Whether an answer says that the call did not begin, since its node is gone or closes: another node may take it."""
        return self.type == layout.TYPE_EXCEPTION and self.code == layout.UNAVAILABLE and self.flags & layout.FLAG_UNBEGUN != 0

    def pack(self):
        """The datagram."""
        lists = [_pack_list(by, some) for by, some in self.listed]
        self.lists, self.turned_twin, self.had_twin = len(lists), self.turned ^ 0xFFFF, self.had ^ 0xFFFF
        self.payload_length, self.trailer_length = len(self.payload), len(self.trailer)
        header = _RPC.pack(*(getattr(self, name) for name in layout.RPC_FIELDS))
        return b"".join((header, *lists, self.payload, self.trailer))

    @classmethod
    def parse(cls, b):
        """Takes a datagram apart; FormatError for anything that is not a whole, consistent call packet."""
        if len(b) < RPC_SIZE:
            raise FormatError("call header: %d bytes, want %d" % (len(b), RPC_SIZE))
        m = cls.__new__(cls)
        for name, value in zip(layout.RPC_FIELDS, _RPC.unpack_from(b)):
            setattr(m, name, value)
        if m.magic != layout.RPC_MAGIC or m.version != layout.RPC_VERSION or not layout.TYPE_CALL <= m.type <= layout.TYPE_FORGET:
            raise FormatError("call header: magic %#x, version %d (want %d), type %d" % (m.magic, m.version, layout.RPC_VERSION, m.type))
        if m.reserved or m.reserved2 or m.turned ^ m.turned_twin != 0xFFFF or m.had ^ m.had_twin != 0xFFFF:
            raise FormatError("call header: reserved fields %#x, %#x, turned %#x, had %#x" % (m.reserved, m.reserved2, m.turned, m.had))
        if m.lists > layout.MAX_LISTS:
            raise FormatError("call header: %d lists of regions" % m.lists)
        start = RPC_SIZE + m.lists * layout.LIST_SIZE
        if start + m.payload_length + m.trailer_length != len(b):
            raise FormatError("call header: the lengths do not add up to %d bytes" % len(b))
        m.listed = _parse_lists(b[RPC_SIZE:start])
        end = start + m.payload_length
        m.payload, m.trailer = bytes(b[start:end]), bytes(b[end:])
        return m


class Use(typing.NamedTuple):
    """One use of a call slot: a call that lends, for whoever lends on or reads what it was lent."""

    slot: int
    number: int


NO_USE = Use(0, 0)  # what is one's own


def lists_of(regions, by=lambda region: NO_USE):
    """The lists of a message that names regions, each once: one for each call slot of the call. by is the Use by which its sender has a
    region. What came in one slot shares a list with nothing that came in another one. ValueError if there are too many."""
    lists = []
    regions = dict.fromkeys(regions)
    for lent in True, False:  # what is the sender's own goes wherever there is room
        for r in regions:
            use = by(r)
            if (use != NO_USE) != lent:
                continue
            for of, some in lists:
                if len(some) < layout.LIST_REGIONS and use in (NO_USE, of):
                    some.append(r)
                    break
            else:
                lists.append((use, [r]))
    if len(lists) > layout.MAX_LISTS:
        raise ValueError(
            "global pointers into more than %d regions in one message, or into regions that more than %d calls have lent: put the pointers into a region, and pass a pointer to that"
            % (layout.MAX_LISTS * layout.LIST_REGIONS, layout.MAX_LISTS)
        )
    return lists


def _pack_list(by, some):
    return _LIST.pack(by.number, by.slot, len(some), bytes(3), *some, *[0] * (layout.LIST_REGIONS - len(some)))


def _parse_lists(b):
    """The lists; FormatError for a region that is none, or is there twice."""
    lists, regions = [], set()
    for at in range(0, len(b), layout.LIST_SIZE):
        number, slot, count, reserved, *some = _LIST.unpack_from(b, at)
        named = some[:count]
        if count > layout.LIST_REGIONS or any(reserved) or any(some[count:]) or not all(is_region(r) for r in named):
            raise FormatError("call header: a list of %d regions: %s" % (count, some))
        if len(set(named)) < count or regions.intersection(named):
            raise FormatError("call header: a region is listed twice")
        lists.append((Use(slot, number), named))
        regions.update(named)
    return lists


class Memory:
    """A memory packet: the header's fields as attributes, and the data behind it."""

    __slots__ = layout.DSM_FIELDS + ("data",)
    def __init__(self, **fields):
        for name in self.__slots__:
            setattr(self, name, fields.pop(name, 0))
        self.magic, self.version = layout.DSM_MAGIC, layout.DSM_VERSION
        self.verdict = self.verdict or layout.KIND_REQUEST << 8
        self.execution, self.data = self.execution or NO_ID, self.data or b""
        if fields:
            raise TypeError("no such fields: %s" % ", ".join(fields))

    kind = property(lambda self: self.verdict >> 8)
    status = property(lambda self: self.verdict & 0xFF)
    more = property(lambda self: self.flags >> 4)

    def pack(self):
        """The datagram."""
        self.verdict_twin = self.verdict ^ 0xFFFF
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
            raise FormatError("memory header: magic %#x, version %d (want %d), kind %d" % (m.magic, m.version, layout.DSM_VERSION, m.kind))
        if m.verdict ^ m.verdict_twin != 0xFFFF:
            raise FormatError("memory header: verdict %#x, its complement %#x" % (m.verdict, m.verdict_twin))
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


# A region is named by a number of 50 bits: machine (8), slot (20), generation (22).


def region_of(p):
    """The region that a pointer leads into."""
    return p[5] << layout.SLOT_BITS + layout.GENERATION_BITS | int.from_bytes(p[7:], "big") >> layout.OFFSET_BITS


def base_of(prefix, r):
    """The pointer to a region's first byte."""
    return make_pointer(prefix, r >> layout.SLOT_BITS + layout.GENERATION_BITS, r >> layout.GENERATION_BITS & (1 << layout.SLOT_BITS) - 1, r & layout.MAX_GENERATION)


def is_region(r):
    """Whether a number can name a region."""
    return r >> 8 + layout.SLOT_BITS + layout.GENERATION_BITS == 0 and r & (1 << layout.GENERATION_BITS) - 1 != 0


def slot(p):
    """The slot of the region that a pointer names."""
    return int.from_bytes(p[7:], "big") >> layout.OFFSET_BITS + layout.GENERATION_BITS


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


# The trailer of a call has the ids of the executions that wait for it.

MAX_LINEAGE = 16 * 16


def lineage(m):
    """The ids of the executions that wait for a call of policy none, which are its trailer; FormatError if that is none."""
    if len(m.trailer) % 16 or len(m.trailer) > MAX_LINEAGE:
        raise FormatError("trailer: %d bytes" % len(m.trailer))
    return m.trailer


def arguments(m):
    """A hash of a message's arguments, in which the trailer of the first packet of an exactly-once call ends."""
    h = hashlib.blake2b(m.service.to_bytes(8, "big") + m.method, digest_size=8)
    for b in (*(r.to_bytes(8, "big") for r in m.regions), m.payload):
        h.update(b)
    return h.digest()


_ITEM = 28  # bytes of a call that is to be forgotten: id, slot, number


def forgets(calls, incarnation, budget):
    """The datagrams that tell a node to forget plain calls."""
    most = (budget - RPC_SIZE) // _ITEM
    flags = layout.FLAG_SETTLED | layout.POLICY_RECOVER
    out = []
    for at in range(0, len(calls), most):
        some = calls[at : at + most]
        m = Message(type=layout.TYPE_FORGET, flags=flags, call=some[0], caller_incarnation=incarnation)
        m.payload = b"".join(id + id[4:] for id in some)  # the id, and the slot and the number in it
        out.append(m.pack())
    return out


def forgotten(m):
    """The calls that a node says it has forgotten."""
    if len(m.payload) % 16:
        raise FormatError("forgotten calls: %d bytes" % len(m.payload))
    return [m.payload[at : at + 16] for at in range(0, len(m.payload), 16)]


# The first packet of a larger message (FLAG_MORE): its payload is the length of the whole one (8 bytes), how many of the next parts at most were sent
# without being asked for (4; 0 stands for as many as BULK_PUSH says), to which node (4, its number, which is the end of its address; 0 is none), and
# the first bytes.

_OPENING = struct.Struct(">QII")


def first(m, budget):
    """Makes a message the first packet of itself; returns its whole payload."""
    whole = m.payload
    room = budget - RPC_SIZE - len(m.listed) * layout.LIST_SIZE - len(m.trailer) - _OPENING.size
    m.flags |= layout.FLAG_MORE
    m.payload = _OPENING.pack(len(whole), 0, 0) + whole[:room]
    return whole


def is_first(datagram):
    """Whether a datagram is the first packet of a large message."""
    return bool(int.from_bytes(datagram[4:6], "big") & layout.FLAG_MORE)


def opening(m):
    """What a first packet says: the length of the whole payload, the number of the node to which the next parts were sent, how many
    at most, the first bytes."""
    if len(m.payload) <= _OPENING.size:
        raise FormatError("first packet: a payload of %d bytes" % len(m.payload))
    total, parts, to = _OPENING.unpack_from(m.payload)
    start = m.payload[_OPENING.size :]
    if total <= len(start):
        raise FormatError("first packet: %d bytes of %d" % (len(start), total))
    return total, to, parts, start
