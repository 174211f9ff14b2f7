"""What is proved of the rights in registers (p4/rights.p4): one step of each action, for all packets, tables and register contents.

An action is executed with all its branches at once: what an operation does counts under the condition on which it is reached. So there is one
state after it, and no path of its own for each of its many ways. What an expression is, symbolic.py says. The names of lines are those of the model's table (p4/rights).

A theorem about words may watch one word, and let what is read of all others be anything: so calls of four slots, with sixteen regions, are not too much for Z3.

Some theorems suppose what others prove: that the regions of a call are of different slots, and can be lent once more (each_region_is_lent_once_more);
that the slots of an open call are those of one call (consistent). invariants.py joins them: it proves from the theorems alone that actions keep the
invariants of the model (Switch.Check).
"""
import copy
import json
from typing import Callable, NamedTuple

import z3

from symbolic import Program, Unsupported, fit, truth

RIGHTS = "BifrostIngress.rights."
WORDS, NUMBER, STATE, PARENT, CHILDREN = "words", "slot_number", "slot_state", "slot_parent", "slot_children"
REGION = ["slot_region0", "slot_region1", "slot_region2", "slot_region3"]
SLOTS = [NUMBER, STATE, PARENT, CHILDREN] + REGION
PASSES, DENIED, DROPPED = 0, 1, 5  # what is judged
OPEN, CLOSED, REFUSED, FAILED = 1, 2, 3, 4  # states of a slot
ALLOC, READ, WRITE, FREE, ALLOC_ANSWER = 1, 2, 3, 4, 6  # what is wanted of memory
DONE, HAS_CHILDREN = 0, 3  # outcomes of the Gatekeeper's operations

THEOREMS, MUTANTS = [], []


# ---- execution

class State:
    """What an action is executed on: registers, fields, and what has been read and written. Of a register that is watched only one cell is known: what is
    read elsewhere may be anything, each time."""

    def __init__(self, program, watched=None):
        self.program, self.watched, self.elsewhere = program, watched or {}, 0
        self.fields, self.registers, self.before = {}, {}, {}
        for name, r in program.registers.items():
            array = z3.Array(name, z3.BitVecSort(32), z3.BitVecSort(r["bitwidth"]))
            self.registers[name] = self.before[name] = array
        self.start = {}
        self.facts, self.paths = {}, {}  # conditions that hold, or not, where the action is; and the paths that a condition stands for

    def read(self, register, index):
        if register not in self.watched:
            return select(self.registers[register], index)
        cell, self.elsewhere = self.watched[register], self.elsewhere + 1
        other = z3.BitVec(f"{register}.elsewhere{self.elsewhere}", self.program.registers[register]["bitwidth"])
        return z3.If(index == cell, select(self.registers[register], cell), other)

    def write(self, register, when, index, value):
        old, cell = self.registers[register], self.watched.get(register)
        if cell is not None:
            when, index = z3.And(when, index == cell), cell
        self.registers[register] = z3.Store(old, index, z3.If(when, value, select(old, index)))

    def get(self, header, field):
        key = (header, field)
        if key not in self.fields:
            self.fields[key] = self.start[key] = z3.BitVec(f"{header}.{field}", self.program.width(header, field))
        value = self.fields[key]
        while z3.is_app_of(value, z3.Z3_OP_ITE) and self.decided(value.arg(0)) is not None:
            value = value.arg(1 if self.decided(value.arg(0)) else 2)
        return value

    def condition(self, path):
        """That the action is on a path: a row of conditions that hold or do not."""
        c = z3.simplify(z3.And(*[e if holds else z3.Not(e) for e, holds in path]))
        self.paths[c.get_id()] = c, path
        return c

    def decided(self, c):
        """Whether a condition holds where the action is: None if that is not known."""
        path = self.paths.get(c.get_id(), (c, [(c, True)]))[1]
        known = [None if e.get_id() not in self.facts else self.facts[e.get_id()] == holds for e, holds in path]
        return False if False in known else None if None in known else True

    def suppose(self, path):
        """What follows reads fields on a path: of a value that depends on it one half is enough."""
        self.facts = {e.get_id(): holds for e, holds in path}

    def was(self, header, field):
        self.get(header, field)
        return self.start.setdefault((header, field), self.fields[(header, field)])


def select(array, index):
    """What an array has in a cell: writes to what are surely other cells are left out."""
    while z3.is_store(array):
        same = z3.simplify(array.arg(1) == index)
        if z3.is_true(same):
            return array.arg(2)
        if not z3.is_false(same):
            break
        array = array.arg(0)
    return z3.Select(array, index)


def joined(paths):
    """Paths that come together, as few as say the same: where both ways of a condition have come, the path is the one before it."""
    paths = list(paths)
    for n, p in enumerate(paths):
        for m, q in enumerate(paths[:n]):
            if p and len(p) == len(q) and p[-1][0].eq(q[-1][0]) and p[-1][1] != q[-1][1] and all(a.eq(b) and x == y for (a, x), (b, y) in zip(p[:-1], q)):
                return joined([o for k, o in enumerate(paths) if k not in (n, m)] + [p[:-1]])
    return paths


