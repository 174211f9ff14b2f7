// Programs that misbehave: endless loops, failed assertions; and log messages.
#include <core.p4>
#include <v1model.p4>

header h_t { bit<8> op; }
struct headers_t { h_t h; }
struct meta_t { bit<128> wide; }

parser P(packet_in pkt, out headers_t h, inout meta_t m, inout standard_metadata_t std) {
    state start {
        pkt.extract(h.h);
        transition select(h.h.op) { 2: spin; default: accept; }
    }
    state spin {
        m.wide = m.wide + 1;
        transition select(m.wide[0:0]) { 0: spin; 1: spin; }
    }
}
control V(inout headers_t h, inout meta_t m) { apply {} }
control I(inout headers_t h, inout meta_t m, inout standard_metadata_t std) {
    apply {
        std.egress_spec = 2;
        if (std.parser_error == error.ParserTimeout) { h.h.op = 0xff; }
        assert(h.h.op != 3);
        if (h.h.op == 4) {
            m.wide = -128w1;
            log_msg("op {}, \\{port\\} {}, wide {}", { h.h.op, std.ingress_port, m.wide });
        }
    }
}
control E(inout headers_t h, inout meta_t m, inout standard_metadata_t std) {
    apply { if (h.h.op == 0) { recirculate_preserving_field_list(0); } }
}
control C(inout headers_t h, inout meta_t m) { apply {} }
control D(packet_out pkt, in headers_t h) { apply { pkt.emit(h.h); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
