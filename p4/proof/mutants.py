"""Faults put into the compiled program: each breaks a theorem, or the theorems say too little.

A mutant is a function that changes the program's JSON in place. It raises LookupError
if the program has nothing to change any more; then the mutant has to be written anew.
"""

MUTANTS = []


def declares(mutants):
    """A decorator that declares mutants in a list, each with the theorems that it breaks at least."""
    def mutant(*breaks):
        def declare(f):
            mutants.append((f, breaks))
            return f
        return declare
    return mutant


mutant = declares(MUTANTS)


def ingress(d):
    return next(p for p in d["pipelines"] if p["name"] == "ingress")


def egress(d):
    return next(p for p in d["pipelines"] if p["name"] == "egress")


def table(d, name):
    for t in ingress(d)["tables"]:
        if t["name"].endswith("." + name):
            return t
    raise LookupError(f"no table {name}")


def conditional(d, fragment, whole=False):
    """The conditions whose source contains a text, or is just the text."""
    def source(c):
        return c.get("source_info", {}).get("source_fragment", "")
    found = [c for c in ingress(d)["conditionals"] if (source(c) == fragment if whole else fragment in source(c))]
    if not found:
        raise LookupError(f"no condition with {fragment!r}")
    return found


def actions(d, name):
    found = [a for a in d["actions"] if a["name"].endswith("." + name)]
    if not found:
        raise LookupError(f"no action {name}")
    return found


def replace(x, old, new):
    """Replaces a JSON value wherever it stands; returns how often."""
    n = 0
    for key, v in list(x.items() if isinstance(x, dict) else enumerate(x)):
        if v == old:
            x[key] = new
            n += 1
        elif isinstance(v, (dict, list)):
            n += replace(v, old, new)
    return n


def must(n):
    if not n:
        raise LookupError("nothing was replaced")


def change(places, old, new):
    """Replaces a value in some places, of which one has it at least."""
    must(sum(replace(place, old, new) for place in places))


def never(conditions):
    """What conditions lead to is not reached."""
    for c in conditions:
        c["true_next"] = c["false_next"]


def always_hits(t):
    """What a table has no entry for goes on as what it has one for."""
    t["next_tables"]["__MISS__"] = t["next_tables"]["__HIT__"]


def writes(some_actions, name):
    """The operations that write a field, which is named in full or in part."""
    return [o for a in some_actions for o in a["primitives"] if o["op"] == "assign" and name in ".".join(o["parameters"][0]["value"])]


def sets(operations, value):
    """What operations write is a value."""
    must(len(operations))
    for o in operations:
        o["parameters"][1] = const(value)


def leave_out(some_actions, unwanted):
    """Takes operations out of actions."""
    n = 0
    for a in some_actions:
        n += sum(map(unwanted, a["primitives"]))
        a["primitives"] = [o for o in a["primitives"] if not unwanted(o)]
    must(n)


def field(header, name):
    return {"type": "field", "value": [header, name]}


def const(value):
    return {"type": "hexstr", "value": value}


@mutant("identity_before_anything")
def a_stranger_is_let_through(d):
    """A packet whose source does not live at its port goes on."""
    always_hits(table(d, "identity"))


@mutant("identity_before_anything")
def identity_ignores_the_port(d):
    """identity looks the port up that the packet is to leave by."""
    must(replace(table(d, "identity")["key"], ["standard_metadata", "ingress_port"], ["standard_metadata", "egress_spec"]))


@mutant("default_deny", "denied_returns_to_its_sender")
def access_is_granted_by_default(d):
    """A request that is not permitted is forwarded."""
    never(conditional(d, "meta.rights.judged != Judged.PASSES") + conditional(d, "meta.rights.judged == Judged.LENT"))


@mutant("default_deny", "each_packet_counts_as_what_became_of_it")
def anybody_asks_memory(d):
    """Whoever asks memory is judged, though it is no node."""
    change(conditional(d, "said == meta.rights.incarnation ...", whole=True), "!=", "==")


@mutant("default_deny")
def any_incarnation_asks_memory(d):
    """A request of another incarnation than the node's is judged."""
    change(conditional(d, "said == meta.rights.incarnation ...", whole=True), "==", "!=")


@mutant("default_deny", "memory_is_asked_for_what_it_does")
def requests_are_not_judged(d):
    """A request to memory is routed and not judged."""
    change(writes(d["actions"], "rights_wants"), const("0x05"), const("0x00"))


@mutant("denied_returns_to_its_sender")
def a_denial_goes_to_the_cpu(d):
    """A denied request leaves by the CPU port."""
    change(actions(d, "deny"), field("standard_metadata", "ingress_port"), const("0x01fe"))


@mutant("denied_returns_to_its_sender")
def a_denial_keeps_its_verdict(d):
    """deny leaves the verdict as it is: the sender takes its request for an answer."""
    leave_out(actions(d, "deny"), lambda o: o["parameters"][0] == field("dsm", "verdict"))


