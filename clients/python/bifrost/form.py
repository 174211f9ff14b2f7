"""How a Thrift value of any type stands in memory: docs/by-reference.md, "The form of values".

A type is a pair, as in the thrift_spec that Thrift's compiler generates: (TType.LIST, (TType.I32, None, False)),
(TType.STRUCT, [Post, Post.thrift_spec]). kind_of finds it. plain says that a value has no header: binary and lists of numbers stand
so when they are by themselves.

    kind = kind_of(Feed.timeline_result, "success")
    content = encode(kind, posts)
    posts = open(kind, len(content), read)  # read(offset, size) returns bytes
    len(posts), posts[70].text, posts[500:510].load()

What open returns reads what it is asked for, and no more than a page of 4 KiB beside it. Content that is not of this form raises
Malformed, which says what is wrong and at which byte. An index, key or field that is not there is an IndexError, KeyError or
AttributeError, as everywhere in Python.
"""

from __future__ import annotations

import array
import bisect
import itertools
import struct
import uuid
import zlib
from collections.abc import Callable, ItemsView, Iterator, Mapping, Sequence, ValuesView
from typing import Any

from thrift.Thrift import TFrozenDict, TType

VERSION = 1
MAX_DEPTH = 128
MAX_SIZE = 1 << 30
PIECE = 256 << 10  # bytes that pieces collects
RUN = 1 << 20  # bytes of a list that are read at once when all elements are wanted
MAGIC = b"\xb1\xf0"
UUID = 16

NUMBERS = {TType.BYTE: "b", TType.I16: "h", TType.I32: "i", TType.I64: "q", TType.DOUBLE: "d"}
SCALARS = {TType.BOOL: "?"} | NUMBERS
SIZES = {t: struct.calcsize("<" + f) for t, f in SCALARS.items()} | {UUID: 16}
CONTAINERS = (TType.STRUCT, TType.MAP, TType.SET, TType.LIST)
ENTRY = struct.Struct("<IIII")
FIELD = struct.Struct("<IhBx")
FOOTER = struct.Struct("<IBBxx")
END = struct.Struct("<I")

Kind = tuple  # of a TType and what a thrift_spec says of it
Read = Callable[[int, int], bytes]


class Malformed(ValueError):
    """Content is not of this form."""


class Newer(Malformed):
    """Content has a newer version of the form."""


class Nested(Malformed):
    """Values are too deep within each other."""


def kind_of(cls: type, field: str | None = None) -> Kind:
    """The type of a generated struct or, with field, of one of its fields: kind_of(Feed.timeline_result, "success")."""
    if field is None:
        return TType.STRUCT, [cls, cls.thrift_spec]  # type: ignore[attr-defined]
    for f in cls.thrift_spec or ():  # type: ignore[attr-defined]
        if f and f[2] == field:
            return f[1], f[3]
    raise AttributeError("%s has no field %s" % (cls.__name__, field))


def is_plain(kind: Kind) -> bool:
    """Whether values of a type stand without header when they are by themselves, if the IDL has no enum or typedef for the numbers."""
    return tuple(kind) == (TType.STRING, "BINARY") or kind[0] == TType.LIST and kind[1][0] in NUMBERS


def encode(kind: Kind, value: Any, plain: bool = False) -> bytes:
    """The content of a value."""
    return b"".join(pieces(kind, value, plain))


def pieces(kind: Kind, value: Any, plain: bool = False) -> Iterator[bytes]:
    """The content of a value, a quarter of a megabyte or more at a time but for the last piece. The value of a list or set may be any
    iterable, that of a map one of pairs, too: one element is held at a time, and 4 bytes for each, 60 for an entry of a map."""
    if plain:
        yield from _plain_pieces(kind, value)
        return
    out = _Out(MAGIC + bytes((VERSION, kind[0], 0, 0, 0, 0)))
    out.gone = -8
    if kind[0] in CONTAINERS:
        for _ in _container(out, kind, value, 1):
            if len(out) >= PIECE:
                yield bytes(out)
                out.gone += len(out)
                out.clear()
            if out.at() > MAX_SIZE:
                break
    else:
        _put(out, kind, value, 0)
    if out.at() > MAX_SIZE:
        raise Malformed("a value of more than %d bytes" % MAX_SIZE)
    yield bytes(out)


