// Match kinds, entries of the program, hit and miss, switch, action profiles.
#include <core.p4>
#include <v1model.p4>

header in_t { bit<8> which; bit<8> a; bit<16> b; bit<128> c; }
header out_t { bit<8> r; }
struct headers_t { in_t h; out_t result; }
struct meta_t { bit<8> r; bit<4> nibble; }

parser P(packet_in pkt, out headers_t h, inout meta_t m, inout standard_metadata_t std) {
    state start { pkt.extract(h.h); transition accept; }
}
control V(inout headers_t h, inout meta_t m) { apply {} }
control I(inout headers_t h, inout meta_t m, inout standard_metadata_t std) {
    action set(bit<8> r) { m.r = r; }
    action add(bit<8> r) { m.r = m.r + r; }
    action miss() { m.r = 0xff; }

    table exact_two {
        key = { h.h.a: exact; h.h.b: exact; }
        actions = { set; miss; }
        default_action = miss();
    }
    table longest {
        key = { h.h.c: lpm; }
        actions = { set; miss; }
        default_action = miss();
    }
    table exact_lpm {
        key = { m.nibble: exact; h.h.c: exact; h.h.b: lpm; }
        actions = { set; miss; }
        default_action = miss();
    }
    table three {
        key = { h.h.a: ternary; h.h.c: ternary; h.h.b: lpm; }
        actions = { set; miss; }
        default_action = miss();
    }
    table between {
        key = { h.h.b: range; h.h.a: ternary; }
        actions = { set; miss; }
        default_action = miss();
    }
    table maybe {
        key = { h.h.a: optional; h.h.b: optional; }
        actions = { set; miss; }
        default_action = miss();
    }
    table masked {
        key = { h.h.b & 0x0ff0: exact @name("middle"); }
        actions = { set; miss; }
        default_action = miss();
    }
    table program {
        key = { h.h.a: ternary; h.h.b: range; }
        actions = { set; miss; }
        const default_action = miss();
        const entries = {
            (0x10 &&& 0xf0, 5 .. 9): set(1);
            (0x11, _): set(2);
            (_, 7): set(3);
        }
    }
    table chosen {
        key = { h.h.a: exact; h.h.c: selector; }
        actions = { set; add; }
        @name("chosen_profile") implementation = action_selector(HashAlgorithm.crc16, 16, 8);
    }
    table shared {
        key = { h.h.a: exact; }
        actions = { set; add; }
        @name("shared_profile") implementation = action_profile(4);
    }
    apply {
        std.egress_spec = 2;
        m.nibble = h.h.a[3:0];
        if (h.h.which == 1) { exact_two.apply(); }
        else if (h.h.which == 2) { longest.apply(); }
        else if (h.h.which == 3) { exact_lpm.apply(); }
        else if (h.h.which == 4) { three.apply(); }
        else if (h.h.which == 5) { between.apply(); }
        else if (h.h.which == 6) { maybe.apply(); }
        else if (h.h.which == 7) { masked.apply(); }
        else if (h.h.which == 8) {
            if (program.apply().hit) { m.r = m.r | 0x80; }
        }
        else if (h.h.which == 9) { chosen.apply(); }
        else if (h.h.which == 10) {
            m.r = 0x40;
            switch (shared.apply().action_run) {
                set: { m.r = m.r + 1; }
                default: { m.r = m.r + 0x10; }
            }
        }
        h.result.setValid();
        h.result.r = m.r;
    }
}
control E(inout headers_t h, inout meta_t m, inout standard_metadata_t std) { apply {} }
control C(inout headers_t h, inout meta_t m) { apply {} }
control D(packet_out pkt, in headers_t h) { apply { pkt.emit(h.result); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
