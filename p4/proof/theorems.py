"""What is proved of p4/bifrost.p4, for all packets but messages of nodes (rows.py), and all contents of tables and registers.

Each theorem is a function of a Path: it returns a condition that has to follow from
the path's conditions. The assumptions are about tables; p4/proof's Go tests check
that the Gatekeeper writes nothing else.
"""
import z3

CPU, DROP, RED = 510, 511, 2
RPC, DSM, CONTROL = 45100, 45101, 45102
ALLOC, READ, WRITE, FREE, SETTLE, LEDGER, SLOTS = 1, 2, 3, 4, 5, 6, 7
FLAG_RELEASED = 0x0010
PASSES, LENT, DROPPED = 0, 2, 5  # what a request to memory, or its answer, is judged as
NODE, DAEMON, MEMORY = 1, 2, 3  # senders

THEOREMS = []
ASSUMPTIONS = []

def row(p, any_row):
    """Messages of senders that have a row are left to rows.py."""
    return z3.BitVecVal(0, any_row.size()) if "rpc" in p.parsed else any_row


ENTRIES = {("identity", "known", "row"): row}


def theorem(f):
    THEOREMS.append(f)
    return f


def assumption(f):
    ASSUMPTIONS.append(f)
    return f


# ---- words

def implies(*facts):
    """The last fact follows from the others."""
    return z3.Implies(z3.And(*facts[:-1]), facts[-1])


def port(p):
    return p.get("standard_metadata", "ingress_port")


def from_cpu(p):
    return port(p) == CPU


def leaves(p):
    return p.leaves


def to_cpu(p):
    return z3.And(leaves(p), p.group == 0, p.out == CPU)


def crosses(p):
    """The packet goes to a blade: another one, or back to the one that sent it."""
    return z3.And(leaves(p), z3.Not(to_cpu(p)))


def came(p, header, field):
    """A field as the packet brought it."""
    return p.input[(header, field)]


def bits(value, high, low):
    return z3.Extract(high, low, value)


def unchanged(p, *but):
    """The headers that came are those that leave, in their order, except for some fields."""
    leaving = [h for h in p.program.deparsed if p.valid.get(h)]
    came_in = [h for h in p.parsed if h != "packet_out"]
    same = [z3.BoolVal(leaving == ["packet_in"] * bool(p.valid.get("packet_in")) + came_in)]
    for h in p.parsed:
        if h == "packet_out":
            continue
        for f, _ in p.program.headers[h]:
            if (h, f) not in but and p.get(h, f) is not came(p, h, f):
                same.append(p.get(h, f) == came(p, h, f))
    return z3.And(*same)


def turned(p):
    """The packet goes back to its sender as a denial, or as what is lent."""
    if "dsm" not in p.parsed:
        return z3.BoolVal(False)
    verdict = p.get("dsm", "verdict")
    swapped = [p.out == port(p), p.group == 0, verdict == z3.If(judged(p) == LENT, z3.BitVecVal(NOT_NOW, 16), DENIED), p.get("dsm", "verdict_twin") == ~verdict]
    for (h, f), (g, k) in SWAPS.items():
        swapped += [p.get(h, f) == came(p, g, k), p.get(g, k) == came(p, h, f)]
    but = [x for pair in SWAPS.items() for x in pair] + [("dsm", "verdict"), ("dsm", "verdict_twin")]
    return z3.And(*swapped, unchanged(p, *but), z3.BoolVal(not p.valid.get("packet_in")))


SWAPS = {
    ("ipv6", "src"): ("ipv6", "dst"), ("udp", "src_port"): ("udp", "dst_port"),
    ("ethernet", "src"): ("ethernet", "dst"),
}
DENIED, NOT_NOW = 0x0301, 0x0305  # kind and status of refusals


def judged(p):
    """What a request to memory, or an answer, was judged as: of what is not judged, DROPPED if it should have been."""
    return p.get("scalars", next(f for f, _ in p.program.headers["scalars"] if f.startswith("metadata_t._rights_judged")))


def was_judged(p):
    """The action has judged it that follows registers (rights.py)."""
    return z3.BoolVal("judge_access" in p.skipped)


def operates(p):
    """The packet is an operation of the Gatekeeper's hand."""
    return "packet_out" in p.parsed and "hand" in p.parsed


def answered(p):
    """An operation goes back to the Gatekeeper, with what it has found in the fields that are for that."""
    but = [(h, f) for h in p.parsed if h == "hand" or h.startswith("found") for f, _ in p.program.headers[h]]
    return z3.And(p.get("packet_in", "reason") == 7, unchanged(p, *but))


