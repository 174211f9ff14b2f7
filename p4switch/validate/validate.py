#!/usr/bin/env python3
"""Checks the eBPF that package ebpf has generated against the model, for all frames and all contents of tables and registers.

    p4switch/validate/validate.py LISTING...     listings that p4switch/ebpf/validated_test.go writes

Each way through the code (machine.py) is compared with what the model (model.py) does with the same packets: whether and where the packet leaves, its
bytes, counters, registers, digests. A way is proved, refuted by a packet, or given up, with the reason. First come so few ways that each branch is gone to
both sides, then all the others until the time is over. Needs Debian's python3-z3.
"""
import argparse
import collections
import json
import sys
import threading
import time

try:
    import z3
except ImportError:
    sys.exit("validate.py: no z3 for this Python: apt-get install python3-z3, and run it with /usr/bin/python3")

import symbolic
from machine import DROP, DROP_PORT, INDEX, LEN, LONGEST, PORT, REDIRECT, GivenUp, Machine, Slice, Wrong, byte, packet, wide
from model import Model

PATIENCE = 3_000_000  # what the solver may spend on a question: some seconds, in units that do not depend on the machine
HASTE = 100_000       # what it may spend at first
VAIN = 16             # after so many rounds of few ways that come to no other side of a branch, all ways are looked at
EVERY = 10            # seconds of CPU between two lines that say how far it has come
PACKETS, TESTED = 2000, 1500  # how many packets of ways that are given up a report has, and how long they are at most


class Over(Exception):
    """The time is over."""


