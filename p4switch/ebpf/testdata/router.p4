// What ordinary programs do: VLANs, IPv4 with its checksum, a tunnel that makes
// packets longer and shorter, an egress pipeline; and all sorts of arithmetic.
#include <core.p4>
#include <v1model.p4>

header ethernet_t { bit<48> dst; bit<48> src; bit<16> type; }
header vlan_t { bit<3> pcp; bit<1> dei; bit<12> vid; bit<16> type; }
header ipv4_t {
    bit<4> version; bit<4> ihl; bit<8> tos; bit<16> len; bit<16> id; bit<3> flags; bit<13> offset;
    bit<8> ttl; bit<8> protocol; bit<16> checksum; bit<32> src; bit<32> dst;
}
header tunnel_t { bit<16> id; bit<8> protocol; bit<8> pad; }
header data_t {
    bit<128> wide; bit<128> other; int<16> s; bit<5> a; bit<11> b; bit<64> big; bit<8> n; bit<24> odd; bit<8> r;
}
struct headers_t { ethernet_t ethernet; vlan_t vlan; ipv4_t ipv4; tunnel_t tunnel; data_t data; data_t copy; }
struct sample_t { bit<16> port; bit<12> vid; bit<48> mac; bit<128> wide; }
struct meta_t { bit<12> vid; bit<8> ahead; bit<4> class; bool seen; bit<128> w; sample_t sample; }

error { NotIPv4 }