def is_control(p):
    return came(p, "udp", "dst_port") == CONTROL if "udp" in p.parsed else z3.BoolVal(False)


def is_call(p):
    """The packet has the header of a call and goes to the port of calls. What is sent to other ports is looked at only if its sender has a row."""
    return came(p, "udp", "dst_port") == RPC if "rpc" in p.parsed else z3.BoolVal(False)


def true():
    return z3.BoolVal(True)


def operation(p):
    """The operation of a request to memory: a byte of its address."""
    return bits(came(p, "ipv6", "dst"), 79, 72)


# ---- assumptions about tables

@assumption
def hops_lead_to_blades(p):
    """next_hop forwards to ports of blades: neither to the CPU port nor to the port that drops."""
    t = p.taken("next_hop")
    if t is None or not t.hit or "forward" not in t.action["name"]:
        return true()
    return z3.And(t.params[0] != CPU, t.params[0] != DROP)


@assumption
def hop_zero_is_nobody(p):
    """next_hop has no entry for hop 0, which stands for "not known"."""
    t = p.taken("next_hop")
    return true() if t is None or not t.hit else t.key("hop") != 0


@assumption
def addresses_of_memory_have_no_route(p):
    """l3 has no entry for addresses of memory machines (the first 32 bits are 0)."""
    t = p.taken("l3")
    return true() if t is None or not t.hit else bits(t.key("destination"), 127, 96) != 0


@assumption
def services_have_no_memory_address(p):
    """rpc_route has no entry for addresses of memory machines."""
    t = p.taken("rpc_route")
    return true() if t is None or not t.hit else bits(t.key("service"), 127, 96) != 0


@assumption
def nodes_have_no_memory_address(p):
    """identity knows a source with an address of a memory machine only as a memory blade."""
    t = p.taken("identity")
    return true() if t is None or not t.hit else z3.Or(bits(t.key("source"), 127, 96) != 0, t.params[0] == MEMORY)


# ---- theorems

@theorem
def identity_before_anything(p):
    """A packet has an effect only if its source lives at its port, unless it is for the Gatekeeper."""
    effect = z3.BoolVal(True) if p.digests else leaves(p)
    t = p.taken("identity")
    known = z3.BoolVal(False)
    if t is not None and t.hit:
        known = z3.And(t.key("ingress_port") == port(p), t.key("source") == came(p, "ipv6", "src"))
    return implies(z3.Not(from_cpu(p)), z3.Not(is_control(p)), effect, known)


@theorem
def default_deny(p):
    """A request to memory goes on only if it was judged, and may pass; an allocation, a read, a write or a free only if its sender is a node."""
    if "dsm" not in p.parsed:
        return true()
    home = p.taken("dsm_home")
    if home is None or not home.hit:
        return true()
    op, who = operation(p), p.taken("identity")
    node = z3.BoolVal(False)
    if who is not None and who.hit:
        kind, of, incarnation = who.params
        node = z3.And(came(p, "dsm", "incarnation") == incarnation, z3.Or(z3.UGT(op, FREE), z3.And(kind == NODE, of != 0)))
    return implies(z3.Not(from_cpu(p)), leaves(p), z3.And(was_judged(p), node, z3.Or(judged(p) == PASSES, turned(p))))


@theorem
def memory_is_reached_by_home_only(p):
    """What reaches an address of a memory machine is a memory request, and dsm_home has sent it there."""
    if "ipv6" not in p.parsed:
        return true()
    home = p.taken("dsm_home")
    asked = z3.BoolVal("dsm" in p.parsed and home is not None and home.hit)
    return implies(z3.Not(from_cpu(p)), bits(came(p, "ipv6", "dst"), 127, 96) == 0, crosses(p), z3.Or(asked, turned(p)))


@theorem
def memory_is_asked_for_what_it_does(p):
    """What reaches a memory machine is a request of this version: what the switch has judged, or what the Gatekeeper asks."""
    home = p.taken("dsm_home")
    if home is None or not home.hit:
        return true()
    op = operation(p)
    asks = z3.And(came(p, "dsm", "magic") == 0xB1FD, came(p, "dsm", "version") == 4, came(p, "dsm", "verdict") == 0x0100)
    listed = z3.And(z3.UGE(op, ALLOC), z3.ULE(op, SLOTS), z3.Or(z3.And(was_judged(p), judged(p) == PASSES), from_cpu(p)))
    return implies(crosses(p), z3.Or(z3.And(asks, listed), turned(p)))


