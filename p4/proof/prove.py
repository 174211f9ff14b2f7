#!/usr/bin/python3
"""Proves what p4/bifrost.p4 promises, for all packets and all table contents.

    p4/proof/prove.py [PROGRAM.json]       prove every theorem about packets but messages of nodes; exit 1 if one fails
    p4/proof/prove.py --mutants [K/N]      break the program in many ways: each must break a theorem
    p4/proof/prove.py --mutants [K/N] --cases DIRECTORY
                                           write each broken program (NAME.json), and the case that shows it (NAME.stf)
    p4/proof/prove.py --registers [--cases DIRECTORY]
                                           the same of p4switch/interp/testdata/numbers.p4, which has a register
    p4/proof/prove.py --rights all|quick   prove what actions do to the rights in registers, that they keep the invariants, and refute faults:
                                           minutes, or in seconds those of accesses to memory, of questions and of the Gatekeeper's small operations
    p4/proof/prove.py --rows               prove what becomes of messages of nodes, and refute faults
    p4/proof/prove.py --list               theorems, assumptions and mutants

The program is the compiled one that both executors load. A theorem that fails is
shown as a packet and table contents, in a script that they run (p4switch/interp/stf).
Needs Debian's python3-z3.
"""
import argparse
import copy
import gc
import json
import pathlib
import sys
import time

try:
    import z3
except ImportError:
    sys.exit("prove.py: no z3 for this Python: apt-get install python3-z3, and run it with /usr/bin/python3")

HERE = pathlib.Path(__file__).resolve().parent
SWITCH = HERE.parents[1] / "p4switch"
sys.path.insert(1, str(SWITCH / "validate"))  # of symbolic

import counterexample
import invariants
import mutants
import registers
import rights
import rows
import theorems
import verdicts  # noqa: F401 (its theorems join those of theorems)
from symbolic import Program, Unsupported


def refute(program, path, solver, claim):
    """A case on the path that breaks the claim, None if there is none."""
    claim = z3.simplify(claim)
    if z3.is_true(claim):
        return None
    solver.push()
    try:
        solver.add(z3.Not(claim))
        if solver.check() == z3.unsat:
            return None
        for wish in counterexample.nice(path):
            solver.push()
            solver.add(wish)
            if solver.check() != z3.sat:
                solver.pop()
        if solver.check() != z3.sat:
            raise Unsupported("the solver does not know")
        return counterexample.Case(program, path, solver.model())
    finally:
        while solver.num_scopes():
            solver.pop()


class Ways:
    """The paths of a program, each with a solver that knows its conditions and what is assumed of the tables. Made when they are first asked for."""

    def __init__(self, program, assumptions):
        self.rest, self.assumptions, self.known = program.paths(), assumptions, []

    def __iter__(self):
        at = 0
        while True:
            if at == len(self.known):
                p = next(self.rest, None)
                if p is None:
                    return
                s = z3.SimpleSolver()
                s.add(*p.conditions, *[a(p) for a in self.assumptions])
                self.known.append((p, s))
            yield self.known[at]
            at += 1


def check(program, wanted, assumptions=theorems.ASSUMPTIONS):
    """Yields (theorem, None or a case, on how many paths) for each theorem."""
    ways = Ways(program, assumptions)
    for t in wanted:
        found = None
        for p, solver in ways:
            case = refute(program, p, solver, t(p))
            if case and (found is None or case.leaves()):
                found = case
            if found and found.leaves():
                break  # one that leaves shows more than one that is dropped
        yield t, found, len(ways.known)


def about(f):
    return " ".join(f.__doc__.split())


def prove(program, wanted, assumptions):
    start = time.time()
    failed = paths = 0
    for t, case, n in check(program, wanted, assumptions):
        paths = max(paths, n)
        print(f"{'FAILED' if case else 'proved'}  {t.__name__}: {about(t)}")
        if case:
            failed += 1
            print("  this breaks it:\n" + "".join(f"    {line}\n" for line in case.script().splitlines()))
    print(f"{paths} paths through the program")
    print(f"{len(wanted) - failed} passed, {failed} failed, {time.time() - start:.0f} s" + ("; assumed of the tables:" if assumptions else ""))
    for a in assumptions:
        print(f"  {a.__name__}: {about(a)}")
    return failed


