"""Symbolic execution of eBPF, as package ebpf generates it for a packet's way through a program.

Machine.paths() runs the code on a frame of any length whose every byte is a variable, and yields a State for each end.

  numbers  ints where they are known, else Words (bytes side by side) or Z3's 64-bit vectors; pointers are a region and an offset
  memory   bytes by their offset, for each region; what nobody has written is any value, except in the values of maps
  frame    bytes that are known or were written, then the rest of the frame that came
  tables   the value that a key finds is made of uninterpreted functions of the key's bytes, one for each place and size
  helpers  do what the kernel promises. Those that change a frame's length may refuse where the kernel may

What is not known here ends a path with GivenUp, which says why.
"""
import base64
import collections
import contextlib
import random
import struct

import z3

LEN = z3.BitVec("length", 64)        # of the frame that came
PORT = z3.BitVec("ingress_port", 9)  # where it came
MASK = (1 << 64) - 1
LONGEST = 9000                       # the longest frame that is looked at: helpers change the length of those above 16 KiB otherwise
STEPS, FORKS = 20_000, 150           # of one way
REDIRECT, DROP = 7, 2                # what the program returns
DROP_PORT = 511

PACKET = []


def packet(i):
    """A byte of the frame that came."""
    while len(PACKET) <= i:
        PACKET.append(z3.BitVec(f"packet[{len(PACKET)}]", 8))
    return PACKET[i]


class GivenUp(Exception):
    """The path does what the machine does not know."""


class Wrong(Exception):
    """The code does what no code may."""


class Slice:
    """The i-th byte, from the low end, of a number."""
    __slots__ = ("of", "i")

    def __init__(self, of, i):
        self.of, self.i = of, i


class Within:
    """The i-th byte of the frame if it is so long, else another one."""
    __slots__ = ("i", "other")

    def __init__(self, i, other):
        self.i, self.other = i, other


class Word:
    """A number of bytes, the lowest first; those above are zero."""
    __slots__ = ("bytes",)

    def __init__(self, elements):
        self.bytes = elements


class Pointer:
    """A place in a region; the offset is a number."""
    __slots__ = ("region", "offset")

    def __init__(self, region, offset):
        self.region, self.offset = region, offset


def small(e):
    """An expression, or the int that it is."""
    e = z3.simplify(e)
    return e.as_long() if z3.is_bv_value(e) else e


def byte(e, least):
    """A byte as an expression, when the frame has so many bytes at least."""
    if isinstance(e, int):
        return z3.BitVecVal(e, 8)
    if isinstance(e, Slice):
        return z3.Extract(8 * e.i + 7, 8 * e.i, e.of)
    if isinstance(e, Within):
        if e.i < least:
            return packet(e.i)
        return z3.If(z3.UGT(LEN, e.i), packet(e.i), byte(e.other, least))
    return e


def join(elements, least, low_first=True):
    """Bytes as one number, of as many bits."""
    parts = [byte(e, least) for e in (reversed(elements) if low_first else elements)]
    return parts[0] if len(parts) == 1 else z3.Concat(*parts)


def wide(v, least):
    """A number as a vector of 64 bits."""
    if isinstance(v, int):
        return z3.BitVecVal(v, 64)
    if isinstance(v, Word):
        e = join(v.bytes, least)
        return e if e.size() == 64 else z3.ZeroExt(64 - e.size(), e)
    if isinstance(v, Pointer):
        raise GivenUp("a pointer as a number")
    if v is None:
        raise Wrong("a register that holds nothing is used")
    return v


def signed(v):
    return v - (1 << 64) if v >> 63 else v


class Instruction:
    __slots__ = ("op", "dst", "src", "off", "imm", "wide")


def decode(code):
    """The instructions; the second half of a wide one is None, so that distances count."""
    out, at = [], 0
    while at < len(code):
        op, regs, off, imm = struct.unpack_from("<BBhi", code, at)
        i = Instruction()
        i.op, i.dst, i.src, i.off, i.imm, i.wide = op, regs & 15, regs >> 4, off, imm, 0
        at += 8
        out.append(i)
        if op == 0x18:
            i.wide = imm & 0xFFFFFFFF | struct.unpack_from("<i", code, at + 4)[0] << 32 & MASK
            at += 8
            out.append(None)
    return out


