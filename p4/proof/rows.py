"""What is proved of messages of nodes, which have a row, wherever they are sent: each is judged, or goes nowhere. What judging does, rights.py proves.

A sender's row is any but 0, and so are the contents of all tables and registers. Of a call's lists of regions only the actions that judge know
anything, and they are not followed here; so the parser leaves them alone.
"""
import copy

import z3

from mutants import always_hits, change, conditional, const, declares, never, table, writes
from symbolic import Program, Unsupported, fit
from theorems import BULK, CONTROL, CPU, DIRECT, DSM, FLAG_RELEASED, NODE, RPC, bits, came, identity_before_anything, implies, leaves, port, to_cpu, unchanged

PASSES, DENIED, NEVER_BEGUN, DROPPED = 0, 1, 4, 5
CALL, REPLY, EXCEPTION, ONEWAY, ACK, ASK, FORGET = range(1, 8)
MAGIC = 0xB1FC
JUDGES = {"judge_call": (CALL, ONEWAY), "judge_return": (REPLY, EXCEPTION), "judge_question": (ASK,)}

THEOREMS, MUTANTS = [identity_before_anything], []


def program(source):
    """The program, for UDP packets of blades to or from a port where calls come."""
    d = copy.deepcopy(source)
    only_verdicts(d)
    state = next(s for s in d["parsers"][0]["parse_states"] if s["name"] == "parse_rpc")
    state["transition_key"], state["transitions"] = [], [{"type": "default", "value": None, "mask": None, "next_state": None}]
    ports = [z3.BitVec(f"udp.{f}", 16) == x for f in ("src_port", "dst_port") for x in (RPC, DIRECT, BULK)]
    given = [z3.BitVec("ingress_port", 9) != CPU, z3.BitVec("ethernet.type", 16) == 0x86DD, z3.BitVec("ipv6.next_header", 8) == 17, z3.Or(*ports)]
    return Program(d, {("identity", "known", "row"): lambda _, any_row: z3.If(any_row == 0, z3.BitVecVal(1, any_row.size()), any_row)}, given,
                   ["BifrostIngress.rights.take_lists"])


def only_verdicts(d):
    """Wherever the program says what a packet is judged as, it is one of the verdicts. (The actions that judge are not followed.)"""
    for a in d["actions"]:
        for o in writes([a], "rights_judged"):
            value = o["parameters"][1]
            if value["type"] != "hexstr" or int(value["value"], 16) > DROPPED:
                raise Unsupported(f"{a['name']} judges a packet as {value}")


def theorem(f):
    THEOREMS.append(f)
    return f


mutant = declares(MUTANTS)


# ---- words

def is_message(p):
    return "rpc" in p.parsed


def verdict(p):
    """What the action that judges has said."""
    name = next(f for f, _ in p.program.headers["scalars"] if f.startswith("metadata_t._rights_judged"))
    return p.get("scalars", name)


def judge(p):
    """The action that has judged the packet, if just one has."""
    judges = [name for name in p.skipped if name in JUDGES]
    return judges[0] if len(judges) == 1 else None


def is_judged(p):
    """The packet was judged as what it is."""
    name = judge(p)
    return z3.Or(*[came(p, "rpc", "type") == t for t in JUDGES[name]]) if name else z3.BoolVal(False)


def is_word(p):
    """It is a word between nodes, which has no slot."""
    kind = came(p, "rpc", "type")
    return z3.And(came(p, "udp", "dst_port") == DIRECT, z3.Or(kind == ACK, kind == FORGET))


def goes_on(p):
    """The packet goes to the hop of just its destination, and nothing in it is changed but what an answer says of its regions."""
    route, hop = p.taken("l3"), p.taken("next_hop")
    if route is None or not route.hit or hop is None or not hop.hit or "forward" not in hop.action["name"]:
        return z3.BoolVal(False)
    but = [("ethernet", "src"), ("ethernet", "dst"), ("ipv6", "hop_limit")]
    if judge(p) == "judge_return":
        but += [("rpc", "had"), ("rpc", "had_twin")]
    return z3.And(p.group == 0, p.out == hop.params[0], hop.key("hop") == route.params[0], route.key("destination") == came(p, "ipv6", "dst"), unchanged(p, *but))


def comes_back(p):
    """The packet goes back to the port that it left from, with the reason and its complement; nothing else is changed."""
    swaps = [("ipv6", "src", "dst"), ("udp", "src_port", "dst_port"), ("ethernet", "src", "dst")]
    facts = [p.out == port(p), p.group == 0, p.get("rpc", "turned") == fit(verdict(p), 16), p.get("rpc", "turned_twin") == ~p.get("rpc", "turned"),
             z3.UGE(verdict(p), DENIED), z3.ULE(verdict(p), NEVER_BEGUN)]
    but = [("rpc", "turned"), ("rpc", "turned_twin")]
    for h, a, b in swaps:
        facts += [p.get(h, a) == came(p, h, b), p.get(h, b) == came(p, h, a)]
        but += [(h, a), (h, b)]
    if judge(p) == "judge_return":
        but += [("rpc", "had"), ("rpc", "had_twin")]
    return z3.And(*facts, unchanged(p, *but))


# ---- theorems

