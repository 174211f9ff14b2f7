import enum
import itertools
import random
import struct
import unittest
import zlib

from thrift.Thrift import TType

from bifrost import form
from bifrost.ttypes import GlobalPointer, Reference

REFERENCE = form.kind_of(Reference)
DEEP = (TType.MAP, (TType.STRING, "BINARY", TType.LIST, (TType.MAP, (TType.I32, None, *REFERENCE, False), False), False))
REFERENCES = (TType.LIST, (*REFERENCE, False))
TEXTS = (TType.LIST, (TType.STRING, "UTF8", False))
LONGS = (TType.LIST, (TType.I64, None, False))
BINARY = (TType.STRING, "BINARY")


def random_deep(r):
    def blob():
        return r.randbytes(r.randrange(20))

    def ref():
        return Reference(pointer=GlobalPointer(address=blob()), length=r.randrange(1 << 62), value=r.choice([None, blob()]))

    return {blob(): [{r.randrange(1 << 31): ref() for _ in range(r.randrange(3))} for _ in range(r.randrange(4))] for _ in range(r.randrange(5))}


def taken_apart(view):
    """What a view has, read part by part."""
    if isinstance(view, form.Map):
        return {k: taken_apart(v) for k, v in view.items()}
    if isinstance(view, form.List):
        return [taken_apart(e) for e in view]
    if isinstance(view, form.Struct):
        return type(view.load())(**{name: taken_apart(getattr(view, name)) for name in dir(view) if name != "load"})
    return view