@mutant("turning_around_keeps_the_checksum")
def a_denial_breaks_the_checksum(d):
    """deny sets the verdict's twin to 0, not to its complement."""
    sets(writes(actions(d, "deny"), "dsm.verdict_twin"), "0x0000")


@mutant("only_the_gatekeeper_sets_its_flags")
def a_blade_may_say_released(d):
    """ "Released" is not refused from a blade."""
    change(conditional(d, "RPC_FLAG_RELEASED"), const("0x0010"), const("0x0000"))


@mutant("held_packets_leave_by_the_cpu_port")
def a_held_packet_leaves_by_another_port(d):
    """hold sends to port 1."""
    change(actions(d, "hold"), const("0x01fe"), const("0x0001"))


@mutant("control_never_crosses")
def control_is_forwarded(d):
    """Control packets are not held but routed."""
    never(conditional(d, "PORT_CONTROL"))


@mutant("only_the_gatekeeper_sets_its_flags")
def a_blade_may_turn_a_call_around(d):
    """A blade may say that a call was turned around."""
    change(ingress(d)["conditionals"], field("rpc", "turned"), const("0x0000"))


@mutant("who_is_no_node_lends_nothing")
def a_region_is_overlooked(d):
    """A message that lists a region passes, whoever sends it."""
    change(conditional(d, "hdr.rpc.lists"), field("rpc", "lists"), const("0x00"))


@mutant("answers_of_memory_are_judged")
def answers_of_any_boot_will_do(d):
    """The answer of a former boot of a memory server passes."""
    change(conditional(d, "said == meta.rights.incarnation ...", whole=True), "==", "!=")


@mutant("only_memory_blades_answer")
def anybody_answers_for_memory(d):
    """The answer of a node that is no memory blade is forwarded."""
    change(conditional(d, "meta.rights.kind == Sender.MEMORY"), "==", "!=")


@mutant("source_ports_are_fixed")
def any_source_port_will_do(d):
    """UDP source ports are not checked."""
    never(conditional(d, "hdr.udp.src_port != hdr.udp.dst_port"))


@mutant("errors_of_routers_never_cross")
def too_big_is_let_through(d):
    """Only ICMPv6 type 1, "unreachable", counts as an error."""
    change(conditional(d, "ICMPV6_INFORMATIONAL"), const("0x80"), const("0x02"))


@mutant("short_packets_go_nowhere")
def a_short_packet_is_taken(d):
    """A parser error does not matter."""
    never(conditional(d, "parser_error"))


@mutant("hop_limits_end_circles")
def a_hop_limit_of_zero_goes_on(d):
    """Packets circle for ever: the hop limit is not looked at."""
    never(conditional(d, "hop_limit"))


@mutant("routes_are_exact")
def routes_ignore_the_method(d):
    """rpc_route looks the call id up in place of the method."""
    must(replace(table(d, "rpc_route")["key"], ["rpc", "method"], ["rpc", "call"]))


def beyond_the_rate(pipeline):
    """The conditions that look at a meter's colour."""
    found = [c for c in pipeline["conditionals"] if "meta.color" in c.get("source_info", {}).get("source_fragment", "")]
    if not found:
        raise LookupError("no condition on a meter's colour")
    return found


@mutant("what_is_held_has_a_rate")
def a_flood_is_held(d):
    """What is beyond its rate is held all the same."""
    never(beyond_the_rate(egress(d)))


@mutant("what_is_held_has_a_rate")
def calls_count_as_memory(d):
    """The meter of calls is that of memory: one class takes from another."""
    must(replace([a for a in actions(d, "meter_no_route")], "BifrostEgress.held_no_route", "BifrostEgress.held_no_home"))


@mutant("digests_have_a_rate")
def every_denial_is_told(d):
    """Digests leave at any rate."""
    for c in beyond_the_rate(ingress(d)):
        c["false_next"] = c["true_next"]


@mutant("only_control_is_urgent")
def everything_is_urgent(d):
    """A held call goes before control."""
    sets(writes(actions(d, "hold"), "packet_in.urgent"), "0x01")


@mutant("tcp_is_listed")
def tcp_is_open(d):
    """TCP that no entry lists is forwarded."""
    always_hits(table(d, "tcp_allowed"))


@mutant("tcp_is_listed")
def tcp_ignores_the_port(d):
    """tcp_allowed looks up any port."""
    must(replace(table(d, "tcp_allowed")["key"], ["standard_metadata", "ingress_port"], ["standard_metadata", "egress_spec"]))


@mutant("direct_packets_go_by_address")
def routes_are_by_sender(d):
    """l3 looks up the source, so a direct call comes back."""
    must(replace(table(d, "l3")["key"], ["ipv6", "dst"], ["ipv6", "src"]))


@mutant("both_copies_change", "each_packet_goes_where_it_should")
def one_copy_changes(d):
    """What changes a machine with two copies goes to the first one only."""
    never(conditional(d, "both", whole=True))


@mutant("both_copies_change", "each_packet_goes_where_it_should")
def one_copy_frees(d):
    """A free goes to the first copy only, and a question about slots to both."""
    change(writes(d["actions"], "scalars.both_0"), const("0x07"), const("0x04"))


