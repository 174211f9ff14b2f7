package p4

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// TestStamp fails when the compiled program does not belong to the source.
func TestStamp(t *testing.T) {
	for name, data := range map[string][]byte{"bifrost.p4": source, "rights.p4": rightsSource, "rights_headers.p4": rightsHeaders, "bifrost.json": JSON, "bifrost.p4info.txt": Info} {
		line := fmt.Sprintf("%x  p4/%s\n", sha256.Sum256(data), name)
		if !strings.Contains(string(stamp), line) {
			t.Errorf("p4/%s is not what p4/bifrost.stamp was made for: run `make p4` with p4c on PATH", name)
		}
	}
}

// TestHeadersFollowLayouts holds the P4 headers against the Go codecs' layouts.
func TestHeadersFollowLayouts(t *testing.T) {
	var program struct {
		HeaderTypes []struct {
			Name   string  `json:"name"`
			Fields [][]any `json:"fields"`
		} `json:"header_types"`
	}
	if err := json.Unmarshal(JSON, &program); err != nil {
		t.Fatal(err)
	}
	types := map[string][][]any{}
	for _, h := range program.HeaderTypes {
		types[h.Name] = h.Fields
	}
	for name, layout := range map[string]wirefmt.Layout{"rpc_t": rpcpacket.Layout, "dsm_t": dsmpacket.Layout, "list_t": rpcpacket.ListLayout} {
		fields := types[name]
		if len(fields) != len(layout.Fields) {
			t.Errorf("%s has %d fields, the layout %d", name, len(fields), len(layout.Fields))
			continue
		}
		for i, f := range layout.Fields {
			if got, bits := fields[i][0], fields[i][1]; got != f.Name || bits != float64(8*f.Size) {
				t.Errorf("%s: field %d is %v of %v bits, the layout says %s of %d", name, i, got, bits, f.Name, 8*f.Size)
			}
		}
	}
}

// TestConstants holds the P4 constants against the Go ones.
func TestConstants(t *testing.T) {
	for name, want := range map[string]string{
		"PORT_RPC": fmt.Sprint(rackaddr.PortRPC), "PORT_DSM": fmt.Sprint(rackaddr.PortDSM),
		"PORT_BULK": fmt.Sprint(rackaddr.PortBulk), "PORT_DIRECT": fmt.Sprint(rackaddr.PortDirect),
		"PORT_CONTROL": fmt.Sprint(rackaddr.PortControl), "CPU_PORT": fmt.Sprint(CPUPort),
		"RPC_MAGIC": fmt.Sprintf("%#X", rpcpacket.Magic), "DSM_MAGIC": fmt.Sprintf("%#X", dsmpacket.Magic),
		"RPC_VERSION": fmt.Sprint(rpcpacket.Version), "DSM_VERSION": fmt.Sprint(dsmpacket.Version), "RPC_CALL": fmt.Sprint(uint8(rpcpacket.Call)), "RPC_ONEWAY": fmt.Sprint(uint8(rpcpacket.Oneway)), "RPC_ASK": fmt.Sprint(uint8(rpcpacket.Ask)),
		"RPC_ACK": fmt.Sprint(uint8(rpcpacket.Ack)), "RPC_FORGET": fmt.Sprint(uint8(rpcpacket.Forget)), "DSM_LENT": fmt.Sprintf("0x03%02x", uint8(fault.Overloaded)),
		"DSM_DENIED":        fmt.Sprintf("0x03%02x", uint8(fault.PermissionDenied)),
		"RPC_FLAG_RELEASED": fmt.Sprintf("0x%04X", uint16(rpcpacket.FlagReleased)),
		"DSM_ALLOC":         fmt.Sprint(uint8(dsmpacket.OpAlloc)), "DSM_READ": fmt.Sprint(uint8(dsmpacket.OpRead)),
		"DSM_FREE": fmt.Sprint(uint8(dsmpacket.OpFree)), "DSM_SLOTS": fmt.Sprint(uint8(dsmpacket.OpSlots)),
	} {
		if got := constant(name); !strings.EqualFold(got, want) {
			t.Errorf("%s = %s in bifrost.p4, %s in Go", name, got, want)
		}
	}
}

// TestVerdictsFollowSource holds the verdicts against enum Verdict of the source.
func TestVerdictsFollowSource(t *testing.T) {
	_, text, _ := strings.Cut(string(source), "enum bit<8> Verdict {\n")
	text, _, _ = strings.Cut(text, "}")
	n := 0
	for line := range strings.Lines(text) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		v := Verdict(n)
		squeeze := strings.NewReplacer("_", "", " ", "", "TCP", "").Replace
		if !strings.EqualFold(squeeze(name), squeeze(v.String())) || v.Dropped() != (n > 2 && n < 11) {
			t.Errorf("verdict %d is %s in bifrost.p4, %v in Go", n, name, v)
		}
		if port, got := VerdictOf(int64(v.Cell(CPUPort))); port != CPUPort || got != v {
			t.Errorf("the cell of %v is that of %v at port %d", v, got, port)
		}
		n++
	}
	if n != int(Gone)+1 {
		t.Errorf("%d verdicts in bifrost.p4, %d in Go", n, Gone+1)
	}
}

// constant returns the text of a `const … NAME = value;` of the source.
func constant(name string) string {
	for line := range strings.Lines(string(source)) {
		f := strings.Fields(line)
		if len(f) >= 5 && f[0] == "const" && f[2] == name {
			return strings.TrimSuffix(f[4], ";")
		}
	}
	return ""
}
