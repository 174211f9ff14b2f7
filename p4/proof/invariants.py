"""What joins the theorems of rights.py: each packet, and each operation of the Gatekeeper that is done while packets pass, keeps the invariants of the
registers (p4/rights, Switch.Check). So they hold always, if they hold when the registers have been rebuilt.

Here an action is what the theorems say of it, and nothing else. An invariant about a sum over all slots is one about the slots that the action may change,
and the rest, of which it is enough that no other slot adds less or more than before.
"""
import z3

import rights
from rights import (CHILDREN, NUMBER, OPEN, PARENT, REGION, STATE, WORDS, Step, W, X, cell_of, first, generation, generation_of, lent, named, opens, owner, part,
                    refuses, slot_of, theorems_of, total, well_formed)

Y, Z = z3.BitVecs("any_open_slot any_other_slot", 32)
SLOTS = 1 << 20
BEGINS, ENDS = ("judge_call", "hand_lend"), ("judge_return", "hand_fail")
ACTIONS = BEGINS + ENDS + ("judge_access", "judge_question", "hand_seize")


class AnyState:
    """Registers and fields before and after an action of which nothing is known."""

    def __init__(self, program):
        self.program = program
        of = lambda when: {name: z3.Array(f"{when}.{name}", z3.BitVecSort(32), z3.BitVecSort(r["bitwidth"])) for name, r in program.registers.items()}
        self.before, self.registers = of("before"), of("after")

    def was(self, header, field):
        return z3.BitVec(f"before.{header}.{field}", self.program.width(header, field))

    def get(self, header, field):
        return z3.BitVec(f"after.{header}.{field}", self.program.width(header, field))


class AnyStep(Step):
    """An action of which only the theorems are known."""

    def __init__(self, program, action):
        self.know(action, AnyState(program))
        self.theorems = [(z3.simplify(c), mentioned(c)) for theorem in theorems_of(self) for c in parts(theorem)]

    def touched(self):
        """The slots that the action may change, but for counts of children: (condition, cell)."""
        if self.action == "judge_call":
            return [(z3.UGT(self.meta("length"), i), first(self) + i) for i in range(4)]
        if self.action == "hand_lend":
            return [(z3.BoolVal(True), named(self))]
        if self.action in ENDS:
            at = self.ends_at()
            return [(z3.UGT(part(self.old(STATE, at), "length"), i), at + i) for i in range(4)]
        return []

    def ends_at(self):
        return first(self) if self.action == "judge_return" else named(self)

    def touches(self, x):
        return z3.Or(False, *[z3.And(there, x == at) for there, at in self.touched()])

    def begins(self):
        """The use of the touched slots begins."""
        if self.action == "judge_call":
            return z3.Or(opens(self), refuses(self))
        return self.s.get("hand", "outcome") == rights.DONE if self.action == "hand_lend" else z3.BoolVal(False)


# ---- invariants: of registers, which get looks up

def is_open(get, x):
    return part(get(STATE, x), "state") == OPEN


def together(get, x):
    """The slots of an open call are open together: they are one call's, of a caller and a callee that have rows, stand in one block, and list four regions each at most."""
    state = get(STATE, x)
    begin = x - z3.ZeroExt(30, part(state, "place"))
    facts = [z3.ULT(z3.ZeroExt(1, part(state, "place")), part(state, "length")), z3.ULE(part(state, "length"), 4), get(NUMBER, x) != 0,
             part(state, "caller") != 0, part(state, "callee") != 0,
             z3.ULE(z3.ZeroExt(1, z3.Extract(3, 0, begin)) + z3.ZeroExt(2, part(state, "length")), 16)]
    for j in range(4):
        other = get(STATE, begin + j)
        same = [part(other, f) == part(state, f) for f in ("state", "length", "caller", "callee", "given", "standing")]
        facts.append(z3.Implies(z3.UGT(part(state, "length"), j), z3.And(get(NUMBER, begin + j) == get(NUMBER, x), part(other, "place") == j, z3.ULE(part(other, "count"), 4), *same)))
    return z3.Implies(is_open(get, x), z3.And(*facts))


def parent_of(get, x):
    return cell_of(part(get(STATE, x), "parent"))


def parents_open(get, x):
    """The parent of an open slot is open, with the number that the slot names."""
    at = parent_of(get, x)
    return z3.Implies(z3.And(is_open(get, x), get(PARENT, x) != 0), z3.And(is_open(get, at), get(NUMBER, at) == get(PARENT, x)))


