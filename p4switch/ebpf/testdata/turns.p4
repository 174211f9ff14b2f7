// Loops in actions that access registers.
#include <core.p4>
#include <v1model.p4>

header h_t { bit<8> op; bit<8> n; bit<32> sum; }
struct headers_t { h_t h; }
struct meta_t { bit<32> v; }

parser P(packet_in pkt, out headers_t h, inout meta_t m, inout standard_metadata_t std) {
    state start { pkt.extract(h.h); transition accept; }
}
control V(inout headers_t h, inout meta_t m) { apply {} }
control I(inout headers_t h, inout meta_t m, inout standard_metadata_t std) {
    register<bit<32>>(16) cells;
    action each() {
        for (bit<8> i = 0; i < h.h.n; i = i + 1) {
            cells.read(m.v, (bit<32>)(i & 15));
            if (m.v & 3 == 3) { continue; }
            cells.write((bit<32>)(i & 15), m.v + (bit<32>)h.h.n);
        }
    }
    action first() {
        h.h.sum = 0;
        for (bit<8> i = 0; i < h.h.n; i = i + 1) {
            cells.read(m.v, (bit<32>)(i & 15));
            h.h.sum = h.h.sum + m.v;
            if (h.h.sum > 1000) { break; }
        }
        cells.write(3, h.h.sum);
    }
    action before() {
        h.h.sum = 1;
        for (bit<8> i = 0; i < h.h.n; i = i + 1) { h.h.sum = h.h.sum + h.h.sum; }
        cells.write(5, h.h.sum);
    }
    action endless() {
        for (bit<8> i = 0; i <= 255; i = i + 1) {
            cells.read(m.v, 9);
            cells.write(9, 1);
        }
    }
    apply {
        std.egress_spec = 2;
        if (h.h.op == 0) { each(); }
        else if (h.h.op == 1) { first(); }
        else if (h.h.op == 2) { before(); }
        else if (h.h.n == 7) { h.h.sum = 7; endless(); }
    }
}
control E(inout headers_t h, inout meta_t m, inout standard_metadata_t std) { apply {} }
control C(inout headers_t h, inout meta_t m) { apply {} }
control D(packet_out pkt, in headers_t h) { apply { pkt.emit(h.h); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
