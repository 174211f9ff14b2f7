// Tables that are looked through: ternary, optional, range, several prefixes.
#include <core.p4>
#include <v1model.p4>

header in_t { bit<8> which; bit<8> a; bit<16> b; bit<128> c; bit<20> d; bit<4> e; }
header out_t { bit<8> r; }
struct headers_t { in_t h; in_t absent; out_t result; }
struct meta_t { bit<8> r; bit<4> nibble; }

parser P(packet_in pkt, out headers_t h, inout meta_t m, inout standard_metadata_t std) {
    state start { pkt.extract(h.h); transition accept; }
}
control V(inout headers_t h, inout meta_t m) { apply {} }
control I(inout headers_t h, inout meta_t m, inout standard_metadata_t std) {
    direct_counter(CounterType.packets_and_bytes) hits;
    action set(bit<8> r, bit<128> wide) { m.r = r; h.h.c = h.h.c ^ wide; }
    action miss() { m.r = 0xff; }
    action counted(bit<8> r) { m.r = r; hits.count(); }

    table three {
        key = { h.h.a: ternary; h.h.c: ternary; h.h.b: lpm; }
        actions = { set; miss; }
        default_action = miss();
    }
    table between {
        key = { h.h.b: range; h.h.a: ternary; m.nibble: exact; }
        actions = { counted; miss; }
        default_action = miss();
        counters = hits;
        size = 20;
    }
    table maybe {
        key = { h.h.a: optional; h.h.d: optional; h.absent.a: ternary; }
        actions = { set; miss; }
        default_action = set(9, 1);
    }
    table prefixes {
        key = { h.h.d: ternary; h.h.c: lpm; h.h.e: range; }
        actions = { set; miss; }
    }
    table program {
        key = { h.h.a: ternary; h.h.b: range; }
        actions = { set; miss; }
        const default_action = miss();
        const entries = {
            (0x10 &&& 0xf0, 5 .. 9): set(1, 0);
            (0x11, _): set(2, 0);
            (_, 7): set(3, 0);
        }
    }
    apply {
        std.egress_spec = 2;
        m.nibble = h.h.a[3:0];
        if (h.h.which == 1) { three.apply(); }
        else if (h.h.which == 2) { between.apply(); }
        else if (h.h.which == 3) { maybe.apply(); }
        else if (h.h.which == 4) { prefixes.apply(); }
        else if (h.h.which == 5) {
            if (program.apply().hit) { m.r = m.r | 0x80; }
        }
        h.result.setValid();
        h.result.r = m.r;
    }
}
control E(inout headers_t h, inout meta_t m, inout standard_metadata_t std) { apply {} }
control C(inout headers_t h, inout meta_t m) { apply {} }
control D(packet_out pkt, in headers_t h) { apply { pkt.emit(h.result); pkt.emit(h.h); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