class Comparison:
    """One program, way by way."""

    def __init__(self, listing, seconds, patience, progress):
        self.began = time.process_time()
        self.until, self.next, self.progress = self.began + seconds, self.began + EVERY, progress
        self.solver = z3.SimpleSolver()
        self.solver.set("rlimit", min(HASTE, patience))
        self.program = listing["program"]
        source = json.load(open(self.program, encoding="utf-8"))
        self.model = Model(source, listing)
        self.machine = Machine(listing, self.model, self.solver, patience, self.pulse)
        self.model.machine = self.machine
        self.proved, self.wrong = 0, ""  # and why the code is wrong: the search ends with the way that shows it
        self.given_up = collections.Counter()
        self.known = set()    # the ways of which a verdict is known, while few ways are gone
        self.sides = set()    # of branches, on ways that are proved
        self.packets = []     # of ways that are given up
        self.few = None       # how many ways were enough to go each branch to both sides, and how many sides those that are proved have
        self.whole = False    # whether all ways were looked at

    def pulse(self):
        now = time.process_time()
        if now > self.until:
            raise Over
        if now > self.next:
            self.next = now + EVERY
            done = self.proved + self.given_up.total()
            print(f"{self.program}: {self.proved} of {done} ways are proved, {'at least ' if self.machine.open else ''}{done + self.machine.open} are to be looked at; "
                  f"{len(self.sides)} sides of branches; {now - self.began:.0f} s", file=self.progress, flush=True)

    def run(self):
        """Looks at ways until the time is over, or one is refuted."""
        self.solver.add(z3.ULE(LEN, LONGEST), PORT != DROP_PORT)
        try:
            vain = 0
            while vain < VAIN:
                before = len(self.machine.taken)
                self.look(covering=True)
                vain = vain + 1 if len(self.machine.taken) == before else 0
            self.few = len(self.known), len(self.sides)
            self.look(covering=False)
            self.whole = True
        except Over:
            pass
        except (Refuted, Wrong) as e:
            self.wrong = str(e)

    def look(self, covering):
        """Looks at a few ways, or at all of which no verdict is known."""
        array = z3.Array("registers", z3.BitVecSort(64), z3.BitVecSort(64))
        for state, why in self.machine.paths(covering):
            way = (state.at, *self.machine.sides)
            if way in self.known:
                continue
            try:
                if why is not None:
                    raise GivenUp(why)
                if state.lost:
                    raise GivenUp("dropped and counted: " + state.lost)
                with self.machine.told(*state.known()) as possible:
                    ends = 0
                    for end in self.model.ends(array, state.sums):
                        self.compare(state, end)
                        ends += 1
                    if ends == 0 and possible and self.machine.ask() != z3.unsat:
                        raise Wrong("the model does nothing with packets of a way")
            except GivenUp as e:
                self.given_up[str(e)] += 1
                self.keep_packet(state)
            else:
                self.proved += 1
                self.sides.update(self.machine.sides)
            if covering:
                self.known.add(way)

    def keep_packet(self, state):
        """Keeps a packet of a way that is given up, with the entries that its tables have then, so that it can be tested."""
        if len(self.packets) == PACKETS:
            return
        with self.machine.told(z3.ULE(LEN, max(state.least, TESTED))):
            m = self.machine.witness
            if m is None:
                return
            n = m.eval(LEN, model_completion=True).as_long()
            entries = {}
            for table, key in state.asked:
                e = self.model.entry(m, table, key)
                if e is not None:
                    entries[table, *e["match"]] = e
            self.packets.append({"port": m.eval(PORT, model_completion=True).as_long(), "entries": list(entries.values()),
                                 "frame": bytes(m.eval(packet(i), model_completion=True).as_long() for i in range(n)).hex()})

    def report(self):
        """What was found, for those who make tables of it."""
        return {"proved": self.proved, "given_up": dict(self.given_up.most_common()), "few": self.few, "whole": self.whole, "wrong": self.wrong,
                "ran": len(self.machine.ran), "code": sum(i is not None for i in self.machine.code), "sides": len(self.sides), "all_sides": len(self.machine.taken),
                "seconds": round(time.process_time() - self.began, 1), "packets": self.packets}

    def compare(self, state, end):
        """Raises Refuted, or GivenUp if the solver does not know."""
        claims = list(self.claims(state, end))
        unclear = []
        for what, claim in claims:
            claim = z3.simplify(claim) if not isinstance(claim, bool) else z3.BoolVal(claim)
            if not z3.is_true(claim):
                unclear.append((what, claim))
        if not unclear:
            return
        self.solver.push()
        try:
            self.solver.add(z3.Not(z3.And([c for _, c in unclear])))
            found = self.machine.ask()
            if found == z3.unsat:
                return
            if found != z3.unknown and state.sums:  # what the variables stand for has not been told yet
                self.solver.add(*[v == of for v, of, _ in state.sums])
                found = self.machine.ask()
                if found == z3.unsat:
                    return
            if found == z3.unknown:
                raise GivenUp("the solver does not know")
            m = self.machine.answered.model()
            bad = [what for what, c in unclear if not z3.is_true(m.eval(c, model_completion=True))]
            raise Refuted(m, state, end, bad)
        finally:
            self.solver.pop()

    def claims(self, state, end):
        """What must hold of an end of the code and one of the model: (what, claim)."""
        sends = state.result == REDIRECT
        if not sends and state.result != DROP:
            raise Wrong(f"the code returns {state.result}")
        yield ("whether the packet leaves", sends == (end.port is not None))
        w = end.way
        yield "how many digests it sends", len(state.digests) == len(w.digests)
        for mine, theirs in zip(state.digests, w.digests):
            yield "how long its digest is", len(mine) == len(theirs)
            for k, (a, b) in enumerate(zip(mine, theirs)):
                message = isinstance(a, str) or isinstance(b, str)
                yield f"byte {k} of its digest", type(a) is type(b) and a == b if message else byte(a, state.least) == b
        yield "how often it is counted", len(state.counted) == len(w.counted)
        for (m, cell, at, n), (name, place, offset, amount) in zip(state.counted, w.counted):
            yield "which counter counts it", m == name and at == offset
            yield "the counter's cell", cell == place
            n = z3.BitVecVal(n, 64) if isinstance(n, int) else n
            yield "what the counter counts", n == (z3.BitVecVal(amount, 64) if isinstance(amount, int) else amount)
        if not z3.eq(state.array, w.array):
            yield "the registers", state.array == w.array
        if not sends or end.port is None:
            return
        yield "the port", wide(state.out, state.least) == z3.ZeroExt(32, INDEX(z3.ZeroExt(23, end.port)))
        mine, tail, theirs, rest = state.head[:], state.tail, end.head[:], end.tail
        if state.tag is not None:
            while len(mine) < 12:
                mine.append(packet(tail))
                tail += 1
            mine[12:12] = state.tag
        yield "its length", len(mine) - tail == len(theirs) - rest
        known = min(len(mine), len(theirs))
        while len(mine) < len(theirs):
            mine.append(packet(tail))
            tail += 1
        while len(theirs) < len(mine):
            theirs.append(packet(rest))
            rest += 1
        yield "where its payload begins", tail == rest
        differing = [not z3.eq(z3.simplify(byte(a, state.least)), z3.simplify(byte(b, state.least))) for a, b in zip(mine, theirs)]
        at = 0
        while at < len(mine):
            end = at
            while end < known and differing[end]:
                end += 1
            if end > at:  # whole numbers are easier to compare than their bytes
                yield f"bytes {at} to {end - 1}", number(mine[at:end], state.least) == number(theirs[at:end], state.least)
            elif differing[at]:
                yield f"byte {at}", z3.Or(byte(mine[at], state.least) == byte(theirs[at], state.least), z3.ULE(LEN + (len(mine) - tail), at))
            at = max(end, at + 1)