class FormTest(unittest.TestCase):
    def place(self, kind, content, plain=False):
        self.reads = []

        def read(at, size):
            self.assertTrue(0 <= at and 0 < size and at + size <= len(content))
            self.reads.append(size)
            return content[at : at + size]

        return form.open(kind, len(content), read, plain)

    def test_bytes(self):
        """The bytes that package rpc/form tests, too."""
        self.assertEqual(form.encode(TEXTS, ["ab", "", "c"]),
                         b"\xb1\xf0\x01\x0f\0\0\0\0abc\x02\0\0\0\x02\0\0\0\x03\0\0\0\x03\0\0\0\0\x0b\0\0")
        self.assertEqual(form.encode((TType.MAP, (TType.I16, None, TType.BOOL, None, False)), {258: True}),
                         b"\xb1\xf0\x01\x0d\0\0\0\0\x02\x01\x01\xeb\x40\xe8\x04\0\0\0\0\x02\0\0\0\x03\0\0\0\x01\0\0\0\x06\x02\0\0")

    def test_round_trips(self):
        for seed in range(200):
            v = random_deep(random.Random(seed))
            b = form.encode(DEEP, v)
            self.assertEqual(form.decode(DEEP, b), v)
            m = self.place(DEEP, b)
            self.assertEqual(taken_apart(m), v)
            self.assertEqual({k: m[k].load() for k in m}, v)
            self.assertEqual([e.load() for e in m.values()], list(v.values()))
            self.assertEqual(form.encode(DEEP, iter(v.items())), b)

    def test_list(self):
        """A List does what a list does, slices of slices and other steps included."""
        r, words = random.Random(1), ["w" * (i % 7) + str(i) for i in range(50)]
        for kind, values, plain in (TEXTS, words, False), (LONGS, list(range(50)), False), (LONGS, list(range(50)), True):
            view = self.place(kind, form.encode(kind, values, plain), plain)
            bounds = [None, *range(-60, 60, 7)]
            for _ in range(300):
                one, two = (slice(r.choice(bounds), r.choice(bounds), r.choice([None, 1, 2, -1, -3])) for _ in range(2))
                part, want = view[one][two], values[one][two]
                self.assertEqual((len(part), part.load(), list(part), list(reversed(part))), (len(want), want, want, want[::-1]))
                self.assertEqual([part[i] for i in range(-len(want), len(want))], [want[i] for i in range(-len(want), len(want))])
            self.assertEqual((values[7] in view, None in view, view.index(values[7]), view.count(values[7])), (True, False, 7, 1))
            for i in 50, -51:
                with self.assertRaisesRegex(IndexError, "element %d of 50" % i):
                    view[i]

    def test_map(self):
        """A Map does what a dictionary does."""
        kind = (TType.MAP, (TType.STRING, "UTF8", TType.I64, None, False))
        values = {"key %d" % i: i for i in range(3000)}
        view = self.place(kind, form.encode(kind, values))
        self.assertEqual((len(view), dict(view), list(view), list(view.values()), view == values), (3000, values, list(values), list(values.values()), True))
        self.assertEqual([view[k] for k in values], list(values.values()))
        self.assertEqual((view.get("no"), view.get("no", 3), "no" in view, 5 in view, None in view, "key 7" in view.keys()), (None, 3, False, False, False, True))
        for key in "no", 5:
            with self.assertRaises(KeyError) as caught:
                view[key]
            self.assertEqual(caught.exception.args, (key,))
        self.assertEqual(self.place(kind, form.encode(kind, {})).get("key"), None)

    def test_checksums_that_are_equal(self):
        kind = (TType.MAP, (TType.STRING, "UTF8", TType.I32, None, False))
        self.assertEqual(zlib.crc32(b"plumless"), zlib.crc32(b"buckeroo"))
        view = self.place(kind, form.encode(kind, {"plumless": 1, "buckeroo": 2}))
        self.assertEqual((view["plumless"], view["buckeroo"]), (1, 2))

    def test_checksums_that_are_not_spread(self):
        """The search for a key goes beyond the page where its checksum should be, to both sides."""
        kind = (TType.MAP, (TType.I32, None, TType.I32, None, False))
        for low, high in (0, 1 << 27), ((1 << 32) - (1 << 27), 1 << 32):
            values = {i: -i for i in range(40000) if low <= zlib.crc32(struct.pack("<i", i)) < high}
            self.assertGreater(len(values), 1000)
            view = self.place(kind, form.encode(kind, values))
            self.assertEqual(({k: view[k] for k in values}, [k for k in range(40000) if k in view]), (values, list(values)))

    def test_long_elements(self):
        texts = ["a" * (form.RUN * 3 // 2), "b", "c" * (2 * form.RUN), "d" * (form.RUN - 1), "e", "f"]
        view = self.place(TEXTS, form.encode(TEXTS, texts))
        self.assertEqual((list(view), max(self.reads)), (texts, 2 * form.RUN))

    def test_struct(self):
        view = self.place(REFERENCE, form.encode(REFERENCE, Reference(length=9, pointer=GlobalPointer(b"addr"))))
        self.assertEqual((view.length, view.pointer.address, view.value, dir(view)), (9, b"addr", None, ["length", "load", "pointer", "value"]))
        with self.assertRaisesRegex(AttributeError, "Reference has no field nothing"):
            view.nothing

    def test_defaults_and_types(self):
        """A field that is not set, or has another type, is as generated code has it."""

        class Later:
            thrift_spec = (None, (1, TType.I32, "number", None, 7), None, (3, TType.LIST, "items", (TType.I32, None, False), [1]))

            def __init__(self, number=thrift_spec[1][4], items=thrift_spec[3][4]):
                self.number, self.items = number, items

        view = self.place(form.kind_of(Later), form.encode(REFERENCE, Reference(length=9, pointer=GlobalPointer(b"addr"), value=b"v")))
        self.assertEqual((view.number, view.items, view.load().number, view.load().items), (7, [1], 7, [1]))

    def test_immutable(self):
        kind = (TType.MAP, (TType.LIST, (TType.I32, None, True), TType.SET, (TType.I32, None, True), True))
        value = form.decode(kind, form.encode(kind, {(1, 2): {3}}))
        self.assertEqual((value, hash(value) is not None, type(value[1, 2])), ({(1, 2): {3}}, True, frozenset))

    def test_reads(self):
        """How much is read: of a list of a megabyte, of a large map, of a plain binary."""
        posts = [Reference(length=i, value=bytes(10 << 10)) for i in range(100)]
        p = self.place(REFERENCES, form.encode(REFERENCES, posts))
        self.assertEqual((len(p), p[70].length, p[70].pointer), (100, 70, None))
        self.assertLess(sum(self.reads), 20 << 10)
        self.assertLessEqual(len(self.reads), 4)  # pages with the header, the footer, the index, and the element's footer and field
        self.assertEqual([e.length for e in p[-3:]], [97, 98, 99])
        before = sum(self.reads)
        self.assertEqual([e.length for e in p[40:44].load()], [40, 41, 42, 43])
        self.assertLess(sum(self.reads) - before, 48 << 10)

        kind = (TType.MAP, (TType.I32, None, TType.STRING, "UTF8", False))
        view = self.place(kind, form.encode(kind, ((i, "value %d" % i) for i in range(100000))))
        before = len(self.reads)
        self.assertEqual(view[77777], "value 77777")
        self.assertLess(len(self.reads) - before, 6)

        view = self.place(BINARY, b"0123456789" * 100000, True)
        self.assertEqual((len(view), view[3], view[-1], view[20:24], view[5:1:-2], view[9:3], self.reads), (1000000, 51, 57, b"0123", b"53", b"", [1, 1, 4, 3]))
        self.assertEqual((bytes(view), view.load()), (b"0123456789" * 100000,) * 2)
        with self.assertRaisesRegex(IndexError, "byte 1000000 of 1000000"):
            view[1000000]

        view = self.place(TEXTS, form.encode(TEXTS, (str(i) * 10 for i in range(100000))))
        self.assertEqual([*view], [str(i) * 10 for i in range(100000)])
        self.assertLess((len(self.reads), sum(self.reads)), (40, 6 << 20))

    def test_pieces(self):
        """Pieces of a value that comes as it is written; none is short but the last."""
        for kind, plain in (TEXTS, False), (LONGS, False), (LONGS, True):
            values = range(200000) if kind is LONGS else [str(i) for i in range(200000)]
            some = list(form.pieces(kind, iter(values), plain))
            self.assertGreater(len(some), 3)
            self.assertTrue(all(form.PIECE <= len(p) < 2 * form.PIECE for p in some[:-1]))
            self.assertEqual(form.decode(kind, b"".join(some), plain), list(values))
        with self.assertRaises(form.Malformed):  # more than a gigabyte; nothing of it is kept
            for _ in form.pieces((TType.LIST, (*BINARY, False)), itertools.repeat(bytes(64 << 20))):
                pass

    def test_values_of_other_types(self):
        for kind, value in (LONGS, [1 << 63]), (LONGS, ["x"]), (TEXTS, [1]), (REFERENCE, Reference(length="x")):
            with self.assertRaises((struct.error, AttributeError)):
                form.encode(kind, value)
        self.assertEqual(form.encode(LONGS, [enum.IntEnum("Digit", "ONE").ONE]), form.encode(LONGS, [1]))

    def test_hostile(self):
        """Whatever the bytes are: a value, or Malformed, read as a whole or in parts."""
        content = form.encode(DEEP, random_deep(random.Random(3)))
        newer = bytearray(content)
        newer[2] += 1
        for read in form.decode, self.place:
            with self.assertRaisesRegex(form.Newer, "version 2 at byte 2, known is 1"):
                read(DEEP, bytes(newer))
            for length in range(16):
                with self.assertRaises(form.Malformed):
                    read(DEEP, content[:length])
        r = random.Random(1)
        for _ in range(3000):
            bad = bytearray(content)
            bad[r.randrange(len(bad))] = r.randrange(256)
            bad = bytes(bad[: r.choice([len(bad), r.randrange(len(bad))])])
            for read in lambda: form.decode(DEEP, bad), lambda: taken_apart(self.place(DEEP, bad)):
                try:
                    read()
                except form.Malformed as e:
                    self.assertRegex(str(e), "byte [0-9]+")

    def test_lengths_beyond_the_content(self):
        long = form.encode(LONGS, [1, 2])[:-8] + struct.pack("<IBBxx", 1 << 31, 0, TType.I64)
        text = bytearray(form.encode(TEXTS, ["ab", "c"]))
        text[11:15] = struct.pack("<I", 99)  # where the first one ends
        for kind, content, what in (LONGS, long, "2147483648 elements in 24 bytes at byte 8"), (TEXTS, bytes(text), "from 0 to 99 of the 3 bytes at byte 8"):
            for read in lambda: form.decode(kind, content), lambda: self.place(kind, content)[0], lambda: self.place(kind, content)[1:].load():
                with self.assertRaisesRegex(form.Malformed, what):
                    read()
        with self.assertRaisesRegex(form.Malformed, "a string at byte 8 that is not UTF-8"):
            self.place(TEXTS, form.encode((TType.LIST, (*BINARY, False)), [b"\xff"]))[0]
        with self.assertRaisesRegex(form.Malformed, "elements of type 11 instead of 10 at byte 8"):
            self.place(LONGS, bytes(text))
        with self.assertRaisesRegex(form.Malformed, "17 bytes are not a whole number"):
            self.place(LONGS, bytes(17), True)

    def test_elements_that_do_not_fill(self):
        """A container with more bytes than its elements have."""
        kind = (TType.MAP, (TType.I32, None, TType.STRING, "UTF8", False))
        for kind, value, index in (TEXTS, ["ab", "c"], 8), (kind, {1: "a", 2: "b"}, 32), (REFERENCE, Reference(length=1), 8):
            content = form.encode(kind, value)
            at = len(content) - 8 - index
            with self.assertRaisesRegex(form.Malformed, "elements fill %d of the %d bytes at byte 8" % (at - 8, at - 4)):
                form.decode(kind, content[:at] + b"junk" + content[at:])

    def test_nested(self):
        kind = (TType.STRING, None)
        for _ in range(200):
            kind = (TType.LIST, (*kind, False))
        value = []
        for _ in range(198):
            value = [value]
        with self.assertRaises(form.Nested):
            form.encode(kind, value)
        content = b""  # 150 lists of one list each
        for _ in range(150):
            content += (struct.pack("<I", len(content)) + struct.pack("<IBBxx", 1, 0, TType.LIST)) if content else struct.pack("<IBBxx", 0, 0, 0)
        content = b"\xb1\xf0\x01\x0f\0\0\0\0" + content
        view = self.place(kind, content)
        with self.assertRaisesRegex(form.Nested, "more than 128 values within each other at byte 8"):
            for _ in range(150):
                view = view[0]
        with self.assertRaises(form.Nested):
            form.decode(kind, content)


if __name__ == "__main__":
    unittest.main()