def listed(get, x):
    """What a slot lists: (condition, region)."""
    return [(z3.UGT(part(get(STATE, x), "count"), j), get(REGION[j], x)) for j in range(4)]


def once(get, x, y):
    """A call lists each region once."""
    begin = lambda slot: slot - z3.ZeroExt(30, part(get(STATE, slot), "place"))
    pairs = [z3.Or(z3.Not(there), z3.Not(other), slot_of(a) != slot_of(b), z3.And(x == y, i == j))
             for i, (there, a) in enumerate(listed(get, x)) for j, (other, b) in enumerate(listed(get, y))]
    return z3.Implies(z3.And(is_open(get, x), is_open(get, y), begin(x) == begin(y)), z3.And(*pairs))


def not_newer(get, x):
    """No open slot lists a generation that its region has not had yet."""
    return z3.Implies(is_open(get, x), z3.And(*[z3.Implies(there, z3.ULE(generation_of(r), generation(get(WORDS, slot_of(r))))) for there, r in listed(get, x)]))


def owned(get, w):
    """What was never allocated has no owner."""
    return z3.Implies(generation(get(WORDS, w)) == 0, owner(get(WORDS, w)) == 0)


def lends(get, x, w):
    """How often a slot lends a region, in the generation that it has."""
    region = z3.Concat(z3.Extract(19, 0, w), generation(get(WORDS, w)))
    lending = z3.And(is_open(get, x), part(get(STATE, x), "given") == 0)
    return total([z3.And(lending, there, r == region) for there, r in listed(get, x)], 24)


def is_child(get, x, of):
    return z3.And(is_open(get, x), get(PARENT, x) != 0, parent_of(get, x) == of, get(NUMBER, of) == get(PARENT, x))


# ---- what keeps them

KEPT = []


def keeps(f):
    """Declares that the actions keep an invariant: a function of an AnyStep, which yields what is supposed, and what follows. That may be supposed in turn."""
    KEPT.append(f)
    return f


def parts(claim):
    """The claims that one is made of."""
    if z3.is_and(claim):
        return [p for c in claim.children() for p in parts(c)]
    if z3.is_implies(claim):
        return [z3.Implies(claim.arg(0), p) for p in parts(claim.arg(1))]
    return [claim]


def mentioned(claim):
    """The registers whose contents after an action a claim is about."""
    found, todo, seen = set(), [claim], set()
    while todo:
        e = todo.pop()
        if e.get_id() not in seen:
            seen.add(e.get_id())
            todo += e.children()
            if z3.is_const(e) and z3.is_array(e) and e.decl().name().startswith("after."):
                found.add(e.decl().name().rpartition(".")[2])
    return found


def known(s, about, slots, words, *facts):
    """What the theorems say of some registers after an action, in the cells of some slots and words; what is so whenever the action is done; and what else is
    supposed."""
    facts = [s.meta("row") != 0, *facts, *[z3.ULT(x, SLOTS) for x in slots]]
    if s.action == "judge_call":
        facts.append(well_formed(s))
    if s.action in ENDS:
        facts.append(together(s.old, s.ends_at()))
    begins_or_ends = {NUMBER} if s.action == "judge_call" else {STATE} if s.action == "judge_return" else set()  # which tell whether there is a change at all
    for claim, of in s.theorems:
        if of - begins_or_ends <= set(about):
            facts += [z3.substitute(claim, (X, x), (W, w)) for x in slots or [X] for w in words or [W]]
    return list({f.get_id(): f for f in facts}.values())


def supposed(s, about, slots, words, *facts):
    """The same, also in the cells of the slots that the action touches."""
    touched = [at for _, at in s.touched()]
    if s.action in ENDS and WORDS in about:
        facts = [*facts, *[once(s.old, x, y) for n, x in enumerate(touched) for y in touched[n:]]]
    return known(s, about, slots + touched, words, *facts)


@keeps
def the_slots_of_a_call_are_open_together(s):
    """The slots of an open call are one call's, all open, in one block; caller and callee have rows."""
    begin = Y - z3.ZeroExt(30, part(s.new(STATE, Y), "place"))
    yield supposed(s, [NUMBER, STATE], [Y] + [begin + j for j in range(4)], [], together(s.old, Y)), together(s.new, Y)


