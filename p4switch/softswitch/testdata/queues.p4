// A frame of type 0x9999 leaves by the port in the low bits of its destination address, and is told how many packets wait there; so
// is a register. Other frames are dropped.
// queues.json and queues.p4info.txt are made by: p4c-bm2-ss --p4runtime-files queues.p4info.txt -o queues.json queues.p4
#include <core.p4>
#include <v1model.p4>

header eth_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

header told_t {
    bit<32> enq;
    bit<32> deq;
}

struct headers_t { eth_t eth; told_t told; }
struct meta_t { }

parser P(packet_in pkt, out headers_t hdr, inout meta_t meta, inout standard_metadata_t std) {
    state start {
        pkt.extract(hdr.eth);
        transition select(hdr.eth.type) {
            0x9999: told;
            default: accept;
        }
    }
    state told { pkt.extract(hdr.told); transition accept; }
}

control V(inout headers_t hdr, inout meta_t meta) { apply {} }

control I(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t std) {
    apply {
        if (hdr.told.isValid()) std.egress_spec = hdr.eth.dst[8:0];
        else mark_to_drop(std);
    }
}

control E(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t std) {
    register<bit<32>>(512) depth;
    apply {
        hdr.told.enq = (bit<32>)std.enq_qdepth;
        hdr.told.deq = (bit<32>)std.deq_qdepth;
        depth.write((bit<32>)std.egress_port, (bit<32>)std.enq_qdepth);
    }
}

control C(inout headers_t hdr, inout meta_t meta) { apply {} }

control D(packet_out pkt, in headers_t hdr) {
    apply { pkt.emit(hdr.eth); pkt.emit(hdr.told); }
}

V1Switch(P(), V(), I(), E(), C(), D()) main;