def execute(program, name, watched=None):
    """The state after an action, whatever there was before."""
    ops = next(a for a in program.actions.values() if a["name"] == RIGHTS + name)["primitives"]
    state = State(program, watched)
    reached = {0: [()]}
    for at, op in enumerate(ops):
        paths = joined(reached.pop(at, []))
        if not paths:
            continue
        if len(paths) > 1:
            paths = [((z3.simplify(z3.Or(*map(state.condition, paths))), True),)]
        path, = paths
        when = state.condition(path)
        state.suppose(path)
        a = op["parameters"]
        reach = lambda to, way: reached.setdefault(to, []).append(way)
        if op["op"] == "_jump":
            reach(int(a[0]["value"], 16), path)
            continue
        if op["op"] == "_jump_if_zero":
            holds = z3.simplify(truth(program.value(state, a[0], ())))
            if not z3.is_true(holds):
                reach(int(a[1]["value"], 16), path if z3.is_false(holds) else (*path, (holds, False)))
            if not z3.is_false(holds):
                reach(at + 1, path if z3.is_true(holds) else (*path, (holds, True)))
            continue
        if op["op"] == "assign":
            target = tuple(a[0]["value"])
            value = fit(program.value(state, a[1], ()), program.width(*target))
        elif op["op"] == "register_read":
            target = tuple(a[0]["value"])
            value = fit(state.read(a[1]["value"], fit(program.value(state, a[2], ()), 32)), program.width(*target))
        elif op["op"] == "register_write":
            register = a[0]["value"]
            state.write(register, when, fit(program.value(state, a[1], ()), 32), fit(program.value(state, a[2], ()), program.registers[register]["bitwidth"]))
            reach(at + 1, path)
            continue
        else:
            raise Unsupported(op["op"])
        state.get(*target)
        state.fields[target] = z3.If(when, z3.simplify(value), state.fields[target])
        reach(at + 1, path)
    state.facts = {}
    return state


# ---- words: what registers, packets and metadata say

def generation(w):
    return z3.Extract(53, 32, w)


def owner(w):
    return z3.Extract(31, 20, w)


def lent(w):
    return z3.Extract(19, 0, w)


FIELDS = {"parent": (57, 38), "caller": (37, 26), "callee": (25, 14), "count": (13, 11), "length": (10, 8), "place": (7, 6),
          "given": (5, 5), "standing": (4, 4), "ending": (3, 3), "state": (2, 0)}


def part(state, name):
    return z3.Extract(*FIELDS[name], state)


def slot_of(region):
    return z3.ZeroExt(12, z3.Extract(41, 22, region))


def generation_of(region):
    return z3.Extract(21, 0, region)


W = z3.BitVec("any_region_slot", 32)
X = z3.BitVec("any_call_slot", 32)


def cell_of(low):
    """A slot's cell, by the low bits of its number."""
    return z3.ZeroExt(32 - low.size(), low)


class Step:
    """An action, and what stands before and after it. If words are watched, of these only that of W is known."""

    def __init__(self, program, action, watched=False):
        self.know(action, execute(program, action, {RIGHTS + WORDS: W} if watched else None))

    def know(self, action, state):
        self.action, self.s = action, state
        named = [f for f, _ in state.program.headers["scalars"] if f.startswith("metadata_t._")]
        self.names = {f[len("metadata_t._"):].removesuffix(str(i)).removeprefix("rights_"): f for i, f in enumerate(named)}

    def name(self, field):
        return "scalars", self.names[field]

    def meta(self, field):
        """Metadata before the action."""
        return self.s.was(*self.name(field))

    def then(self, field):
        """Metadata after it."""
        return self.s.get(*self.name(field))

    def head(self, header, field):
        """A header's field before the action."""
        return self.s.was(header, field)

    def old(self, register, index):
        return z3.Select(self.s.before[RIGHTS + register], index)

    def new(self, register, index):
        return z3.Select(self.s.registers[RIGHTS + register], index)

    def kept(self, *registers):
        """For each register, that it is what it was, in any cell."""
        return [self.new(r, x) == self.old(r, x) for r in registers for x in [W if r == WORDS else X]]

    def judged(self, *verdicts):
        return z3.Or(*[self.then("judged") == v for v in verdicts])


class Theorem(NamedTuple):
    """A function of a Step of an action, which yields conditions that hold."""
    conditions: Callable
    action: str
    watched: bool  # it is about the word of W alone, so others may be anything

    @property
    def name(self):
        return self.conditions.__name__


def theorem(action, watched=False):
    """Declares a theorem."""
    def declare(f):
        THEOREMS.append(Theorem(f, action, watched))
        return f
    return declare


def total(counts, width):
    """How many of some conditions hold."""
    return sum((z3.If(c, z3.BitVecVal(1, width), z3.BitVecVal(0, width)) for c in counts), z3.BitVecVal(0, width))


# ---- memory

def named_word(s):
    return s.old(WORDS, slot_of(s.meta("region")))


def is_good(s):
    return generation(named_word(s)) == generation_of(s.meta("region"))


@theorem("judge_access")
def nobody_writes_what_is_lent(s):
    """A WRITE or FREE passes only by its region's owner, of the region that the slot has now, while that is not lent."""
    w = named_word(s)
    yield z3.Implies(z3.And(s.judged(PASSES), z3.Or(s.meta("wants") == WRITE, s.meta("wants") == FREE)),
                     z3.And(is_good(s), owner(w) == s.meta("row"), lent(w) == 0))


def lists(s, slot, region):
    state = s.old(STATE, slot)
    return z3.Or(*[z3.And(z3.UGT(part(state, "count"), j), s.old(REGION[j], slot) == region) for j in range(4)])


