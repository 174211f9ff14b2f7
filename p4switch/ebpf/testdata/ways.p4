// A parser that need not loop to have many ways: each optional header moves all
// that follow, and every choice is met at another position.
#include <core.p4>
#include <v1model.p4>

header which_t { bit<48> dst; bit<48> src; bit<16> type; bit<16> has; }
header o0_t { bit<8> v; }
header o1_t { bit<16> v; }
header o2_t { bit<32> v; }
header o3_t { bit<64> v; }
header o4_t { bit<128> v; }
header o5_t { bit<256> v; }
header o6_t { bit<512> v; }
header o7_t { bit<1024> v; }
header o8_t { bit<2048> v; }
header last_t { bit<8> v; }
struct headers_t { which_t which; o0_t o0; o1_t o1; o2_t o2; o3_t o3; o4_t o4; o5_t o5; o6_t o6; o7_t o7; o8_t o8; last_t last; }
struct meta_t {}

parser P(packet_in pkt, out headers_t h, inout meta_t m, inout standard_metadata_t std) {
    state start { pkt.extract(h.which); transition at0; }
    state at0 { transition select(h.which.has[0:0]) { 1: take0; default: at1; } }
    state take0 { pkt.extract(h.o0); transition at1; }
    state at1 { transition select(h.which.has[1:1]) { 1: take1; default: at2; } }
    state take1 { pkt.extract(h.o1); transition at2; }
    state at2 { transition select(h.which.has[2:2]) { 1: take2; default: at3; } }
    state take2 { pkt.extract(h.o2); transition at3; }
    state at3 { transition select(h.which.has[3:3]) { 1: take3; default: at4; } }
    state take3 { pkt.extract(h.o3); transition at4; }
    state at4 { transition select(h.which.has[4:4]) { 1: take4; default: at5; } }
    state take4 { pkt.extract(h.o4); transition at5; }
    state at5 { transition select(h.which.has[5:5]) { 1: take5; default: at6; } }
    state take5 { pkt.extract(h.o5); transition at6; }
    state at6 { transition select(h.which.has[6:6]) { 1: take6; default: at7; } }
    state take6 { pkt.extract(h.o6); transition at7; }
    state at7 { transition select(h.which.has[7:7]) { 1: take7; default: at8; } }
    state take7 { pkt.extract(h.o7); transition at8; }
    state at8 { transition select(h.which.has[8:8]) { 1: take8; default: end; } }
    state take8 { pkt.extract(h.o8); transition end; }
    state end { pkt.extract(h.last); transition accept; }
}
control V(inout headers_t h, inout meta_t m) { apply {} }
control I(inout headers_t h, inout meta_t m, inout standard_metadata_t std) {
    apply {
        std.egress_spec = 2;
        h.which.type = h.which.type + (bit<16>)h.last.v;
        h.o0.setInvalid();
    }
}
control E(inout headers_t h, inout meta_t m, inout standard_metadata_t std) { apply {} }
control C(inout headers_t h, inout meta_t m) { apply {} }
control D(packet_out pkt, in headers_t h) { apply { pkt.emit(h); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