@theorem
def calls_are_found(p):
    """What goes to the port of calls or to that of direct calls has the header of a call, or goes nowhere; at the port of parts it has one just if it begins as one."""
    to = came(p, "udp", "dst_port") if "udp" in p.parsed else z3.BitVecVal(0, 16)
    found = z3.BoolVal(is_message(p))
    begins = z3.And(to == BULK, *[p.seen[w] == MAGIC for w in p.seen]) if p.seen else z3.BoolVal(False)
    return implies(leaves(p), to != CONTROL, found == z3.Or(to == RPC, to == DIRECT, begins))


@theorem
def each_message_is_judged(p):
    """A message passes only if it was judged as what it is and may pass, or if it is an ACK or FORGET at the port of direct calls; else it comes back with a reason, or goes nowhere."""
    if not is_message(p):
        return z3.BoolVal(True)
    passes = z3.And(z3.Or(is_word(p), z3.And(is_judged(p), verdict(p) == PASSES)), goes_on(p))
    return implies(z3.ULE(verdict(p), DROPPED), leaves(p), z3.Or(passes, z3.And(is_judged(p), comes_back(p))))


@theorem
def who_is_judged(p):
    """A message is judged only if its sender is a node, and the incarnation that the header says; of a call, only if the number is of that incarnation, and the block of slots its node's."""
    name = judge(p)
    if name is None:
        return z3.BoolVal(not any(j in p.skipped for j in JUDGES))
    who = p.taken("identity")
    kind, row, incarnation = who.params
    facts = [kind == NODE, came(p, "rpc", "callee_incarnation" if name == "judge_return" else "caller_incarnation") == incarnation, came(p, "rpc", "number") != 0]
    if name == "judge_call":
        block = p.taken("block_rule")
        if block is None or not block.hit:
            return z3.BoolVal(False)
        facts += [block.key("row") == row, block.key("block") == bits(came(p, "rpc", "slot"), 31, 4), fit(bits(came(p, "rpc", "number"), 63, 36), 32) == incarnation]
    return z3.And(*facts)


@theorem
def nobody_speaks_for_switch_or_gatekeeper(p):
    """No message goes on that says it was released, was turned around or has regions that its receiver had."""
    if not is_message(p):
        return z3.BoolVal(True)
    return implies(leaves(p), z3.And(came(p, "rpc", "flags") & FLAG_RELEASED == 0, came(p, "rpc", "turned") == 0, came(p, "rpc", "had") == 0,
                                     came(p, "rpc", "magic") == MAGIC, came(p, "rpc", "version") == 3))


@theorem
def ports_are_fixed(p):
    """What goes to or comes from a port of calls, of parts or of memory has that port on both sides."""
    if "udp" not in p.parsed:
        return z3.BoolVal(True)
    src, dst = came(p, "udp", "src_port"), came(p, "udp", "dst_port")
    ours = z3.Or(*[x == y for x in (src, dst) for y in (RPC, DSM, DIRECT, BULK)])
    return implies(ours, leaves(p), dst != CONTROL, src == dst)


@theorem
def no_message_is_held(p):
    """The Gatekeeper has no part in a call: it is not held, whatever it lists or asks for."""
    return implies(z3.BoolVal(is_message(p)), z3.Not(to_cpu(p)))


# ---- mutants

@mutant("each_message_is_judged")
def messages_go_as_they_come(d):
    """Whatever its sender, a message is looked up in l3."""
    never(conditional(d, "hdr.udp.dst_port == PORT_RPC || meta.rights.row != 0"))


@mutant("calls_are_found")
def parts_begin_no_calls(d):
    """The parser does not look at what goes to the port of parts."""
    state = next(s for s in d["parsers"][0]["parse_states"] if s["name"] == "parse_bulk")
    state["transitions"] = [{"type": "default", "value": None, "mask": None, "next_state": None}]


@mutant("each_message_is_judged")
def words_pass_at_the_port_of_calls(d):
    """ACK and FORGET pass at the port of calls."""
    change(conditional(d, "hdr.rpc.type < RPC_CALL") + conditional(d, "word", whole=True), const("0xb031"), const("0xb02c"))


@mutant("each_message_is_judged")
def a_refused_message_goes_on(d):
    """What is denied is forwarded."""
    never(conditional(d, "meta.rights.judged == Judged.DENIED") + conditional(d, "meta.rights.judged != Judged.PASSES"))


@mutant("each_message_is_judged")
def a_question_is_judged_as_an_answer(d):
    """An ASK is judged as a REPLY."""
    change(writes(d["actions"], "rights_wants"), const("0x0a"), const("0x09"))


@mutant("who_is_judged")
def any_block_will_do(d):
    """A call in another node's block is judged."""
    always_hits(table(d, "block_rule"))


@mutant("who_is_judged")
def any_incarnation_will_do(d):
    """A message of a former incarnation is judged."""
    change([c for c in conditional(d, "said == meta.rights.incarnation") if "hdr.rpc.number" in c["source_info"]["source_fragment"]], "==", "!=")


@mutant("ports_are_fixed")
def direct_calls_come_from_any_port(d):
    """Ports of what goes to the port of direct calls are not looked at."""
    change(conditional(d, "hdr.udp.src_port != hdr.udp.dst_port"), const("0xb031"), const("0x0000"))