@theorem("judge_access")
def nobody_reads_but_owners_and_callees(s):
    """A READ passes only of the region that the slot has now: by its owner, or by the callee of an open call that lists it and is named."""
    slot, number = s.head("dsm", "slot"), s.head("dsm", "number")
    at = cell_of(z3.Extract(19, 0, slot))
    state = s.old(STATE, at)
    by_slot = z3.And(part(state, "state") == OPEN, part(state, "given") == 0, s.old(NUMBER, at) == number,
                     part(state, "callee") == s.meta("row"), lists(s, at, s.meta("region")), z3.Extract(31, 20, slot) == 0)
    yield z3.Implies(z3.And(s.judged(PASSES), s.meta("wants") == READ),
                     z3.And(is_good(s), z3.Or(z3.And(slot == 0, number == 0, owner(named_word(s)) == s.meta("row")), by_slot)))


@theorem("judge_access")
def only_allocations_change_words(s):
    """Of registers, memory changes words alone, and of these that of an allocation by who may allocate there: to a higher generation, its node's, not lent."""
    yield from s.kept("switch_state", *SLOTS)
    changed = s.new(WORDS, W) != s.old(WORDS, W)
    yield z3.Implies(changed, z3.And(
        s.meta("wants") == ALLOC_ANSWER, s.judged(PASSES), s.meta("controls") == 1, W == slot_of(s.meta("region")),
        z3.UGT(generation(s.new(WORDS, W)), generation(s.old(WORDS, W))), generation(s.new(WORDS, W)) == generation_of(s.meta("region")),
        owner(s.new(WORDS, W)) == s.meta("to"), lent(s.new(WORDS, W)) == 0))
    yield z3.Implies(z3.And(s.meta("wants") == ALLOC, s.judged(PASSES)), s.meta("controls") == 1)


@theorem("judge_access")
def nothing_passes_while_the_registers_are_rebuilt(s):
    """While the registers are rebuilt, every access is dropped."""
    yield z3.Implies(s.old("switch_state", z3.BitVecVal(1, 32)) != 1, s.judged(DROPPED))


@theorem("judge_question")
def questions_change_nothing(s):
    """An ASK changes no register, and passes only if its slot has not failed with its number."""
    yield from s.kept("switch_state", WORDS, *SLOTS)
    at = cell_of(z3.Extract(19, 0, s.head("rpc", "slot")))
    yield z3.Implies(s.judged(PASSES), z3.Not(z3.And(s.old(NUMBER, at) == s.head("rpc", "number"), part(s.old(STATE, at), "state") == FAILED,
                                                    z3.Extract(31, 20, s.head("rpc", "slot")) == 0)))


# ---- CALL, ONEWAY

RPC_ONEWAY, RPC_EXCEPTION = 4, 3
MOST_LENT, MOST_CHILDREN = (1 << 20) - 1, 255


def well_formed(s):
    """What the program has checked before it judges a call: one to four slots of one block, and not more regions than these have room for."""
    length = s.meta("length")
    facts = [z3.UGE(length, 1), z3.ULE(length, 4), z3.ULE(z3.ZeroExt(1, z3.Extract(3, 0, s.head("rpc", "slot"))) + z3.ZeroExt(2, length), 16)]
    for i in range(4):
        facts.append(z3.ULE(s.meta(f"count{i}"), 4))
        facts.append(z3.Implies(z3.ULE(length, i), z3.And(s.meta(f"count{i}") == 0, s.meta(f"lends_on{i}") == 0)))
    return z3.And(*facts)


def first(s):
    return cell_of(z3.Extract(19, 0, s.head("rpc", "slot")))


def listed(s):
    """The regions that a call lists: (which list, condition, region)."""
    for i in range(4):
        for j in range(4):
            yield i, z3.UGT(s.meta(f"count{i}"), j), z3.Extract(41, 0, s.head(f"list{i}", f"region{j}"))


def begins(s):
    """The first slot has the call's number from now on. So copies do not begin."""
    number = s.head("rpc", "number")
    return z3.And(s.old(NUMBER, first(s)) != number, s.new(NUMBER, first(s)) == number)


def opens(s):
    return z3.And(well_formed(s), s.judged(PASSES), begins(s))


def refuses(s):
    return z3.And(well_formed(s), s.judged(DENIED), begins(s))


def own_slots(s, x):
    """A cell is one of the call's slots."""
    return z3.And(z3.UGE(x, first(s)), z3.ULT(x, first(s) + z3.ZeroExt(29, s.meta("length"))))


def is_oneway(s):
    return s.head("rpc", "type") == RPC_ONEWAY


def parent(s, i):
    return cell_of(z3.Extract(19, 0, s.head(f"list{i}", "parent_slot")))


@theorem("judge_call")
def what_opens_no_slot_changes_nothing(s):
    """A CALL or ONEWAY that neither opens slots nor is refused for good changes no register; so does each copy."""
    for same in s.kept(WORDS, *SLOTS):
        yield z3.Implies(z3.And(well_formed(s), z3.Not(opens(s)), z3.Not(refuses(s))), same)
    yield from s.kept("switch_state")


