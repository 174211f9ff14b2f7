"""Packets and the calling side, without a network."""

import hmac
import unittest

from bifrost import endpoint, layout, wire
from bifrost.errors import FormatError


def call_message(session=1, sequence=1, floor=1, **fields):
    return wire.Message(type=layout.TYPE_CALL, flags=layout.FLAG_SESSION, call=wire.session_id(session, sequence), floor=floor, **fields)


class WireTest(unittest.TestCase):
    def test_there_and_back(self):
        p, q = wire.make_pointer(16, 1, 64), wire.make_pointer(16, 2, 128)
        m = call_message(payload=b"pay", trailer=b"trail", pointers=[p, q], method=wire.method_of("a" * 17))
        got = wire.Message.parse(m.pack())
        self.assertEqual((got.payload, got.trailer, got.pointers, got.method), (b"pay", b"trail", [p, q], m.method))
        self.assertEqual(wire.Memory.parse(wire.Memory(request=7, data=b"x").pack()).data, b"x")

    def test_bad_packets(self):
        whole = call_message(payload=b"pay", pointers=[wire.make_pointer(16, 1, 64)]).pack()
        for b in [whole[:n] for n in range(len(whole))] + [whole + b"x", b"\0" + whole[1:], whole[:112] + b"\1" + whole[113:]]:
            self.assertRaises(FormatError, wire.Message.parse, b)
        self.assertRaises(FormatError, wire.Memory.parse, bytes(80))

    def test_headers(self):
        headers = {"traceparent": "00-1", "name": "Bifröst", "empty": ""}
        m = call_message(payload=wire.pack_headers(headers) + b"message")
        self.assertEqual(wire.take_headers(m), ({}, m.payload))
        m.flags |= layout.FLAG_HEADERS
        self.assertEqual(wire.take_headers(m), (headers, b"message"))
        for payload in b"", b"\0", b"\0\5abc", b"\0\4\0\0\0\0":
            m.payload = payload
            self.assertRaises(FormatError, wire.take_headers, m)
        for bad in {"": "v"}, {"k": "v" * layout.MAX_HEADER_BYTES}, {str(n): "" for n in range(65)}:
            self.assertRaises(ValueError, wire.pack_headers, bad)

    def test_origin(self):
        key = bytes(range(32))
        m = call_message(trailer=bytes(wire.ORIGIN) + b"lineage")
        wire.prove(m, key)
        self.assertEqual(m.trailer, hmac.digest(key, m.call, "sha256")[:16] + bytes(8) + b"lineage")
        for without in b"", bytes(32):
            wire.prove(m, without)
            self.assertEqual(m.trailer, bytes(wire.ORIGIN) + b"lineage")

    def test_lineage(self):
        for waits in b"", bytes(range(32)), bytes(wire.MAX_LINEAGE):
            self.assertEqual(wire.lineage(call_message(trailer=b"o" * wire.ORIGIN + waits)), waits)
        for trailer in b"", bytes(wire.ORIGIN - 1), bytes(wire.ORIGIN + 17), bytes(wire.ORIGIN + wire.MAX_LINEAGE + 16):
            self.assertRaises(FormatError, wire.lineage, call_message(trailer=trailer))

    def test_refusals(self):
        refusal = dict(type=layout.TYPE_EXCEPTION, code=layout.UNAVAILABLE, callee_incarnation=7, flags=layout.FLAG_UNBEGUN)
        self.assertTrue(wire.Message(**refusal).refuses)
        self.assertTrue(wire.Message(**dict(refusal, flags=layout.FLAG_UNBEGUN | layout.FLAG_RELEASED)).refuses)
        for change in dict(type=layout.TYPE_REPLY), dict(code=layout.OVERLOADED), dict(flags=0), dict(flags=layout.FLAG_UNBEGUN | layout.FLAG_RELEASED, callee_incarnation=0):
            self.assertFalse(wire.Message(**dict(refusal, **change)).refuses)

    def test_arguments(self):
        p, q = wire.make_pointer(16, 1, 64), wire.make_pointer(16, 2, 128)
        calls = [dict(payload=b"a"), dict(payload=b"b"), dict(payload=b"a", service=1), dict(payload=b"a", method=b"m" * 16), dict(payload=b"a", pointers=[p]), dict(payload=b"a", pointers=[q])]
        self.assertEqual(len({wire.arguments(call_message(**c)) for c in calls}), len(calls))
        self.assertEqual(wire.arguments(call_message(payload=b"a", sequence=7)), wire.arguments(call_message(payload=b"a")))

    def test_forgets(self):
        calls = [wire.session_id(3, n) for n in range(100)]
        got = [wire.Message.parse(b) for b in wire.forgets(calls, 4, 1232)]
        self.assertTrue(all(len(m.pack()) <= 1232 and m.flags == layout.FLAG_SETTLED | layout.POLICY_RECOVER and m.caller_incarnation == 4 for m in got))
        self.assertEqual(b"".join(m.payload for m in got), b"".join(id + (3).to_bytes(8, "big") + n.to_bytes(8, "big") for n, id in enumerate(calls)))
        self.assertEqual(wire.forgotten(wire.Message(payload=b"".join(calls))), calls)
        self.assertRaises(FormatError, wire.forgotten, wire.Message(payload=bytes(17)))


