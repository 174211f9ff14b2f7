"""What generated Thrift code reads and writes: Thrift protocols over memory, which note the regions that global pointers lead into."""

from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.protocol.TCompactProtocol import TCompactProtocol
from thrift.Thrift import TMessageType, TType
from thrift.transport.TTransport import TMemoryBuffer

from . import layout, wire
from .errors import Error

POINTER_STRUCT = "GlobalPointer"  # its name in rpc/idl/bifrost.thrift


class _Noting:
    """Notes of the message that is written its name, its type and the regions that global pointers in it lead into, each once, and
    whether it is a reply with an exception that the IDL declares: that is every field of a result but 0. Of a message that is
    read it refuses pointers into other regions than listed: the rack has not seen them, so whoever used them would use rights of
    its own for the sender."""

    listed = None  # regions that the packet lists; None if the message has come in no packet
    _in, _address = 0, False  # how deep the reader is; whether the field that it reads may be the address of a pointer

    def begin(self, name, kind):
        """Starts to note afresh."""
        self.name, self.kind, self.regions, self._inside = name, kind, [], False
        self.declared, self._depth = False, 0

    def writeMessageBegin(self, name, type, seqid):
        self.begin(name, type)
        super().writeMessageBegin(name, type, seqid)

    def writeStructBegin(self, name):
        self._inside = name == POINTER_STRUCT
        self._depth += 1
        super().writeStructBegin(name)

    def writeFieldBegin(self, name, type, id):
        self.declared = self.declared or self._depth == 1 and self.kind == TMessageType.REPLY and id not in (0, wire.TELLS)
        super().writeFieldBegin(name, type, id)

    def writeStructEnd(self):
        self._inside = False
        self._depth -= 1
        super().writeStructEnd()

    def writeBinary(self, value):
        if self._inside and value and value != wire.NO_ID:
            pointer = bytes(value)
            if not wire.is_stored(pointer):
                raise Error(layout.BAD_REQUEST, "%s is not a global pointer" % pointer.hex(), "pointer")
            region = wire.region_of(pointer)
            if region not in self.regions:
                self.regions.append(region)
        super().writeBinary(value)

    def readStructBegin(self):
        self._in += 1
        return super().readStructBegin()

    def readStructEnd(self):
        self._in -= 1
        super().readStructEnd()

    def readFieldBegin(self):
        name, type, id = super().readFieldBegin()
        self._address = type == TType.STRING and id == 1 and self._in > 1
        return name, type, id

    def readBinary(self):
        value = super().readBinary()
        if self._address and self.listed is not None and wire.is_stored(value) and wire.region_of(value) not in self.listed:
            raise Error(layout.BAD_REQUEST, "the message has the pointer %s, its packet does not list the region" % value.hex())
        return value


class Protocol(_Noting, TBinaryProtocol):
    """The binary protocol."""

    def __init__(self, transport):
        super().__init__(transport, strictRead=True, strictWrite=True)
        self.begin("", 0)


class CompactProtocol(_Noting, TCompactProtocol):
    """The compact protocol."""

    def __init__(self, transport):
        super().__init__(transport)
        self.begin("", 0)


def protocol_of(message):
    """The class for the protocol that a message is in; Error if it is none of the two."""
    if message[:1] == b"\x80":
        return Protocol
    if message[:1] == b"\x82":
        return CompactProtocol
    raise Error(layout.BAD_REQUEST, "protocol unknown: the message begins with %r" % message[:1])


class ClientProtocol(Protocol):
    """The protocol of a generated client. What it has written becomes a call when it is flushed; the answer is what
    it reads then. One thread at a time may use it: make one for each thread, it costs nothing."""

    def __init__(self, node, service, policy, timeout):
        super().__init__(TMemoryBuffer())
        self._node, self._service, self._policy = node, service, policy
        self.timeout = timeout  # seconds for each call from now on; None for no deadline
        self.headers = {}  # of each call from now on
        self.answer_headers = {}  # of the last answer
        self.trans.flush = self._call

    def writeMessageBegin(self, name, type, seqid):
        self._fresh(b"")
        super().writeMessageBegin(name, type, seqid)

    def _fresh(self, content):
        self.trans = TMemoryBuffer(content) if content else TMemoryBuffer()
        self.trans.flush = self._call

    def _call(self):
        payload = self.trans.getvalue()
        oneway = self.kind == TMessageType.ONEWAY
        self.answer_headers, answer, self.listed = self._node.exchange(
            self._service, self.name, payload, self.regions, oneway, self._policy, self.timeout, self.headers
        )
        self._fresh(answer)
