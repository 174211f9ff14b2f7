"""What the protocols note of the messages that are written."""

import unittest

from thrift.Thrift import TMessageType, TType
from thrift.transport.TTransport import TMemoryBuffer

from bifrost import wire
from bifrost.errors import Error
from bifrost.protocol import CompactProtocol, Protocol
from bifrost.ttypes import GlobalPointer


def result(protocol, kind, field, inner=None):
    """A message whose struct has one field, with a struct in it that has one, too."""
    p = protocol(TMemoryBuffer())
    p.writeMessageBegin("add", kind, 0)
    p.writeStructBegin("add_result")
    p.writeFieldBegin("value", TType.STRUCT, field)
    p.writeStructBegin("Value")
    if inner is not None:
        p.writeFieldBegin("inner", TType.BOOL, inner)
        p.writeBool(True)
        p.writeFieldEnd()
    p.writeFieldStop()
    p.writeStructEnd()
    p.writeFieldEnd()
    p.writeFieldStop()
    p.writeStructEnd()
    p.writeMessageEnd()
    return p


class RegionsTest(unittest.TestCase):
    def test_each_once(self):
        for protocol in (Protocol, CompactProtocol):
            p = protocol(TMemoryBuffer())
            for n in range(6):
                GlobalPointer(wire.add(wire.make_pointer(16, 1, n % 2, 1), n)).write(p)
            self.assertEqual(p.regions, [wire.region_of(wire.make_pointer(16, 1, n, 1)) for n in (0, 1)])

    def test_a_pointer_whose_region_is_not_listed(self):
        pointer = wire.add(wire.make_pointer(16, 1, 7, 1), 99)
        for protocol in (Protocol, CompactProtocol):
            out = protocol(TMemoryBuffer())
            out.writeStructBegin("args")
            out.writeFieldBegin("p", TType.STRUCT, 3)
            GlobalPointer(pointer).write(out)
            out.writeFieldEnd()
            out.writeFieldStop()
            out.writeStructEnd()
            for listed in None, [wire.region_of(pointer)], [], [wire.region_of(wire.make_pointer(16, 1, 7, 2))]:
                read = protocol(TMemoryBuffer(out.trans.getvalue()))
                read.listed = listed
                read.readStructBegin()
                read.readFieldBegin()
                got = GlobalPointer()
                if listed is None or wire.region_of(pointer) in listed:
                    got.read(read)
                    self.assertEqual(got.address, pointer)
                else:
                    self.assertRaisesRegex(Error, "does not list", got.read, read)


class DeclaredTest(unittest.TestCase):
    def test_exceptions_of_the_idl(self):
        for protocol in (Protocol, CompactProtocol):
            self.assertTrue(result(protocol, TMessageType.REPLY, 1).declared)
            self.assertFalse(result(protocol, TMessageType.REPLY, 0).declared)
            self.assertFalse(result(protocol, TMessageType.REPLY, 0, inner=7).declared)
            self.assertFalse(result(protocol, TMessageType.EXCEPTION, 1).declared)
            self.assertFalse(result(protocol, TMessageType.CALL, 1).declared)


if __name__ == "__main__":
    unittest.main()
