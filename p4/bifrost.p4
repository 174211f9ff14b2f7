// Bifröst's data plane: who may say what to whom on one rack.
//
//   parse ── from the CPU port? ──────────────────────────────── yes ─▶ route
//     │ no
//     ▼
//   control? ─▶ hold for the Gatekeeper
//     │
//     ▼
//   identity: does this source live at this port? ── no ─▶ drop
//     │
//   a UDP port of calls or memory on one side only, an ICMPv6 error ─▶ drop
//     │
//     ├─ call of a node ────▶ l3 ─▶ rights.p4 ─▶ next_hop │ turn around │ drop
//     │  (at all three ports where calls come; ACK and FORGET go by l3 alone)
//     ├─ who serves a method? ─▶ rpc_route ─▶ next_hop │ nobody: hold
//     │  (what who is no node says at the port of calls)
//     ├─ memory ──▶ dsm_home ─▶ rights.p4 ─▶ next_hop │ NACK: turn around │ drop
//     │                └─ none: hold          └─ what changes a machine with two copies ─▶ both
//     ├─ memory's answer ─▶ l3 ─▶ rights.p4 ─▶ next_hop │ drop
//     └─ other ───▶ l3 ─▶ TCP? tcp_allowed ─▶ next_hop
//
// What a port may have held, or told by digest, has a rate for each class of packets:
// what is beyond is dropped and counted.
//
// To hold a packet is to send it out of the CPU port with a packet_in header. It
// goes no further: the Gatekeeper answers by a PacketOut, whose output port is
// looked up then. Nothing here rewrites an IP address, except that what is not
// permitted is turned around, which leaves the UDP checksum right: a sum
// does not see the order of what it adds, and a word that changes has its
// complement, its twin, beside it.
#include <core.p4>
#include <v1model.p4>

// Ports of the protocols (package rackaddr). Parts of large calls go to PORT_BULK, too: they have a magic of their own.
const bit<16> PORT_RPC     = 45100;
const bit<16> PORT_DSM     = 45101;
const bit<16> PORT_CONTROL = 45102;
const bit<16> PORT_BULK    = 45103;
const bit<16> PORT_DIRECT  = 45105;

// Ports of the switch: bmv2 drops what is sent to 511.
const bit<9> CPU_PORT = 510;

const bit<16> RPC_MAGIC = 0xB1FC;
const bit<16> DSM_MAGIC = 0xB1FD;
const bit<8>  RPC_VERSION = 3;
const bit<8>  DSM_VERSION = 4;

const bit<8> PROTO_TCP      = 6;
const bit<8> PROTO_UDP      = 17;
const bit<8> PROTO_FRAGMENT = 44;
const bit<8> PROTO_ICMPV6   = 58;

// ICMPv6 types below this one are error messages (RFC 4443).
const bit<8> ICMPV6_INFORMATIONAL = 128;

const bit<8> RPC_CALL      = 1;
const bit<8> RPC_REPLY     = 2;
const bit<8> RPC_EXCEPTION = 3;
const bit<8> RPC_ONEWAY    = 4;
const bit<8> RPC_ACK       = 5;
const bit<8> RPC_ASK       = 6;
const bit<8> RPC_FORGET    = 7;

// The flag of a call header that only the Gatekeeper may set.
const bit<16> RPC_FLAG_RELEASED = 0x0010;

const bit<8> DSM_ALLOC  = 1;
const bit<8> DSM_READ   = 2;
const bit<8> DSM_FREE   = 4;
const bit<8> DSM_SLOTS  = 7;

// Verdict words of a memory header: kind and status.
const bit<16> DSM_REQUEST  = 0x0100;
const bit<16> DSM_REPLY_OK = 0x0200;
const bit<16> DSM_DENIED   = 0x0301;
const bit<16> DSM_LENT     = 0x0305; // overloaded

// Why a packet is held; the reason field of packet_in.
enum bit<8> Reason {
    CONTROL  = 1, // to the Gatekeeper itself
    NO_HOME  = 5, // memory request to a machine that is not there
    NO_ROUTE = 6, // who serves a method that nobody exports?
    HAND     = 7  // what an operation of the Gatekeeper has found
}

