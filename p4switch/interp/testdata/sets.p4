// Parser value sets, select on several fields.
#include <core.p4>
#include <v1model.p4>

header h_t { bit<12> a; bit<4> b; bit<96> c; bit<8> r; }
struct headers_t { h_t h; }
struct meta_t { bit<8> r; }
struct pair_t { bit<12> a; bit<4> b; }

parser P(packet_in pkt, out headers_t h, inout meta_t m, inout standard_metadata_t std) {
    value_set<bit<12>>(4) ones;
    value_set<pair_t>(2) pairs;
    state start {
        pkt.extract(h.h);
        transition select(h.h.a) {
            ones: one;
            default: more;
        }
    }
    state one { m.r = 1; transition accept; }
    state more {
        transition select(h.h.a, h.h.b) {
            pairs: two;
            (0x123, 4): three;
            (0x120 &&& 0xff0, _): four;
            default: wide;
        }
    }
    state two { m.r = 2; transition accept; }
    state three { m.r = 3; transition accept; }
    state four { m.r = 4; transition accept; }
    state wide {
        transition select(h.h.c, h.h.b) {
            (0x0102030405060708090a0b0c, 7): five;
            (0x010203000000000000000000 &&& 0xffffff000000000000000000, _): six;
            default: accept;
        }
    }
    state five { m.r = 5; transition accept; }
    state six { m.r = 6; transition accept; }
}
control V(inout headers_t h, inout meta_t m) { apply {} }
control I(inout headers_t h, inout meta_t m, inout standard_metadata_t std) {
    apply { std.egress_spec = 2; h.h.r = m.r; }
}
control E(inout headers_t h, inout meta_t m, inout standard_metadata_t std) { apply {} }
control C(inout headers_t h, inout meta_t m) { apply {} }
control D(packet_out pkt, in headers_t h) { apply { pkt.emit(h.h); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
