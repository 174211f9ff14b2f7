"""What becomes of every packet: the first rule of a list that applies, and what follows from it.

rules says for each packet, whatever the tables have, whether it is forwarded, held,
denied or dropped, and why. The theorems here say that the program does so, and that its
counters, digests and copies are true. Those of theorems.py say what that is good for.
"""
from typing import NamedTuple

import z3

from symbolic import fit
from theorems import (ALLOC, BULK, CONTROL, CPU, DIRECT, DROPPED, DSM, FLAG_RELEASED, FREE, MEMORY, NODE, PASSES, READ, RPC, SLOTS, bits, came, from_cpu,
                      is_call, judged, leaves, lives, operates, port, rate, theorem, turned, unchanged, within)
from theorems import LENT as IS_LENT


FORWARDED, HELD, DENIED, NO_IDENTITY, NO_ROUTE, MALFORMED, FORGED, UNSUPPORTED, HOP_LIMIT, UNLISTED, LATE, LENT = range(12)
FOR_CONTROL, FOR_NO_HOME, FOR_NO_ROUTE, FOR_HAND = 1, 5, 6, 7
UDP, TCP, FRAGMENT, ICMPV6 = 17, 6, 44, 58
CALL, ONEWAY = 1, 4


# ---- what the tables say

class Entry:
    """What a table says of a key, whether or not the program asks."""

    def __init__(self, p, table, *key):
        t = next(t for pipeline in p.program.json["pipelines"] for t in pipeline["tables"] if t["name"].endswith("." + table))
        self.program, self.table, self.key = p.program, t, key
        self.sorts = [k.sort() for k in key]
        self.hit = self.of("hit", z3.BoolSort())
        p.asked.append(self)

    def of(self, name, sort):
        return z3.Function(f"{self.table['name']}.{name}", *self.sorts, sort)(*self.key)

    def does(self, action):
        """The entry has an action. What is no action's number stands for the table's first one."""
        numbers = self.table["action_ids"]
        number = next(i for i, name in zip(numbers, self.table["actions"]) if name.endswith("." + action))
        chosen = self.of("action", z3.BitVecSort(16))
        return z3.And(self.hit, z3.And(*[chosen != i for i in numbers[1:]]) if number == numbers[0] else chosen == number)

    def param(self, action, name):
        number, full = next((i, n) for i, n in zip(self.table["action_ids"], self.table["actions"]) if n.endswith("." + action))
        width = next(d["bitwidth"] for d in self.program.actions[number]["runtime_data"] if d["name"] == name)
        return self.of(f"{full}.{name}", z3.BitVecSort(width))


class Packet:
    """What an IPv6 packet says, and what the tables say of it."""

    def __init__(self, p):
        self.p = p
        self.blade = z3.Not(from_cpu(p))
        self.src, self.dst = came(p, "ipv6", "src"), came(p, "ipv6", "dst")
        self.next_header = came(p, "ipv6", "next_header")
        if self.has("fragment"):
            self.tcp = came(p, "fragment", "next_header") == TCP
        else:
            self.tcp = self.next_header == TCP
        self.identity = Entry(p, "identity", port(p), self.src)
        self.op = bits(self.dst, 79, 72)
        self.home = Entry(p, "dsm_home", bits(self.dst, 127, 80))
        self.hop = self.chosen()
        self.next = Entry(p, "next_hop", self.hop)

    def has(self, header):
        return header in self.p.parsed

    def says(self, header, field):
        return came(self.p, header, field)

    def chosen(self):
        """The hop: the one that the Gatekeeper names, that of the method, the machine, or else the address; 0 is none."""
        address = Entry(self.p, "l3", self.dst)
        to = z3.If(address.does("to_node"), address.param("to_node", "hop"), address.param("to_hop", "hop"))
        hop = z3.If(address.hit, to, z3.BitVecVal(0, 16))
        self.open = z3.BoolVal(True)  # the Gatekeeper names none
        if self.has("packet_out"):
            self.open = self.says("packet_out", "hop") == 0
        if self.has("rpc"):
            kind = self.says("rpc", "type")
            self.starts = z3.And(self.open, is_call(self.p), z3.Or(kind == CALL, kind == ONEWAY))
            self.route = Entry(self.p, "rpc_route", self.dst, self.says("rpc", "method"), bits(self.says("rpc", "call"), 7, 0))
            hop = z3.If(self.starts, self.route.param("to_hop", "hop"), hop)
        if self.has("dsm"):
            self.to_memory = z3.And(self.open, self.home.hit)
            first = z3.If(self.home.does("to_copies"), self.home.param("to_copies", "hop"), self.home.param("to_hop", "hop"))
            hop = z3.If(self.home.hit, first, hop)
        return z3.If(self.open, hop, self.says("packet_out", "hop")) if self.has("packet_out") else hop


