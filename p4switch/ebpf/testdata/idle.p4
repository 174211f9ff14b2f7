// Idle timeouts.
#include <core.p4>
#include <v1model.p4>

header h_t { bit<8> key; }
struct headers_t { h_t h; }
struct meta_t { }

parser P(packet_in pkt, out headers_t h, inout meta_t m, inout standard_metadata_t std) {
    state start { pkt.extract(h.h); transition accept; }
}
control V(inout headers_t h, inout meta_t m) { apply {} }
control I(inout headers_t h, inout meta_t m, inout standard_metadata_t std) {
    action leave() { std.egress_spec = 2; }
    table seen {
        key = { h.h.key: exact; }
        actions = { leave; NoAction; }
        support_timeout = true;
    }
    table plain {
        key = { h.h.key: exact; }
        actions = { leave; NoAction; }
    }
    apply { seen.apply(); plain.apply(); }
}
control E(inout headers_t h, inout meta_t m, inout standard_metadata_t std) { apply {} }
control C(inout headers_t h, inout meta_t m) { apply {} }
control D(packet_out pkt, in headers_t h) { apply { pkt.emit(h.h); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