class CallerTest(unittest.TestCase):
    def test_sessions_are_the_nodes_own(self):
        sessions = {self.begin().message.session for _ in range(10)}
        self.assertEqual((len(sessions), {s >> 32 for s in sessions}), (10, {5}))

    def setUp(self):
        self.caller = endpoint.Caller("fd00::5", iter(range(1, 100)).__next__)

    def begin(self, now=0.0, node="a", **options):
        call = endpoint.Call(wire.Message(type=layout.TYPE_CALL, flags=options.pop("flags", 0)), endpoint.RTT(), node, **options)
        self.caller.begin(now, call)
        return call

    def reply(self, call, flags=layout.FLAG_SESSION, **fields):
        return wire.Message(type=layout.TYPE_REPLY, flags=flags, call=call.message.call, **fields)

    def test_sent_until_answered(self):
        call = self.begin()
        self.assertEqual(self.caller.tick(0.01), ([], [], []))
        self.assertEqual(self.caller.tick(0.021)[0], [call])
        self.assertEqual(wire.Message.parse(call.again(0.021)).attempt, 0)
        self.assertIs(self.caller.receive(0.03, "a", self.reply(call)), call)
        self.assertIsNone(self.caller.receive(0.03, "a", self.reply(call)))
        after = self.begin()
        self.assertEqual((after.message.session, after.message.sequence), (call.message.session, call.message.sequence + 1))

    def test_what_the_switch_holds_is_released(self):
        call = self.begin(flags=layout.FLAG_HELD, held=True)
        self.assertIsNone(self.caller.receive(0.0, "a", self.reply(call)))
        self.assertIs(self.caller.receive(0.0, "a", self.reply(call, layout.FLAG_SESSION | layout.FLAG_RELEASED)), call)
        call = self.begin(flags=layout.FLAG_HELD | layout.POLICY_RECOVER, held=True, node="a")
        self.assertIsNone(self.caller.receive(0.0, "a", self.reply(call)))
        self.assertIs(self.caller.receive(0.0, "a", self.reply(call, layout.FLAG_SESSION | layout.FLAG_RELEASED)), call)
        self.assertEqual(self.caller.left(layout.SETTLE_AFTER), [("a", call.message.call)])
        settle = (call.message.session, call.message.sequence + 1)
        self.assertEqual(self.caller.tick(layout.SETTLE_AFTER)[2], [settle])
        self.caller.settled(wire.Message(call=wire.session_id(settle[0], 0), floor=settle[1] - 1))
        self.assertIsNotNone(self.caller.due())
        self.caller.settled(wire.Message(call=wire.session_id(settle[0], 0), floor=settle[1]))
        self.assertIsNone(self.caller.due())

    def test_answers_come_from_their_node(self):
        for policy in layout.POLICY_NONE, layout.POLICY_RECOVER:
            call = self.begin(flags=policy, node="a")
            self.assertIsNone(self.caller.receive(0.0, "b", self.reply(call)))
            self.assertIs(self.caller.receive(0.0, "a", self.reply(call)), call)
            call = self.begin(flags=policy, node="a")
            self.assertIs(self.caller.receive(0.0, "b", self.reply(call, layout.FLAG_SESSION | layout.FLAG_RELEASED)), call)

    def answer(self, now, node):
        call = self.begin(now, flags=layout.POLICY_RECOVER, node=node)
        self.caller.receive(now, node, self.reply(call))
        return call.message.call

    def test_nodes_are_told_what_to_forget(self):
        self.answer(0.0, "a")
        last = self.answer(0.1, "a")  # settles the first one
        self.assertEqual(self.caller.left(0.2), [])
        self.answer(0.2, "b")
        self.assertEqual(self.caller.left(0.2), [("a", last)])
        out = self.begin(0.3, flags=layout.POLICY_RECOVER, node="b")
        self.assertEqual(self.caller.left(9.0), [])  # it is not idle
        self.caller.end(out)
        self.assertEqual(self.caller.due(), 0.3 + layout.SETTLE_AFTER)
        self.assertEqual(self.caller.left(0.3 + layout.SETTLE_AFTER), [("b", out.message.call)])
        self.assertIsNone(self.caller.due())
        self.begin(2.0, node="b")
        self.begin(2.0)
        self.assertEqual(self.caller.left(9.0), [])

    def test_no_node_keeps_calls_of_policy_none(self):
        kept = self.answer(0.0, "a")
        call = self.begin(0.1, node="a")
        self.assertEqual(self.caller.left(0.1), [("a", kept)])
        self.caller.receive(0.1, "a", self.reply(call))
        self.assertIsNone(self.caller.due())

    def test_what_is_owed_is_settled_while_other_calls_are_made(self):
        call = self.begin(flags=layout.FLAG_HELD, held=True)
        self.caller.receive(0.0, "a", self.reply(call, layout.FLAG_SESSION | layout.FLAG_RELEASED))
        self.answer(0.9 * layout.SETTLE_AFTER, "a")
        self.assertEqual(len(self.caller.tick(layout.SETTLE_AFTER)[2]), 1)

    def test_restarted(self):
        first, other = self.begin(node="a"), self.begin(node="b")
        while not first.waits():
            now = first.due
            self.caller.tick(now)
        now += 0.1
        self.caller.restarted(now, "a")
        self.assertEqual(self.caller.tick(now)[0], [first])
        self.caller.restarted(now + 0.001, "a")
        self.assertEqual(first.due, now + layout.MIN_TIMEOUT)
        self.assertFalse(first.waits())
        self.assertGreater(other.due, now + 0.1)


if __name__ == "__main__":
    unittest.main()
