// Parsers that loop over lengths which only the packet tells, and loops that read nothing.
#include <core.p4>
#include <v1model.p4>

header eth_t { bit<48> dst; bit<48> src; bit<16> kind; }
header option_t { bit<8> kind; bit<8> length; varbit<256> value; }
header end_t { bit<16> value; }
struct headers_t { eth_t eth; option_t first; option_t option; end_t end; }
struct meta_t { bit<8> left; bit<8> seen; bit<16> sum; bit<8> code; }

parser P(packet_in pkt, out headers_t h, inout meta_t m, inout standard_metadata_t std) {
    state start {
        pkt.extract(h.eth);
        transition select(h.eth.kind) { 0x801: options; 0x802: skips; 0x803: spin; 0x804: for_ever; default: accept; }
    }
    // Options up to one of kind 0, each as long as it says.
    state options {
        m.seen = m.seen + 1;
        transition select(pkt.lookahead<bit<8>>()) { 0: end; 9: first; default: option; }
    }
    state first {
        pkt.extract(h.first, (bit<32>)(pkt.lookahead<bit<16>>() & 0x3f) * 8);
        m.sum = m.sum + (bit<16>)h.first.length;
        transition options;
    }
    state option {
        pkt.extract(h.option, (bit<32>)(pkt.lookahead<bit<16>>() & 0x3f) * 8);
        m.sum = m.sum * 3 + (bit<16>)h.option.kind;
        transition select(h.option.kind) { 7: skips; default: options; }
    }
    // As many bytes as the next one says, again and again.
    state skips {
        bit<8> n = pkt.lookahead<bit<8>>();
        pkt.advance((bit<32>)n << 3);
        m.seen = m.seen + 1;
        transition select(n) { 0: end; default: skips; }
    }
    // Reads nothing, but ends.
    state spin {
        m.left = m.left + 1;
        transition select(m.left) { 200: end; default: spin; }
    }
    state for_ever {
        m.left = m.left + 1;
        transition select(h.eth.dst) { 1: end; default: for_ever; }
    }
    state end {
        pkt.extract(h.end);
        transition accept;
    }
}
control V(inout headers_t h, inout meta_t m) { apply {} }
control I(inout headers_t h, inout meta_t m, inout standard_metadata_t std) {
    apply {
        std.egress_spec = 2;
        if (std.parser_error != error.NoError) { m.code = 1; }
        if (std.parser_error == error.HeaderTooShort) { m.code = 2; }
        if (std.parser_error == error.PacketTooShort) { m.code = 3; }
        if (std.parser_error == error.ParserTimeout) { m.code = 4; }
        h.eth.dst = m.code ++ m.seen ++ m.left ++ m.sum ++ 8w0;
        if (h.option.isValid() && h.option.kind == 3) { h.option.setInvalid(); }
        if (h.first.isValid()) { h.end.setValid(); h.end.value = 0x1234; }
    }
}
control E(inout headers_t h, inout meta_t m, inout standard_metadata_t std) { apply {} }
control C(inout headers_t h, inout meta_t m) { apply {} }
control D(packet_out pkt, in headers_t h) {
    apply { pkt.emit(h.eth); pkt.emit(h.first); pkt.emit(h.option); pkt.emit(h.end); }
}
V1Switch(P(), V(), I(), E(), C(), D()) main;