def counted(s, get, of, rest):
    """A slot's children are those that the touched slots are, and the rest."""
    return z3.ZeroExt(16, get(CHILDREN, of)) == rest + total([z3.And(there, is_child(get, at, of)) for there, at in s.touched()], 24)


REST = z3.BitVec("how_many_other_slots", 24)


@keeps
def the_parent_of_an_open_slot_is_open(s):
    """The parent of an open slot is open, with the number that the slot names."""
    at = parent_of(s.new, Y)
    rest = z3.Implies(z3.And(z3.Not(s.touches(Y)), is_child(s.old, Y, at)), REST != 0)
    yield (supposed(s, [NUMBER, STATE, PARENT], [Y, at], [], parents_open(s.old, Y), counted(s, s.old, at, REST), z3.ULT(REST, SLOTS), rest),
            parents_open(s.new, Y))


@keeps
def children_are_open_slots(s):
    """A slot counts as many children as there are open slots of which it is the parent."""
    anew = z3.And(s.begins(), s.touches(X))  # it was not open, so nobody's parent
    nobody = z3.And(s.new(CHILDREN, X) == 0, *[z3.Not(z3.And(there, is_child(s.new, at, X))) for there, at in s.touched()],
                    z3.Or(s.touches(Y), z3.Not(is_child(s.new, Y, X))))
    same = z3.And(counted(s, s.new, X, REST), z3.Or(s.touches(Y), is_child(s.new, Y, X) == is_child(s.old, Y, X)))
    yield (supposed(s, [NUMBER, STATE, PARENT, CHILDREN], [X, Y], [], together(s.old, X), parents_open(s.old, Y), counted(s, s.old, X, REST), z3.ULT(REST, SLOTS)),
            z3.If(anew, nobody, same))


@keeps
def a_call_lists_each_region_once(s):
    """An open call lists each region once."""
    yield supposed(s, [NUMBER, STATE] + REGION, [Y, Z], [], once(s.old, Y, Z), together(s.old, Y), together(s.old, Z)), once(s.new, Y, Z)


@keeps
def nobody_lists_what_is_to_come(s):
    """No open slot lists a generation that its region has not had yet."""
    yield supposed(s, [NUMBER, STATE, WORDS] + REGION, [Y], [slot_of(r) for _, r in listed(s.new, Y)], not_newer(s.old, Y)), not_newer(s.new, Y)


def changes(s):
    """Of an action that opens a call, or ends one: when it does so, and the regions that the call lists."""
    if s.action == "judge_call":
        return opens(s), [(there, region) for _, there, region in rights.listed(s)]
    return rights.closes(s) if s.action == "judge_return" else s.s.get("hand", "outcome") == rights.DONE, list(rights.listings(s, s.ends_at()))


def ways(regions):
    """The word in question is that of one of the regions, which are of different slots, or of none."""
    return [case for case, _ in rights.cases(regions)]


def apart(regions):
    """No two of the regions are of the word in question."""
    return [z3.Or(z3.Not(there), z3.Not(other), slot_of(region) != W, slot_of(r) != W) for n, (there, region) in enumerate(regions) for other, r in regions[:n]]


def regions_are_apart(s, done, regions):
    """That the regions are of different slots."""
    if s.action == "judge_call":
        different = [z3.Implies(z3.And(there, other), slot_of(r) != slot_of(region)) for n, (there, region) in enumerate(regions) for other, r in regions[:n]]
        yield known(s, [], [], [], done), z3.And(*different)
        for fact, claim in zip(different, apart(regions)):
            yield [fact], claim
        return
    begin = s.ends_at()
    first_of_open = z3.And(is_open(s.old, begin), part(s.old(STATE, begin), "place") == 0)
    yield known(s, [], [], [], done), first_of_open
    slots = [(at, regions[4 * n:4 * n + 4]) for n, (_, at) in enumerate(s.touched())]
    for n, (x, of_x) in enumerate(slots):
        for y, of_y in slots[:n + 1]:
            yield [first_of_open, together(s.old, begin), once(s.old, x, x), once(s.old, y, x), once(s.old, y, y)], z3.And(*apart(of_x if x is y else of_y + of_x))