# ---- the rules

class Rule(NamedTuple):
    """What becomes of the packets to which the rule is the first that applies."""
    verdict: int
    applies: z3.BoolRef
    reason: int = 0        # why a packet is held
    replicate: bool = False


def rules(p):
    """The rules for a path's packets, in order."""
    if p.short:
        yield Rule(MALFORMED, z3.BoolVal(True))
        return
    if "hand" in p.parsed:
        yield Rule(HELD, from_cpu(p), FOR_HAND)
    if "ipv6" not in p.parsed:
        yield Rule(UNSUPPORTED, z3.BoolVal(True))
        return
    k = p.packet = Packet(p)
    blade, says = k.blade, k.says
    yield Rule(UNSUPPORTED, says("ipv6", "version") != 6)
    yield Rule(HOP_LIMIT, z3.And(blade, z3.ULE(says("ipv6", "hop_limit"), 1)))
    if k.has("udp"):
        src, dst = says("udp", "src_port"), says("udp", "dst_port")
        yield Rule(HELD, z3.And(blade, dst == CONTROL), FOR_CONTROL)
    yield Rule(NO_IDENTITY, z3.And(blade, z3.Not(k.identity.hit)))
    if k.has("udp"):
        has_row = z3.BoolVal(False) if k.has("rpc") else k.identity.param("known", "row") != 0  # rows.py is about messages of who has one
        ours = z3.Or(*[x == y for x in (src, dst) for y in (RPC, DSM)], z3.And(has_row, z3.Or(*[x == y for x in (src, dst) for y in (DIRECT, BULK)])))
        yield Rule(FORGED, z3.And(blade, src != dst, ours))
    if k.has("icmpv6"):
        yield Rule(FORGED, z3.And(blade, z3.ULT(says("icmpv6", "type"), 128)))
    if k.has("rpc"):
        yield from rules_of_calls(k, blade, says)
    elif k.has("dsm"):
        yield from rules_of_memory(k, blade, says)
    elif not k.has("udp"):
        yield Rule(UNSUPPORTED, z3.And(blade, z3.Not(k.tcp), k.next_header != ICMPV6))
    if not k.has("udp"):
        yield Rule(UNLISTED, z3.And(blade, k.tcp, z3.Not(Entry(p, "tcp_allowed", port(p), k.hop).hit)))
    yield Rule(NO_ROUTE, z3.Not(k.next.does("forward")))
    yield Rule(FORWARDED, z3.BoolVal(True))


def rules_of_calls(k, blade, says):
    kind, flags, looked_at = says("rpc", "type"), says("rpc", "flags"), is_call(k.p)
    blade = z3.And(blade, looked_at)
    yield Rule(MALFORMED, z3.And(looked_at, z3.Or(says("rpc", "magic") != 0xB1FC, says("rpc", "version") != 3)))
    yield Rule(FORGED, z3.And(blade, z3.Or(kind == 0, z3.UGT(kind, 4), flags & FLAG_RELEASED != 0, says("rpc", "turned") != 0, says("rpc", "had") != 0)))
    yield Rule(FORGED, z3.And(blade, says("rpc", "lists") != 0))
    yield Rule(HELD, z3.And(k.starts, z3.Not(k.route.hit)), FOR_NO_ROUTE)


