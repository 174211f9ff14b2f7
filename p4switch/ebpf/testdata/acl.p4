// An access list of five fields: a tuple space with many masks.
#include <core.p4>
#include <v1model.p4>

header five_t { bit<32> src; bit<32> dst; bit<16> sport; bit<16> dport; bit<8> proto; bit<8> pad; }
header out_t { bit<16> rule; }
struct headers_t { five_t five; out_t result; }
struct meta_t {}

parser P(packet_in pkt, out headers_t h, inout meta_t m, inout standard_metadata_t std) {
    state start { pkt.extract(h.five); transition accept; }
}
control V(inout headers_t h, inout meta_t m) { apply {} }
control I(inout headers_t h, inout meta_t m, inout standard_metadata_t std) {
    direct_counter(CounterType.packets_and_bytes) hits;
    action take(bit<16> rule) { h.result.rule = rule; hits.count(); }
    table acl {
        key = { h.five.src: ternary; h.five.dst: ternary; h.five.sport: ternary; h.five.dport: ternary; h.five.proto: optional; }
        actions = { take; }
        const default_action = take(0xffff);
        counters = hits;
        size = 16384;
    }
    apply {
        std.egress_spec = 2;
        h.result.setValid();
        acl.apply();
    }
}
control E(inout headers_t h, inout meta_t m, inout standard_metadata_t std) { apply {} }
control C(inout headers_t h, inout meta_t m) { apply {} }
control D(packet_out pkt, in headers_t h) { apply { pkt.emit(h.result); pkt.emit(h.five); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
