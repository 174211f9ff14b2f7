import random
import unittest

from thrift.Thrift import TType

from bifrost import form
from bifrost.ttypes import GlobalPointer, Reference

REFERENCE = (TType.STRUCT, [Reference, Reference.thrift_spec])
DEEP = (TType.MAP, (TType.STRING, "BINARY", TType.LIST, (TType.MAP, (TType.I32, None, *REFERENCE, False), False), False))


def random_deep(r):
    def blob():
        return r.randbytes(r.randrange(20))

    def ref():
        return Reference(pointer=GlobalPointer(address=blob()), length=r.randrange(1 << 62), value=r.choice([None, blob()]))

    return {blob(): [{r.randrange(1 << 31): ref() for _ in range(r.randrange(3))} for _ in range(r.randrange(4))] for _ in range(r.randrange(5))}


class FormTest(unittest.TestCase):
    def place(self, kind, content):
        self.read = 0

        def read(at, size):
            self.read += size
            return content[at:at + size]
        return form.open(kind, len(content), read)

    def test_bytes(self):
        """The bytes that package rpc/form tests, too."""
        self.assertEqual(form.encode((TType.LIST, (TType.STRING, "UTF8", False)), ["ab", "", "c"]),
                         b"\xb1\xf0\x01\x0f\0\0\0\0abc\x02\0\0\0\x02\0\0\0\x03\0\0\0\x03\0\0\0\0\x0b\0\0")
        self.assertEqual(form.encode((TType.MAP, (TType.I16, None, TType.BOOL, None, False)), {258: True}),
                         b"\xb1\xf0\x01\x0d\0\0\0\0\x02\x01\x01\xeb\x40\xe8\x04\0\0\0\0\x02\0\0\0\x03\0\0\0\x01\0\0\0\x06\x02\0\0")

    def test_round_trips(self):
        for seed in range(200):
            v = random_deep(random.Random(seed))
            b = form.encode(DEEP, v)
            self.assertEqual(form.decode(DEEP, b), v)
            m = self.place(DEEP, b)
            self.assertEqual({k: m.get(k).load() for k in v}, v)
            self.assertEqual({k: e.load() for k, e in m.items()}, v)

    def test_in_place(self):
        kind = (TType.LIST, (*REFERENCE, False))
        posts = [Reference(length=i, value=bytes(10 << 10)) for i in range(100)]
        content = form.encode(kind, posts)
        p = self.place(kind, content)
        self.assertEqual((len(p), p[70].length, p[70].pointer), (100, 70, None))
        self.assertLess(self.read, 20 << 10)
        self.assertEqual([e.length for e in p[-3:]], [97, 98, 99])
        with self.assertRaises(IndexError):
            p[100]
        with self.assertRaises(AttributeError):
            p[0].nothing

    def test_hostile(self):
        content = form.encode(DEEP, random_deep(random.Random(3)))
        newer = bytearray(content)
        newer[2] += 1
        with self.assertRaises(form.Newer):
            form.decode(DEEP, bytes(newer))
        r = random.Random(1)
        for _ in range(3000):
            bad = bytearray(content)
            bad[r.randrange(len(bad))] = r.randrange(256)
            try:
                form.decode(DEEP, bytes(bad[:r.choice([len(bad), r.randrange(len(bad))])]))
            except form.Malformed:
                pass
        kind = (TType.STRING, None)
        for _ in range(200):
            kind = (TType.LIST, (*kind, False))
        value = []
        for _ in range(198):
            value = [value]
        with self.assertRaises(form.Nested):
            form.encode(kind, value)


if __name__ == "__main__":
    unittest.main()