@theorem("judge_call")
def a_number_opens_once(s):
    """Slots open, or are refused, under a number that is above each of theirs, while none of them is open. They have it afterwards, all as one call."""
    begins = z3.Or(opens(s), refuses(s))
    for i in range(4):
        mine = z3.And(begins, z3.UGT(s.meta("length"), i))
        old, new = s.old(STATE, first(s) + i), s.new(STATE, first(s) + i)
        yield z3.Implies(mine, z3.And(z3.ULT(s.old(NUMBER, first(s) + i), s.head("rpc", "number")), part(old, "state") != OPEN))
        yield z3.Implies(mine, z3.And(
            s.new(NUMBER, first(s) + i) == s.head("rpc", "number"), part(new, "place") == i, part(new, "length") == s.meta("length"),
            part(new, "caller") == s.meta("row"), part(new, "callee") == s.meta("to"), part(new, "standing") == 0, part(new, "ending") == 0,
            part(new, "given") == z3.If(z3.And(opens(s), is_oneway(s)), z3.BitVecVal(1, 1), z3.BitVecVal(0, 1)), s.new(CHILDREN, first(s) + i) == 0, part(new, "state") == z3.If(opens(s), z3.BitVecVal(OPEN, 3), z3.BitVecVal(REFUSED, 3)),
            part(new, "count") == z3.If(opens(s), s.meta(f"count{i}"), z3.BitVecVal(0, 3))))
        for j in range(4):
            yield z3.Implies(z3.And(mine, opens(s), z3.UGT(s.meta(f"count{i}"), j)),
                             s.new(REGION[j], first(s) + i) == z3.Extract(41, 0, s.head(f"list{i}", f"region{j}")))
        lends_on = z3.And(opens(s), s.meta(f"lends_on{i}") == 1)
        yield z3.Implies(mine, s.new(PARENT, first(s) + i) == z3.If(lends_on, s.head(f"list{i}", "parent_number"), z3.BitVecVal(0, 64)))
        yield z3.Implies(z3.And(mine, lends_on), cell_of(part(new, "parent")) == parent(s, i))


@theorem("judge_call")
def no_slot_opens_to_who_is_going(s):
    """No slot opens to a destination without a row, or one that is going."""
    yield z3.Implies(opens(s), z3.And(s.meta("to") != 0, s.meta("going") == 0))


@theorem("judge_call")
def nobody_lends_what_is_not_his(s):
    """A slot opens only with regions that are good, each once: the caller's, or, of a CALL, listed by the parent of the list, which is open, not given,
    not ending, and has the number and the callee."""
    for i, there, region in listed(s):
        w, at = s.old(WORDS, slot_of(region)), parent(s, i)
        state = s.old(STATE, at)
        by_parent = z3.And(s.meta(f"lends_on{i}") == 1, z3.Not(is_oneway(s)), lists(s, at, region))
        yield z3.Implies(z3.And(opens(s), there), z3.And(generation(w) == generation_of(region), z3.Or(owner(w) == s.meta("row"), by_parent)))
    for i in range(4):
        at = parent(s, i)
        state = s.old(STATE, at)
        yield z3.Implies(z3.And(opens(s), s.meta(f"lends_on{i}") == 1), z3.And(
            part(state, "state") == OPEN, part(state, "given") == 0, part(state, "ending") == 0, part(state, "callee") == s.meta("row"),
            s.old(NUMBER, at) == s.head(f"list{i}", "parent_number"), z3.Not(is_oneway(s))))
    every = list(listed(s))
    for n, (_, there, region) in enumerate(every):
        yield z3.Implies(z3.And(opens(s), there), z3.And(*[z3.Or(z3.Not(o), slot_of(r) != slot_of(region)) for _, o, r in every[:n]]))


def apart(all_regions, but=None):
    """No other region than one is that of the word in question."""
    return z3.And(*[z3.Or(z3.Not(there), slot_of(region) != W) for n, (there, region) in enumerate(all_regions) if n != but])


def cases(all_regions):
    """The word in question is that of one of some regions of different slots, or of none: (condition, whether it is)."""
    all_regions = list(all_regions)
    for n, (there, region) in enumerate(all_regions):
        yield z3.And(there, slot_of(region) == W, apart(all_regions, n)), True
    yield apart(all_regions), False


@theorem("judge_call")
def what_opens_may_be_lent(s):
    """A region that a CALL opens with can be lent once more; one that a ONEWAY hands over is not lent."""
    for _, there, region in listed(s):
        w = s.old(WORDS, slot_of(region))
        yield z3.Implies(z3.And(opens(s), there), z3.And(lent(w) != MOST_LENT, z3.Implies(is_oneway(s), lent(w) == 0)))


@theorem("judge_call", watched=True)
def each_region_is_lent_once_more(s):
    """A CALL that opens has each region that it lists lent once more, and no other; a ONEWAY makes each the receiver's. That the regions are of
    different slots, and may be lent, is proved before."""
    w, v = s.old(WORDS, W), s.new(WORDS, W)
    for case, named in cases([(there, region) for _, there, region in listed(s)]):
        may = z3.And(opens(s), case, z3.Or(z3.BoolVal(not named), lent(w) != MOST_LENT))
        yield z3.Implies(z3.And(may, z3.Not(is_oneway(s))), v == w + (1 if named else 0))
        yield z3.Implies(z3.And(may, is_oneway(s)), v == (z3.Concat(generation(w), s.meta("to"), lent(w)) if named else w))
    yield z3.Implies(refuses(s), v == w)


