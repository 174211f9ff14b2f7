// Loops in actions: nested, with break and continue, and one without an end.
#include <core.p4>
#include <v1model.p4>

header h_t { bit<8> op; bit<8> n; bit<16> sum; }
struct headers_t { h_t h; }
struct meta_t { }

parser P(packet_in pkt, out headers_t h, inout meta_t m, inout standard_metadata_t std) {
    state start { pkt.extract(h.h); transition accept; }
}
control V(inout headers_t h, inout meta_t m) { apply {} }
control I(inout headers_t h, inout meta_t m, inout standard_metadata_t std) {
    action sum() {
        h.h.sum = 0;
        for (bit<8> i = 1; i <= h.h.n; i = i + 1) { h.h.sum = h.h.sum + (bit<16>)i; }
    }
    action product() {
        h.h.sum = 0;
        for (bit<8> i = 0; i < h.h.n; i = i + 1) {
            for (bit<8> j = 0; j < 3; j = j + 1) { h.h.sum = h.h.sum + 1; }
        }
    }
    action some() {
        h.h.sum = 0;
        for (bit<8> i = 0; i < h.h.n; i = i + 1) {
            if (i == 5) { break; }
            if (i & 1 == 1) { continue; }
            h.h.sum = h.h.sum + (bit<16>)i;
        }
    }
    action endless() {
        for (bit<8> i = 0; i <= h.h.n; i = i + 1) { h.h.sum = h.h.sum + 1; }
    }
    apply {
        std.egress_spec = 2;
        if (h.h.op == 1) { sum(); }
        else if (h.h.op == 2) { product(); }
        else if (h.h.op == 3) { some(); }
        else { endless(); }
    }
}
control E(inout headers_t h, inout meta_t m, inout standard_metadata_t std) { apply {} }
control C(inout headers_t h, inout meta_t m) { apply {} }
control D(packet_out pkt, in headers_t h) { apply { pkt.emit(h.h); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
