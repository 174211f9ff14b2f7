"""How a Thrift value of any type stands in memory: docs/by-reference.md, "The form of values".

A type is a pair, as in Thrift's generated thrift_spec: (TType.LIST, (TType.I32, None, False)),
(TType.STRUCT, [Post, Post.thrift_spec]). Binary and lists of numbers alone have no form: they
stand as they are.

    content = encode((TType.LIST, (TType.STRUCT, [Post, Post.thrift_spec], False)), posts)
    value = decode(kind, content)
    posts = open(kind, len(content), read)  # read(offset, size) returns bytes
    posts[70], posts[10:20], len(posts)
"""
import bisect
import struct
import uuid
import zlib

from thrift.Thrift import TType

VERSION = 1
MAX_DEPTH = 128
MAX_SIZE = 1 << 30
MAGIC = b"\xb1\xf0"
UUID = 16

SCALARS = {TType.BOOL: "<?", TType.BYTE: "<b", TType.I16: "<h", TType.I32: "<i", TType.I64: "<q", TType.DOUBLE: "<d"}
SIZES = {t: struct.calcsize(f) for t, f in SCALARS.items()} | {UUID: 16}
VARYING = (TType.STRING, TType.STRUCT, TType.MAP, TType.SET, TType.LIST)
ENTRY = struct.Struct("<IIII")
FIELD = struct.Struct("<IhBx")
FOOTER = struct.Struct("<IBBxx")
END = struct.Struct("<I")


class Malformed(ValueError):
    """Content is not of this form."""


class Newer(Malformed):
    """Content has a newer version of the form."""


class Nested(Malformed):
    """Values are too deep within each other."""


def encode(kind, value):
    """Return the content of a value."""
    out = bytearray(MAGIC + bytes((VERSION, kind[0], 0, 0, 0, 0)))
    _put(out, kind, value, 0)
    if len(out) - 8 > MAX_SIZE:
        raise Malformed("a value of %d bytes" % len(out))
    return bytes(out)


def decode(kind, content):
    """Return the value of content."""
    _check(kind, content[:8])
    return _get(kind, memoryview(content)[8:], 0)


def open(kind, length, read):  # noqa: A001 - as io.open
    """Return a list, map or struct of which parts are read when they are asked for."""
    _check(kind, read(0, min(8, length)))
    return _place(kind, _Source(read), 8, length - 8, 0)


def _check(kind, header):
    if len(header) < 8 or bytes(header[:2]) != MAGIC or header[2] == 0:
        raise Malformed("no header")
    if header[2] > VERSION:
        raise Newer("version %d, known is %d" % (header[2], VERSION))
    if header[3] != kind[0]:
        raise Malformed("a value of type %d instead of %d" % (header[3], kind[0]))


def _deeper(depth):
    if depth >= MAX_DEPTH:
        raise Nested("more than %d values within each other" % MAX_DEPTH)
    return depth + 1


def _parts(kind):
    """Return the types of a container's keys and elements."""
    t, args = kind
    if t == TType.MAP:
        return (args[0], args[1]), (args[2], args[3])
    return None, (args[0], args[1])


def _put(out, kind, value, depth):
    t = kind[0]
    if t in SCALARS:
        out += struct.pack(SCALARS[t], value)
    elif t == UUID:
        out += value.bytes
    elif t == TType.STRING:
        out += value if isinstance(value, (bytes, bytearray)) else value.encode()
    else:
        _put_container(out, kind, value, _deeper(depth))


def _put_container(out, kind, value, depth):
    t, begin, n, index = kind[0], len(out), 0, []
    if t == TType.STRUCT:
        for field in kind[1][1] or ():
            v = getattr(value, field[2]) if field else None
            if v is not None:
                _put(out, (field[1], field[3]), v, depth)
                index.append(FIELD.pack(len(out) - begin, field[0], field[1]))
        out += b"".join(index) + FOOTER.pack(len(index), 0, 0)
        return
    key, elem = _parts(kind)
    if t == TType.MAP:
        for k, v in value.items():
            at = len(out)
            _put(out, key, k, depth)
            mid = len(out)
            _put(out, elem, v, depth)
            index.append((zlib.crc32(out[at:mid]), at - begin, mid - begin, len(out) - begin))
        index = [ENTRY.pack(*e) for e in sorted(index)]
    else:
        for v in value:
            _put(out, elem, v, depth)
            if elem[0] not in SIZES:
                index.append(END.pack(len(out) - begin))
    n = len(value)
    out += b"".join(index) + FOOTER.pack(n, key[0] if key else 0, elem[0])