@theorem("judge_call")
def each_parent_has_a_child_more(s):
    """A call that opens is one more child of the parent of each of its lists. All other cells of slots that are not its own stay."""
    other = z3.Not(own_slots(s, X))
    more = total([z3.And(s.meta(f"lends_on{i}") == 1, parent(s, i) == X) for i in range(4)], 8)
    yield z3.Implies(z3.And(opens(s), other), s.new(CHILDREN, X) == s.old(CHILDREN, X) + more)
    yield z3.Implies(z3.And(opens(s), other), z3.ULE(z3.ZeroExt(1, s.old(CHILDREN, X)) + z3.ZeroExt(1, more), MOST_CHILDREN))
    yield z3.Implies(z3.And(refuses(s), other), s.new(CHILDREN, X) == s.old(CHILDREN, X))
    yield z3.Implies(z3.And(z3.Or(opens(s), refuses(s)), other), z3.And(*[s.new(r, X) == s.old(r, X) for r in SLOTS if r != CHILDREN]))


@theorem("judge_call")
def copies_list_what_their_slots_list(s):
    """A copy passes only to the callee of its call, and lists for each slot what the slot lists."""
    copy = z3.And(well_formed(s), s.judged(PASSES), z3.Not(opens(s)))
    for i in range(4):
        at = first(s) + i
        mine = z3.And(copy, z3.UGT(s.meta("length"), i))
        state = s.old(STATE, at)
        yield z3.Implies(mine, z3.And(s.old(NUMBER, at) == s.head("rpc", "number"), part(state, "callee") == s.meta("to"), part(state, "count") == s.meta(f"count{i}"),
                                      part(state, "place") == i, part(state, "length") == s.meta("length")))
        for j in range(4):
            yield z3.Implies(z3.And(mine, z3.UGT(s.meta(f"count{i}"), j)), s.old(REGION[j], at) == z3.Extract(41, 0, s.head(f"list{i}", f"region{j}")))


# ---- REPLY, EXCEPTION, and the end of a call by the Gatekeeper's hand

def results(s):
    """What an answer lists: (place, condition, region)."""
    for i in range(4):
        for j in range(4):
            yield 4 * i + j, z3.UGT(s.meta(f"count{i}"), j), z3.Extract(41, 0, s.head(f"list{i}", f"region{j}"))


def consistent(s, at):
    """The invariant, as far as it is about the call that begins in a cell: its slots are those of one call, and list at most four regions each. That
    they list each region once is proved of the call's opening (nobody_lends_what_is_not_his)."""
    state = s.old(STATE, at)
    length = part(state, "length")
    facts = [z3.ULE(length, 4)]
    for i in range(1, 4):
        o = s.old(STATE, at + i)
        facts.append(z3.Implies(z3.UGT(length, i), z3.And(
            s.old(NUMBER, at + i) == s.old(NUMBER, at), part(o, "state") == part(state, "state"), part(o, "given") == part(state, "given"),
            part(o, "caller") == part(state, "caller"), part(o, "callee") == part(state, "callee"), part(o, "length") == length, part(o, "place") == i)))
    for i in range(4):
        facts.append(z3.Implies(z3.UGT(length, i), z3.ULE(part(s.old(STATE, at + i), "count"), 4)))
    return z3.And(*facts)


def children_of(s, at, x):
    """How many children the call is of a slot."""
    lends = [z3.And(z3.UGT(part(s.old(STATE, at), "length"), i), s.old(PARENT, at + i) != 0, cell_of(part(s.old(STATE, at + i), "parent")) == x,
                    s.old(NUMBER, x) == s.old(PARENT, at + i)) for i in range(4)]
    return total(lends, 8)


def has_children(s, at):
    return z3.Or(*[z3.And(z3.UGT(part(s.old(STATE, at), "length"), i), s.old(CHILDREN, at + i) != 0) for i in range(4)])


def slots_end(s, at, ended, state):
    """What becomes of slots if the call ends that begins in a cell."""
    old = s.old(STATE, at)
    for i in range(4):
        mine = z3.And(ended, z3.UGT(part(old, "length"), i))
        yield z3.Implies(mine, z3.And(part(s.new(STATE, at + i), "state") == state,
                                      z3.Extract(57, 4, s.new(STATE, at + i)) == z3.Extract(57, 4, s.old(STATE, at + i)), s.old(CHILDREN, at + i) == 0))
    mine = z3.And(z3.UGE(X, at), z3.ULT(X, at + z3.ZeroExt(29, part(old, "length"))))
    yield z3.Implies(z3.And(ended, z3.Not(mine)), s.new(STATE, X) == s.old(STATE, X))
    for r in [NUMBER, PARENT] + REGION:
        yield z3.Implies(ended, s.new(r, X) == s.old(r, X))
    had, fewer = s.old(CHILDREN, X), children_of(s, at, X)
    yield z3.Implies(z3.And(ended, z3.UGE(had, fewer)), s.new(CHILDREN, X) == had - fewer)


def is_closed(s):
    """The first slot is open, and then closed."""
    return z3.And(part(s.old(STATE, first(s)), "state") == OPEN, part(s.new(STATE, first(s)), "state") == CLOSED)


def closes(s):
    """An answer that closes a call."""
    return z3.And(consistent(s, first(s)), s.judged(PASSES), is_closed(s))


