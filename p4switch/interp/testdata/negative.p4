// Negative indexes of stacks, registers and counters: beyond, not the first one.
#define V1MODEL_VERSION 20200408
#include <core.p4>
#include <v1model.p4>

header h_t { bit<8> op; int<8> i; bit<8> v; }
header e_t { bit<8> x; }
struct headers_t { h_t h; e_t[3] s; }
struct meta_t { }

parser P(packet_in pkt, out headers_t h, inout meta_t m, inout standard_metadata_t std) {
    state start {
        pkt.extract(h.h);
        pkt.extract(h.s[0]);
        pkt.extract(h.s[1]);
        pkt.extract(h.s[2]);
        transition accept;
    }
}
control V(inout headers_t h, inout meta_t m) { apply {} }
control I(inout headers_t h, inout meta_t m, inout standard_metadata_t std) {
    register<bit<8>, int<8>>(3) kept;
    counter<int<8>>(3, CounterType.packets) seen;
    apply {
        std.egress_spec = 2;
        if (h.h.op == 1) { h.s[h.h.i].x = h.h.v; }
        else if (h.h.op == 2) { h.h.v = h.s[h.h.i].x; }
        else if (h.h.op == 3) { kept.write(h.h.i, h.h.v); seen.count(h.h.i); }
        else if (h.h.op == 4) { bit<8> x; kept.read(x, h.h.i); h.h.v = x; }
    }
}
control E(inout headers_t h, inout meta_t m, inout standard_metadata_t std) { apply {} }
control C(inout headers_t h, inout meta_t m) { apply {} }
control D(packet_out pkt, in headers_t h) { apply { pkt.emit(h); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