@theorem
def both_copies_change(p):
    """What changes a machine with two copies goes to the multicast group of both; a read, and a question about slots, go to the first one."""
    home = p.taken("dsm_home")
    if home is None or not home.hit or "to_copies" not in home.action["name"]:
        return z3.Implies(leaves(p), p.group == 0)
    op = operation(p)
    both = z3.And(home.params[1] != 0, op != READ, op != SLOTS)
    return implies(crosses(p), z3.Not(turned(p)), p.group == z3.If(both, home.params[1], 0))


@theorem
def the_gatekeeper_names_the_hop(p):
    """A packet that the Gatekeeper sends to a hop goes to the port of just this hop."""
    if "packet_out" not in p.parsed or operates(p):
        return true()
    hop, t = came(p, "packet_out", "hop"), p.taken("next_hop")
    named = z3.BoolVal(False)
    if t is not None and t.hit and "forward" in t.action["name"]:
        named = z3.And(t.key("hop") == hop, p.group == 0, p.out == t.params[0])
    return implies(hop != 0, leaves(p), named)


@theorem
def denied_returns_to_its_sender(p):
    """A refused request goes back to where it came from, with the verdict of a refusal and its complement, and nothing else is changed."""
    return implies(z3.Not(from_cpu(p)), was_judged(p), judged(p) != PASSES, judged(p) != DROPPED, turned(p))


@theorem
def turning_around_keeps_the_checksum(p):
    """A refused request has the UDP checksum that it came with, and that checksum is still right, if verdict and twin were complements."""
    if "dsm" not in p.parsed or not z3.is_true(was_judged(p)):
        return true()
    twins = came(p, "dsm", "verdict") == ~came(p, "dsm", "verdict_twin")
    return implies(twins, judged(p) != PASSES, judged(p) != DROPPED, z3.And(p.get("udp", "checksum") == came(p, "udp", "checksum"), summed(p, p.get) == summed(p, lambda h, f: came(p, h, f))))


def summed(p, get):
    """The sum of the 16-bit words that a UDP checksum covers, in so far as the program knows them."""
    words = []
    whole = [get("ipv6", "src"), get("ipv6", "dst")]
    for h in ("udp", "dsm"):
        whole.append(z3.Concat(*[get(h, f) for f, _ in p.program.headers[h]]))
    for w in whole:
        for low in range(0, w.size(), 16):
            words.append(z3.ZeroExt(16, z3.simplify(bits(w, low + 15, low))))
    return z3.simplify(sum(words[1:], words[0]))


@theorem
def only_the_gatekeeper_sets_its_flags(p):
    """No call leaves with "released", or as one that was turned around, or with regions that its receiver had, unless it came from the Gatekeeper."""
    if "rpc" not in p.parsed:
        return true()
    return implies(z3.Not(from_cpu(p)), is_call(p), leaves(p), z3.And(p.get("rpc", "flags") & FLAG_RELEASED == 0, p.get("rpc", "turned") == 0, p.get("rpc", "had") == 0))


@theorem
def held_packets_leave_by_the_cpu_port(p):
    """What has a packet_in header goes to the CPU port only, unchanged, with its port and a reason, or as the answer to an operation of the Gatekeeper; nothing else goes there."""
    held = z3.BoolVal(bool(p.valid.get("packet_in")))
    why = p.get("packet_in", "reason")
    told = z3.And(p.get("packet_in", "ingress_port") == z3.ZeroExt(7, port(p)), answered(p) if operates(p) else z3.And(z3.Or(*[why == r for r in (1, 5, 6)]), unchanged(p)))
    return implies(leaves(p), z3.And(to_cpu(p) == held, z3.Implies(held, told)))


@theorem
def control_never_crosses(p):
    """A control packet from a blade reaches the Gatekeeper only."""
    return implies(z3.Not(from_cpu(p)), is_control(p), z3.Not(crosses(p)))


@theorem
def who_is_no_node_lends_nothing(p):
    """A message that lists a region, of a sender without a row, reaches nobody."""
    if "rpc" not in p.parsed:
        return true()
    return implies(z3.Not(from_cpu(p)), is_call(p), came(p, "rpc", "lists") != 0, z3.Not(leaves(p)))


@theorem
def answers_of_memory_are_judged(p):
    """An answer of memory goes on only if it was judged, may pass, and is of its server's present boot."""
    home = p.taken("dsm_home")
    if "dsm" not in p.parsed or home is None or home.hit:
        return true()
    who = p.taken("identity")
    boot = came(p, "dsm", "blade_incarnation") == who.params[2] if who is not None and who.hit else z3.BoolVal(False)
    return implies(z3.Not(from_cpu(p)), crosses(p), z3.And(was_judged(p), boot, z3.Or(judged(p) == PASSES, turned(p))))