@keeps
def lent_is_open_slots(s):
    """A region is lent as often as open slots, that are not given, list it in the generation that it has."""
    w, v = s.old(WORDS, W), s.new(WORDS, W)
    before, after = ([z3.If(there, lends(get, at, W), z3.BitVecVal(0, 24)) for there, at in s.touched()] for get in (s.old, s.new))
    is_lent = lambda word, counts: z3.ZeroExt(4, lent(word)) == REST + sum(counts, z3.BitVecVal(0, 24))
    at_first = [is_lent(w, before), z3.ULT(REST, SLOTS), z3.ULT(W, SLOTS)]
    about = [NUMBER, STATE] + REGION
    others = z3.Or(s.touches(X), lends(s.new, X, W) == lends(s.old, X, W))
    if s.action != "judge_call" and s.action not in ENDS:
        anew = z3.And(lent(v) == 0, lends(s.new, X, W) == 0, z3.BoolVal(not s.touched()))
        yield supposed(s, [WORDS] + about, [X], [W], not_newer(s.old, X), *at_first), z3.If(generation(v) == generation(w), z3.And(is_lent(v, after), others), anew)
        return
    # All slots and regions of a call together are too much for Z3: so what becomes of each slot, and then of the sum, in which a slot's count is any number.
    numbers = [(count, z3.BitVec(f"count{n}", 24)) for n, count in enumerate(before + after)]
    add_up = lambda *facts: ([z3.substitute(f, *numbers) for f in at_first + [*facts]], z3.substitute(is_lent(v, after), *numbers))
    done, regions = changes(s)
    still = [old == new for old, new in zip(before, after)]
    for (_, at), same in zip(s.touched(), still):
        yield known(s, [WORDS] + about, [at], [W], z3.Not(done)), z3.And(v == w, same)
    yield add_up(v == w, *still)
    yield from regions_are_apart(s, done, regions)
    whether = [pair for n, (_, r) in enumerate(regions) for is_it in [z3.Bool(f"is{n}")] for pair in [(slot_of(r) == W, is_it), (slot_of(r) != W, z3.Not(is_it))]]
    yield [z3.substitute(fact, *whether) for fact in apart(regions)], z3.substitute(z3.Or(*ways(regions)), *whether)
    given = rights.is_oneway(s) if s.action == "judge_call" else part(s.old(STATE, s.ends_at()), "given") == 1
    for n, way in enumerate(ways(regions)):
        counts = z3.BoolVal(False)
        if n < len(regions):
            counts = z3.And(z3.Not(given), generation(w) == generation_of(regions[n][1]))
        none, one = z3.BitVecVal(0, 24), z3.If(counts, z3.BitVecVal(1, 24), z3.BitVecVal(0, 24))
        less, more = (none, one) if s.action == "judge_call" else (one, none)
        word = z3.And(generation(v) == generation(w), z3.ZeroExt(4, lent(v)) == z3.ZeroExt(4, lent(w)) + more - z3.If(lent(w) == 0, 0, less))
        yield known(s, [WORDS], [], [W], done, way), word
        slots = [z3.And(old == (less if n // 4 == k else 0), new == (more if n // 4 == k else 0)) for k, (old, new) in enumerate(zip(before, after))]
        for (_, at), slot in zip(s.touched(), slots):
            yield known(s, about, [at], [W], done, way, z3.ULT(W, SLOTS), generation(v) == generation(w)), slot
        yield add_up(word, *slots)
    yield known(s, about, [X], [W], generation(v) == generation(w)), others


@keeps
def what_was_never_allocated_has_no_owner(s):
    """What was never allocated has no owner."""
    regions = changes(s)[1] if s.action == "judge_call" or s.action in ENDS else []
    for way in [*ways(regions), z3.Not(z3.Or(*ways(regions)))]:
        yield supposed(s, [NUMBER, STATE, WORDS], [], [W], owned(s.old, W), way), owned(s.new, W)


def follows(facts, claim):
    """Whether a claim follows from facts."""
    return not rights.broken(z3.Implies(z3.And(*facts), claim))


def prove(program, actions=None):
    """Proves that each action, or each of some, keeps each invariant; returns how many do not."""
    failed, steps = 0, [AnyStep(program, action) for action in ACTIONS if actions is None or action in actions]
    for f in KEPT:
        broken = [s.action for s in steps if not all(follows(facts, claim) for facts, claim in f(s))]
        failed += bool(broken)
        print(f"{'BROKEN by ' + ', '.join(broken) if broken else 'kept'}  {f.__name__}: {' '.join(f.__doc__.split())}", flush=True)
    print(f"{len(KEPT) - failed} invariants are kept by {len(steps)} actions, {failed} are not")
    return failed
