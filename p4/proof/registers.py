"""What is proved of p4switch/interp/testdata/numbers.p4, whose register decides what passes, and faults that break it.

What actions of bifrost.p4 do to registers, rights.py proves. This shows that the prover of whole packets
understands them as well: for all contents of the register at the start.
"""
import z3

import mutants
from theorems import implies, leaves

THEOREMS, MUTANTS = [], []
NUMBERS = "I.numbers"


def before(p, slot):
    return z3.Select(p.start(NUMBERS), slot)


def after(p, slot):
    return z3.Select(p.registers.get(NUMBERS, p.start(NUMBERS)), slot)


def own(p):
    """The slot that the packet names."""
    return z3.ZeroExt(24, p.input[("n", "slot")])


def theorem(f):
    THEOREMS.append(f)
    return f


@theorem
def a_number_passes_once(p):
    """What passes has a number above its slot's, and the slot has that number afterwards."""
    if "n" not in p.parsed:
        return z3.Not(leaves(p))
    number = p.input[("n", "number")]
    return implies(leaves(p), z3.And(z3.UGT(number, before(p, own(p))), after(p, own(p)) == number))


@theorem
def no_slot_goes_back(p):
    """No packet makes a slot's number smaller."""
    slot = z3.BitVec("any_slot", 32)
    return z3.UGE(after(p, slot), before(p, slot))


@theorem
def other_slots_stay(p):
    """A packet changes no slot but the one that it names."""
    slot = z3.BitVec("any_slot", 32)
    named = slot == own(p) if "n" in p.parsed else z3.BoolVal(False)
    return z3.Implies(z3.Not(named), after(p, slot) == before(p, slot))


mutant = mutants.declares(MUTANTS)


def writes(d):
    return [op for a in d["actions"] for op in a["primitives"] if op["op"] == "register_write"]


@mutant("a_number_passes_once")
def number_is_not_kept(d):
    """The number of a packet that passes is not written down."""
    for a in d["actions"]:
        a["primitives"] = [op for op in a["primitives"] if op["op"] != "register_write"]


@mutant("a_number_passes_once")
def number_passes_twice(d):
    """A number that equals the slot's passes."""
    mutants.must(mutants.replace(d, ">", ">="))


@mutant("a_number_passes_once", "no_slot_goes_back")
def any_number_passes(d):
    """The slot's number is not looked at."""
    mutants.must(mutants.replace(d, ">", "!="))


@mutant("other_slots_stay")
def one_slot_has_all(d):
    """The number is written to slot 0."""
    for op in writes(d):
        op["parameters"][1] = {"type": "hexstr", "value": "0x0"}