// What became of a packet; with the ingress port in front, the index of the verdicts counter.
enum bit<8> Verdict {
    FORWARDED   = 0,
    HELD        = 1,
    DENIED      = 2, // no permission: answered with a NACK
    NO_IDENTITY = 3, // the source does not live at this port
    NO_ROUTE    = 4, // nobody has the destination
    MALFORMED   = 5, // truncated, or wrong magic, version, type or operation
    FORGED      = 6, // speaks in the Gatekeeper's name or in a node's, or from a port that is not its protocol's
    UNSUPPORTED = 7, // not IPv6, or an extension header that could hide one
    HOP_LIMIT   = 8, // went around too often
    UNLISTED    = 9,  // TCP between ports that may not have it
    LATE        = 10, // late, or of another call than the slot's: see rights.p4
    LENT        = 11, // not now: turned around
    GONE        = 12  // its destination is gone: turned around
}

// The colour of what is beyond a meter's rate.
const bit<8> RED = 2;

@controller_header("packet_in")
header packet_in_t {
    bit<16> ingress_port;
    bit<8>  reason;
    bit<8>  urgent; // 1: goes before what waits for the Gatekeeper already
}

// hop 0 asks for the ordinary route; another one is a next_hop key.
@controller_header("packet_out")
header packet_out_t {
    bit<16> hop;
    bit<16> pad;
}

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

header ipv6_t {
    bit<4>   version;
    bit<8>   traffic_class;
    bit<20>  flow_label;
    bit<16>  payload_length;
    bit<8>   next_header;
    bit<8>   hop_limit;
    bit<128> src;
    bit<128> dst;
}

header fragment_t {
    bit<8>  next_header;
    bit<8>  reserved;
    bit<16> offset;
    bit<32> id;
}

header udp_t {
    bit<16> src_port;
    bit<16> dst_port;
    bit<16> length;
    bit<16> checksum;
}

// rpc_t and dsm_t are checked against rpc/rpcpacket.Layout and dsm/dsmpacket.Layout.
header rpc_t {
    bit<16>  magic;
    bit<8>   version;
    bit<8>   type;
    bit<16>  flags;
    bit<8>   name_length;
    bit<8>   code;
    bit<128> method;
    bit<128> call;
    bit<128> parent;
    bit<64>  number;
    bit<32>  caller_incarnation;
    bit<32>  callee_incarnation;
    bit<32>  slot;
    bit<16>  turned;
    bit<16>  turned_twin;
    bit<32>  timeout;
    bit<32>  branch;
    bit<32>  index;
    bit<16>  attempt;
    bit<8>   lists;
    bit<8>   reserved;
    bit<32>  payload_length;
    bit<32>  trailer_length;
    bit<64>  service;
    bit<16>  had;
    bit<16>  had_twin;
    bit<32>  reserved2;
}

header dsm_t {
    bit<16>  magic;
    bit<8>   version;
    bit<8>   flags;
    bit<16>  verdict;
    bit<16>  verdict_twin;
    bit<64>  request;
    bit<64>  floor;
    bit<128> execution;
    bit<64>  branch;
    bit<32>  index;
    bit<32>  incarnation;
    bit<64>  length;
    bit<32>  mirror_epoch;
    bit<32>  blade_incarnation;
    bit<64>  number;
    bit<32>  slot;
    bit<8>   copy;
    bit<8>   members;
    bit<16>  reserved;
}

header icmpv6_t {
    bit<8>  type;
    bit<8>  code;
    bit<16> checksum;
}

#include "rights_headers.p4"

struct headers_t {
    packet_out_t packet_out;
    packet_in_t  packet_in;
    ethernet_t   ethernet;
    hand_t       hand;
    found_t      found0;
    found_t      found1;
    found_t      found2;
    found_t      found3;
    ipv6_t       ipv6;
    fragment_t   fragment;
    icmpv6_t     icmpv6;
    udp_t        udp;
    rpc_t        rpc;
    list_t       list0;
    list_t       list1;
    list_t       list2;
    list_t       list3;
    dsm_t        dsm;
}

// A denied access.
struct denied_digest_t {
    bit<16>  port;
    bit<128> src;
    bit<128> dst; // operation and pointer
    bit<64>  request;
}

