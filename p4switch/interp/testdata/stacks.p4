// Header stacks, unions, variable-length fields, lookahead, advance, verify.
#include <core.p4>
#include <v1model.p4>

error { BadMagic }

header first_t { bit<8> kind; bit<8> n; }
header label_t { bit<7> v; bit<1> last; }
header small_t { bit<8> tag; bit<8> a; }
header large_t { bit<8> tag; bit<24> a; }
header opts_t  { bit<8> len; varbit<64> data; bit<8> after; }
header status_t { bit<8> code; bit<8> labels; bit<8> index; bit<8> peek; }

header_union item_t { small_t small; large_t large; }

struct headers_t {
    status_t status;
    first_t first;
    label_t[3] labels;
    item_t[2] items;
    opts_t opts;
    opts_t copy;
}
struct meta_t { bit<8> peek; bit<8> last; }

parser P(packet_in pkt, out headers_t h, inout meta_t m, inout standard_metadata_t std) {
    state start {
        pkt.extract(h.first);
        m.peek = pkt.lookahead<bit<8>>();
        transition select(h.first.kind) {
            1: labels;
            2: items;
            3: options;
            4: skip;
            5 &&& 0x0d: magic;
            default: accept;
        }
    }
    state labels {
        pkt.extract(h.labels.next);
        m.last = (bit<8>)h.labels.last.v;
        transition select(h.labels.last.last) { 0: labels; 1: accept; }
    }
    state items {
        transition select(pkt.lookahead<bit<8>>()) { 1: small; 2: large; default: accept; }
    }
    state small { pkt.extract(h.items.next.small); transition items; }
    state large { pkt.extract(h.items.next.large); transition items; }
    state options {
        pkt.extract(h.opts, (bit<32>)h.first.n * 8);
        transition accept;
    }
    state skip {
        pkt.advance((bit<32>)h.first.n * 8);
        m.peek = pkt.lookahead<bit<8>>();
        transition accept;
    }
    state magic {
        verify(h.first.n == 7, error.BadMagic);
        transition accept;
    }
}
control V(inout headers_t h, inout meta_t m) { apply {} }
control I(inout headers_t h, inout meta_t m, inout standard_metadata_t std) {
    apply {
        std.egress_spec = 2;
        h.status.setValid();
        h.status.peek = m.peek;
        if (std.parser_error == error.NoError) { h.status.code = 0; }
        else if (std.parser_error == error.PacketTooShort) { h.status.code = 1; }
        else if (std.parser_error == error.StackOutOfBounds) { h.status.code = 3; }
        else if (std.parser_error == error.HeaderTooShort) { h.status.code = 4; }
        else if (std.parser_error == error.BadMagic) { h.status.code = 9; }
        else { h.status.code = 0xff; }
        h.status.index = m.last;
        if (h.labels[0].isValid()) { h.status.labels = h.status.labels + 1; }
        if (h.labels[1].isValid()) { h.status.labels = h.status.labels + 1; }
        if (h.labels[2].isValid()) { h.status.labels = h.status.labels + 1; }
        if (h.first.kind == 1 && h.first.n == 1) {
            h.labels.push_front(1);
            h.labels[0].setValid();
            h.labels[0].v = 0x7f;
            h.labels[0].last = 0;
        } else if (h.first.kind == 1 && h.first.n == 2) {
            h.labels.pop_front(1);
        } else if (h.first.kind == 2 && h.first.n == 1) {
            h.items[1] = h.items[0];
        } else if (h.first.kind == 2 && h.first.n == 2) {
            h.items[0].small.setValid();
            h.items[0].small = { 1, 0x77 };
        } else if (h.first.kind == 3) {
            h.copy = h.opts;
            h.copy.after = h.copy.after + 1;
        }
    }
}
control E(inout headers_t h, inout meta_t m, inout standard_metadata_t std) { apply {} }
control C(inout headers_t h, inout meta_t m) { apply {} }
control D(packet_out pkt, in headers_t h) {
    apply {
        pkt.emit(h.status);
        pkt.emit(h.first);
        pkt.emit(h.labels);
        pkt.emit(h.items);
        pkt.emit(h.opts);
        pkt.emit(h.copy);
    }
}
V1Switch(P(), V(), I(), E(), C(), D()) main;