@theorem("judge_return")
def answers_end_calls_once(s):
    """An answer that closes a call finds it open, without children, and closes all of its slots. Its results are good, and the caller's already, as the
    packet says then, or the callee's and not lent. An EXCEPTION has none."""
    at, old = first(s), s.old(STATE, first(s))
    yield z3.Implies(is_closed(s), z3.And(s.judged(PASSES), part(old, "place") == 0, part(old, "standing") == 0, part(old, "callee") == s.meta("row"),
                                       part(old, "caller") == s.meta("to"), s.old(NUMBER, at) == s.head("rpc", "number"), z3.Not(has_children(s, at))))
    yield from slots_end(s, at, closes(s), CLOSED)
    for k, there, region in results(s):
        w = s.old(WORDS, slot_of(region))
        yield z3.Implies(z3.And(closes(s), there), z3.And(
            s.head("rpc", "type") != RPC_EXCEPTION, generation(w) == generation_of(region),
            z3.Or(owner(w) == s.meta("to"), z3.And(owner(w) == s.meta("row"), lent(w) == 0)),
            (z3.Extract(k, k, s.s.get("rpc", "had")) == 1) == (owner(w) == s.meta("to"))))


def listings(s, at):
    """What the slots list of the call that begins in a cell: (condition, region)."""
    state = s.old(STATE, at)
    for i in range(4):
        for j in range(4):
            yield z3.And(z3.UGT(part(state, "length"), i), z3.UGT(part(s.old(STATE, at + i), "count"), j)), s.old(REGION[j], at + i)


def words_after(s, ended, at, owned, gives_back):
    """What becomes of the word in question if a call ends whose slots list each region once: owned is the owner that results leave it."""
    w, v, state = s.old(WORDS, W), s.new(WORDS, W), s.old(STATE, at)
    given = part(state, "given") == 1
    for (case, named), region in zip(cases(listings(s, at)), [r for _, r in listings(s, at)] + [None]):
        owner_then, lent_then = owned, lent(w)
        if named:
            mine = generation(w) == generation_of(region)
            owner_then = z3.If(z3.And(mine, given, gives_back, owned == part(state, "callee")), part(state, "caller"), owned)
            lent_then = z3.If(z3.And(mine, z3.Not(given), lent(w) != 0), lent(w) - 1, lent(w))
        yield z3.Implies(z3.And(ended, case), v == z3.Concat(generation(w), owner_then, lent_then))


@theorem("judge_return", watched=True)
def answers_hand_over_and_give_back(s):
    """Of the words, an answer that closes a call changes these alone: results are the caller's, and what the call had lent is lent once less; what was given to a callee
    that refuses it by an EXCEPTION is the caller's, if the callee has it."""
    w = s.old(WORDS, W)
    returned = z3.Or(*[z3.And(there, slot_of(region) == W) for _, there, region in results(s)])
    yield from words_after(s, closes(s), first(s), z3.If(returned, s.meta("to"), owner(w)), s.head("rpc", "type") == RPC_EXCEPTION)


@theorem("judge_return")
def what_closes_nothing_changes_nothing(s):
    """An answer that does not close a call changes no register. It passes only if its call is closed, and each result is good, and the caller's already."""
    for same in s.kept(WORDS, *SLOTS):
        yield z3.Implies(z3.Not(is_closed(s)), same)
    yield from s.kept("switch_state")
    again = z3.And(z3.Not(is_closed(s)), s.judged(PASSES))
    yield z3.Implies(again, z3.And(part(s.old(STATE, first(s)), "state") == CLOSED, s.old(NUMBER, first(s)) == s.head("rpc", "number")))
    for _, there, region in results(s):
        w = s.old(WORDS, slot_of(region))
        yield z3.Implies(z3.And(again, there), z3.And(generation(w) == generation_of(region), owner(w) == s.meta("to")))


def named(s):
    """The first slot that an operation names."""
    return cell_of(z3.Extract(19, 0, s.head("hand", "slot")))


@theorem("hand_fail")
def the_hand_ends_calls_once(s):
    """The Gatekeeper ends a call that is open with the number that it names, if it has no children: all of its slots fail. If it has some, its slots are
    marked, and nothing else changes. Otherwise nothing does."""
    at = named(s)
    old = s.old(STATE, at)
    outcome = s.s.get("hand", "outcome")
    found = z3.And(part(old, "state") == OPEN, part(old, "place") == 0, s.old(NUMBER, at) == s.head("hand", "number"))
    yield z3.Implies(outcome == DONE, z3.And(found, z3.Not(has_children(s, at))))
    yield z3.Implies(outcome == HAS_CHILDREN, z3.And(found, has_children(s, at)))
    yield from slots_end(s, at, z3.And(consistent(s, at), outcome == DONE), FAILED)
    for same in s.kept(WORDS, NUMBER, PARENT, CHILDREN, *REGION):
        yield z3.Implies(outcome != DONE, same)
    state = s.new(STATE, X)
    yield z3.Implies(outcome != DONE, z3.Or(state == s.old(STATE, X), z3.And(outcome == HAS_CHILDREN, state == s.old(STATE, X) | 8)))


@theorem("hand_fail", watched=True)
def what_the_hand_ends_is_lent_once_less(s):
    """Of the words, the end of a call by the Gatekeeper changes these alone: what the call had lent is lent once less, and what was given is the caller's, if the callee has it."""
    yield from words_after(s, z3.And(consistent(s, named(s)), s.s.get("hand", "outcome") == DONE), named(s), owner(s.old(WORDS, W)), z3.BoolVal(True))


