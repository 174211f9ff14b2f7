// Clone, resubmit, recirculate, multicast, truncate, exit, drop, digest.
#include <core.p4>
#include <v1model.p4>

// Each byte of the packet orders something; instance and keep tell what a copy
// remembers.
header order_t { bit<8> ingress; bit<8> egress; bit<8> instance; bit<8> keep; }
header info_t { bit<16> length; bit<16> rid; bit<8> came; bit<8> left; }
struct headers_t { info_t info; order_t o; }
struct meta_t {
    @field_list(1) bit<8> keep;
    @field_list(2) bit<8> other;
    bit<8> forget;
}
struct digest_t { bit<8> a; bit<9> port; bit<128> wide; }

parser P(packet_in pkt, out headers_t h, inout meta_t m, inout standard_metadata_t std) {
    state start { pkt.extract(h.o); transition accept; }
}
control V(inout headers_t h, inout meta_t m) { apply {} }
control I(inout headers_t h, inout meta_t m, inout standard_metadata_t std) {
    action unicast() { std.egress_spec = 2; }
    apply {
        unicast();
        if (std.instance_type == 6) { // resubmitted: as it came, but for the field kept
            h.o.ingress = 0;
            h.o.keep = m.keep;
        } else if (std.instance_type == 4) { // recirculated
            h.o.egress = 0;
            h.o.ingress = 0;
            h.o.keep = m.keep;
        }
        if (h.o.ingress != 0) {
            m.keep = 0x11;
            m.other = 0x22;
            m.forget = 0x33;
        }
        if (h.o.ingress == 1) { clone_preserving_field_list(CloneType.I2E, 5, 1); }
        else if (h.o.ingress == 2) { clone(CloneType.I2E, 6); }
        else if (h.o.ingress == 3) { resubmit_preserving_field_list(1); }
        else if (h.o.ingress == 4) { std.mcast_grp = 7; }
        else if (h.o.ingress == 5) { mark_to_drop(std); }
        else if (h.o.ingress == 6) { std.mcast_grp = 7; mark_to_drop(std); }
        else if (h.o.ingress == 7) { truncate(9); }
        else if (h.o.ingress == 8) { clone(CloneType.I2E, 5); mark_to_drop(std); }
        else if (h.o.ingress == 9) {
            digest<digest_t>(1, { h.o.keep, std.ingress_port, (bit<128>)h.o.keep << 100 });
        }
        else if (h.o.ingress == 10) { std.egress_spec = 3; exit; }
        else if (h.o.ingress == 11) { clone(CloneType.I2E, 99); }
        h.o.ingress = h.o.ingress | 0x80;
    }
}
control E(inout headers_t h, inout meta_t m, inout standard_metadata_t std) {
    apply {
        if (h.o.egress == 1 && std.instance_type != 2) { clone_preserving_field_list(CloneType.E2E, 5, 2); }
        else if (h.o.egress == 2) { recirculate_preserving_field_list(1); }
        else if (h.o.egress == 3) { mark_to_drop(std); }
        else if (h.o.egress == 4 && std.instance_type == 5) { mark_to_drop(std); }
        h.o.instance = (bit<8>)std.instance_type;
        if (std.instance_type == 1 || std.instance_type == 2) {
            h.o.keep = m.keep + m.other + m.forget;
        }
        h.info.setValid();
        h.info.length = (bit<16>)std.packet_length;
        h.info.rid = std.egress_rid;
        h.info.came = (bit<8>)std.ingress_port;
        h.info.left = (bit<8>)std.egress_port;
        if (h.o.egress == 2) { h.info.setInvalid(); }
    }
}
control C(inout headers_t h, inout meta_t m) { apply {} }
control D(packet_out pkt, in headers_t h) { apply { pkt.emit(h.info); pkt.emit(h.o); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