class State:
    """Where one way through the code is."""

    def __init__(self):
        self.at = 0
        self.regs = [None] * 11
        self.memory = {}      # region -> {offset: byte}
        self.head = []        # the frame's first bytes, as far as they are known or were written
        self.tail = 0         # what follows is the frame that came, from here on
        self.tag = None       # the VLAN tag beside the frame: what is written where it goes into the frame
        self.inner = None     # whether the kernel has noted that there is one in it, too
        self.least = 14       # how long the frame that came is at least
        self.array = None     # the registers
        self.counted = []     # (map, cell, offset, how much) of counters
        self.digests = []     # the bytes of each digest; of each message the text, then bytes
        self.out = None       # the interface's index
        self.result = None    # what the program returns
        self.lost = None      # the counter of a documented bound that counts the packet
        self.asked = []       # (table, key) of each lookup
        self.sums = []        # (variable, what it stands for, what is known of it) of long sums
        self.steps = 0        # instructions that were run
        self.forks = 0        # branches that went both ways
        self.fresh = 0

    def copy(self):
        s = State.__new__(State)
        s.__dict__.update(self.__dict__)
        s.regs, s.head, s.asked = self.regs[:], self.head[:], self.asked[:]
        s.counted, s.digests, s.sums = self.counted[:], self.digests[:], self.sums[:]
        s.memory = {r: dict(m) for r, m in self.memory.items()}
        return s

    def known(self):
        """What is known of the variables that stand for long sums."""
        return [known for _, _, known in self.sums]

    def length(self):
        """The frame's length now."""
        return small(LEN + z3.BitVecVal((len(self.head) - self.tail) & MASK, 64))

    def reach(self, n):
        """Makes the frame's first n bytes known ones."""
        while len(self.head) < n:
            self.head.append(packet(self.tail))
            self.tail += 1


# The words of a port's counters that count what doc.go says is dropped, and why.
BOUNDS = {32: "offload", 40: "longer than the interface's MTU", 48: "its length cannot be changed so", 56: "no such port", 64: "too many copies or steps", 72: "shorter than an Ethernet header"}

# What is looked up in maps that are not followed, by the first word of their names.
NOT_FOLLOWED = {"jobs": "copies of the packet", "clones": "copies of the packet", "meter": "a meter", "groups": "a group of an action profile", "set": "a value set", "queue_depths": "the depth of a queue"}

ALU = {
    0x00: lambda a, b: a + b, 0x10: lambda a, b: a - b, 0x20: lambda a, b: a * b, 0x40: lambda a, b: a | b, 0x50: lambda a, b: a & b,
    0xA0: lambda a, b: a ^ b,
}
JUMPS = {
    0x10: lambda a, b: a == b, 0x50: lambda a, b: a != b, 0x20: z3.UGT, 0x30: z3.UGE, 0xA0: z3.ULT, 0xB0: z3.ULE,
    0x60: lambda a, b: a > b, 0x70: lambda a, b: a >= b, 0xC0: lambda a, b: a < b, 0xD0: lambda a, b: a <= b,
    0x40: lambda a, b: a & b != 0,
}
KNOWN_JUMPS = {
    0x10: lambda a, b: a == b, 0x50: lambda a, b: a != b, 0x20: lambda a, b: a > b, 0x30: lambda a, b: a >= b, 0xA0: lambda a, b: a < b,
    0xB0: lambda a, b: a <= b, 0x60: lambda a, b: signed(a) > signed(b), 0x70: lambda a, b: signed(a) >= signed(b),
    0xC0: lambda a, b: signed(a) < signed(b), 0xD0: lambda a, b: signed(a) <= signed(b), 0x40: lambda a, b: a & b != 0,
}
SIZE = {0x00: 4, 0x08: 2, 0x10: 1, 0x18: 8}


