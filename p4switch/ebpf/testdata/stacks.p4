// Header stacks, unions and loops of the parser; copies without end.
#include <core.p4>
#include <v1model.p4>

header ethernet_t { bit<48> dst; bit<48> src; bit<16> type; }
header first_t { bit<8> kind; bit<8> n; }
header label_t { bit<7> v; bit<1> last; bit<8> more; }
header small_t { bit<8> tag; bit<8> a; }
header large_t { bit<8> tag; bit<24> a; }
header status_t { bit<8> code; bit<8> labels; bit<8> items; bit<8> peek; }

header_union item_t { small_t small; large_t large; }

struct headers_t {
    ethernet_t eth;
    status_t status;
    first_t first;
    label_t[4] labels;
    item_t[2] items;
}
struct meta_t { bit<8> left; bit<8> seen; }

parser P(packet_in pkt, out headers_t h, inout meta_t m, inout standard_metadata_t std) {
    state start {
        pkt.extract(h.eth);
        pkt.extract(h.first);
        m.left = h.first.n;
        transition select(h.first.kind) {
            1: labels;
            2: items;
            3: bytes;
            default: accept;
        }
    }
    state labels {
        pkt.extract(h.labels.next);
        m.seen = (bit<8>)h.labels.last.v;
        transition select(h.labels.last.last) { 0: labels; 1: accept; }
    }
    state items {
        transition select(pkt.lookahead<bit<8>>()) { 1: small; 2: large; default: accept; }
    }
    state small { pkt.extract(h.items.next.small); transition items; }
    state large { pkt.extract(h.items.next.large); transition items; }
    state bytes { // as many as the packet says
        m.left = m.left - 1;
        pkt.advance(8);
        transition select(m.left) { 0: accept; default: bytes; }
    }
}
control V(inout headers_t h, inout meta_t m) { apply {} }
control I(inout headers_t h, inout meta_t m, inout standard_metadata_t std) {
    apply {
        std.egress_spec = 2;
        h.status.setValid();
        h.status.peek = m.seen + m.left;
        if (std.parser_error == error.PacketTooShort) { h.status.code = 1; }
        else if (std.parser_error == error.StackOutOfBounds) { h.status.code = 3; }
        if (h.labels[0].isValid()) { h.status.labels = h.status.labels + 1; }
        if (h.labels[3].isValid()) { h.status.labels = h.status.labels + h.labels[3].more; }
        if (h.items[0].isValid()) { h.status.items = h.status.items + 1; }
        if (h.items[1].large.isValid()) { h.status.items = h.status.items + 2; }
        if (h.first.n == 1) {
            h.labels.push_front(1);
            h.labels[0].setValid();
            h.labels[0].v = 0x7f;
            h.labels[0].last = 0;
        } else if (h.first.n == 2) {
            h.labels.pop_front(2);
        } else if (h.first.n == 3) {
            h.items[1] = h.items[0];
        } else if (h.first.n == 4) {
            h.items[0].small.setValid();
            h.items[0].small.tag = 1;
            h.items[0].small.a = 0x77;
        } else if (h.first.n == 5) { // an element that only the packet knows
            bit<8> at = h.labels[0].more & 7;
            h.labels[at].more = h.labels[0].more |+| 0xf0;
            if (h.labels[at].isValid()) { h.status.items = h.labels[at].more |-| 0xf2; }
            if (h.labels[1].more == 2) { h.labels[at].setValid(); }
        } else if (h.first.kind == 4) { // a clone of each clone, without end
            clone(CloneType.I2E, 5);
        } else if (h.first.kind == 5) {
            resubmit_preserving_field_list(0);
        }
    }
}
control E(inout headers_t h, inout meta_t m, inout standard_metadata_t std) {
    apply {
        if (h.first.kind == 4 && std.instance_type != 0) { clone(CloneType.E2E, 5); }
        if (h.first.kind == 6) { recirculate_preserving_field_list(0); }
    }
}
control C(inout headers_t h, inout meta_t m) { apply {} }
control D(packet_out pkt, in headers_t h) {
    apply {
        pkt.emit(h.eth);
        pkt.emit(h.status);
        pkt.emit(h.first);
        pkt.emit(h.labels);
        pkt.emit(h.items);
    }
}
V1Switch(P(), V(), I(), E(), C(), D()) main;
