// Fields of variable length, advances by what the packet says, and what the parser does with stacks.
#include <core.p4>
#include <v1model.p4>

header eth_t { bit<48> dst; bit<48> src; bit<16> kind; }
header ip_t { bit<4> version; bit<4> ihl; bit<8> ttl; bit<16> sum; varbit<320> options; bit<16> after; }
header tcp_t { bit<4> offset; bit<4> flags; bit<8> x; varbit<96> options; }
header skip_t { bit<8> count; bit<8> next; }
header el_t { bit<8> more; bit<8> v; }
struct headers_t { eth_t eth; ip_t ip; tcp_t tcp; skip_t skip; el_t[3] els; tcp_t saved; el_t[3] copied; el_t tail; }
struct meta_t { bit<8> ahead; bit<8> code; bit<16> same; }

parser P(packet_in pkt, out headers_t h, inout meta_t m, inout standard_metadata_t std) {
    state start {
        pkt.extract(h.eth);
        transition select(h.eth.kind) { 0x800: ip; 0x801: skip; 0x802: els; default: accept; }
    }
    state ip {
        bit<8> look = pkt.lookahead<bit<8>>();
        pkt.extract(h.ip, (bit<32>)(((bit<16>)(look & 15) - 2) * 32));
        transition select(h.ip.ttl) { 1: tcp; 2: skip; 3: els; default: accept; }
    }
    state tcp {
        pkt.extract(h.tcp, (bit<32>)(pkt.lookahead<bit<8>>() & 0x7f));
        transition accept;
    }
    state skip {
        pkt.extract(h.skip);
        pkt.advance((bit<32>)h.skip.count);
        m.ahead = pkt.lookahead<bit<8>>();
        transition select(h.skip.next) { 1: els; 2: tail; default: accept; }
    }
    state els {
        pkt.extract(h.els.next);
        transition select(h.els.last.more) { 1: els; 2: keep; default: accept; }
    }
    state keep {
        h.copied = h.els;
        transition select(pkt.lookahead<bit<8>>()) { 1: els; 7: more; default: tail; }
    }
    state more {
        pkt.extract(h.copied.next);
        transition tail;
    }
    state tail {
        pkt.extract(h.tail);
        transition accept;
    }
}
control V(inout headers_t h, inout meta_t m) {
    apply {
        verify_checksum(h.ip.isValid(), { h.ip.version, h.ip.ihl, h.ip.ttl, h.ip.options, h.ip.after }, h.ip.sum, HashAlgorithm.csum16);
    }
}
control I(inout headers_t h, inout meta_t m, inout standard_metadata_t std) {
    apply {
        std.egress_spec = 2;
        if (std.parser_error != error.NoError) { m.code = 1; }
        if (std.parser_error == error.HeaderTooShort) { m.code = 2; }
        if (std.parser_error == error.PacketTooShort) { m.code = 3; }
        if (std.parser_error == error.ParserInvalidArgument) { m.code = 4; }
        if (std.parser_error == error.StackOutOfBounds) { m.code = 5; }
        h.eth.dst = m.ahead ++ 40w0;
        h.eth.src = h.eth.src ^ (bit<48>)m.code ^ ((bit<48>)std.packet_length << 8) ^ ((bit<48>)std.checksum_error << 40);
        if (h.tcp.isValid()) {
            if (h.tcp.x == 1) { h.saved = h.tcp; h.tcp.setInvalid(); }
            if (h.tcp.x == 2) { h.saved.setValid(); h.saved.options = h.tcp.options; h.tcp.flags = 3; }
            if (h.tcp.x == 3) { h.ip.setInvalid(); }
            if (h.tcp.x == 4) { h.tcp.setInvalid(); h.tcp.setValid(); h.tcp.x = 9; }
            if (h.tcp.options == h.saved.options) { h.eth.kind = 0x1111; }
        }
        hash(m.same, HashAlgorithm.crc16, (bit<16>)0, { h.ip.ttl, h.ip.options, h.ip.after, h.tcp.x }, (bit<32>)65536);
        h.eth.dst[15:0] = m.same;
    }
}
control E(inout headers_t h, inout meta_t m, inout standard_metadata_t std) {
    apply { h.eth.src[31:16] = h.eth.src[31:16] ^ (bit<16>)std.packet_length; }
}
control C(inout headers_t h, inout meta_t m) {
    apply {
        update_checksum(h.ip.isValid(), { h.ip.version, h.ip.ihl, h.ip.ttl, h.ip.options, h.ip.after }, h.ip.sum, HashAlgorithm.csum16);
    }
}
control D(packet_out pkt, in headers_t h) {
    apply { pkt.emit(h.eth); pkt.emit(h.saved); pkt.emit(h.ip); pkt.emit(h.tcp); pkt.emit(h.skip); pkt.emit(h.els); pkt.emit(h.copied); pkt.emit(h.tail); }
}
V1Switch(P(), V(), I(), E(), C(), D()) main;