struct metadata_t {
    bit<16> hop;     // next_hop key; 0 while none is known
    bit<16> group;   // multicast group of the machine's copies; 0 if it has one copy
    rights_t rights;
    bit<8>  spread;  // which of several nodes of a service
    bit<8>  machine; // memory machine of a request
    bit<8>  op;      // memory operation
    bit<42> region;  // the pointer's slot and generation
    bit<8>  color;   // of the port's meter
    // A digest takes its values at the end of ingress, when a denied request has
    // been turned around already; so they are kept here.
    denied_digest_t denied;
    half_used_digest_t half_used;
}

#include "rights.p4"

parser BifrostParser(packet_in pkt, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        transition select(std.ingress_port) {
            CPU_PORT: parse_packet_out;
            default: parse_ethernet;
        }
    }
    state parse_packet_out {
        pkt.extract(hdr.packet_out);
        transition parse_ethernet;
    }
    state parse_ethernet {
        pkt.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            0x86DD: parse_ipv6;
            ETHERTYPE_HAND: parse_hand;
            default: accept;
        }
    }
    state parse_hand {
        pkt.extract(hdr.hand);
        transition select(hdr.hand.op) {
            Hand.READ_WORDS: parse_found;
            Hand.READ_SLOTS: parse_found;
            Hand.SET_SLOT: parse_found;
            default: accept;
        }
    }
    state parse_found {
        pkt.extract(hdr.found0);
        transition select(hdr.hand.op) {
            Hand.READ_SLOTS: parse_more;
            default: accept;
        }
    }
    state parse_more {
        pkt.extract(hdr.found1);
        pkt.extract(hdr.found2);
        pkt.extract(hdr.found3);
        transition accept;
    }
    state parse_ipv6 {
        pkt.extract(hdr.ipv6);
        transition select(hdr.ipv6.next_header) {
            PROTO_UDP: parse_udp;
            PROTO_FRAGMENT: parse_fragment;
            PROTO_ICMPV6: parse_icmpv6;
            default: accept;
        }
    }
    state parse_icmpv6 {
        pkt.extract(hdr.icmpv6);
        transition accept;
    }
    state parse_fragment {
        pkt.extract(hdr.fragment);
        transition accept;
    }
    state parse_udp {
        pkt.extract(hdr.udp);
        transition select(hdr.udp.dst_port) {
            PORT_RPC: parse_rpc;
            PORT_DIRECT: parse_rpc;
            PORT_BULK: parse_bulk;
            PORT_DSM: parse_dsm;
            default: accept;
        }
    }
    state parse_bulk {
        transition select(pkt.lookahead<bit<16>>()) {
            RPC_MAGIC: parse_rpc;
            default: accept;
        }
    }
    state parse_rpc {
        pkt.extract(hdr.rpc);
        transition select(hdr.rpc.lists) {
            1: parse_list0;
            2: parse_list0;
            3: parse_list0;
            4: parse_list0;
            default: accept; // none, or too many
        }
    }
    state parse_list0 {
        pkt.extract(hdr.list0);
        transition select(hdr.rpc.lists) {
            1: accept;
            default: parse_list1;
        }
    }
    state parse_list1 {
        pkt.extract(hdr.list1);
        transition select(hdr.rpc.lists) {
            2: accept;
            default: parse_list2;
        }
    }
    state parse_list2 {
        pkt.extract(hdr.list2);
        transition select(hdr.rpc.lists) {
            3: accept;
            default: parse_list3;
        }
    }
    state parse_list3 {
        pkt.extract(hdr.list3);
        transition accept;
    }
    state parse_dsm {
        pkt.extract(hdr.dsm);
        transition accept;
    }
}

control BifrostVerify(inout headers_t hdr, inout metadata_t meta) { apply {} }

control BifrostIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    counter(8192, CounterType.packets_and_bytes) verdicts; // by ingress port and verdict

    // Digests of a port, by its number.
    meter(512, MeterType.packets) digests;

    action drop(Verdict why) {
        mark_to_drop(std);
        verdicts.count((bit<32>)std.ingress_port << 4 | (bit<32>)(bit<8>)why);
    }

    action hold(Reason why) {
        hdr.packet_in.setValid();
        hdr.packet_in.ingress_port = (bit<16>)std.ingress_port;
        hdr.packet_in.reason = (bit<8>)why;
        hdr.packet_in.urgent = why == Reason.CONTROL ? 8w1 : 8w0;
        std.egress_spec = CPU_PORT;
        verdicts.count((bit<32>)std.ingress_port << 4 | (bit<32>)(bit<8>)Verdict.HELD);
    }

    // turn turns a packet around.
    action turn(Verdict why) {
        bit<128> address = hdr.ipv6.src;
        hdr.ipv6.src = hdr.ipv6.dst;
        hdr.ipv6.dst = address;
        bit<16> port = hdr.udp.src_port;
        hdr.udp.src_port = hdr.udp.dst_port;
        hdr.udp.dst_port = port;
        bit<48> mac = hdr.ethernet.src;
        hdr.ethernet.src = hdr.ethernet.dst;
        hdr.ethernet.dst = mac;
        std.egress_spec = std.ingress_port;
        verdicts.count((bit<32>)std.ingress_port << 4 | (bit<32>)(bit<8>)why);
    }

    // deny turns a request to memory around.
    action deny() {
        hdr.dsm.verdict = DSM_DENIED;
        hdr.dsm.verdict_twin = ~DSM_DENIED;
        turn(Verdict.DENIED);
    }

    // not_now turns a request to memory around whose region is lent.
    action not_now() {
        hdr.dsm.verdict = DSM_LENT;
        hdr.dsm.verdict_twin = ~DSM_LENT;
        turn(Verdict.LENT);
    }

    // turn_call turns a message around, with its reason.
    action turn_call(Verdict why) {
        hdr.rpc.turned = (bit<16>)meta.rights.judged;
        hdr.rpc.turned_twin = ~(bit<16>)meta.rights.judged;
        turn(why);
    }

    // tell meters a digest of the packet's port.
    action tell() {
        digests.execute_meter<bit<8>>((bit<32>)std.ingress_port, meta.color);
    }

    // Who lives at a port: nobody speaks for another node.
    action known(bit<8> kind, bit<12> row, bit<32> incarnation) {
        meta.rights.kind = kind;
        meta.rights.row = row;
        meta.rights.incarnation = incarnation;
    }
    table identity {
        key = {
            std.ingress_port: exact @name("ingress_port");
            hdr.ipv6.src: lpm @name("source");
        }
        actions = { known; NoAction; }
        const default_action = NoAction();
        size = 4096;
    }

    action to_hop(bit<16> hop) { meta.hop = hop; }

    // A node that has a row. One that is going is gone for good.
    action to_node(bit<16> hop, bit<12> row, bit<1> going) {
        meta.hop = hop;
        meta.rights.to = row;
        meta.rights.going = going;
    }

    table l3 {
        key = { hdr.ipv6.dst: lpm @name("destination"); }
        actions = { to_hop; to_node; NoAction; }
        const default_action = NoAction();
        size = 4096;
    }

    // A machine with two copies: the hop of the first, which answers what changes
    // nothing, and the multicast group of both.
    action to_copies(bit<16> hop, bit<16> group) {
        meta.hop = hop;
        meta.group = group;
    }

    // Which blades serve a memory machine: bytes 0-5 of the pointer.
    table dsm_home {
        key = { hdr.ipv6.dst[127:80]: exact @name("machine_prefix"); }
        actions = { to_hop; to_copies; NoAction; }
        const default_action = NoAction();
        size = 256;
    }

    // Which node serves a method. Several nodes share a service by splitting
    // the 256 values of spread, the call id's last byte, into prefixes.
    table rpc_route {
        key = {
            hdr.ipv6.dst: exact @name("service");
            hdr.rpc.method: exact @name("method");
            meta.spread: lpm @name("spread");
        }
        actions = { to_hop; NoAction; }
        const default_action = NoAction();
        size = 65536;
    }

    // The one place that knows ports and MAC addresses.
    action forward(bit<9> port, bit<48> dst, bit<48> src) {
        std.egress_spec = port;
        hdr.ethernet.dst = dst;
        hdr.ethernet.src = src;
        hdr.ipv6.hop_limit = hdr.ipv6.hop_limit - 1;
        verdicts.count((bit<32>)std.ingress_port << 4 | (bit<32>)(bit<8>)Verdict.FORWARDED);
    }
    action no_hop() { drop(Verdict.NO_ROUTE); }
    direct_counter(CounterType.packets_and_bytes) next_hop_counter;
    table next_hop {
        key = { meta.hop: exact @name("hop"); }
        actions = { forward; no_hop; }
        const default_action = no_hop();
        counters = next_hop_counter;
        size = 4096;
    }

    // Between which ports TCP may pass.
    action permit() {}
    table tcp_allowed {
        key = {
            std.ingress_port: exact @name("ingress_port");
            meta.hop: exact @name("hop");
        }
        actions = { permit; NoAction; }
        const default_action = NoAction();
        size = 4096;
    }

    // replicate sends a packet to each copy of a machine; egress addresses them.
    action replicate() {
        std.mcast_grp = meta.group;
        hdr.ipv6.hop_limit = hdr.ipv6.hop_limit - 1;
        verdicts.count((bit<32>)std.ingress_port << 4 | (bit<32>)(bit<8>)Verdict.FORWARDED);
    }

    // split_pointer takes a request's address apart.
    action split_pointer() {
        meta.machine = hdr.ipv6.dst[87:80];
        meta.op = hdr.ipv6.dst[79:72];
        meta.region = hdr.ipv6.dst[71:30];
    }

    Rights() rights;

    apply {
        if (std.parser_error != error.NoError) {
            drop(Verdict.MALFORMED);
            exit;
        }
        bool hand = hdr.hand.isValid() && hdr.packet_out.isValid(); // an operation of the Gatekeeper
        bool from_cpu = hdr.packet_out.isValid();
        bool both = false; // it goes to each copy of its machine
        if (hand) {
            hdr.packet_out.setInvalid();
        } else {
            if (!hdr.ipv6.isValid() || hdr.ipv6.version != 6) {
                drop(Verdict.UNSUPPORTED);
                exit;
            }
            if (hdr.ipv6.hop_limit <= 1 && !hdr.packet_out.isValid()) {
                drop(Verdict.HOP_LIMIT);
                exit;
            }

            if (from_cpu) {
                meta.hop = hdr.packet_out.hop;
                hdr.packet_out.setInvalid();
            } else {
                if (hdr.udp.isValid() && hdr.udp.dst_port == PORT_CONTROL) {
                    hold(Reason.CONTROL);
                    exit;
                }
                if (!identity.apply().hit) {
                    drop(Verdict.NO_IDENTITY);
                    exit;
                }
                // What is not sent to such a port is not parsed, so what comes from one
                // could be an answer that passes unseen.
                if (hdr.udp.isValid() && hdr.udp.src_port != hdr.udp.dst_port
                        && (hdr.udp.src_port == PORT_RPC || hdr.udp.dst_port == PORT_RPC
                            || hdr.udp.src_port == PORT_DSM || hdr.udp.dst_port == PORT_DSM
                            || (meta.rights.row != 0 && (hdr.udp.src_port == PORT_DIRECT || hdr.udp.dst_port == PORT_DIRECT
                                || hdr.udp.src_port == PORT_BULK || hdr.udp.dst_port == PORT_BULK)))) {
                    drop(Verdict.FORGED);
                    exit;
                }
                // An error message speaks for a router on the way, and there is none: a
                // forged one would shrink somebody's path MTU.
                if (hdr.icmpv6.isValid() && hdr.icmpv6.type < ICMPV6_INFORMATIONAL) {
                    drop(Verdict.FORGED);
                    exit;
                }
            }

            bool by_address = meta.hop == 0; // look the destination up in l3
            // From who has no row, only what goes to PORT_RPC is looked at.
            if (hdr.rpc.isValid() && (hdr.udp.dst_port == PORT_RPC || meta.rights.row != 0)) {
                if (hdr.rpc.magic != RPC_MAGIC || hdr.rpc.version != RPC_VERSION) {
                    drop(Verdict.MALFORMED);
                    exit;
                }
                if (!from_cpu) {
                    bool asks = hdr.rpc.type == RPC_ASK && meta.rights.row != 0;
                    // Words between nodes, which have no slot.
                    bool word = (hdr.rpc.type == RPC_ACK || hdr.rpc.type == RPC_FORGET) && meta.rights.row != 0 && hdr.udp.dst_port == PORT_DIRECT;
                    if (hdr.rpc.type < RPC_CALL || (hdr.rpc.type > RPC_ONEWAY && !asks && !word) || (hdr.rpc.flags & RPC_FLAG_RELEASED) != 0
                            || hdr.rpc.turned != 0 || hdr.rpc.had != 0) {
                        drop(Verdict.FORGED);
                        exit;
                    }
                    if (word) {
                        // l3 knows where they go
                    } else if (meta.rights.row != 0) {
                        meta.rights.wants = Wants.CALL;
                        if (asks) {
                            meta.rights.wants = Wants.ASK;
                        } else if (hdr.rpc.type == RPC_REPLY || hdr.rpc.type == RPC_EXCEPTION) {
                            meta.rights.wants = Wants.RETURN;
                        }
                    } else if (hdr.rpc.lists != 0) { // who is no node has no regions
                        drop(Verdict.FORGED);
                        exit;
                    }
                }
                if (meta.hop == 0 && meta.rights.wants == Wants.NOTHING && (hdr.rpc.type == RPC_CALL || hdr.rpc.type == RPC_ONEWAY)) {
                    by_address = false;
                    meta.spread = hdr.rpc.call[7:0];
                    if (!rpc_route.apply().hit) {
                        hold(Reason.NO_ROUTE);
                        exit;
                    }
                }
            } else if (hdr.dsm.isValid()) {
                if (hdr.dsm.magic != DSM_MAGIC || hdr.dsm.version != DSM_VERSION) {
                    drop(Verdict.MALFORMED);
                    exit;
                }
                if (meta.hop == 0 && dsm_home.apply().hit) {
                    by_address = false;
                    split_pointer();
                    if (hdr.dsm.verdict != DSM_REQUEST || meta.op < DSM_ALLOC || meta.op > DSM_SLOTS) {
                        drop(Verdict.MALFORMED);
                        exit;
                    }
                    if (!from_cpu) {
                        meta.rights.wants = Wants.PLAIN;
                        if (meta.op <= DSM_FREE) {
                            meta.rights.wants = meta.op;
                        }
                    }
                    both = meta.group != 0 && meta.op != DSM_READ && meta.op != DSM_SLOTS;
                } else if (!from_cpu) {
                    if (meta.rights.kind == Sender.MEMORY) {
                        meta.machine = hdr.ipv6.src[87:80];
                        meta.op = hdr.ipv6.src[79:72];
                        meta.region = hdr.ipv6.src[71:30];
                        meta.rights.wants = Wants.ANSWER;
                        if (meta.op == DSM_ALLOC && hdr.dsm.verdict == DSM_REPLY_OK) {
                            meta.rights.wants = Wants.ALLOC_ANSWER;
                        }
                    } else if (hdr.ipv6.dst[127:96] == 0) {
                        hold(Reason.NO_HOME);
                        exit;
                    } else {
                        drop(Verdict.MALFORMED);
                        exit;
                    }
                }
            } else if (!from_cpu && !hdr.udp.isValid()
                    && hdr.ipv6.next_header != PROTO_TCP && hdr.ipv6.next_header != PROTO_ICMPV6
                    && (!hdr.fragment.isValid() || hdr.fragment.next_header != PROTO_TCP)) {
                // An extension header or a fragment may hide a call, an access or an error.
                drop(Verdict.UNSUPPORTED);
                exit;
            }
            if (by_address) {
                l3.apply();
            }
        }
        if (hand || meta.rights.wants != Wants.NOTHING) {
            rights.apply(hdr, meta, std);
            if (hand) {
                hold(Reason.HAND);
                exit;
            } else if (meta.rights.judged == Judged.DROPPED) {
                drop(Verdict.LATE);
                exit;
            } else if (hdr.dsm.isValid()) {
                if (meta.rights.judged == Judged.LENT) {
                    not_now();
                    exit;
                } else if (meta.rights.judged != Judged.PASSES) {
                    tell();
                    if (meta.color != RED) {
                        meta.denied = { (bit<16>)std.ingress_port, hdr.ipv6.src, hdr.ipv6.dst, hdr.dsm.request };
                        digest<denied_digest_t>(1, meta.denied);
                    }
                    deny();
                    exit;
                }
            } else if (meta.rights.judged == Judged.DENIED) {
                turn_call(Verdict.DENIED);
                exit;
            } else if (meta.rights.judged == Judged.LENT) {
                turn_call(Verdict.LENT);
                exit;
            } else if (meta.rights.judged != Judged.PASSES) {
                turn_call(Verdict.GONE);
                exit;
            }
        }
        if (both) {
            replicate();
            exit;
        }
        if (!from_cpu && (hdr.ipv6.next_header == PROTO_TCP || (hdr.fragment.isValid() && hdr.fragment.next_header == PROTO_TCP))) {
            if (!tcp_allowed.apply().hit) {
                drop(Verdict.UNLISTED);
                exit;
            }
        }
        next_hop.apply();
    }
}

control BifrostEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    // The Ethernet addresses of one of several copies of a packet, whose replica id is
    // a key of next_hop.
    action readdress(bit<48> dst, bit<48> src) {
        hdr.ethernet.dst = dst;
        hdr.ethernet.src = src;
    }
    table replica {
        key = { std.egress_rid: exact @name("hop"); }
        actions = { readdress; NoAction; }
        const default_action = NoAction();
        size = 4096;
    }

    // What a port may have held, by its number: control, questions who serves a method, and what is about memory.
    // The index of throttled is the port and the reason.
    meter(512, MeterType.packets) held_control;
    meter(512, MeterType.packets) held_no_route;
    meter(512, MeterType.packets) held_no_home;
    counter(4096, CounterType.packets) throttled;

    action meter_control() {
        held_control.execute_meter<bit<8>>((bit<32>)hdr.packet_in.ingress_port, meta.color);
    }
    action meter_no_route() {
        held_no_route.execute_meter<bit<8>>((bit<32>)hdr.packet_in.ingress_port, meta.color);
    }
    action meter_no_home() {
        held_no_home.execute_meter<bit<8>>((bit<32>)hdr.packet_in.ingress_port, meta.color);
    }
    action throttle() {
        mark_to_drop(std);
        throttled.count((bit<32>)hdr.packet_in.ingress_port << 3 | (bit<32>)hdr.packet_in.reason);
    }

    apply {
        if (std.egress_rid != 0) {
            replica.apply();
        }
        if (hdr.packet_in.isValid()) {
            if (hdr.packet_in.reason == (bit<8>)Reason.CONTROL) {
                meter_control();
            } else if (hdr.packet_in.reason == (bit<8>)Reason.NO_ROUTE) {
                meter_no_route();
            } else if (hdr.packet_in.reason != (bit<8>)Reason.HAND) {
                meter_no_home();
            }
            if (hdr.packet_in.reason != (bit<8>)Reason.HAND && meta.color == RED) {
                throttle();
            }
        }
    }
}

control BifrostCompute(inout headers_t hdr, inout metadata_t meta) { apply {} }

control BifrostDeparser(packet_out pkt, in headers_t hdr) {
    apply {
        pkt.emit(hdr.packet_in);
        pkt.emit(hdr.ethernet);
        pkt.emit(hdr.hand);
        pkt.emit(hdr.found0);
        pkt.emit(hdr.found1);
        pkt.emit(hdr.found2);
        pkt.emit(hdr.found3);
        pkt.emit(hdr.ipv6);
        pkt.emit(hdr.fragment);
        pkt.emit(hdr.icmpv6);
        pkt.emit(hdr.udp);
        pkt.emit(hdr.rpc);
        pkt.emit(hdr.list0);
        pkt.emit(hdr.list1);
        pkt.emit(hdr.list2);
        pkt.emit(hdr.list3);
        pkt.emit(hdr.dsm);
    }
}

V1Switch(BifrostParser(), BifrostVerify(), BifrostIngress(), BifrostEgress(), BifrostCompute(), BifrostDeparser()) main;