class _Shape:
    """What a footer says: how many, of which types, and where the index begins."""

    def __init__(self, kind, footer, length):
        if length < FOOTER.size:
            raise Malformed("%d bytes have no footer" % length)
        t = kind[0]
        self.n, have_key, have = FOOTER.unpack(footer)
        size = 0
        if t == TType.STRUCT:
            self.width = FIELD.size
        else:
            key, elem = _parts(kind)
            if self.n and (have != elem[0] or have_key != (key[0] if key else 0)):
                raise Malformed("elements of type %d instead of %d" % (have, elem[0]))
            size = 0 if t == TType.MAP else SIZES.get(elem[0], 0)
            self.width = ENTRY.size if t == TType.MAP else 0 if size else END.size
        self.size = size
        self.body = length - FOOTER.size - self.n * self.width
        if self.body < 0 or size and self.body != self.n * size:
            raise Malformed("%d elements in %d bytes" % (self.n, length))

    def span(self, begin, end):
        if not begin <= end <= self.body:
            raise Malformed("a part from %d to %d of %d bytes" % (begin, end, self.body))
        return begin, end

    def entry(self, b):
        crc, begin, mid, end = ENTRY.unpack(b)
        self.span(begin, mid)
        self.span(mid, end)
        return crc, begin, mid, end


def _get(kind, b, depth):
    t = kind[0]
    if t in SIZES and len(b) != SIZES[t]:
        raise Malformed("%d bytes are a value of %d" % (len(b), SIZES[t]))
    if t == TType.BOOL:
        return b[0] != 0
    if t in SCALARS:
        return struct.unpack(SCALARS[t], b)[0]
    if t == UUID:
        return uuid.UUID(bytes=bytes(b))
    if t == TType.STRING:
        try:
            return bytes(b) if kind[1] == "BINARY" else bytes(b).decode()
        except UnicodeDecodeError as e:
            raise Malformed("a string that is not UTF-8") from e
    depth = _deeper(depth)
    shape = _Shape(kind, b[max(0, len(b) - FOOTER.size):], len(b))
    if t == TType.STRUCT:
        return _get_struct(kind, b, shape, depth)
    key, elem = _parts(kind)
    if t == TType.MAP:
        entries = [shape.entry(b[shape.body + i * ENTRY.size:][:ENTRY.size]) for i in range(shape.n)]
        if sum(end - begin for _, begin, _, end in entries) != shape.body:
            raise Malformed("entries do not fill the map")
        return {_get(key, b[x:m], depth): _get(elem, b[m:e], depth) for _, x, m, e in entries}
    return _filled(t, [_get(elem, b[x:e], depth) for x, e in _spans(b, shape)])


def _filled(t, values):
    return set(values) if t == TType.SET else values


def _spans(b, shape):
    """Return where the elements of a list begin and end."""
    if shape.size:
        return [(i * shape.size, (i + 1) * shape.size) for i in range(shape.n)]
    ends = struct.unpack("<%dI" % shape.n, b[shape.body:shape.body + 4 * shape.n])
    if (ends[-1] if ends else 0) != shape.body:
        raise Malformed("elements do not fill the list")
    return [shape.span(x, e) for x, e in zip((0,) + ends, ends)]


def _fields(b, shape):
    """Return the number, the type and the place of a struct's fields."""
    begin = 0
    for i in range(shape.n):
        end, number, t = FIELD.unpack(b[i * FIELD.size:(i + 1) * FIELD.size])
        shape.span(begin, end)
        yield number, t, begin, end
        begin = end


