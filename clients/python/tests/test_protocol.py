"""What the protocols note of the messages that are written."""

import unittest

from thrift.Thrift import TMessageType, TType
from thrift.transport.TTransport import TMemoryBuffer

from bifrost.protocol import CompactProtocol, Protocol


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
