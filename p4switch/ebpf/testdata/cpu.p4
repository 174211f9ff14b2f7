// What comes from the CPU port, again and in copies; and fields of headers that are
// not valid, which read as 0. The frame's first byte says what is done.
#include <core.p4>
#include <v1model.p4>

@controller_header("packet_out")
header packet_out_t { bit<9> port; bit<7> pad; bit<32> note; }
header ethernet_t { bit<8> order; bit<40> dst; bit<48> src; bit<16> type; }
header more_t { bit<32> v; }
header seen_t { bit<32> note; bit<32> more; bit<16> came; bit<8> instance; bit<8> valid; }

struct headers_t { seen_t seen; packet_out_t po; ethernet_t eth; more_t more; }
struct meta_t { @field_list(1) bit<8> keep; }

parser P(packet_in pkt, out headers_t h, inout meta_t m, inout standard_metadata_t std) {
    state start {
        transition select(std.ingress_port) { 510: packet_out; default: eth; }
    }
    state packet_out { pkt.extract(h.po); transition eth; }
    state eth {
        pkt.extract(h.eth);
        transition select(h.eth.type) { 0x1234: more; default: accept; }
    }
    state more { pkt.extract(h.more); transition accept; }
}
control V(inout headers_t h, inout meta_t m) { apply {} }
control I(inout headers_t h, inout meta_t m, inout standard_metadata_t std) {
    apply {
        std.egress_spec = 2;
        if (std.instance_type == 0) {
            if (h.eth.order == 1) { clone(CloneType.I2E, 5); }
            else if (h.eth.order == 2) { resubmit_preserving_field_list(1); }
            else if (h.eth.order == 3) { std.mcast_grp = 7; }
            else if (h.eth.order == 4) { h.more.setInvalid(); }
        }
    }
}
control E(inout headers_t h, inout meta_t m, inout standard_metadata_t std) {
    apply {
        if (h.eth.order == 5 && std.instance_type == 0) { recirculate_preserving_field_list(1); }
        h.seen.setValid();
        h.seen.note = h.po.note;
        h.seen.more = h.more.v;
        h.seen.came = (bit<16>)std.ingress_port;
        h.seen.instance = (bit<8>)std.instance_type;
        if (h.po.isValid()) { h.seen.valid = 1; }
    }
}
control C(inout headers_t h, inout meta_t m) { apply {} }
control D(packet_out pkt, in headers_t h) { apply { pkt.emit(h); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