def _get_struct(kind, b, shape, depth):
    cls, spec = kind[1]
    known = {f[0]: f for f in spec or () if f}
    value, last = cls(), 0
    for number, t, begin, end in _fields(b[shape.body:], shape):
        f, last = known.get(number), end
        if f and f[1] == t:
            setattr(value, f[2], _get((t, f[3]), b[begin:end], depth))
    if last != shape.body:
        raise Malformed("fields do not fill the struct")
    return value


class _Source:
    """Content that is read in parts: small ones bring a page along."""

    PAGE, MOST = 4096, 16

    def __init__(self, read):
        self._read, self._pages = read, {}

    def read(self, at, size):
        first = at // self.PAGE
        if size > self.PAGE or not size or (at + size - 1) // self.PAGE != first:
            return self._read(at, size) if size else b""
        if first not in self._pages:
            if len(self._pages) >= self.MOST:
                self._pages.clear()
            self._pages[first] = self._read(first * self.PAGE, self.PAGE)  # less at the end
        return self._pages[first][at % self.PAGE:][:size]


def _place(kind, source, at, length, depth):
    """Return a part that is read when it is asked for; a scalar's value at once."""
    if kind[0] not in (TType.STRUCT, TType.MAP, TType.SET, TType.LIST):
        return _get(kind, memoryview(source.read(at, length)), depth)
    cls = {TType.STRUCT: Struct, TType.MAP: Map}.get(kind[0], List)
    return cls(kind, source, at, length, _deeper(depth))


class _Part:
    def __init__(self, kind, source, at, length, depth):
        self._kind, self._source, self._at, self._length, self._depth = kind, source, at, length, depth
        footer = source.read(at + max(0, length - FOOTER.size), min(length, FOOTER.size))
        self._shape = _Shape(kind, footer, length)

    def load(self):
        """Read the whole value."""
        return _get(self._kind, memoryview(self._source.read(self._at, self._length)), self._depth - 1)

    def __len__(self):
        return self._shape.n

    def _within(self, kind, begin, end):
        return _place(kind, self._source, self._at + begin, end - begin, self._depth)

    def _index(self, i):
        return self._source.read(self._at + self._shape.body + i * self._shape.width, self._shape.width)


class List(_Part):
    """A list or set: elements are parts, or values if they are scalars or strings."""

    def __getitem__(self, i):
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        if i < 0:
            i += len(self)
        if not 0 <= i < len(self):
            raise IndexError("element %d of %d" % (i, len(self)))
        size = self._shape.size
        if size:
            return self._within(_parts(self._kind)[1], i * size, (i + 1) * size)
        begin = END.unpack(self._index(i - 1))[0] if i else 0
        return self._within(_parts(self._kind)[1], *self._shape.span(begin, END.unpack(self._index(i))[0]))


class Map(_Part):
    """A map: values are parts, or values if they are scalars or strings."""

    def get(self, key, default=None):
        """Return the value of a key."""
        kind, elem = _parts(self._kind)
        wanted = bytearray()
        _put(wanted, kind, key, self._depth)
        crc = zlib.crc32(wanted)
        i = bisect.bisect_left(range(len(self)), crc, key=lambda j: self._entry(j)[0])
        while i < len(self):
            have, begin, mid, end = self._entry(i)
            if have != crc:
                break
            if self._source.read(self._at + begin, mid - begin) == wanted:
                return self._within(elem, mid, end)
            i += 1
        return default

    def _entry(self, i):
        return self._shape.entry(self._index(i))

    def items(self):
        """Range over keys and values."""
        key, elem = _parts(self._kind)
        for i in range(len(self)):
            _, begin, mid, end = self._entry(i)
            yield self._within(key, begin, mid), self._within(elem, mid, end)


class Struct(_Part):
    """A struct or union: its fields are attributes; None if one is not set."""

    def __getattr__(self, name):
        known = {f[2]: f for f in self._kind[1][1] or () if f}
        if name.startswith("_") or name not in known:
            raise AttributeError(name)
        f = known[name]
        index = self._source.read(self._at + self._shape.body, len(self) * FIELD.size)
        for number, t, begin, end in _fields(index, self._shape):
            if number == f[0] and t == f[1]:
                return self._within((t, f[3]), begin, end)
        return None