def rules_of_memory(k, blade, says):
    op, verdict = k.op, says("dsm", "verdict")
    mirrored = z3.And(k.home.does("to_copies"), k.home.param("to_copies", "group") != 0)
    yield Rule(MALFORMED, z3.Or(says("dsm", "magic") != 0xB1FD, says("dsm", "version") != 4))
    yield Rule(MALFORMED, z3.And(k.to_memory, z3.Or(verdict != 0x0100, op == 0, z3.UGT(op, SLOTS))))
    unasked, known = z3.And(blade, z3.Not(k.to_memory)), lambda name: k.identity.param("known", name)
    memory = known("kind") == MEMORY
    yield Rule(HELD, z3.And(unasked, z3.Not(memory), bits(k.dst, 127, 96) == 0), FOR_NO_HOME)
    yield Rule(MALFORMED, z3.And(unasked, z3.Not(memory)))
    asks = z3.And(says("dsm", "incarnation") == known("incarnation"), z3.Or(z3.UGT(op, FREE), z3.And(known("kind") == NODE, known("row") != 0)))
    may_be_judged = z3.If(k.to_memory, asks, says("dsm", "blade_incarnation") == known("incarnation"))
    yield Rule(LATE, z3.And(blade, z3.Or(z3.Not(may_be_judged), judged(k.p) == DROPPED)))
    yield Rule(LENT, z3.And(blade, judged(k.p) == IS_LENT))
    yield Rule(DENIED, z3.And(blade, judged(k.p) != PASSES))
    yield Rule(FORWARDED, z3.And(k.to_memory, mirrored, op != SLOTS, op != READ), replicate=True)


def first(p):
    """(rule, the condition that it is the first that applies) of each rule."""
    if p.first is None:
        before, p.first = [], []
        for r in rules(p):
            p.first.append((r, z3.And(*before, r.applies)))
            before.append(z3.Not(r.applies))
    return p.first


def any_of(p, wanted):
    """The packet's rule is one of those that are wanted."""
    return z3.Or(*[applies for r, applies in first(p) if wanted(r)], False)


# ---- theorems

# What stands behind a header, by a field of it, or of another one. MAGIC is what the parser only looks at.
MAGIC = "ahead.parse_bulk"
BEHIND = {
    "ethernet": ("type", {0x86DD: "ipv6", 0x88B5: "hand"}),
    "hand": ("op", {1: "found0", 2: "found0", 7: "found0"}),
    "ipv6": ("next_header", {UDP: "udp", FRAGMENT: "fragment", ICMPV6: "icmpv6"}),
    "udp": ("dst_port", {RPC: "rpc", DIRECT: "rpc", BULK: MAGIC, DSM: "dsm"}),
    MAGIC: (None, {0xB1FC: "rpc"}),
    "rpc": ("lists", {n: "list0" for n in (1, 2, 3, 4)}),
    "list0": (("rpc", "lists"), {n: "list1" for n in (2, 3, 4)}),
    "list1": (("rpc", "lists"), {n: "list2" for n in (3, 4)}),
    "list2": (("rpc", "lists"), {4: "list3"}),
    "found0": (("hand", "op"), {2: "found1"}),
    "found1": (("hand", "op"), {2: "found2"}),
    "found2": (("hand", "op"), {2: "found3"}),
}


@theorem
def headers_are_found(p):
    """The parser takes the headers that the packet has, in their order, and no other ones; from the CPU port, and only from there, one before Ethernet."""
    taken = p.parsed + [p.short]
    if p.seen:
        taken.insert(taken.index("udp") + 1, MAGIC)
    if taken[0] == "packet_out":
        facts, taken = [from_cpu(p)], taken[1:]
    else:
        facts = [z3.Not(from_cpu(p))]
    if taken and taken[0] != "ethernet":
        return z3.BoolVal(False)
    for header, behind in zip(taken, taken[1:]):
        field, choices = BEHIND.get(header, (None, {}))
        for choice in sorted(set(choices.values())):
            of = field if isinstance(field, tuple) else (header, field)
            value = p.seen[MAGIC] if header == MAGIC else came(p, *of)
            facts.append(z3.Or(*[value == number for number, to in choices.items() if to == choice]) == z3.BoolVal(behind == choice))
        facts.append(z3.BoolVal(behind is None or behind in choices.values()))
    return z3.And(*facts)


@theorem
def each_packet_counts_as_what_became_of_it(p):
    """Each packet counts once among the verdicts of its port: as what the rules say."""
    cells = [index for name, index in p.counts if name.endswith(".verdicts")]
    if len(cells) != 1:
        return z3.BoolVal(False)
    return z3.And(*[z3.Implies(applies, cells[0] == (fit(port(p), 32) << 4 | r.verdict)) for r, applies in first(p)])