@theorem("hand_lend")
def the_hand_lends_what_is_its_owners(s):
    """A standing lease opens one slot that is not open, under a number above the slot's, of which the Gatekeeper names owner and lessee. Each of its regions is good,
    the owner's, listed once, and is lent once more. Otherwise nothing changes."""
    at, count = named(s), s.head("hand", "count")
    done, new = s.s.get("hand", "outcome") == DONE, s.new(STATE, at)
    regions = [(z3.UGT(count, j), z3.Extract(41, 0, s.head("hand", f"region{j}"))) for j in range(4)]
    for same in s.kept(WORDS, *SLOTS):
        yield z3.Implies(z3.Not(done), same)
    yield z3.Implies(done, z3.And(part(s.old(STATE, at), "state") != OPEN, z3.ULT(s.old(NUMBER, at), s.head("hand", "number")), z3.ULE(count, 4)))
    yield z3.Implies(done, z3.And(
        s.new(NUMBER, at) == s.head("hand", "number"), part(new, "state") == OPEN, part(new, "standing") == 1, part(new, "given") == 0, part(new, "ending") == 0,
        part(new, "place") == 0, part(new, "length") == 1, z3.ZeroExt(5, part(new, "count")) == count, s.new(PARENT, at) == 0, s.new(CHILDREN, at) == 0,
        z3.ZeroExt(4, part(new, "caller")) == s.head("hand", "owner"), z3.ZeroExt(4, part(new, "callee")) == s.head("hand", "lessee"),
        part(new, "caller") != 0, part(new, "callee") != 0))
    for r in SLOTS:
        yield z3.Implies(X != at, s.new(r, X) == s.old(r, X))
    for j, (there, region) in enumerate(regions):
        w = s.old(WORDS, slot_of(region))
        yield z3.Implies(z3.And(done, there), z3.And(s.new(REGION[j], at) == region, generation(w) == generation_of(region),
                                                     z3.ZeroExt(4, owner(w)) == s.head("hand", "owner"), lent(w) != MOST_LENT))
        yield z3.Implies(z3.And(done, there), z3.And(*[z3.Or(z3.Not(o), slot_of(r) != slot_of(region)) for o, r in regions[:j]]))
    w, v = s.old(WORDS, W), s.new(WORDS, W)
    for case, listed_once in cases(regions):
        yield z3.Implies(z3.And(done, case), v == w + (1 if listed_once else 0))


@theorem("hand_seize")
def the_hand_seizes_what_is_not_lent(s):
    """The Gatekeeper takes a region from the owner that it names, of the generation that it names, and only while nobody has it lent."""
    region = z3.Extract(41, 0, s.head("hand", "region0"))
    w = s.old(WORDS, slot_of(region))
    done = s.s.get("hand", "outcome") == DONE
    yield from s.kept(*SLOTS)
    yield z3.Implies(done, z3.And(generation(w) == generation_of(region), z3.ZeroExt(4, owner(w)) == s.head("hand", "owner"), lent(w) == 0))
    yield s.new(WORDS, W) == z3.If(z3.And(done, W == slot_of(region)), z3.Concat(generation(w), z3.BitVecVal(0, 32)), s.old(WORDS, W))


@theorem("hand_set")
def the_hand_sets_nothing_while_packets_pass(s):
    """The Gatekeeper sets words and slots only while the registers are rebuilt: no packet passes then."""
    for same in s.kept(WORDS, *SLOTS):
        yield z3.Implies(s.old("switch_state", z3.BitVecVal(1, 32)) == 1, same)


# ---- faults that are put into actions

def mutant(action, *breaks):
    """Declares a fault of an action's primitives, and which theorems it breaks."""
    def declare(f):
        MUTANTS.append((f, action, breaks))
        return f
    return declare


def conditions_about(ops, *words):
    """The conditions whose expression mentions some words."""
    found = [op for op in ops if op["op"] == "_jump_if_zero" and all(f'"{w}"' in json.dumps(op["parameters"][0]) for w in words)]
    if not found:
        raise LookupError(f"no condition about {words}")
    return found


def always(op):
    """The condition holds."""
    op["parameters"][0] = {"type": "expression", "value": {"op": "d2b", "left": None, "right": {"type": "hexstr", "value": "0x1"}}}


def writes(ops, register):
    found = [op for op in ops if op["op"] == "register_write" and op["parameters"][0]["value"] == RIGHTS + register]
    if not found:
        raise LookupError(f"{register} is not written")
    return found


def clear(ops, field, value=None):
    """Where the field is set, to a value or any, it is set to 0."""
    found = [op for op in ops if op["op"] == "assign" and op["parameters"][0]["value"] == ["scalars", field] and
             value in (None, op["parameters"][1].get("value"))]
    if not found:
        raise LookupError(f"{field} is not set")
    for op in found:
        op["parameters"][1] = {"type": "hexstr", "value": "0x0"}


def keep(writes, field):
    """What is written is the field that has been read."""
    for op in writes:
        op["parameters"][2] = {"type": "field", "value": ["scalars", field]}


@mutant("judge_access", "nobody_writes_what_is_lent")
def what_is_lent_is_written(ops):
    """Who has a region may write it while it is lent."""
    for op in conditions_about(ops, "rights_word"):
        if "rights_good" not in json.dumps(op) and "rights_controls" not in json.dumps(op) and "row" not in json.dumps(op) and "region" not in json.dumps(op):
            always(op)


@mutant("judge_access", "nobody_reads_but_owners_and_callees")
def anybody_reads_by_a_slot(ops):
    """Who names an open call may read what it lists, whoever is its callee."""
    for op in conditions_about(ops, "rights_state", "rights_lists"):
        always(op)


