// What senders leave to the network card: checksums still to be written, and
// super-packets. The first byte of the frame says what is done with it.
#include <core.p4>
#include <v1model.p4>

header ethernet_t { bit<8> order; bit<40> dst; bit<48> src; bit<16> type; }
header tag_t { bit<16> pcp; bit<16> type; }
header ipv6_t {
    bit<4> version; bit<8> class; bit<20> flow; bit<16> length; bit<8> next; bit<8> hops;
    bit<128> src; bit<128> dst;
}
header tcp_t {
    bit<16> src; bit<16> dst; bit<32> seq; bit<32> ack; bit<16> flags; bit<16> window; bit<16> checksum; bit<16> urgent;
}
header udp_t { bit<16> src; bit<16> dst; bit<16> length; bit<16> checksum; }
header icmp_t { bit<8> type; bit<8> code; bit<16> checksum; }
header extra_t { bit<32> v; }

struct headers_t {
    ethernet_t eth; extra_t front; tag_t tag; ipv6_t ip; tcp_t tcp; udp_t udp; icmp_t icmp; extra_t behind;
}
struct meta_t { @field_list(1) bit<8> ahead; }

parser P(packet_in pkt, out headers_t h, inout meta_t m, inout standard_metadata_t std) {
    state start {
        pkt.extract(h.eth);
        transition select(h.eth.type) { 0x8100: tag; 0x86dd: ip; default: accept; }
    }
    state tag {
        pkt.extract(h.tag);
        transition select(h.tag.type) { 0x86dd: ip; default: accept; }
    }
    state ip {
        pkt.extract(h.ip);
        transition select(h.ip.next) { 6: tcp; 17: udp; 58: icmp; default: accept; }
    }
    state tcp { pkt.extract(h.tcp); transition accept; }
    state udp {
        pkt.extract(h.udp);
        transition select(h.eth.order) { 13: ahead; 14: skip; default: accept; }
    }
    state icmp { pkt.extract(h.icmp); transition accept; }
    state ahead { m.ahead = pkt.lookahead<bit<8>>(); transition accept; }
    state skip { pkt.advance(32); transition accept; }
}
control V(inout headers_t h, inout meta_t m) { apply {} }
control I(inout headers_t h, inout meta_t m, inout standard_metadata_t std) {
    apply {
        std.egress_spec = 2;
        if (std.instance_type == 4) { h.eth.order = 0; }
        if (h.icmp.isValid()) { h.eth.src = (bit<48>)h.icmp.checksum; }
        if (h.ip.isValid()) { h.ip.hops = h.ip.hops - 1; }
        if (h.eth.order == 1) { std.mcast_grp = 7; }
        else if (h.eth.order == 2) { clone(CloneType.I2E, 5); }
        else if (h.eth.order == 3) { clone(CloneType.I2E, 6); } // cut
        else if (h.eth.order == 4) { h.front.setValid(); h.front.v = 0x01020304; }
        else if (h.eth.order == 5) { h.behind.setValid(); h.behind.v = 0x05060708; }
        else if (h.eth.order == 6 && h.udp.isValid()) { h.udp.src = 99; }
        else if (h.eth.order == 7 && h.tcp.isValid()) { h.tcp.seq = h.tcp.seq + 1; }
        else if (h.eth.order == 8) { h.udp.setInvalid(); h.tcp.setInvalid(); }
        else if (h.eth.order == 9) { truncate(100); }
        else if (h.eth.order == 12) { h.tag.setInvalid(); }
        else if (h.eth.order == 13) { h.eth.src = (bit<48>)m.ahead; }
    }
}
control E(inout headers_t h, inout meta_t m, inout standard_metadata_t std) {
    apply {
        if (h.eth.order == 10) { recirculate_preserving_field_list(1); }
        else if (h.eth.order == 11) { h.front.setValid(); h.eth.order = 15; clone(CloneType.E2E, 5); }
    }
}
control C(inout headers_t h, inout meta_t m) { apply {} }
control D(packet_out pkt, in headers_t h) { apply { pkt.emit(h); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