@mutant("memory_is_asked_for_what_it_does", "each_packet_counts_as_what_became_of_it")
def memory_is_asked_for_anything(d):
    """Verdict and operation of a memory request are not looked at."""
    never(conditional(d, "meta.op > DSM_SLOTS"))


@mutant("formats_are_checked", "memory_is_asked_for_what_it_does")
def any_version_will_do(d):
    """The version of calls and memory packets is not looked at."""
    for header, fragment, version in (("rpc", "RPC_MAGIC", "0x03"), ("dsm", "DSM_MAGIC", "0x04")):
        for c in conditional(d, fragment):
            must(replace(c, field(header, "version"), const(version)))


@mutant("each_packet_is_held_for_its_reason")
def a_call_passes_as_control(d):
    """A held call has the reason of control, is urgent and has the rate of control."""
    hold = [a for a in actions(d, "hold") if says(a, "reason") == "0x06"]
    sets(writes(hold, "packet_in.reason") + writes(hold, "packet_in.urgent"), "0x01")


def says(action, name):
    """What an action writes to a field of packet_in."""
    return next(p["parameters"][1].get("value") for p in action["primitives"] if p["parameters"][0] == field("packet_in", name))


def learned(d, name):
    return next(l for l in d["learn_lists"] if l["name"] == name)


@mutant("digests_are_true")
def a_denial_is_told_backwards(d):
    """The digest of a denial has its source and its destination swapped."""
    e = learned(d, "denied_digest_t")["elements"]
    e[1], e[2] = e[2], e[1]


@mutant("digests_are_true")
def a_denial_is_told_late(d):
    """The digest of a denial takes the source of the packet that has been turned around."""
    learned(d, "denied_digest_t")["elements"][1] = field("ipv6", "src")


@mutant("digests_are_true")
def a_denial_is_not_told(d):
    """No digest tells of a denial."""
    leave_out(d["actions"], lambda o: o["op"] == "generate_digest")


def uncounted(d, action):
    """Takes the counting out of an action."""
    leave_out(actions(d, action), lambda o: o["op"] == "count")


@mutant("each_packet_counts_as_what_became_of_it")
def a_denial_does_not_count(d):
    """deny counts nothing."""
    uncounted(d, "deny")


@mutant("each_packet_counts_as_what_became_of_it")
def a_drop_does_not_count(d):
    """drop counts nothing."""
    uncounted(d, "drop")


@mutant("each_packet_is_held_for_its_reason")
def what_is_throttled_does_not_count(d):
    """throttle counts nothing."""
    uncounted(d, "throttle")


@mutant("each_packet_goes_where_it_should")
def copies_are_addressed_by_port(d):
    """replica looks the port up that a copy leaves by."""
    t = next(t for t in egress(d)["tables"] if t["name"].endswith(".replica"))
    must(replace(t["key"], ["standard_metadata", "egress_rid"], ["standard_metadata", "egress_port"]))


@mutant("each_packet_goes_where_it_should")
def forward_swaps_addresses(d):
    """forward writes the Ethernet addresses of receiver and sender the wrong way round."""
    for a in actions(d, "forward"):
        must(replace(a, field("ethernet", "dst"), "?") and replace(a, field("ethernet", "src"), field("ethernet", "dst"))
             and replace(a, "?", field("ethernet", "src")))


@mutant("the_gatekeeper_names_the_hop", "each_packet_goes_where_it_should")
def the_gatekeepers_hop_is_ignored(d):
    """A packet from the Gatekeeper goes by its address, whatever hop it names."""
    leave_out(d["actions"], lambda o: field("packet_out", "hop") in o["parameters"])


@mutant("headers_are_found")
def calls_are_not_parsed(d):
    """The parser stops before the header of a call."""
    state = next(s for s in d["parsers"][0]["parse_states"] if s["name"] == "parse_udp")
    state["transitions"] = [t for t in state["transitions"] if t["next_state"] != "parse_rpc"]


@mutant("direct_packets_go_by_address")
def direct_calls_are_held(d):
    """What goes to the port of direct calls is looked at as what goes to the port of calls, also from who has no row."""
    for c in conditional(d, "hdr.udp.dst_port == PORT_RPC || meta.rights.row != 0"):
        c["false_next"] = c["true_next"]


@mutant("what_crosses_is_not_rewritten")
def headers_leave_in_another_order(d):
    """The deparser writes the header of a call before that of UDP."""
    order = d["deparsers"][0]["order"]
    i, j = order.index("udp"), order.index("rpc")
    order[i], order[j] = order[j], order[i]


@mutant("nothing_has_a_second_way")
def forwarded_packets_are_cloned(d):
    """A copy of what is forwarded goes to a clone session too."""
    d["field_lists"].append({"id": 1, "name": "fields", "elements": []})
    for a in actions(d, "forward"):
        a["primitives"].append({"op": "clone_ingress_pkt_to_egress", "parameters": [const("0x05"), const("0x1")]})