def _plain_pieces(kind, value):
    if kind[0] == TType.STRING:
        yield bytes(value)
        return
    form, values = NUMBERS[kind[1][0]], iter(value)
    while True:
        some = list(itertools.islice(values, PIECE // SIZES[kind[1][0]]))
        yield struct.pack("<%d%s" % (len(some), form), *some)
        if len(some) < PIECE // SIZES[kind[1][0]]:
            return


def decode(kind: Kind, content: bytes, plain: bool = False) -> Any:
    """The value of content."""
    if plain:
        return _plain(kind, len(content), lambda at, size: content[at : at + size]).load()
    _check(kind, content[:8])
    return _get(kind, memoryview(content)[8:], 8, 0)


def open(kind: Kind, length: int, read: Read, plain: bool = False) -> Any:  # noqa: A001 - as io.open
    """What reads parts of content when they are asked for: a List for a list or set, a Map, a Struct for a struct or union, a Binary for a
    plain binary. A value of any other type is read at once. It may be used concurrently if read may."""
    if plain:
        return _plain(kind, length, read)
    source = _Source(read, length)
    _check(kind, source.read(0, min(8, length)))
    return _place(kind, source, 8, length - 8, 0)


def _plain(kind, length, read):
    if kind[0] == TType.STRING:
        return Binary(length, read)
    size = SIZES[kind[1][0]]
    if length % size:
        raise Malformed("%d bytes are not a whole number of elements of %d" % (length, size))
    return List(kind, _Source(read, length), 0, length, 1, _Shape.of_numbers(length, size))


def _check(kind, header):
    if len(header) < 8 or bytes(header[:2]) != MAGIC or header[2] == 0:
        raise Malformed("no header at byte 0")
    if header[2] > VERSION:
        raise Newer("version %d at byte 2, known is %d" % (header[2], VERSION))
    if header[3] != kind[0]:
        raise Malformed("a value of type %d instead of %d at byte 3" % (header[3], kind[0]))


def _deeper(depth, at):
    if depth >= MAX_DEPTH:
        raise Nested("more than %d values within each other at byte %d" % (MAX_DEPTH, at))
    return depth + 1


def _parts(kind):
    """Return the types of a container's keys and elements."""
    t, args = kind
    if t == TType.MAP:
        return (args[0], args[1]), (args[2], args[3])
    return None, (args[0], args[1])


class _Out(bytearray):
    """Content that is being written, of which gone bytes are elsewhere already."""

    gone = 0

    def at(self):
        return self.gone + len(self)


def _put(out, kind, value, depth):
    t = kind[0]
    if t in SCALARS:
        out += struct.pack("<" + SCALARS[t], value)
    elif t == UUID:
        out += value.bytes
    elif t == TType.STRING:
        out += value if isinstance(value, (bytes, bytearray)) else value.encode()
    else:
        for _ in _container(out, kind, value, _deeper(depth, out.at() + 8)):
            pass


def _container(out, kind, value, depth):
    """Write a container, and yield behind each element."""
    t, begin, n, index = kind[0], out.at(), 0, bytearray()
    if t == TType.STRUCT:
        for field in kind[1][1] or ():
            v = getattr(value, field[2]) if field else None
            if v is not None:
                _put(out, (field[1], field[3]), v, depth)
                index += FIELD.pack(out.at() - begin, field[0], field[1])
        out += index + FOOTER.pack(len(index) // FIELD.size, 0, 0)
        return
    key, elem = _parts(kind)
    if t == TType.MAP:
        entries = []
        for k, v in value.items() if isinstance(value, Mapping) else value:
            at = out.at()
            _put(out, key, k, depth)
            mid = out.at()
            crc = zlib.crc32(memoryview(out)[at - out.gone :])
            _put(out, elem, v, depth)
            entries.append(struct.pack(">IIII", crc, at - begin, mid - begin, out.at() - begin))  # so that they sort as they are
            yield
        swapped = array.array("I", b"".join(sorted(entries)))
        swapped.byteswap()
        n, index = len(entries), swapped.tobytes()
    else:
        for n, v in enumerate(value, 1):
            _put(out, elem, v, depth)
            if elem[0] not in SIZES:
                index += END.pack(out.at() - begin)
            yield
    out += index
    out += FOOTER.pack(n, key[0] if key else 0, elem[0])


class _Shape:
    """What a footer says: how many (n), of which size, and how long the elements are together (body); the index has width bytes for each
    of them. at is where the container begins."""

    def __init__(self, kind, footer, at, length):
        if length < FOOTER.size:
            raise Malformed("%d bytes at byte %d have no footer" % (length, at))
        t = kind[0]
        self.at = at
        self.n, have_key, have = FOOTER.unpack(footer)
        size = 0
        if t == TType.STRUCT:
            self.width = FIELD.size
        else:
            key, elem = _parts(kind)
            if self.n and (have != elem[0] or have_key != (key[0] if key else 0)):
                raise Malformed("elements of type %d instead of %d at byte %d" % (have, elem[0], at))
            size = 0 if t == TType.MAP else SIZES.get(elem[0], 0)
            self.width = ENTRY.size if t == TType.MAP else 0 if size else END.size
        self.size = size
        self.body = length - FOOTER.size - self.n * self.width
        if self.body < 0 or size and self.body != self.n * size:
            raise Malformed("%d elements in %d bytes at byte %d" % (self.n, length, at))

    @classmethod
    def of_numbers(cls, length, size):
        """A list of numbers that has no footer."""
        s = cls.__new__(cls)
        s.at, s.n, s.width, s.size, s.body = 0, length // size, 0, size, length
        return s

    def span(self, begin, end):
        if not begin <= end <= self.body:
            raise Malformed("a part from %d to %d of the %d bytes at byte %d" % (begin, end, self.body, self.at))
        return begin, end

    def spans(self, index, begin=0):
        """Where elements of a list begin and end, by their part of its index."""
        for (end,) in END.iter_unpack(index):
            yield self.span(begin, end)
            begin = end

    def fields(self, index):
        """The number of each field of a struct, with its type and place."""
        begin, fields = 0, {}
        for end, number, t in FIELD.iter_unpack(index):
            fields[number] = t, *self.span(begin, end)
            begin = end
        return fields, begin

    def entry(self, b):
        crc, begin, mid, end = ENTRY.unpack(b)
        self.span(begin, mid)
        self.span(mid, end)
        return crc, begin, mid, end

    def full(self, end):
        """Refuse elements that do not fill a container: short content would be a long value."""
        if end != self.body:
            raise Malformed("elements fill %d of the %d bytes at byte %d" % (end, self.body, self.at))


def _get(kind, b, at, depth):
    """Return a value from its bytes, which begin at byte at of the content."""
    t = kind[0]
    if t in SIZES and len(b) != SIZES[t]:
        raise Malformed("%d bytes at byte %d are a value of %d" % (len(b), at, SIZES[t]))
    if t == TType.BOOL:
        return b[0] != 0
    if t in SCALARS:
        return struct.unpack("<" + SCALARS[t], b)[0]
    if t == UUID:
        return uuid.UUID(bytes=bytes(b))
    if t == TType.STRING:
        try:
            return bytes(b) if kind[1] == "BINARY" else str(b, "utf-8")
        except UnicodeDecodeError as e:
            raise Malformed("a string at byte %d that is not UTF-8" % at) from e
    depth = _deeper(depth, at)
    shape = _Shape(kind, b[max(0, len(b) - FOOTER.size) :], at, len(b))
    index = b[shape.body : shape.body + shape.n * shape.width]
    if t == TType.STRUCT:
        return _get_struct(kind, b, shape, index, depth)
    key, elem = _parts(kind)
    if t == TType.MAP:
        entries = [shape.entry(index[i : i + ENTRY.size]) for i in range(0, len(index), ENTRY.size)]
        shape.full(sum(end - begin for _, begin, _, end in entries))
        value = {_get(key, b[x:m], at + x, depth): _get(elem, b[m:e], at + m, depth) for _, x, m, e in sorted(entries, key=lambda e: e[1])}
        return TFrozenDict(value) if kind[1][4] else value
    if not shape.size:
        shape.full(END.unpack(index[-END.size :])[0] if shape.n else 0)
    return _filled(kind, _elements(elem, b[: shape.body], at, shape.spans(index), depth))


def _elements(elem, b, at, spans, depth):
    """The elements of a list whose first byte is at byte at; spans is where they are, if that is to be said."""
    if elem[0] in SCALARS:
        return (v for (v,) in struct.iter_unpack("<" + SCALARS[elem[0]], b))
    if elem[0] in SIZES:
        spans = ((i, i + SIZES[elem[0]]) for i in range(0, len(b), SIZES[elem[0]]))
    return (_get(elem, b[begin:end], at + begin, depth) for begin, end in spans)


def _filled(kind, values):
    """Return the list or set that generated code has for these elements."""
    if kind[0] == TType.SET:
        return frozenset(values) if kind[1][2] else set(values)
    return tuple(values) if kind[1][2] else list(values)


def _get_struct(kind, b, shape, index, depth):
    fields, last = shape.fields(index)
    shape.full(last)
    known = {}
    for f in kind[1][1] or ():
        t, begin, end = fields.get(f[0], (None, 0, 0)) if f else (None, 0, 0)
        if f and t == f[1]:
            known[f[2]] = _get((t, f[3]), b[begin:end], shape.at + begin, depth)
    return kind[1][0](**known)


class _Source:
    """Content that is read in parts: small ones bring a page along."""

    PAGE, MOST = 4096, 16

    def __init__(self, read, length):
        self._read, self._length, self._pages = read, length, {}

    def read(self, at, size):
        first = at // self.PAGE
        if size > self.PAGE or not size or (at + size - 1) // self.PAGE != first:
            return self._read(at, size) if size else b""
        page = self._pages.get(first)
        if page is None:
            page = self._read(first * self.PAGE, min(self.PAGE, self._length - first * self.PAGE))
            if len(self._pages) >= self.MOST:
                self._pages.clear()
            self._pages[first] = page
        return page[at % self.PAGE :][:size]


def _place(kind, source, at, length, depth):
    """Return a part that is read when it is asked for; a scalar's or string's value at once."""
    if kind[0] not in CONTAINERS:
        return _get(kind, source.read(at, length), at, depth)
    depth = _deeper(depth, at)
    shape = _Shape(kind, source.read(at + max(0, length - FOOTER.size), min(length, FOOTER.size)), at, length)
    return {TType.STRUCT: Struct, TType.MAP: Map}.get(kind[0], List)(kind, source, at, length, depth, shape)


class _Part:
    def __init__(self, kind, source, at, length, depth, shape):
        self._kind, self._source, self._at, self._length, self._depth, self._shape = kind, source, at, length, depth, shape

    def load(self) -> Any:
        """Read the whole value, as generated code has it."""
        return _get(self._kind, memoryview(self._source.read(self._at, self._length)), self._at, self._depth - 1)

    def _within(self, kind, begin, end):
        return _place(kind, self._source, self._at + begin, end - begin, self._depth)

    def _index(self, i, n=1):
        """The places of n elements from element i on."""
        return self._source.read(self._at + self._shape.body + i * self._shape.width, n * self._shape.width)


class List(_Part, Sequence):
    """A list or set. An element that is a container or struct is a part, which reads nothing but what it is asked for; any other is a value.
    A slice is a List, too, and reads nothing. `in`, index and count look at one element after the other."""

    def __init__(self, kind, source, at, length, depth, shape):
        super().__init__(kind, source, at, length, depth, shape)
        self._range = range(shape.n)  # which elements are in it

    def __len__(self) -> int:
        return len(self._range)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            part = List(self._kind, self._source, self._at, self._length, self._depth, self._shape)
            part._range = self._range[i]
            return part
        if not -len(self) <= i < len(self):
            raise IndexError("element %d of %d" % (i, len(self)))
        i = self._range[i]
        return self._within(_parts(self._kind)[1], self._begin(i), self._begin(i + 1))

    def __iter__(self) -> Iterator[Any]:
        """The elements in turn; values come a megabyte at a time."""
        if _parts(self._kind)[1][0] in CONTAINERS or self._range.step != 1:
            yield from (self[i] for i in range(len(self)))
            return
        i = 0
        while i < len(self):
            n = self._run(self._range[i])
            yield from self[i : i + n]._values()
            i += n

    def load(self) -> Any:
        """Read the elements, all at once if they stand one after the other."""
        if self._range.step == 1:
            return _filled(self._kind, self._values())
        return _filled(self._kind, (e.load() if isinstance(e, _Part) else e for e in self))

    def _begin(self, i):
        """Where element i begins, and the one before it ends."""
        if self._shape.size:
            return i * self._shape.size
        return self._shape.span(0, END.unpack(self._index(i - 1))[0])[1] if i else 0

    def _run(self, i):
        """How many elements from element i on are a megabyte, or one that is longer."""
        most = self._range.stop - i
        if self._shape.size:
            return min(most, RUN // self._shape.size)
        most = min(most, 1 << 14)  # 64 KiB of the index
        ends = struct.unpack("<%dI" % most, self._index(i, most))
        return max(1, bisect.bisect_right(ends, self._begin(i) + RUN))

    def _values(self):
        """The values of elements that stand one after the other."""
        first, n = self._range.start, len(self)
        if not n:
            return iter(())
        begin, end = self._shape.span(self._begin(first), self._begin(first + n))
        b, spans = memoryview(self._source.read(self._at + begin, end - begin)), None
        if not self._shape.size:
            spans = [(x - begin, e - begin) for x, e in self._shape.spans(self._index(first, n), begin)]
        return _elements(_parts(self._kind)[1], b, self._at + begin, spans, self._depth)


class Map(_Part, Mapping):
    """A map, whose values are as the elements of a List. A look-up reads a page or two of the index, and the value. To iterate reads the
    index, 16 bytes for each entry; entries come in the order in which they were written."""

    def __len__(self) -> int:
        return self._shape.n

    def __getitem__(self, key: Any) -> Any:
        mid, end = self._find(key)
        return self._within(_parts(self._kind)[1], mid, end)

    def __contains__(self, key: Any) -> bool:
        try:
            self._find(key)
        except KeyError:
            return False
        return True

    def __iter__(self) -> Iterator[Any]:
        for begin, mid, _ in self._entries():
            yield self._within(_parts(self._kind)[0], begin, mid)

    def items(self) -> ItemsView:
        return _Items(self)

    def values(self) -> ValuesView:
        return _Values(self)

    def _find(self, key):
        """Where the value of a key begins and ends."""
        wanted, n = _Out(), self._shape.n
        try:
            _put(wanted, _parts(self._kind)[0], key, self._depth)
        except (struct.error, AttributeError, TypeError):  # no key of this map is of that type
            raise KeyError(key) from None
        crc = zlib.crc32(wanted)
        # Checksums are spread evenly: the search begins with the page where this one should be.
        guess, near = crc * n >> 32, _Source.PAGE // ENTRY.size // 2
        low, high = max(0, guess - near), min(n, guess + near)
        if low > 0 and self._entry(low - 1)[0] >= crc:
            low, high = 0, low - 1
        elif high < n and self._entry(high)[0] < crc:
            low, high = high + 1, n
        for i in range(bisect.bisect_left(range(n), crc, low, high, key=lambda j: self._entry(j)[0]), n):
            have, begin, mid, end = self._entry(i)
            if have != crc:
                break
            if mid - begin == len(wanted) and self._source.read(self._at + begin, mid - begin) == wanted:
                return mid, end
        raise KeyError(key)

    def _entry(self, i):
        return self._shape.entry(self._index(i))

    def _entries(self):
        """Where entries and their values begin, and end."""
        index = memoryview(self._index(0, self._shape.n))
        return sorted(self._shape.entry(index[i : i + ENTRY.size])[1:] for i in range(0, len(index), ENTRY.size))


class _Items(ItemsView):
    _mapping: Map

    def __iter__(self):
        key, elem = _parts(self._mapping._kind)
        for begin, mid, end in self._mapping._entries():
            yield self._mapping._within(key, begin, mid), self._mapping._within(elem, mid, end)


class _Values(ValuesView):
    _mapping: Map

    def __iter__(self):
        for _, mid, end in self._mapping._entries():
            yield self._mapping._within(_parts(self._mapping._kind)[1], mid, end)


class Struct(_Part):
    """A struct or union. Its fields are attributes, as in generated code: one that is not set has its default, or is None. A field called
    load comes with the whole value only."""

    def __getattr__(self, name: str) -> Any:
        cls, spec = self.__dict__.get("_kind", (None, (None, ())))[1]
        for f in spec or ():
            if f and f[2] == name:
                fields, _ = self._shape.fields(self._index(0, self._shape.n))
                t, begin, end = fields.get(f[0], (None, 0, 0))
                return self._within((t, f[3]), begin, end) if t == f[1] else getattr(cls(), name)
        raise AttributeError("%s has no field %s" % (cls.__name__ if cls else "a struct", name))

    def __dir__(self) -> list[str]:
        return sorted({"load", *(f[2] for f in self._kind[1][1] or () if f)})


class Binary(Sequence):
    """A plain binary: an index is a byte, and a slice the bytes, of which no others are read."""

    def __init__(self, length: int, read: Read) -> None:
        self._length, self._read = length, read

    def load(self) -> bytes:
        """Read all bytes."""
        return self[:]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            r = range(self._length)[i]
            if not r:
                return b""
            low, high = min(r[0], r[-1]), max(r[0], r[-1])
            return bytes(self._read(low, high + 1 - low))[:: r.step]
        if not -self._length <= i < self._length:
            raise IndexError("byte %d of %d" % (i, self._length))
        return self._read(i % self._length, 1)[0]

    def __iter__(self) -> Iterator[int]:
        for at in range(0, self._length, RUN):
            yield from self._read(at, min(RUN, self._length - at))
