// Registers, counters, meters, hashes, checksums, random numbers.
#include <core.p4>
#include <v1model.p4>

header h_t { bit<8> op; bit<8> i; bit<32> v; bit<72> wide; bit<16> sum; }
struct headers_t { h_t h; }
struct meta_t { bit<32> r; bit<8> colour; bit<2> direct; }

parser P(packet_in pkt, out headers_t h, inout meta_t m, inout standard_metadata_t std) {
    state start { pkt.extract(h.h); transition accept; }
}
control V(inout headers_t h, inout meta_t m) {
    apply {
        verify_checksum(h.h.op == 20, { h.h.op, h.h.i, h.h.v, h.h.wide, 8w0 }, h.h.sum, HashAlgorithm.csum16);
        verify_checksum_with_payload(h.h.op == 21, { h.h.op, h.h.i }, h.h.sum, HashAlgorithm.csum16);
    }
}
control I(inout headers_t h, inout meta_t m, inout standard_metadata_t std) {
    register<bit<32>>(4) sums;
    register<bit<72>>(2) wides;
    counter(4, CounterType.packets_and_bytes) seen;
    meter(4, MeterType.packets) rate;
    direct_counter(CounterType.packets_and_bytes) hits;
    direct_meter<bit<2>>(MeterType.bytes) speed;

    action add_up() {
        bit<32> x;
        sums.read(x, (bit<32>)h.h.i);
        x = x + h.h.v;
        sums.write((bit<32>)h.h.i, x);
        h.h.v = x;
    }
    action swap_wide() {
        bit<72> x;
        wides.read(x, (bit<32>)h.h.i);
        wides.write((bit<32>)h.h.i, h.h.wide);
        h.h.wide = x;
    }
    action metered() { speed.read(m.direct); }
    table direct {
        key = { h.h.i: exact; }
        actions = { metered; NoAction; }
        default_action = NoAction;
        counters = hits;
        meters = speed;
    }
    apply {
        std.egress_spec = 2;
        if (h.h.op == 1) { add_up(); }
        else if (h.h.op == 2) { swap_wide(); }
        else if (h.h.op == 3) { seen.count((bit<32>)h.h.i); }
        else if (h.h.op == 4) { rate.execute_meter((bit<32>)h.h.i, m.colour); h.h.v = (bit<32>)m.colour; }
        else if (h.h.op == 5) { hash(h.h.v, HashAlgorithm.crc32, 32w0, { h.h.wide }, 32w0xffffffff); }
        else if (h.h.op == 6) { hash(h.h.v, HashAlgorithm.crc16, 32w0x100, { h.h.i, h.h.wide }, 32w0x10000); }
        else if (h.h.op == 7) { hash(h.h.v, HashAlgorithm.identity, 32w5, { h.h.i }, 32w16); }
        else if (h.h.op == 8) { hash(h.h.v, HashAlgorithm.xor16, 32w0, { h.h.wide }, 32w0x10000); }
        else if (h.h.op == 9) { hash(h.h.v, HashAlgorithm.csum16, 32w0, { h.h.wide, 4w5, 4w9 }, 32w0x10000); }
        else if (h.h.op == 10) { hash(h.h.v, HashAlgorithm.crc32, 32w7, { h.h.wide }, 32w0); }
        else if (h.h.op == 11) { random(h.h.v, 32w10, 32w12); }
        else if (h.h.op == 12) { direct.apply(); h.h.v = (bit<32>)m.direct; }
        else if (h.h.op == 20 || h.h.op == 21) { h.h.v = (bit<32>)std.checksum_error; }
    }
}
control E(inout headers_t h, inout meta_t m, inout standard_metadata_t std) { apply {} }
control C(inout headers_t h, inout meta_t m) {
    apply {
        update_checksum(h.h.op == 30, { h.h.op, h.h.i, h.h.v, h.h.wide, 8w0 }, h.h.sum, HashAlgorithm.csum16);
        update_checksum_with_payload(h.h.op == 31, { h.h.op, h.h.i, 4w1, h.h.v, 4w2 }, h.h.sum, HashAlgorithm.csum16);
    }
}
control D(packet_out pkt, in headers_t h) { apply { pkt.emit(h.h); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
