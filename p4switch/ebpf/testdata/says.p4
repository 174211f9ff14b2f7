// Log messages and assertions.
#include <core.p4>
#include <v1model.p4>

header h_t { bit<8> op; }
struct headers_t { h_t h; }
struct meta_t { bit<128> wide; int<8> less; }

parser P(packet_in pkt, out headers_t h, inout meta_t m, inout standard_metadata_t std) {
    state start { pkt.extract(h.h); transition accept; }
}
control V(inout headers_t h, inout meta_t m) { apply {} }
control I(inout headers_t h, inout meta_t m, inout standard_metadata_t std) {
    action say() {
        m.wide = 0xffffffffffffffffffffffffffffffff;
        m.less = -1;
        log_msg("op {}, port {}, wide {}, less {}", {h.h.op, std.ingress_port, m.wide, m.less});
    }
    apply {
        std.egress_spec = 2;
        say();
        assert(h.h.op != 1);
    }
}
control E(inout headers_t h, inout meta_t m, inout standard_metadata_t std) { apply {} }
control C(inout headers_t h, inout meta_t m) { apply {} }
control D(packet_out pkt, in headers_t h) { apply { pkt.emit(h.h); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