parser P(packet_in pkt, out headers_t h, inout meta_t m, inout standard_metadata_t std) {
    state start {
        pkt.extract(h.ethernet);
        transition select(h.ethernet.type) {
            0x8100: vlan;
            0x0800: ipv4;
            0x1234 &&& 0xfffe: data;
            default: accept;
        }
    }
    state vlan {
        pkt.extract(h.vlan);
        m.vid = h.vlan.vid;
        transition select(h.vlan.type, h.vlan.pcp) {
            (0x0800, _): ipv4;
            (0x1234, 1): data;
            default: accept;
        }
    }
    state ipv4 {
        pkt.extract(h.ipv4);
        verify(h.ipv4.version == 4 && h.ipv4.ihl == 5, error.NotIPv4);
        transition select(h.ipv4.protocol) {
            0xfd: tunnel;
            default: accept;
        }
    }
    state tunnel { pkt.extract(h.tunnel); transition accept; }
    state data {
        m.ahead = pkt.lookahead<bit<8>>();
        pkt.extract(h.data);
        transition select(pkt.lookahead<bit<16>>()) {
            0xffff: accept;
            default: skip;
        }
    }
    state skip { pkt.advance(16); transition accept; }
}
control V(inout headers_t h, inout meta_t m) {
    apply {
        verify_checksum(h.ipv4.isValid(), { h.ipv4.version, h.ipv4.ihl, h.ipv4.tos, h.ipv4.len, h.ipv4.id, h.ipv4.flags,
            h.ipv4.offset, h.ipv4.ttl, h.ipv4.protocol, h.ipv4.src, h.ipv4.dst }, h.ipv4.checksum, HashAlgorithm.csum16);
    }
}
control I(inout headers_t h, inout meta_t m, inout standard_metadata_t std) {
    counter(32, CounterType.packets_and_bytes) seen;
    direct_counter(CounterType.packets_and_bytes) routed;

    action drop() { mark_to_drop(std); }
    action allow(bit<4> class) { m.class = class; }
    table port_vlan {
        key = { std.ingress_port: exact; h.vlan.isValid(): exact; m.vid: lpm; }
        actions = { allow; drop; NoAction; }
        default_action = NoAction();
        size = 64;
    }
    action hop(bit<48> dst, bit<9> port) {
        h.ethernet.src = h.ethernet.dst;
        h.ethernet.dst = dst;
        h.ipv4.ttl = h.ipv4.ttl - 1;
        std.egress_spec = port;
    }
    action encap(bit<16> id, bit<9> port) {
        h.tunnel.setValid();
        h.tunnel.id = id;
        h.tunnel.protocol = h.ipv4.protocol;
        h.ipv4.protocol = 0xfd;
        h.ipv4.len = h.ipv4.len + 4;
        std.egress_spec = port;
    }
    action decap(bit<9> port) {
        h.ipv4.protocol = h.tunnel.protocol;
        h.ipv4.len = h.ipv4.len - 4;
        h.tunnel.setInvalid();
        std.egress_spec = port;
    }
    table route {
        key = { h.ipv4.dst: lpm; }
        actions = { hop; encap; decap; drop; }
        default_action = drop();
        counters = routed;
        size = 64;
    }
    action push(bit<12> vid) {
        h.vlan.setValid();
        h.vlan.vid = vid;
        h.vlan.type = h.ethernet.type;
        h.ethernet.type = 0x8100;
    }
    action pop() {
        h.ethernet.type = h.vlan.type;
        h.vlan.setInvalid();
    }
    action set_vid(bit<12> vid) { h.vlan.vid = vid; }
    table tag {
        key = { m.class: exact; h.vlan.isValid(): exact; }
        actions = { push; pop; set_vid; NoAction; }
        const default_action = NoAction();
        const entries = {
            (1, false): push(100);
            (1, true): pop();
            (2, true): set_vid(77);
        }
    }
    action compute(bit<8> k, bit<128> w) {
        h.data.r = h.data.n + k;
        m.w = (h.data.wide & w) ^ (h.data.other << 12) | (h.data.wide >> 70);
        h.data.other = m.w;
        h.data.a = (bit<5>)(h.data.b >> 3);
        h.data.b = (h.data.b << 2) + (bit<11>)h.data.n;
        h.data.odd = h.data.odd * 3 - (bit<24>)h.data.a;
        h.data.big = (h.data.n > 100) ? h.data.big >> h.data.n[2:0] : h.data.big << h.data.n;
        h.data.s = h.data.s >> 2;
        if (h.data.s < -5) { h.data.r = 1; } else if (h.data.s > 300) { h.data.r = ~h.data.r; }
        h.data.wide[71:56] = (bit<16>)m.ahead;
        seen.count((bit<32>)h.data.a);
    }
    table sums {
        key = { h.data.wide: exact; h.data.b: lpm; }
        actions = { compute; NoAction; }
        default_action = compute(7, 0xffffffffffffffff0000);
        size = 16;
    }
    apply {
        if (std.checksum_error == 1 || std.parser_error == error.NotIPv4) { drop(); exit; }
        std.egress_spec = 2;
        switch (port_vlan.apply().action_run) {
            drop: { exit; }
            allow: { m.seen = true; }
        }
        if (h.ipv4.isValid() && h.ipv4.ttl != 0) {
            route.apply();
        } else if (h.data.isValid()) {
            if (!sums.apply().hit && h.data.wide == h.data.other) { h.copy = h.data; }
            if (h.data.wide[127:64] < h.data.other[127:64] || h.data.wide >= h.data.other) { std.egress_spec = 3; }
        }
        tag.apply();
        if (m.seen) {
            m.sample = { (bit<16>)std.ingress_port, m.vid, h.ethernet.src, h.data.wide };
            digest<sample_t>(1, m.sample);
        }
    }
}
control E(inout headers_t h, inout meta_t m, inout standard_metadata_t std) {
    action rewrite(bit<48> src) { h.ethernet.src = src; }
    action drop() { mark_to_drop(std); }
    table leave {
        key = { std.egress_port: exact; }
        actions = { rewrite; drop; NoAction; }
        default_action = NoAction();
        size = 8;
    }
    apply { if (std.packet_length > 20) { leave.apply(); } }
}
control C(inout headers_t h, inout meta_t m) {
    apply {
        update_checksum(h.ipv4.isValid(), { h.ipv4.version, h.ipv4.ihl, h.ipv4.tos, h.ipv4.len, h.ipv4.id, h.ipv4.flags,
            h.ipv4.offset, h.ipv4.ttl, h.ipv4.protocol, h.ipv4.src, h.ipv4.dst }, h.ipv4.checksum, HashAlgorithm.csum16);
    }
}
control D(packet_out pkt, in headers_t h) {
    apply { pkt.emit(h.ethernet); pkt.emit(h.vlan); pkt.emit(h.ipv4); pkt.emit(h.tunnel); pkt.emit(h.data); pkt.emit(h.copy); }
}
V1Switch(P(), V(), I(), E(), C(), D()) main;
