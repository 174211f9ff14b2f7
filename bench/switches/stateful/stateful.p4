// A cable that counts in a register, meters, and sends by a multicast group: what a
// packet costs that meets all three.
#include <core.p4>
#include <v1model.p4>

header ethernet_t { bit<48> dst; bit<48> src; bit<16> type; }
struct headers_t { ethernet_t eth; }
struct meta_t { bit<32> colour; bit<64> seen; }

parser P(packet_in pkt, out headers_t h, inout meta_t m, inout standard_metadata_t std) {
    state start { pkt.extract(h.eth); transition accept; }
}
control V(inout headers_t h, inout meta_t m) { apply {} }
control I(inout headers_t h, inout meta_t m, inout standard_metadata_t std) {
    register<bit<64>>(512) seen;
    meter(512, MeterType.packets) speed;
    action spread(bit<16> group) {
        seen.read(m.seen, (bit<32>)std.ingress_port);
        seen.write((bit<32>)std.ingress_port, m.seen + 1);
        std.mcast_grp = group;
    }
    table ports {
        key = { std.ingress_port: exact @name("port"); }
        actions = { spread; NoAction; }
        const entries = { 1: spread(1); 2: spread(2); }
    }
    apply {
        speed.execute_meter((bit<32>)std.ingress_port, m.colour);
        if (m.colour != 2) { ports.apply(); }
    }
}
control E(inout headers_t h, inout meta_t m, inout standard_metadata_t std) { apply {} }
control C(inout headers_t h, inout meta_t m) { apply {} }
control D(packet_out pkt, in headers_t h) { apply { pkt.emit(h.eth); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
