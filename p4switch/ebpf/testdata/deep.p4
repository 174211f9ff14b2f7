// Expressions of many temporaries, which p4c puts into the places where they are used.
#include <core.p4>
#include <v1model.p4>

header h_t { bit<32> a; bit<32> b; bit<32> c; bit<32> d; bit<64> sum; bit<128> wide; bit<8> less; }
struct headers_t { h_t h; }
struct meta_t { }

parser P(packet_in pkt, out headers_t h, inout meta_t m, inout standard_metadata_t std) {
    state start { pkt.extract(h.h); transition accept; }
}
control V(inout headers_t h, inout meta_t m) { apply {} }
control I(inout headers_t h, inout meta_t m, inout standard_metadata_t std) {
    // Each of these waits for all that are in its brackets.
    action nested() {
        h.h.sum[31:0] = h.h.a - (h.h.b ^ (h.h.c + (h.h.d | (h.h.a - (h.h.b & (h.h.c + (h.h.d ^ (h.h.a - (h.h.b * (h.h.c - (h.h.d + h.h.a)))))))))));
    }
    action mix() {
        bit<32> x = h.h.a + h.h.b;
        bit<32> y = (x ^ h.h.c) - (x >> 3);
        bit<32> z = y < x ? y - (x & h.h.d) : x - (y | h.h.d);
        bit<32> w = z - (y - (x - (z ^ (y + (h.h.a ^ (h.h.b - (h.h.c + h.h.d)))))));
        h.h.sum[63:32] = w;
        h.h.wide = h.h.wide ^ (96w0 ++ (w ^ z)) ^ ((h.h.wide << 7) | (h.h.wide >> 9 & (h.h.wide << 3 ^ (h.h.wide >> 5 | (h.h.wide << 2 & (h.h.wide >> 1 ^ (h.h.wide << 4 | h.h.wide >> 70)))))));
    }
    apply {
        std.egress_spec = 2;
        nested();
        mix();
        if (h.h.a - (h.h.b - (h.h.c - (h.h.d - (h.h.a ^ (h.h.b - (h.h.c + (h.h.d - (h.h.a & h.h.b)))))))) <
            (h.h.d - (h.h.c - (h.h.b - (h.h.a - (h.h.c ^ (h.h.d - (h.h.a + (h.h.b - (h.h.c & h.h.d))))))))))
        {
            h.h.less = 1;
        }
    }
}
control E(inout headers_t h, inout meta_t m, inout standard_metadata_t std) { apply {} }
control C(inout headers_t h, inout meta_t m) { apply {} }
control D(packet_out pkt, in headers_t h) { apply { pkt.emit(h.h); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
