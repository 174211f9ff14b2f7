// A register for the prover to reason about: of each slot only rising numbers pass, so a
// number passes once.
#include <core.p4>
#include <v1model.p4>

header n_t { bit<96> addresses; bit<8> slot; bit<16> number; } // no frame is shorter than 14 bytes
struct headers_t { n_t n; }
struct meta_t { bit<16> last; }

parser P(packet_in pkt, out headers_t h, inout meta_t m, inout standard_metadata_t std) {
    state start { pkt.extract(h.n); transition accept; }
}
control V(inout headers_t h, inout meta_t m) { apply {} }
control I(inout headers_t h, inout meta_t m, inout standard_metadata_t std) {
    register<bit<16>>(256) numbers;
    action read_number() { numbers.read(m.last, (bit<32>)h.n.slot); }
    action pass() {
        numbers.write((bit<32>)h.n.slot, h.n.number);
        std.egress_spec = 2;
    }
    apply {
        read_number();
        if (std.parser_error == error.NoError && h.n.number > m.last) { pass(); } else { mark_to_drop(std); }
    }
}
control E(inout headers_t h, inout meta_t m, inout standard_metadata_t std) { apply {} }
control C(inout headers_t h, inout meta_t m) { apply {} }
control D(packet_out pkt, in headers_t h) { apply { pkt.emit(h.n); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