def broken(source, mutate, make):
    """The program with a fault."""
    d = copy.deepcopy(source)
    mutate(d)
    return make(d)


def refutations(source, which, wanted, assumptions, directory, make=Program):
    """Runs mutants: each has to break the theorems that it names. make makes a program of its source."""
    survived = 0
    by_name = {t.__name__: t for t in wanted}
    for mutate, breaks in which:
        program = broken(source, mutate, make)
        held = []
        for t, case, _ in check(program, [by_name[b] for b in breaks], assumptions):
            if case is None:
                held.append(t.__name__)
            elif directory and not case.path.notes and not case.path.skipped:  # the case would say neither what becomes of clones nor what registers have
                write_case(program, mutate, case, pathlib.Path(directory))
        survived += bool(held)
        print(f"{'SURVIVED ' + ', '.join(held) if held else 'refuted by ' + ', '.join(breaks)}: {mutate.__name__}: {about(mutate)}", flush=True)
    print(f"{len(which) - survived}/{len(which)} mutants refuted")
    return survived


def write_case(program, mutate, case, directory):
    """Writes a mutant and the script that shows its fault."""
    name = mutate.__name__
    (directory / f"{name}.json").write_text(json.dumps(program.json), encoding="utf-8")
    (directory / f"{name}.stf").write_text(f"# {name}: {about(mutate)}\n{case.script()}", encoding="utf-8")


def but_messages(source):
    """The program, for all packets but messages of nodes, about which rows.py is."""
    rows.only_verdicts(source)
    return Program(source, theorems.ENTRIES)


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("program", nargs="?", default=HERE.parent / "bifrost.json", help="compiled program (p4/bifrost.json)")
    args.add_argument("--mutants", nargs="?", const="1/1", metavar="K/N", help="refute the mutants; with K/N each N-th from the K-th on")
    args.add_argument("--registers", action="store_true", help="prove and refute what p4switch/interp/testdata/numbers.p4 promises")
    args.add_argument("--rights", choices=["all", "quick"], help="prove what actions do to the rights in registers, and refute faults of theirs")
    args.add_argument("--rows", action="store_true", help="prove and refute what becomes of messages of nodes")
    args.add_argument("--cases", metavar="DIRECTORY", help="with --mutants or --registers: where to write the mutants and their cases")
    args.add_argument("--list", action="store_true", help="list theorems, assumptions and mutants")
    a = args.parse_args()
    source = json.load(open(a.program, encoding="utf-8"))
    if a.list:
        for kind, fs in (("theorem", theorems.THEOREMS), ("assumption", theorems.ASSUMPTIONS), ("mutant", [m for m, _ in mutants.MUTANTS])):
            for f in fs:
                print(f"{kind}\t{f.__name__}\t{about(f)}")
    elif a.rights:
        actions = rights.QUICK if a.rights == "quick" else None
        failed = rights.prove(Program(source), actions)
        failed += invariants.prove(Program(source), actions)
        sys.exit(1 if failed + rights.refute(source, actions) else 0)
    elif a.rows:
        failed = prove(rows.program(source), rows.THEOREMS, theorems.ASSUMPTIONS)
        sys.exit(1 if failed + refutations(source, rows.MUTANTS, rows.THEOREMS, theorems.ASSUMPTIONS, None, rows.program) else 0)
    elif a.registers:
        source = json.load(open(SWITCH / "interp" / "testdata" / "numbers.json", encoding="utf-8"))
        failed = prove(Program(source), registers.THEOREMS, [])
        sys.exit(1 if failed + refutations(source, registers.MUTANTS, registers.THEOREMS, [], a.cases) else 0)
    elif a.mutants:
        k, n = map(int, a.mutants.split("/"))
        sys.exit(1 if refutations(source, mutants.MUTANTS[k - 1::n], theorems.THEOREMS, theorems.ASSUMPTIONS, a.cases, but_messages) else 0)
    else:
        sys.exit(1 if prove(but_messages(source), theorems.THEOREMS, theorems.ASSUMPTIONS) else 0)


if __name__ == "__main__":
    gc.disable()  # what is dropped here has no circles, and there is too much to look through
    try:
        main()
    except Unsupported as e:
        sys.exit(f"prove.py: the program uses what this checker does not know: {e}")