class Machine:
    """A listing (p4switch/ebpf/validated_test.go), and what the tables may say."""

    def __init__(self, listing, tables, solver, patience, pulse):
        self.code = decode(base64.b64decode(listing["code"]))
        self.maps = {m["fd"]: m for m in listing["maps"]}
        self.tables = tables  # facts(table, key) of entries
        self.key_at, self.entry_at = listing["key"], listing["entry"]
        self.messages = listing["messages"] or []
        self.solver = solver
        self.patience = patience  # what a solver may spend on a question that the first one has given up
        self.answered = solver    # the solver that has answered the last question
        self.pulse = pulse   # is called before each question to the solver; what it raises ends the search
        self.witness = None  # a packet, and tables, that go the way so far
        self.about_length = {}
        self.ran = set()  # the instructions that some path has run
        self.covering = False  # whether paths() leaves out what it has taken before
        self.sides = []  # the choices of the way so far: (instruction, which)
        self.taken = collections.Counter()  # how often paths() took each
        self.beyond = collections.defaultdict(set)  # those that were met on ways with it, later
        self.chance = random.Random(1)
        self.open = 0  # how many choices of the way so far are still to be tried
        self.facts = {}  # what the solver has been told of the way so far, by Z3's numbers

    # ---- ways on

    def ask(self):
        """What the solver says of all that it has been told.

        It was told step by step, and so does not replace what is equal to something else. Of what it gives up another one is told all at once.
        """
        self.pulse()
        self.answered, answer = self.solver, self.solver.check()
        if answer == z3.unknown:
            self.answered = z3.SimpleSolver()
            self.answered.set("rlimit", self.patience)
            self.answered.add(self.solver.assertions())
            answer = self.answered.check()
        return answer

    @contextlib.contextmanager
    def told(self, *facts):
        """Has the solver told some facts meanwhile. What it yields is whether they are possible."""
        kept = self.witness
        new = {f.get_id(): f for f in facts if f.get_id() not in self.facts}
        self.solver.push()
        try:
            self.solver.add(*new.values())
            self.facts.update(new)
            if self.witness is None or not all(self.holds(f) for f in new.values()):
                answer = self.ask()
                self.witness = self.answered.model() if answer == z3.sat else None
                yield answer != z3.unsat
            else:
                yield True
        finally:
            self.solver.pop()
            self.witness = kept
            for f in new:
                del self.facts[f]

    def holds(self, condition):
        """Whether a condition holds of the packet, and the tables, that are known to go the way so far."""
        return z3.is_true(self.witness.eval(condition, model_completion=True))

    def ways(self, condition, first=True, known=()):
        """The truth values that a condition may have, each with the solver told so, and what else is known."""
        condition = z3.simplify(condition)
        if z3.is_true(condition) or z3.is_false(condition):
            yield z3.is_true(condition)
            return
        other = z3.simplify(z3.Not(condition))
        if condition.get_id() in self.facts or other.get_id() in self.facts:
            yield condition.get_id() in self.facts
            return
        for value in (first, not first):
            with self.told(condition if value else other, *known) as possible:
                if possible:
                    yield value

    def split(self, s, condition):
        """The truth values that a condition may have at an instruction, one that was never taken first. Two are two ways of the code."""
        at = s.at
        first = self.either(at) if self.taken[at, True] and self.taken[at, False] else not self.taken[at, True]
        for value in self.ways(condition, first, s.known()):
            more = not (self.covering and self.taken[at, not value])
            yield from self.side(at, value, int(more and value == first))
            if self.covering and self.taken[at, not value]:
                return

    def either(self, at):
        """A side of a branch by chance: half of the time the more often, the more different sides were met beyond it."""
        yes, no = len(self.beyond[at, True]), len(self.beyond[at, False])
        return self.chance.random() < self.chance.choice([0.5, (yes + 1) / (yes + no + 2)])

    def side(self, at, which, more):
        """A choice of the code, while the way goes on with it; more is how many others are to be tried."""
        self.taken[at, which] += 1
        for earlier in self.sides:
            self.beyond[earlier].add((at, which))
        self.sides.append((at, which))
        self.open += more
        try:
            yield which
        finally:
            self.sides.pop()
            self.open -= more

    def always(self, claim):
        """Whether a claim holds of all packets of the path."""
        claim = z3.simplify(claim)
        if z3.is_true(claim) or z3.is_false(claim):
            return z3.is_true(claim)
        with self.told(z3.Not(claim)) as possible:
            return not possible

    def values(self, s, e, most=48):
        """All values that a number may have at an instruction, each with the solver told so. Several are as many ways of the code."""
        if isinstance(e, int):
            yield e
            return
        e = wide(e, s.least)
        found = []
        self.solver.push()
        try:
            while (answer := self.ask()) != z3.unsat:
                if answer == z3.unknown:
                    raise GivenUp("the solver does not know")
                v = self.answered.model().eval(e, model_completion=True).as_long()
                if len(found) == most:
                    raise GivenUp("an address of which there are too many")
                found.append(v)
                self.solver.add(e != v)
        finally:
            self.solver.pop()
        at = s.at
        if self.covering:  # those that were never taken, or any one
            found = [v for v in found if not self.taken[at, v]] or [self.chance.choice(sorted(found))]
        for i, v in enumerate(found):
            with self.told(e == v):
                yield from self.side(at, v, len(found) - i - 1)

    def learn(self, state, condition):
        """Notes how long the frame is at least now."""
        if not self.mentions_length(condition):
            return
        low = state.least
        high = LONGEST if self.witness is None else self.witness.eval(LEN, model_completion=True).as_long()
        while low < high:  # the smallest length that is possible is from low to high
            middle = low + (high - low) // 8  # mostly it is the same
            with self.told(z3.ULE(LEN, middle)) as possible:
                if possible:
                    high = middle
                else:
                    low = middle + 1
        state.least = low

    def mentions_length(self, e):
        key = e.get_id()
        if key not in self.about_length:
            self.about_length[key] = e, z3.eq(e, LEN) or any(self.mentions_length(c) for c in e.children())
        return self.about_length[key][1]

    # ---- paths

    def paths(self, covering):
        """All ways through the code: (state, None), or (state, why it is given up). Of those given up nobody knows how many ways go on.

        Covering, it goes to both sides of a branch once, and then to either of them by chance: a few ways, on which is each side that it has come to.
        When it is called again it goes others, and may come to more.
        """
        self.covering = covering
        kind = z3.Concat(packet(12), packet(13))
        for tagged in (False, True):
            s = State()
            s.regs[1], s.regs[10] = Pointer("context", 0), Pointer("stack", 0)
            s.array = z3.Array("registers", z3.BitVecSort(64), z3.BitVecSort(64))
            if tagged:  # the kernel has taken the tag out of the frame
                s.least = 18
                s.head, s.tail, s.tag = [packet(i) for i in range(12)], 16, [packet(i) for i in range(12, 16)]
            with self.told(z3.UGE(LEN, s.least), *([z3.Or(kind == 0x8100, kind == 0x88A8)] if tagged else [])):
                for _ in self.side(0, tagged, int(not tagged)):
                    yield from self.run(s)

    def run(self, s):
        try:
            while s.result is None:
                s.steps += 1
                if s.steps > STEPS:
                    raise GivenUp(f"more than {STEPS} instructions")
                self.ran.add(s.at)
                i = self.code[s.at]
                s.at += 1
                kind = i.op & 7
                if kind in (5, 6):
                    if i.op in (0x05, 0x06):
                        s.at += i.off if i.op == 0x05 else i.imm
                    elif i.op == 0xE5:  # may_goto: the kernel lets it go on for long enough
                        pass
                    elif i.op == 0x85:
                        yield from self.call(s, i)
                        return
                    elif i.op == 0x95:
                        s.result = s.regs[0]
                    else:
                        condition = self.condition(s, i)
                        if condition is True:
                            s.at += i.off
                        elif condition is not False:
                            if self.choose(s, i, condition):
                                continue
                            yield from self.fork(s, condition, i.off)
                            return
                elif kind in (1, 3) and self.elsewhere(s, i):
                    yield from self.each_place(s, i)
                    return
                else:
                    self.step(s, i)
            yield s, None
        except GivenUp as e:
            yield s, str(e)

    def fork(self, s, condition, off):
        if s.forks == FORKS:
            raise GivenUp(f"more than {FORKS} branches that go both ways")
        for taken in self.split(s, condition):
            n = s.copy()
            n.forks += 1
            n.at += off if taken else 0
            self.learn(n, condition)
            yield from self.run(n)

    def choose(self, s, i, condition):
        """Runs a branch over one or two moves as a choice of values."""
        end = s.at + i.off
        if not s.at < end <= s.at + 2:
            return False
        for n in self.code[s.at:end]:
            if n is None or n.op not in (0xB7, 0xBF):
                return False
        after = s.regs[:]
        for n in self.code[s.at:end]:
            after[n.dst] = n.imm & MASK if n.op == 0xB7 else after[n.src]
        for r, (a, b) in enumerate(zip(s.regs, after)):
            if a is not b and (isinstance(a, Pointer) or isinstance(b, Pointer) or a is None):
                return False
        self.ran.update(range(s.at, end))
        for r, (a, b) in enumerate(zip(s.regs, after)):
            if a is not b:
                s.regs[r] = small(z3.If(condition, wide(a, s.least), wide(b, s.least)))
        s.at = end
        return True

    def condition(self, s, i):
        a = s.regs[i.dst]
        b = s.regs[i.src] if i.op & 8 else i.imm & MASK
        if isinstance(a, Pointer) or isinstance(b, Pointer):
            if b == 0 and i.op & 0xF0 in (0x10, 0x50):
                return i.op & 0xF0 == 0x50
            raise GivenUp("a comparison of pointers")
        jump = i.op & 0xF0
        if i.op & 7 == 6:
            raise GivenUp("a comparison of 32 bits")
        if isinstance(a, int) and isinstance(b, int):
            return KNOWN_JUMPS[jump](a, b)
        c = z3.simplify(JUMPS[jump](wide(a, s.least), wide(b, s.least)))
        return True if z3.is_true(c) else False if z3.is_false(c) else c

    def step(self, s, i):
        kind = i.op & 7
        if i.op == 0x18:
            if i.src == 1:
                s.regs[i.dst] = Pointer(("map", i.imm), 0)
            elif i.src == 4:
                s.regs[i.dst] = Pointer(("function", s.at + i.imm), 0)
            else:
                s.regs[i.dst] = i.wide
            s.at += 1
        elif kind in (4, 7):
            s.regs[i.dst] = self.alu(s, i)
        elif kind == 1:
            p = s.regs[i.src]
            s.regs[i.dst] = self.load(s, p, p.offset + i.off, SIZE[i.op & 0x18])
        elif kind in (2, 3):
            p, n = s.regs[i.dst], SIZE[i.op & 0x18]
            v = i.imm & MASK if kind == 2 else s.regs[i.src]
            if i.op & 0xE0 == 0xC0:
                self.atomic(s, i, p, v)
            else:
                self.store(s, p, p.offset + i.off, v, n)
        else:
            raise GivenUp(f"instruction {i.op:#x}")

    # ---- arithmetic

    def alu(self, s, i):
        op, a = i.op & 0xF0, s.regs[i.dst]
        if i.op == 0xDC:
            return self.swap(s, a, i.imm // 8)
        if op == 0x80:
            return -a & MASK if isinstance(a, int) else small(-wide(a, s.least))
        b = s.regs[i.src] if i.op & 8 else i.imm & MASK
        if i.op & 7 == 4:
            if op != 0xB0 or not i.op & 8:
                raise GivenUp("arithmetic of 32 bits")
            return self.binary(s, 0x50, b, 0xFFFFFFFF)
        if op == 0xB0:
            if b is None:
                raise Wrong("a register that holds nothing is used")
            return b
        if op == 0x70 and b == 16 and z3.is_expr(a) and z3.is_app_of(a, z3.Z3_OP_BADD) and a.num_args() > 2:
            a = self.name(s, a)
        return self.binary(s, op, a, b)

    def name(self, s, total):
        """A variable that stands for a sum that is going to be folded: else the solver would look into it again and again."""
        v, most = z3.BitVec(f"sum#{len(s.sums)}", 64), total.num_args() << 16
        s.sums.append((v, total, z3.ULT(v, most) if self.always(z3.ULT(total, most)) else z3.BoolVal(True)))
        s.regs = [v if r is total else r for r in s.regs]
        return v

    def binary(self, s, op, a, b):
        if op == 0x00 and isinstance(b, Pointer):
            a, b = b, a
        if isinstance(a, Pointer):
            if op in (0x00, 0x10) and not isinstance(b, Pointer):
                if isinstance(b, int):
                    b = signed(b)
                else:
                    b = wide(b, s.least)
                o = a.offset + b if op == 0 else a.offset - b
                return Pointer(a.region, o if isinstance(o, int) else small(o))
            raise GivenUp("arithmetic with pointers")
        if isinstance(a, int) and isinstance(b, int):
            return known(op, a, b)
        short = self.short(op, a, b)
        if short is not None:
            return short
        a, b = wide(a, s.least), wide(b, s.least)
        if op in ALU:
            return small(ALU[op](a, b))
        if op == 0x60:
            return small(a << (b & 63))
        if op == 0x70:
            return small(z3.LShR(a, b & 63))
        if op == 0xC0:
            return small(a >> (b & 63))
        if op == 0x30:
            return small(z3.If(b == 0, z3.BitVecVal(0, 64), z3.UDiv(a, b)))
        if op == 0x90:
            return small(z3.If(b == 0, a, z3.URem(a, b)))
        raise GivenUp(f"operation {op:#x}")

    def short(self, op, a, b):
        """What moves whole bytes keeps them apart."""
        if not isinstance(a, Word) or not isinstance(b, int):
            return None
        n = len(a.bytes)
        if op == 0x50 and b and b & (b + 1) == 0 and b.bit_length() % 8 == 0:
            return a if b.bit_length() >= 8 * n else Word(a.bytes[:b.bit_length() // 8])
        if op == 0x70 and b % 8 == 0:
            return Word(a.bytes[b // 8:]) if b // 8 < n else 0
        if op == 0x60 and b % 8 == 0 and b < 64:
            return Word(([0] * (b // 8) + list(a.bytes))[:8])
        return None

    def swap(self, s, v, n):
        if isinstance(v, int):
            return int.from_bytes((v & ((1 << 8 * n) - 1)).to_bytes(n, "little"), "big")
        return Word(list(reversed(self.bytes(v, n))))

    def bytes(self, v, n):
        """A number's low n bytes, the lowest first."""
        if isinstance(v, int):
            return [v >> 8 * k & 255 for k in range(n)]
        if isinstance(v, Word):
            return (list(v.bytes) + [0] * n)[:n]
        if isinstance(v, Pointer):
            return [Slice(v, k) for k in range(n)]
        return [Slice(v, k) for k in range(n)]

    def number(self, elements):
        """Bytes as a number, the lowest first."""
        if all(isinstance(e, int) for e in elements):
            return sum(e << 8 * k for k, e in enumerate(elements))
        first = elements[0]
        if isinstance(first, Slice) and len(elements) == 8 and all(isinstance(e, Slice) and e.of is first.of and e.i == k for k, e in enumerate(elements)):
            return first.of
        if any(isinstance(e, Slice) and isinstance(e.of, Pointer) for e in elements):
            raise GivenUp("a part of a pointer")
        return Word(elements)

    # ---- memory

    def elsewhere(self, s, i):
        """Whether an instruction goes to a place that is not known, other than a register's cell."""
        p = s.regs[i.src if i.op & 7 == 1 else i.dst]
        if not isinstance(p, Pointer):
            raise Wrong("an access by what is no pointer")
        return not isinstance(p.offset, int) and p.region not in (("value", "registers"), ("value", "crcs"))

    def each_place(self, s, i):
        p = i.src if i.op & 7 == 1 else i.dst
        for v in self.values(s, s.regs[p].offset):
            n = s.copy()
            kept = n.regs[p]
            n.regs[p] = Pointer(kept.region, signed(v))
            self.step(n, i)
            if i.op & 7 != 1 or i.dst != p:
                n.regs[p] = Pointer(kept.region, signed(v))
            yield from self.run(n)

    def load(self, s, p, at, n):
        if p.region == ("value", "registers"):
            if n != 8:
                raise Wrong("a register is read otherwise than by words")
            return small(z3.Select(s.array, wide(at if not isinstance(at, int) else at & MASK, s.least)))
        if p.region == ("value", "crcs"):
            return self.crc(s, at, n)
        m = s.memory.setdefault(p.region, {})
        missing = [k for k in range(n) if at + k not in m]
        if missing and (p.region == "context" or p.region[0] == "entry") or missing and p.region[0] == "value" and (p.region[1] == "ports" or p.region[1].startswith("tuples ")):
            return self.given(p.region, s, at, n)
        for k in missing:
            m[at + k] = self.unwritten(p.region, at + k)
        return self.number([packet(e.i) if isinstance(e, Within) and e.i < s.least else e for e in (m[at + k] for k in range(n))])

    def given(self, region, s, at, n):
        """What the kernel, or the control plane, has written."""
        if region == "context":
            return self.context(s, at, n)
        if region[0] == "entry":
            return self.number(self.bytes(self.tables.word(region[1], region[2], at, n), n))
        kind, _, table = region[1].partition(" ")
        if kind == "tuples":  # the version that counts, how many tuples it has, the default entry
            if at < 16:
                return 0 if at == 0 else z3.BitVec(f"{region[1]}[{at}]", 64)
            key = next(k for t, k in reversed(s.asked) if t == table)
            return self.number(self.bytes(self.tables.word(table, key, at - 16, n), n))
        if (at, n) == (0, 4):
            return Word(self.bytes(z3.ZeroExt(32, INDEX(region[2])), 4))
        return {(4, 4): 0xFFFFFFFF, (8, 4): 0}[(at, n)]  # the interface's longest frame, and whether it has no Ethernet header

    def unwritten(self, region, at):
        """A byte of memory that this packet has not written."""
        name = region if isinstance(region, str) else "-".join(str(part) for part in region[:2])
        return z3.BitVec(f"{name}[{at}]", 8)

    def context(self, s, at, n):
        if n != 4:
            raise Wrong("the context is read otherwise than by words of 32 bits")
        if at == 0:
            length = s.length()
            return length if isinstance(length, int) else Word(self.bytes(length, 4))
        if at == 20:
            return int(s.tag is not None)
        if at == 24 and s.tag:
            return Word([s.tag[3], s.tag[2]])
        if at == 28 and s.tag:
            return Word(s.tag[:2])
        if at in (176, 52):  # no super-packet, no checksum that is still to be written
            return 0
        if at == 48:
            return Word(self.bytes(z3.ZeroExt(55, PORT), 4))
        if at == 56:
            return Word([z3.BitVec(f"context[{at + k}]", 8) for k in range(n)])
        raise GivenUp(f"the context's field at {at}")

    def store(self, s, p, at, v, n):
        if p.region == ("value", "registers"):
            if n != 8:
                raise Wrong("a register is written otherwise than by words")
            s.array = z3.simplify(z3.Store(s.array, wide(at if not isinstance(at, int) else at & MASK, s.least), wide(v, s.least)))
            return
        if isinstance(p.region, tuple) and p.region[0] == "entry":
            raise Wrong("an entry is written")
        if isinstance(p.region, tuple) and p.region[:2] == ("value", "port_stats") and at in BOUNDS:
            s.lost = BOUNDS[at]
        if v is None:
            raise Wrong("a register that holds nothing is stored")
        m = s.memory.setdefault(p.region, {})
        for k, e in enumerate(self.bytes(v, n)):
            m[at + k] = e

    def atomic(self, s, i, p, v):
        fetch = i.imm & 1
        if i.imm & 0xF0 or SIZE[i.op & 0x18] != 8:
            raise GivenUp("an atomic operation other than an addition")
        if fetch:  # of the barrier
            s.regs[i.src] = 0
        if isinstance(p.region, tuple) and p.region[0] == "cell":
            s.counted.append((p.region[1], p.region[2], p.offset + i.off, small(wide(v, s.least))))
        elif p.region != ("value", "epochs"):
            raise GivenUp("an addition to what is no counter")

    def crc(self, s, at, n):
        """A row of the tables of CRCs: 256 of 32 bits, then 256 of 16."""
        e = wide(at if not isinstance(at, int) else at & MASK, s.least)
        first, row, shift = {4: (0, CRC32, 2), 2: (1024, CRC16, 1)}[n]
        if not self.always(z3.And(z3.ULT(e - first, 256 << shift), e & n - 1 == 0)):
            raise Wrong("an access beyond the tables of CRCs")
        return self.number(self.bytes(z3.ZeroExt(64 - 8 * n, row(z3.simplify(z3.Extract(7 + shift, shift, e)))), n))

    # ---- helpers

    def call(self, s, i):
        if i.src != 0:
            raise GivenUp("a call of a function")
        helper = HELPERS.get(i.imm)
        if helper is None:
            raise GivenUp(f"helper {i.imm}")
        for n in helper(self, s):
            n.regs[1:6] = [None] * 5
            yield from self.run(n)

    def lookup(self, s):
        m = self.maps.get(s.regs[1].region[1])
        if m is None:
            raise GivenUp("a map that the listing does not name")
        key = s.regs[2]
        name = m["name"]
        kind, _, of = name.partition(" ")
        elements = [e for k in range(0, m["key"], 4) for e in self.bytes(self.load(s, key, key.offset + k, min(4, m["key"] - k)), min(4, m["key"] - k))]
        if kind == "table":
            e = self.tables.key(of, elements, s.least)
            s.asked.append((of, e))
            facts = self.tables.facts(of, e)
            s.regs[0] = Pointer(("entry", of, e), 0)
            with self.told(*facts):
                yield s
            return
        if kind in NOT_FOLLOWED:
            raise GivenUp(NOT_FOLLOWED[kind])
        index = self.number(elements)
        if name == "epochs":
            s.regs[0] = Pointer(("value", "epochs"), 0)
            yield s
            return
        if name in ("state", "lock", "registers", "crcs"):
            if index != 0:
                raise Wrong(f"{name} has one value")
            s.regs[0] = Pointer("state" if name == "state" else ("value", name), 0)
            yield s
            return
        index = index if isinstance(index, int) else small(z3.Extract(31, 0, wide(index, s.least)))
        e = z3.BitVecVal(index, 32) if isinstance(index, int) else index
        if kind == "members":
            e = self.tables.key(name, elements, s.least)
            for there in self.split(s, self.tables.member(name, e)):
                n = s.copy()
                n.regs[0] = Pointer(("entry", name, e), 0) if there else 0
                with self.told(*self.tables.facts(name, e) if there else []):
                    yield n
            return
        if kind == "tuples":
            s.regs[0] = Pointer(("value", name), 0)
            yield s
            return
        if kind not in ("ports", "port_stats", "counter", "direct", "hits"):
            raise GivenUp(f"the map {name}")
        for inside in self.split(s, z3.ULT(e, m["entries"])):
            n = s.copy()
            if not inside:
                n.regs[0] = 0
            elif kind in ("counter", "direct"):
                n.regs[0] = Pointer(("cell", "direct" if kind == "direct" else of, e), 0)
            else:
                n.regs[0] = Pointer(("value", name, e), 0)
            with self.told(*[INDEX(e) != 0] if inside and kind == "ports" else []):
                yield n

    def processor(self, s):
        s.regs[0] = Word([z3.BitVec(f"processor[{k}]", 8) for k in range(4)])
        yield s

    def clock(self, s):
        s.fresh += 1
        s.regs[0] = z3.BitVec(f"clock#{s.fresh}", 64)
        yield s

    def random(self, s):
        raise GivenUp("a random number")

    def store_bytes(self, s):
        at, source = s.regs[2], s.regs[3]
        for n in self.values(s, s.regs[4]):
            if not isinstance(at, int):
                raise GivenUp("bytes that are written somewhere")
            for inside in self.split(s, z3.UGE(wide(s.length(), 0), at + n)):
                c = s.copy()
                c.regs[0] = 0 if inside else -14 & MASK
                if inside:
                    self.learn(c, LEN == 0)
                    c.reach(at + n)
                    for k in range(n):
                        c.head[at + k] = self.element(c, source, k)
                yield c

    def element(self, s, p, k):
        """A byte of memory."""
        m = s.memory.get(p.region, {})
        if p.offset + k in m:
            e = m[p.offset + k]
            return packet(e.i) if isinstance(e, Within) and e.i < s.least else e
        return self.bytes(self.load(s, p, p.offset + k, 1), 1)[0]

    def load_bytes(self, s):
        at, to, n = s.regs[2], s.regs[3], s.regs[4]
        first = s.tail + at - len(s.head)  # of what is read, in the frame that came
        if not isinstance(at, int) or first < 0 and at != 0:
            raise GivenUp("bytes of the frame that are read from somewhere")
        there = wide(s.length(), 0) - at
        if isinstance(n, int):
            if not self.always(z3.UGE(there, n)):
                raise GivenUp("bytes that may be behind the frame")
            most = n
        else:
            n, most = wide(n, s.least), 0
            for bound in (128, 256, 512, 1024, 2048):
                if self.always(z3.ULE(n, bound)):
                    most = bound
                    break
            else:
                raise GivenUp("any number of bytes")
            while self.always(z3.ULT(n, most)):
                most -= 4
            if not self.always(n == z3.If(z3.ULE(there, most), there, z3.BitVecVal(most, 64))):
                raise GivenUp("a number of bytes that is not what there is")
        m = s.memory.setdefault(to.region, {})
        for k in range(most):
            if at + k < len(s.head):
                m[to.offset + k] = s.head[at + k]
                continue
            old = m.get(to.offset + k)
            if old is None:
                old = self.unwritten(to.region, to.offset + k)
            m[to.offset + k] = packet(first + k) if first + k < s.least or isinstance(n, int) else Within(first + k, old)
        s.regs[0] = 0
        yield s

    def change_head(self, s):
        for n in self.values(s, s.regs[2]):
            c = s.copy()
            if n >> 31:
                c.regs[0] = -22 & MASK
            else:
                c.head = [0] * n + c.head
                c.regs[0] = 0
            yield c

    def adjust_room(self, s):
        """Room behind the Ethernet header, as the kernel makes and takes it where it knows the protocol."""
        if s.regs[3] != 1 or s.regs[4] != 0:
            raise GivenUp("room elsewhere")
        for n in self.values(s, s.regs[2]):
            n = signed(n)
            s.fresh += 1
            for made in self.split(s, z3.Bool(f"room#{s.fresh}")):
                c = s.copy()
                c.regs[0] = 0 if made else -524 & MASK
                if made and n > 0:
                    c.reach(14)
                    c.head[14:14] = [z3.BitVec(f"room#{s.fresh}[{k}]", 8) for k in range(n)]
                elif made:
                    c.reach(14 - n)
                    if not self.always(z3.UGE(wide(c.length(), 0), 14)):
                        raise GivenUp("a frame that becomes shorter than an Ethernet header")
                    del c.head[14:14 - n]
                yield c

    def vlan_push(self, s):
        if s.tag is not None:
            self.insert(s)
        s.tag = self.bytes(s.regs[2], 2) + list(reversed(self.bytes(s.regs[3], 2)))
        s.regs[0] = 0
        yield s

    def insert(self, s):
        """Puts the tag that is beside the frame into it."""
        s.reach(12)
        s.head[12:12] = s.tag
        s.inner, s.tag = True, None

    def vlan_pop(self, s):
        if s.tag is not None:
            s.tag = None
        else:
            self.take_out(s)
        s.tag = self.take_out(s)
        s.regs[0] = 0
        yield s

    def take_out(self, s):
        """Takes a tag out of the frame, if the kernel knows of one there: from then on it goes by the EtherType behind."""
        if s.inner is None:
            raise GivenUp("a tag that may be in the frame is taken out")
        if not s.inner:
            return None
        s.reach(18)
        tag = s.head[12:16]
        del s.head[12:16]
        kind = join(s.head[12:14], s.least, low_first=False)
        s.inner = not self.always(z3.And(kind != 0x8100, kind != 0x88A8))
        if s.inner and not self.always(z3.Or(kind == 0x8100, kind == 0x88A8)):
            raise GivenUp("an EtherType behind a tag that is not known")
        return tag

    def redirect(self, s):
        s.out = s.regs[1]
        s.regs[0] = REDIRECT
        yield s

    def lock(self, s):
        s.regs[0] = None
        yield s

    def digest(self, s):
        m = self.maps.get(s.regs[1].region[1])
        if m is None or m["name"] != "digests" or not isinstance(s.regs[3], int):
            raise GivenUp("a message")
        what = [self.element(s, s.regs[2], k) for k in range(s.regs[3])]
        kind = self.number(what[:4])
        if isinstance(kind, int) and 0 <= kind < len(self.messages) and self.messages[kind]:
            what = [self.messages[kind], *what[8:]]
        s.digests.append(what)
        s.regs[0] = 0
        yield s

    def loop(self, s):
        """The search in a tuple space finds what the table has for the key, or leaves the rank 0. The function that searches is not looked into."""
        told = s.regs[3]
        version = s.memory["stack"].get(told.offset + 8)
        if not isinstance(version, Slice) or not isinstance(version.of, Pointer) or not version.of.region[1].startswith("tuples "):
            raise GivenUp("copies of the packet")
        table = version.of.region[1].partition(" ")[2]
        words = [wide(self.load(s, Pointer("state", 0), self.key_at + 8 * k, 8), s.least) for k in range(self.tables.words(table))]
        key = z3.simplify(z3.Concat(*words) if len(words) > 1 else words[0])
        s.asked.append((table, key))
        with self.told(*self.tables.facts(table, key)):
            for found in self.split(s, self.tables.word(table, key, 8, 4) == 1):
                n = s.copy()
                if found:
                    n.memory["stack"].update({told.offset + 16 + k: int(k == 0) for k in range(8)})
                    for at in range(0, self.tables.size(table), 8):
                        v = self.tables.word(table, key, at, 8)
                        n.memory["state"].update({self.entry_at + at + k: Slice(v, k) for k in range(8)})
                n.regs[0] = None
                yield n

    def sum(self, s):
        raise GivenUp("a sum by the kernel")


def known(op, a, b):
    if op in ALU:
        return ALU[op](a, b) & MASK
    if op == 0x60:
        return a << (b & 63) & MASK
    if op == 0x70:
        return a >> (b & 63)
    if op == 0xC0:
        return signed(a) >> (b & 63) & MASK
    if op == 0x30:
        return a // b if b else 0
    if op == 0x90:
        return a % b if b else a
    raise GivenUp(f"operation {op:#x}")


CRC32 = z3.Function("crc32", z3.BitVecSort(8), z3.BitVecSort(32))  # what the tables say of a byte
CRC16 = z3.Function("crc16", z3.BitVecSort(8), z3.BitVecSort(16))
INDEX = z3.Function("interface", z3.BitVecSort(32), z3.BitVecSort(32))  # of a port

HELPERS = {
    1: Machine.lookup, 5: Machine.clock, 7: Machine.random, 8: Machine.processor, 9: Machine.store_bytes, 18: Machine.vlan_push, 19: Machine.vlan_pop,
    23: Machine.redirect, 26: Machine.load_bytes, 28: Machine.sum, 43: Machine.change_head, 50: Machine.adjust_room, 93: Machine.lock, 94: Machine.lock,
    130: Machine.digest, 181: Machine.loop,
}