@theorem
def each_packet_is_held_for_its_reason(p):
    """A packet is held, with its reason, just if the rules say so; beyond its rate it is dropped, and counts by port and reason."""
    beyond = [index for name, index in p.counts if name.endswith(".throttled")]
    if not p.valid.get("packet_in"):
        return z3.And(z3.Not(any_of(p, lambda r: r.verdict == HELD)), z3.BoolVal(not beyond))
    why = p.get("packet_in", "reason")
    counted = beyond[0] == (fit(port(p), 32) << 3 | fit(why, 32)) if len(beyond) == 1 else z3.BoolVal(not beyond)
    return z3.And(p.out == CPU, p.group == 0, any_of(p, lambda r: r.verdict == HELD), *[z3.Implies(applies, why == r.reason) for r, applies in first(p)],
                  leaves(p) == (z3.BoolVal(True) if operates(p) else rate(p)), leaves(p) == z3.BoolVal(not beyond), counted)


@theorem
def each_packet_goes_where_it_should(p):
    """What is forwarded goes by its hop, or to each copy of its machine, with the Ethernet addresses of whom it goes to; what is denied goes back; the rest goes nowhere."""
    facts = []
    for r, applies in first(p):
        if r.verdict in (DENIED, LENT):
            facts.append(z3.Implies(applies, turned(p)))
        elif r.verdict == FORWARDED:
            facts.append(z3.Implies(applies, to_each_copy(p) if r.replicate else to_hop(p)))
        elif r.verdict != HELD:
            facts.append(z3.Implies(applies, z3.Not(leaves(p))))
    return z3.And(*facts)


def crosses_with(p, dst, src):
    """The packet leaves as it came, with one hop less to live and other Ethernet addresses."""
    if "ipv6" not in p.parsed:
        return z3.BoolVal(False)
    return z3.And(leaves(p), z3.BoolVal(not p.valid.get("packet_in")), lives(p), p.get("ethernet", "dst") == dst, p.get("ethernet", "src") == src,
                  unchanged(p, ("ethernet", "src"), ("ethernet", "dst"), ("ipv6", "hop_limit")))


def to_hop(p):
    hop = p.packet.next
    counted = [name for name, _ in p.counts if name.endswith(".next_hop_counter")]
    return z3.And(p.group == 0, p.out == hop.param("forward", "port"), z3.BoolVal(len(counted) == 1),
                  crosses_with(p, hop.param("forward", "dst"), hop.param("forward", "src")))


def to_each_copy(p):
    rid = z3.BitVec("replica.egress_rid", 16)
    copy = Entry(p, "replica", rid)
    known = z3.And(rid != 0, copy.hit)
    address = {f: z3.If(known, copy.param("readdress", f), came(p, "ethernet", f)) for f in ("dst", "src")}
    return z3.And(p.group == p.packet.home.param("to_copies", "group"), crosses_with(p, address["dst"], address["src"]))


DENIED_DIGEST = [("standard_metadata", "ingress_port"), ("ipv6", "src"), ("ipv6", "dst"), ("dsm", "request")]


@theorem
def digests_are_true(p):
    """Of each denial a digest tells what the packet said, if its port's rate allows; of nothing else. (Beside that, a digest may say that a batch is half used.)"""
    denied = any_of(p, lambda r: r.verdict == DENIED)
    digests = [d for d in p.digests if d[0] != "half_used_digest_t"]
    if not digests:
        return z3.Implies(denied, z3.Not(within(p, "digests", port(p))))
    (name, values), *more = digests
    fields = DENIED_DIGEST
    if more or name != "denied_digest_t" or len(values) != len(fields) or any(h not in p.program.metadata or h != "standard_metadata" and h not in p.parsed for h, _ in fields):
        return z3.BoolVal(False)
    said = [port(p) if h == "standard_metadata" else came(p, h, f) for h, f in fields]
    return z3.And(denied, within(p, "digests", port(p)), *[v == fit(s, v.size()) for v, s in zip(values, said)])


@theorem
def cells_are_there(p):
    """Each counter and meter has the cell that a packet wants of it."""
    size = {x["name"]: x.get("size", 0) for x in p.program.json["counter_arrays"] + p.program.json["meter_arrays"]}
    cells = [(name, index) for name, index in p.counts if index is not None] + [(name, index) for name, index, _ in p.meters]
    return z3.And(*[z3.ULT(index, size[name]) for name, index in cells])


@theorem
def nothing_has_a_second_way(p):
    """No packet is cloned, resubmitted or recirculated."""
    return z3.BoolVal(not p.notes)