def number(elements, least):
    """Bytes of a frame as one number. Those of one number stay together."""
    parts, at = [], 0
    while at < len(elements):
        e, end = elements[at], at + 1
        if isinstance(e, Slice):
            while end < len(elements) and isinstance(elements[end], Slice) and elements[end].of is e.of and elements[end].i == e.i - (end - at):
                end += 1
            parts.append(z3.Extract(8 * e.i + 7, 8 * elements[end - 1].i, e.of))
        else:
            parts.append(byte(e, least))
        at = end
    return z3.Concat(*parts) if len(parts) > 1 else parts[0]


class Refuted(Exception):
    """The code does something else than the model, with a packet and contents of the tables that show it."""

    def __init__(self, m, state, end, what):
        n = m.eval(LEN, model_completion=True).as_long()
        frame = bytes(m.eval(packet(i), model_completion=True).as_long() for i in range(min(n, 160)))
        lines = [", ".join(what[:6]) + " differ" + ("s" if len(what) == 1 else ""),
                 f"packet of {n} bytes by port {m.eval(PORT, model_completion=True)}: {frame.hex()}{'…' if n > 160 else ''}"]
        for table, key in end.way.asked:
            lines.append(f"table {table}, key {m.eval(key, model_completion=True).as_long():x}")
        lines.append("the code: " + (f"sends {self.shown(m, state.head, state.least)} and the frame from {state.tail} on" if state.result == REDIRECT else "drops it"))
        lines.append("the model: " + (f"sends {self.shown(m, end.head, state.least)} and the frame from {end.tail} on" if end.port is not None else "drops it"))
        super().__init__("\n    ".join(lines))

    @staticmethod
    def shown(m, elements, least):
        return bytes(m.eval(byte(e, least), model_completion=True).as_long() for e in elements).hex()


def validate(file, a):
    """Looks at a program, prints what is found, and returns a report."""
    listing = json.load(open(file, encoding="utf-8"))
    name = listing["program"]
    try:
        c = Comparison(listing, a.seconds, a.patience, sys.stderr)
    except symbolic.Unsupported as e:
        print(f"{name}: none of its ways is looked at: {e}, of which the model knows nothing")
        return {"proved": 0, "given_up": {}, "unknown": str(e), "wrong": "", "packets": []}
    c.run()
    r = c.report()
    end = "" if c.whole else ", and the next one is refuted" if c.wrong else ", and the time was over before the last one"
    print(f"{name}: {c.proved} of {c.proved + c.given_up.total()} ways are proved{end}; "
          f"{r['sides']} of {r['all_sides']} sides of branches are on them; {r['ran']} of {r['code']} instructions were run; {r['seconds']} s of CPU")
    for why, n in c.given_up.most_common():
        print(f"    {n} given up: {why}")
    if c.wrong:
        print(f"  WRONG: {c.wrong}")
    return r


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--seconds", type=float, default=600, help="how long to look at a program, in seconds of CPU")
    args.add_argument("--patience", type=int, default=PATIENCE, help="what the solver may spend on a question, in its own units")
    args.add_argument("--report", help="a file for what is found, in JSON: a list of one object for each listing")
    args.add_argument("listing", nargs="+")
    a = args.parse_args()
    reports = [validate(f, a) for f in a.listing]
    if a.report:
        with open(a.report, "w", encoding="utf-8") as f:
            json.dump(reports, f)
    return not any(r["wrong"] for r in reports)


def whole_stack():
    """Runs main where ways may nest deeply."""
    status = []
    threading.stack_size(1 << 29)
    sys.setrecursionlimit(100_000)
    t = threading.Thread(target=lambda: status.append(main()))
    t.start()
    t.join()
    sys.exit(0 if status == [True] else 1)


if __name__ == "__main__":
    whole_stack()