@mutant("judge_access", "only_allocations_change_words")
def an_old_allocation_counts(ops):
    """An allocation's answer counts whatever the generation."""
    for op in conditions_about(ops, "rights_word"):
        if "controls" in json.dumps(op):
            always(op)


@mutant("judge_call", "no_slot_opens_to_who_is_going")
def who_is_going_is_called(ops):
    """A call opens to a node that is going."""
    clear(ops, "rights_gone")


@mutant("judge_call", "nobody_lends_what_is_not_his")
def anything_is_lent(ops):
    """Who calls need not have what it lends."""
    clear(ops, "rights_bad", "0x01")


@mutant("judge_call", "each_region_is_lent_once_more")
def nothing_is_lent(ops):
    """A call does not count that it lends its regions."""
    keep(writes(ops, WORDS), "rights_word")


@mutant("judge_call", "each_parent_has_a_child_more")
def no_child_is_counted(ops):
    """A call does not count as a child of the slot that it lends on from."""
    keep(writes(ops, CHILDREN), "rights_children")


@mutant("judge_return", "answers_end_calls_once")
def parents_end_before_children(ops):
    """An answer closes a call that another one lends on from."""
    clear(ops, "rights_parents")


@mutant("judge_return", "answers_end_calls_once")
def lent_results_are_handed_over(ops):
    """An answer hands over what is lent."""
    clear(ops, "rights_lent")


@mutant("judge_return", "answers_end_calls_once")
def other_slots_stay_open(ops):
    """An answer closes the first slot of a call alone."""
    keep(writes(ops, STATE)[1:], "rights_state")


@mutant("judge_return", "answers_hand_over_and_give_back")
def what_was_lent_stays_lent(ops):
    """An answer does not count that its call lends its regions no longer."""
    keep(writes(ops, WORDS)[16::2], "rights_word")  # behind those of sixteen results, of each region that is lent the first one


@mutant("judge_return", "answers_hand_over_and_give_back")
def results_stay_the_callees(ops):
    """The regions of an answer stay their callee's."""
    keep(writes(ops, WORDS)[:16], "rights_word")


@mutant("hand_fail", "what_the_hand_ends_is_lent_once_less")
def what_was_given_is_lost(ops):
    """The end of a one-way leaves what was given with the callee."""
    keep(writes(ops, WORDS)[1::2], "rights_word")  # of each region, behind that of one that is lent


@mutant("hand_lend", "the_hand_lends_what_is_its_owners")
def anybodys_region_is_leased(ops):
    """A lease may be of regions that its owner does not have."""
    clear(ops, "rights_bad", "0x01")


@mutant("hand_seize", "the_hand_seizes_what_is_not_lent")
def what_is_lent_is_seized(ops):
    """The Gatekeeper takes what is lent."""
    for op in conditions_about(ops, "rights_word"):
        always(op)


@mutant("hand_set", "the_hand_sets_nothing_while_packets_pass")
def the_hand_sets_at_any_time(ops):
    """The Gatekeeper sets words while packets pass."""
    for op in conditions_about(ops, "rights_ready"):
        always(op)


def theorems_of(s):
    """What the theorems say of a step."""
    return [c for t in THEOREMS if t.action == s.action for c in t.conditions(s)]


def broken(claim):
    """Whether a condition does not hold of all packets."""
    solver = z3.SolverFor("QF_AUFBV")
    solver.add(z3.Not(z3.simplify(claim)))
    found = solver.check()
    if found == z3.unknown:
        raise Unsupported("the solver does not know")
    return found == z3.sat


QUICK = ("judge_access", "judge_question", "hand_seize", "hand_set")


class Steps:
    """The steps of a program's actions, each made when it is first asked for."""

    def __init__(self, program):
        self.program, self.known = program, {}

    def of(self, t):
        key = t.action, t.watched
        if key not in self.known:
            self.known[key] = Step(self.program, *key)
        return self.known[key]


def prove(program, actions=None):
    """Proves the theorems, or those of some actions; returns how many fail."""
    failed, steps = 0, Steps(program)
    wanted = [t for t in THEOREMS if actions is None or t.action in actions]
    for t in wanted:
        wrong = next((i for i, claim in enumerate(t.conditions(steps.of(t))) if broken(claim)), None)
        failed += wrong is not None
        print(f"{'proved' if wrong is None else f'FAILED in condition {wrong}'}  {t.action}: {t.name}: {' '.join(t.conditions.__doc__.split())}", flush=True)
    print(f"{len(wanted) - failed} passed, {failed} failed")
    return failed


def refute(source, actions=None):
    """Puts faults in: each has to break a theorem. Returns how many do not."""
    survived, theorems = 0, {t.name: t for t in THEOREMS}
    wanted = [m for m in MUTANTS if actions is None or m[1] in actions]
    for mutate, action, breaks in wanted:
        d = copy.deepcopy(source)
        mutate(next(a for a in d["actions"] if a["name"] == RIGHTS + action)["primitives"])
        steps = Steps(Program(d))
        held = [b for b in breaks if not any(broken(claim) for claim in theorems[b].conditions(steps.of(theorems[b])))]
        survived += bool(held)
        print(f"{'SURVIVED ' + ', '.join(held) if held else 'refuted by ' + ', '.join(breaks)}: {action}: {mutate.__name__}: {' '.join(mutate.__doc__.split())}", flush=True)
    print(f"{len(wanted) - survived}/{len(wanted)} mutants refuted")
    return survived