@theorem
def only_memory_blades_answer(p):
    """A memory packet that dsm_home does not know crosses only from a memory blade."""
    home = p.taken("dsm_home")
    if "dsm" not in p.parsed or home is None or home.hit:
        return true()
    t = p.taken("identity")
    memory = t.params[0] == MEMORY if t is not None and t.hit else z3.BoolVal(False)
    return implies(z3.Not(from_cpu(p)), crosses(p), memory)


@theorem
def source_ports_are_fixed(p):
    """A packet to or from the port of calls, or of memory, has that port on both sides, so that no answer passes as something else."""
    if "udp" not in p.parsed:
        return true()
    src, dst = came(p, "udp", "src_port"), came(p, "udp", "dst_port")
    ours = z3.Or(*[x == y for x in (src, dst) for y in (RPC, DSM)])
    return implies(z3.Not(from_cpu(p)), ours, leaves(p), z3.Or(src == dst, is_control(p)))


# What goes between nodes or memory blades without being parsed: parts of large messages,
# the filling of second copies, direct calls.
BULK, FILL, DIRECT = 45103, 45104, 45105


@theorem
def direct_packets_go_by_address(p):
    """A packet to or from the port of direct calls, of parts or of filling is never held or told; it goes by the route of just its destination, from a source that lives at its port."""
    if "udp" not in p.parsed:
        return true()
    ours = z3.Or(*[came(p, "udp", f) == x for f in ("src_port", "dst_port") for x in (BULK, FILL, DIRECT)])
    who, route, hop = p.taken("identity"), p.taken("l3"), p.taken("next_hop")
    routed = z3.BoolVal(False)
    if who is not None and who.hit and route is not None and route.hit and hop is not None and hop.hit and not p.digests:
        routed = z3.And(z3.Not(to_cpu(p)), who.key("source") == came(p, "ipv6", "src"), who.key("ingress_port") == port(p),
                        route.key("destination") == came(p, "ipv6", "dst"), hop.key("hop") == route.params[0])
    return implies(z3.Not(from_cpu(p)), z3.Not(is_control(p)), ours, z3.Or(leaves(p), z3.BoolVal(bool(p.digests))), routed)


@theorem
def formats_are_checked(p):
    """A call or memory packet leaves only with its magic and version; a call from a blade only with a type that blades may send."""
    if "rpc" in p.parsed:
        kind = came(p, "rpc", "type")
        return implies(is_call(p), leaves(p), z3.And(came(p, "rpc", "magic") == 0xB1FC, came(p, "rpc", "version") == 3,
                                         z3.Or(from_cpu(p), z3.And(z3.UGE(kind, 1), z3.ULE(kind, 4)))))
    if "dsm" in p.parsed:
        return implies(leaves(p), z3.And(came(p, "dsm", "magic") == 0xB1FD, came(p, "dsm", "version") == 4))
    return true()


@theorem
def nothing_hides_a_call(p):
    """What crosses is UDP, TCP or ICMPv6: no extension header or fragment can hide a call, an access or an error."""
    if "ipv6" not in p.parsed:
        return z3.Not(crosses(p))
    plain = [came(p, "ipv6", "next_header") == n for n in (6, 58)]
    if "fragment" in p.parsed:
        plain.append(came(p, "fragment", "next_header") == 6)
    return implies(z3.Not(from_cpu(p)), leaves(p),
                   z3.And(came(p, "ipv6", "version") == 6, z3.Or(z3.BoolVal("udp" in p.parsed), *plain)))


@theorem
def errors_of_routers_never_cross(p):
    """No ICMPv6 error message from a blade reaches another one."""
    if "icmpv6" not in p.parsed:
        return implies(z3.Not(from_cpu(p)), crosses(p), came(p, "ipv6", "next_header") != 58) if "ipv6" in p.parsed else true()
    return implies(z3.Not(from_cpu(p)), z3.ULT(came(p, "icmpv6", "type"), 128), z3.Not(leaves(p)))


@theorem
def short_packets_go_nowhere(p):
    """A packet that ends within a header that the parser wants is dropped."""
    return z3.Not(leaves(p)) if p.short else true()


