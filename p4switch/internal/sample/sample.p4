// The program of those tests of the switch that need a controller, and of which the controller has much to write: who lives at a port, ways by
// address, packets that are held for it, answers to what is refused, with a digest, and registers that say who may do what.
//
//   parse ── from the CPU port? ─────────────────────────────── yes ─▶ ways
//     │ no
//     ├─ to the controller ─▶ hold
//     ▼
//   identity: does this source live at this port? ── no ─▶ drop
//     ├─ request to a machine's memory ─▶ home ─▶ words ─▶ next_hop │ turn around, and tell
//     └─ other ─▶ l3 ─▶ TCP? tcp_allowed ─▶ next_hop
#include <core.p4>
#include <v1model.p4>

const bit<16> PORT_CALL    = 45100;
const bit<16> PORT_MEMORY  = 45101;
const bit<16> PORT_CONTROL = 45102;

const bit<9> CPU_PORT = 510;

const bit<16> MAGIC   = 0x5A3D;
const bit<16> REQUEST = 0x0100;
const bit<16> DENIED  = 0x0301;

const bit<8> OP_READ  = 2;
const bit<8> OP_WRITE = 3;

const bit<8> PROTO_TCP = 6;
const bit<8> PROTO_UDP = 17;

// What became of a packet; with the ingress port in front, the index of the counter verdicts.
enum bit<8> Verdict {
    FORWARDED   = 0,
    HELD        = 1,
    DENIED      = 2, // turned around
    NO_IDENTITY = 3,
    NO_ROUTE    = 4,
    MALFORMED   = 5,
    UNSUPPORTED = 6, // not IPv6
    HOP_LIMIT   = 7,
    UNLISTED    = 8  // TCP between ports that may not have it
}

@controller_header("packet_in")
header packet_in_t {
    bit<16> ingress_port;
    bit<8>  reason;
    bit<8>  urgent;
}

// hop 0 asks for the ordinary way; another one is a key of next_hop.
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

header udp_t {
    bit<16> src_port;
    bit<16> dst_port;
    bit<16> length;
    bit<16> checksum;
}

// A call says who calls.
header call_t {
    bit<16> magic;
    bit<16> caller;
    bit<32> number;
}

// A request to a machine's memory. The destination address is the machine (48 bits), the operation (8), the region's slot (20) and generation (22),
// and where in the region (30). A word that changes has its complement beside it: the checksum stays right.
header memory_t {
    bit<16> magic;
    bit<16> pad;
    bit<16> verdict;
    bit<16> verdict_twin;
    bit<64> request;
}

struct headers_t {
    packet_out_t packet_out;
    packet_in_t  packet_in;
    ethernet_t   ethernet;
    ipv6_t       ipv6;
    udp_t        udp;
    call_t       call;
    memory_t     memory;
}

struct denied_t {
    bit<16>  port;
    bit<128> src;
    bit<128> dst;
    bit<64>  request;
}

struct metadata_t {
    bit<16>  hop; // key of next_hop; 0 while none is known
    bit<12>  row; // the sender's
    bit<54>  word;
    denied_t denied;
}

parser SampleParser(packet_in pkt, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
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
            default: accept;
        }
    }
    state parse_ipv6 {
        pkt.extract(hdr.ipv6);
        transition select(hdr.ipv6.next_header) {
            PROTO_UDP: parse_udp;
            default: accept;
        }
    }
    state parse_udp {
        pkt.extract(hdr.udp);
        transition select(hdr.udp.dst_port) {
            PORT_CALL: parse_call;
            PORT_MEMORY: parse_memory;
            default: accept;
        }
    }
    state parse_call {
        pkt.extract(hdr.call);
        transition accept;
    }
    state parse_memory {
        pkt.extract(hdr.memory);
        transition accept;
    }
}

control SampleVerify(inout headers_t hdr, inout metadata_t meta) { apply {} }

control SampleIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    counter(8192, CounterType.packets_and_bytes) verdicts; // by ingress port and verdict

    // Each slot's region: generation (22 bits), owner's row (12), how often it is lent (20).
    register<bit<54>>(1048576) words;
    // The last call of each caller, and how many there were.
    register<bit<64>>(65536) calls;
    register<bit<64>>(2) state;

    action drop(Verdict why) {
        mark_to_drop(std);
        verdicts.count((bit<32>)std.ingress_port << 4 | (bit<32>)(bit<8>)why);
    }

    action hold() {
        hdr.packet_in.setValid();
        hdr.packet_in.ingress_port = (bit<16>)std.ingress_port;
        hdr.packet_in.reason = 1;
        hdr.packet_in.urgent = 1;
        std.egress_spec = CPU_PORT;
        verdicts.count((bit<32>)std.ingress_port << 4 | (bit<32>)(bit<8>)Verdict.HELD);
    }

    // deny turns a request around.
    action deny() {
        bit<128> address = hdr.ipv6.src;
        hdr.ipv6.src = hdr.ipv6.dst;
        hdr.ipv6.dst = address;
        bit<48> mac = hdr.ethernet.src;
        hdr.ethernet.src = hdr.ethernet.dst;
        hdr.ethernet.dst = mac;
        hdr.memory.verdict = DENIED;
        hdr.memory.verdict_twin = ~DENIED;
        std.egress_spec = std.ingress_port;
        verdicts.count((bit<32>)std.ingress_port << 4 | (bit<32>)(bit<8>)Verdict.DENIED);
    }

    // Who lives at a port.
    action known(bit<12> row) { meta.row = row; }
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
    table l3 {
        key = { hdr.ipv6.dst: lpm @name("destination"); }
        actions = { to_hop; NoAction; }
        const default_action = NoAction();
        size = 4096;
    }

    // Where a machine's memory is.
    table home {
        key = { hdr.ipv6.dst[127:80]: exact @name("machine"); }
        actions = { to_hop; NoAction; }
        const default_action = NoAction();
        size = 256;
    }

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

    // Who may write whatever the words say.
    table writer {
        key = {
            meta.row: exact @name("row");
            hdr.ipv6.dst[71:52]: exact @name("slot");
        }
        actions = { permit; NoAction; }
        const default_action = NoAction();
        size = 65536;
    }

    action read_word() { words.read(meta.word, (bit<32>)hdr.ipv6.dst[71:52]); }
    action count_call() {
        bit<64> n;
        calls.write((bit<32>)hdr.call.caller, (bit<64>)hdr.call.number);
        state.read(n, 0);
        state.write(0, n + 1);
    }

    apply {
        if (std.parser_error != error.NoError) {
            drop(Verdict.MALFORMED);
            exit;
        }
        if (!hdr.ipv6.isValid() || hdr.ipv6.version != 6) {
            drop(Verdict.UNSUPPORTED);
            exit;
        }
        bool from_cpu = hdr.packet_out.isValid();
        if (from_cpu) {
            meta.hop = hdr.packet_out.hop;
            hdr.packet_out.setInvalid();
        } else {
            if (hdr.ipv6.hop_limit <= 1) {
                drop(Verdict.HOP_LIMIT);
                exit;
            }
            if (hdr.udp.isValid() && hdr.udp.dst_port == PORT_CONTROL) {
                hold();
                exit;
            }
            if (!identity.apply().hit) {
                drop(Verdict.NO_IDENTITY);
                exit;
            }
        }
        if (hdr.call.isValid()) {
            if (hdr.call.magic != MAGIC) {
                drop(Verdict.MALFORMED);
                exit;
            }
            count_call();
        }
        if (hdr.memory.isValid()) {
            if (hdr.memory.magic != MAGIC || hdr.memory.verdict != REQUEST) {
                drop(Verdict.MALFORMED);
                exit;
            }
            if (meta.hop == 0) {
                home.apply();
            }
            read_word();
            bool owns = meta.row != 0 && meta.word[53:32] == hdr.ipv6.dst[51:30] && meta.word[31:20] == meta.row;
            bool may = owns && hdr.ipv6.dst[79:72] == OP_READ;
            if (hdr.ipv6.dst[79:72] == OP_WRITE) {
                may = (owns && meta.word[19:0] == 0) || writer.apply().hit;
            }
            if (!from_cpu && !may) {
                meta.denied = { (bit<16>)std.ingress_port, hdr.ipv6.src, hdr.ipv6.dst, hdr.memory.request };
                digest<denied_t>(1, meta.denied);
                deny();
                exit;
            }
        } else {
            if (meta.hop == 0) {
                l3.apply();
            }
            if (!from_cpu && hdr.ipv6.next_header == PROTO_TCP) {
                if (!tcp_allowed.apply().hit) {
                    drop(Verdict.UNLISTED);
                    exit;
                }
            }
        }
        next_hop.apply();
    }
}

control SampleEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) { apply {} }

control SampleCompute(inout headers_t hdr, inout metadata_t meta) { apply {} }

control SampleDeparser(packet_out pkt, in headers_t hdr) {
    apply {
        pkt.emit(hdr.packet_in);
        pkt.emit(hdr.ethernet);
        pkt.emit(hdr.ipv6);
        pkt.emit(hdr.udp);
        pkt.emit(hdr.call);
        pkt.emit(hdr.memory);
    }
}

V1Switch(SampleParser(), SampleVerify(), SampleIngress(), SampleEgress(), SampleCompute(), SampleDeparser()) main;
