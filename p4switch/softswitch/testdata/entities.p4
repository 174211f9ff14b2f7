// One of each entity that P4Runtime knows, for the switch's end-to-end tests. A
// frame is an Ethernet header whose type selects what is tried; the program
// answers in the header's addresses. entities.json and entities.p4info.txt are
// made by: p4c-bm2-ss --p4runtime-files entities.p4info.txt -o entities.json entities.p4
#include <core.p4>
#include <v1model.p4>

header eth_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

@controller_header("packet_in")
header in_t { bit<9> port; bit<7> pad; }

@controller_header("packet_out")
header out_t { bit<9> port; bit<7> pad; }

struct headers_t { out_t po; in_t pi; eth_t eth; }
struct meta_t { bit<8> x; bit<2> colour; }
struct learn_t { bit<48> src; bit<9> port; }

parser P(packet_in pkt, out headers_t hdr, inout meta_t meta, inout standard_metadata_t std) {
    @name("known") value_set<bit<16>>(2) known;
    state start {
        transition select(std.ingress_port) {
            510: from_cpu;
            default: eth;
        }
    }
    state from_cpu { pkt.extract(hdr.po); transition eth; }
    state eth {
        pkt.extract(hdr.eth);
        transition select(hdr.eth.type) {
            known: mark;
            default: accept;
        }
    }
    state mark { meta.x = 0x55; transition accept; }
}

control V(inout headers_t hdr, inout meta_t meta) { apply {} }

control I(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t std) {
    register<bit<12>>(4) cells;
    counter(4, CounterType.packets_and_bytes) hits;
    meter(2, MeterType.packets) rate;
    direct_counter(CounterType.packets_and_bytes) exact_hits;
    direct_meter<bit<2>>(MeterType.packets) exact_rate;
    direct_counter(CounterType.packets) fixed_hits;

    action forward_metered(bit<9> port) { std.egress_spec = port; exact_rate.read(meta.colour); exact_hits.count(); }
    action drop() { mark_to_drop(std); }
    action answer(bit<8> x) { std.egress_spec = std.ingress_port; hdr.eth.src = (bit<48>)x; fixed_hits.count(); }
    action say(bit<8> x) { std.egress_spec = std.ingress_port; hdr.eth.src = (bit<48>)x; }
    action flood(bit<16> group) { std.mcast_grp = group; }
    action copy(bit<32> session) { clone(CloneType.I2E, session); std.egress_spec = 2; }
    action punt() { std.egress_spec = 510; hdr.pi.setValid(); hdr.pi.port = std.ingress_port; hdr.pi.pad = 0; }

    table exact_t {
        key = { hdr.eth.dst: exact; }
        actions = { forward_metered; drop; }
        default_action = drop();
        counters = exact_hits;
        meters = exact_rate;
        support_timeout = true;
        size = 4;
    }
    table fixed_t {
        key = { hdr.eth.dst: ternary; hdr.eth.src: optional; }
        actions = { answer; drop; }
        const entries = {
            (48w0x10 &&& 48w0xf0, 48w7): answer(1);
            (48w0x10 &&& 48w0xf0, _): answer(2);
            (_, _): answer(3);
        }
        default_action = answer(9);
        counters = fixed_hits;
    }
    table acl_t {
        key = { hdr.eth.dst: ternary; hdr.eth.src: range; }
        actions = { say; flood; copy; punt; drop; }
        default_action = say(77);
        size = 16;
    }
    action_selector(HashAlgorithm.crc16, 16, 8) groups;
    table select_t {
        key = { hdr.eth.dst: lpm; hdr.eth.src: selector; }
        actions = { say; drop; }
        implementation = groups;
        size = 16;
    }
    action_profile(4) profile;
    table profile_t {
        key = { hdr.eth.dst: exact; }
        actions = { say; drop; }
        implementation = profile;
        size = 16;
    }

    apply {
        if (hdr.po.isValid()) {
            std.egress_spec = hdr.po.port;
            hdr.po.setInvalid();
        } else if (hdr.eth.type == 1) {
            exact_t.apply();
            hdr.eth.src = (bit<48>)meta.colour;
        } else if (hdr.eth.type == 2) {
            fixed_t.apply();
        } else if (hdr.eth.type == 3) {
            acl_t.apply();
        } else if (hdr.eth.type == 4) {
            select_t.apply();
        } else if (hdr.eth.type == 5) {
            profile_t.apply();
        } else if (hdr.eth.type == 6) {
            bit<12> v;
            cells.read(v, (bit<32>)hdr.eth.dst);
            hdr.eth.src = (bit<48>)v;
            cells.write((bit<32>)hdr.eth.dst, v + 1);
            std.egress_spec = std.ingress_port;
        } else if (hdr.eth.type == 7) {
            hits.count((bit<32>)hdr.eth.dst);
            rate.execute_meter((bit<32>)hdr.eth.dst, meta.colour);
            hdr.eth.src = (bit<48>)meta.colour;
            std.egress_spec = std.ingress_port;
        } else if (hdr.eth.type == 8) {
            digest<learn_t>(1, { hdr.eth.src, std.ingress_port });
            mark_to_drop(std);
        } else {
            hdr.eth.src = (bit<48>)meta.x;
            std.egress_spec = std.ingress_port;
        }
    }
}

control E(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t std) {
    apply { if (std.egress_rid != 0) { hdr.eth.src = (bit<48>)std.egress_rid; } }
}
control C(inout headers_t hdr, inout meta_t meta) { apply {} }
control D(packet_out pkt, in headers_t hdr) { apply { pkt.emit(hdr.pi); pkt.emit(hdr.eth); } }

V1Switch(P(), V(), I(), E(), C(), D()) main;