@theorem
def next_hop_chooses_the_port(p):
    """What crosses goes to the port that next_hop names for its hop, or to both copies of a machine, with one hop less to live; only a denial goes back."""
    t, home = p.taken("next_hop"), p.taken("dsm_home")
    to, copies = z3.BoolVal(False), z3.BoolVal(False)
    if t is not None and t.hit and "forward" in t.action["name"]:
        to = z3.And(p.group == 0, p.out == t.params[0])
    if home is not None and home.hit and "to_copies" in home.action["name"]:
        op = bits(came(p, "ipv6", "dst"), 79, 72)
        copies = z3.And(p.group == home.params[1], op != READ, op != SLOTS)
    return implies(crosses(p), z3.Or(z3.And(z3.Or(to, copies), lives(p)), turned(p)))


def lives(p):
    """The packet has one hop less to live."""
    return p.get("ipv6", "hop_limit") == came(p, "ipv6", "hop_limit") - 1 if "ipv6" in p.parsed else z3.BoolVal(False)


@theorem
def hop_limits_end_circles(p):
    """A packet from a blade that has no hop left to live does not cross."""
    if "ipv6" not in p.parsed:
        return true()
    return implies(z3.Not(from_cpu(p)), crosses(p), z3.UGT(came(p, "ipv6", "hop_limit"), 1))


@theorem
def what_crosses_is_not_rewritten(p):
    """What crosses is what was sent, but for Ethernet addresses and the hop limit; nobody's source address is changed."""
    return implies(crosses(p), z3.Or(turned(p), z3.And(
        unchanged(p, ("ethernet", "src"), ("ethernet", "dst"), ("ipv6", "hop_limit")), z3.BoolVal(not p.valid.get("packet_out")))))


@theorem
def routes_are_exact(p):
    """A call goes to a node only by the route of just its service, its method and the last byte of its id."""
    if "rpc" not in p.parsed:
        return true()
    kind = came(p, "rpc", "type")
    t = p.taken("rpc_route")
    routed = z3.BoolVal(False)
    if t is not None and t.hit:
        routed = z3.And(t.key("service") == came(p, "ipv6", "dst"), t.key("method") == came(p, "rpc", "method"),
                        t.key("spread") == bits(came(p, "rpc", "call"), 7, 0))
    return implies(z3.Not(from_cpu(p)), is_call(p), z3.Or(kind == 1, kind == 4), crosses(p), routed)


def within(p, meter, of):
    """The path uses a meter for a port, once, and is within its rate. A meter that it does not use could say anything."""
    used = [(i, c) for name, i, c in p.meters if name.endswith("." + meter)]
    if not used:
        return p.program.unused(meter) != RED
    if len(used) > 1:
        return z3.BoolVal(False)
    index, colour = used[0]
    return z3.And(index == z3.ZeroExt(32 - of.size(), of), colour != RED)


def rate(p):
    """A packet that is held is within the rate of its class, which its reason says."""
    why = p.get("packet_in", "reason")
    return z3.If(why == 1, within(p, "held_control", port(p)),
                 z3.If(why == 6, within(p, "held_no_route", port(p)), within(p, "held_no_home", port(p))))


@theorem
def what_is_held_has_a_rate(p):
    """A port has packets held only within the rate of their class: control, calls, memory. What the Gatekeeper itself does has none."""
    return implies(to_cpu(p), z3.BoolVal(True) if operates(p) else rate(p))


@theorem
def only_control_is_urgent(p):
    """Packets of the control protocol, and no others, go before what waits for the Gatekeeper."""
    return implies(to_cpu(p), (p.get("packet_in", "urgent") == 1) == (p.get("packet_in", "reason") == 1))


@theorem
def digests_have_a_rate(p):
    """A packet causes one digest of a denial at most, and one of a half used batch, and each only within its port's rate."""
    half_used = sum(name == "half_used_digest_t" for name, _ in p.digests)
    denials = len(p.digests) - half_used
    return z3.And(z3.BoolVal(half_used <= 1 and denials <= 1), implies(z3.BoolVal(denials > 0), within(p, "digests", port(p))),
                  implies(z3.BoolVal(half_used > 0), within(p, "half_used_digests", port(p))))


@theorem
def tcp_is_listed(p):
    """TCP crosses only between ports that tcp_allowed lists."""
    if "ipv6" not in p.parsed:
        return true()
    tcp = came(p, "ipv6", "next_header") == 6
    if "fragment" in p.parsed:
        tcp = z3.Or(tcp, came(p, "fragment", "next_header") == 6)
    t, hop = p.taken("tcp_allowed"), p.taken("next_hop")
    listed = z3.BoolVal(False)
    if t is not None and t.hit and hop is not None:
        listed = z3.And(t.key("ingress_port") == port(p), t.key("hop") == hop.key("hop"))
    return implies(z3.Not(from_cpu(p)), tcp, leaves(p), listed)
