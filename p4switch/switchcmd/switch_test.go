package switchcmd

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/internal/sample"
	"github.com/bifrost-rack/bifrost/p4switch/p4rt"
	"github.com/bifrost-rack/bifrost/p4switch/shared/sdnotify"
	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/types/known/structpb"
)

// patience bounds what a switch takes its time for on a busy machine.
const patience = time.Minute

// reserved is a TCP address that a switch can listen at, and no other program gets: it is bound by a socket that does not listen, beside which one that
// listens may be bound if both allow that (SO_REUSEADDR, which Go sets).
func reserved(t *testing.T) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	must(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	must(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
	must(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	at, err := unix.Getsockname(fd)
	must(t, err)
	return fmt.Sprint("127.0.0.1:", at.(*unix.SockaddrInet4).Port)
}

// runSwitch runs the command until the test ends; its result is then checked.
func runSwitch(t *testing.T, args ...string) {
	t.Helper()
	runCommand(t, append([]string{"switch"}, args...))
}

// runCommand runs a command line of a switch until the test ends; it returns when the
// switch serves.
func runCommand(t *testing.T, args []string) {
	t.Helper()
	ready := filepath.Join(t.TempDir(), "ready")
	l, err := sdnotify.Listen(ready)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	t.Setenv(sdnotify.Variable, ready)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		root := newRoot()
		root.SetArgs(args)
		done <- root.ExecuteContext(ctx)
	}()
	waitCtx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	if err := l.Wait(waitCtx); err != nil {
		cancel()
		t.Fatalf("not ready: %v; the switch: %v", err, <-done)
	}
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the switch ended with %v", err)
		}
	})
}

// program writes the compiled sample to files.
func program(t *testing.T) (json, info string) {
	t.Helper()
	dir := t.TempDir()
	json, info = filepath.Join(dir, "b.json"), filepath.Join(dir, "b.p4info.txt")
	for path, b := range map[string][]byte{json: sample.JSON, info: sample.Info} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return json, info
}

func TestSwitch_ServesAProgramFromTheCommandLine(t *testing.T) {
	json, info := program(t)
	socket := filepath.Join(t.TempDir(), "s")
	// A killed switch has left its socket behind.
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	_ = dead.Close()
	// Options as scripts for bmv2 give them, the target's behind "--".
	runSwitch(t, "--device-id", "3", "--log-level", "off", "--p4info", info, json, "--", "--grpc-server-addr", "unix:"+socket, "--cpu-port", "510")
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	m, err := p4v1.NewP4RuntimeClient(conn).GetForwardingPipelineConfig(ctx, &p4v1.GetForwardingPipelineConfigRequest{DeviceId: 3})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(m.GetConfig().GetP4DeviceConfig(), sample.JSON) {
		t.Error("another program has been loaded")
	}
}

// A command line for bmv2's simple_switch_grpc, like that of the P4 tutorial's
// Mininet class with every flag added, runs unchanged: without P4Info, device 0,
// the directory of --pcap behind a space, P4Runtime at a TCP address without TLS. What
// has no meaning here is named.
func TestSwitch_BMv2CommandLine(t *testing.T) {
	json, _ := program(t)
	dir := t.TempDir()
	logFile := filepath.Join(dir, "log")
	addr := reserved(t)
	args := []string{
		"--pcap", dir, "--nanolog", "ipc:///tmp/bm-0-log.ipc", json, "--debugger", "--log-console",
		"--thrift-port", "9090", "--log-file", logFile, "--log-flush", "-L", "warn", "--log-file-max-size", "1000", "--log-file-max-files", "3",
		"--notifications-addr", "ipc:///tmp/n", "--packet-in", "ipc:///tmp/p", "--debugger-addr", "ipc:///tmp/d", "--use-files", "0",
		"--restore-state", "state", "--dump-packet-data", "64", "--max-port-count", "16",
		"--", "--grpc-server-addr", addr, "--cpu-port", "255", "--drop-port", "500", "--disable-swap", "--enable-swap",
		"--dp-grpc-server-addr", "0.0.0.0:50052", "--priority-queues", "8", "--max-mc-groups", "10", "--max-l1-entries", "10", "--max-l2-entries", "10",
	}
	if got := CalledAs("bifrost", args); len(got) != len(args) {
		t.Errorf("called as itself, it is %v", got)
	}
	runCommand(t, CalledAs("/usr/bin/simple_switch_grpc", args))
	if _, err := execute(t.Context(), "entries", "--grpc-addr", addr, "--insecure", "--device-id", "0"); err != nil {
		t.Errorf("the device has not the id of bmv2's: %v", err)
	}
	log, err := os.ReadFile(logFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range append(ignoredFlags, ignored{name: "drop-port"}) {
		if want := "flag ignored\" flag=--" + i.name + " because="; !strings.Contains(string(log), want) {
			t.Errorf("the log does not say %s:\n%s", want, log)
		}
	}
}

// bmv2's two flags that print a version.
func TestSwitch_Versions(t *testing.T) {
	for flag, want := range map[string]string{"--version": "(a test)", "-v": "(a test)", "--json-version": "2.23"} {
		if out, err := execute(t.Context(), flag); err != nil || strings.TrimSpace(out) != want {
			t.Errorf("%s prints %q, %v", flag, out, err)
		}
	}
}

// The socket is its user's alone, and the server announces its extensions.
func TestSwitch_Socket(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	runSwitch(t, "--log-level", "off", "--grpc-server-addr", "unix:"+socket)
	if st, err := os.Stat(socket); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the socket is %v, %v", st.Mode(), err)
	}
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	m, err := p4v1.NewP4RuntimeClient(conn).Capabilities(ctx, &p4v1.CapabilitiesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var extensions structpb.Struct
	if err := m.GetExperimental().UnmarshalTo(&extensions); err != nil {
		t.Fatal(err)
	}
	if !extensions.GetFields()[p4rt.PortStatus].GetBoolValue() {
		t.Errorf("announced: %v", m)
	}
}

// Counters of ports and tables are there for Prometheus.
func TestSwitch_Metrics(t *testing.T) {
	json, info := program(t)
	addr := reserved(t)
	runSwitch(t, "--log-level", "off", "--datapath", "go", "--p4info", info, json,
		"--grpc-server-addr", "unix:"+filepath.Join(t.TempDir(), "s"), "--metrics-addr", addr)
	resp, err := http.Get("http://" + addr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if want := `bifrost_switch_table_lookups_total{result="hit",table="SampleIngress.identity"} 0`; err != nil || !bytes.Contains(body, []byte(want)) {
		t.Errorf("%v: no %s in\n%s", err, want, body)
	}
}

// Each mistake is answered with what to do about it.
func TestSwitch_Mistakes(t *testing.T) {
	json, info := program(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	garbage := filepath.Join(t.TempDir(), "garbage")
	if err := os.WriteFile(garbage, []byte("no JSON, no P4Info"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"port without interface":   {[]string{"-i", "7"}, "0@veth0"},
		"port too large":           {[]string{"-i", "511@veth0"}, "0 to 510"},
		"port twice":               {[]string{"-i", "1@a", "-i", "1@b"}, "given twice"},
		"no such interface":        {[]string{"-i", "1@no-such-thing"}, "ip link"},
		"CPU port too large":       {[]string{"--cpu-port", "511"}, "below the drop port"},
		"metrics address":          {[]string{"--metrics-addr", "nonsense"}, "--metrics-addr"},
		"address in use":           {[]string{"--grpc-server-insecure", "--grpc-server-addr", taken.Addr().String()}, "choose another --grpc-server-addr"},
		"no address":               {[]string{"--grpc-server-insecure", "--grpc-server-addr", "nonsense"}, "HOST:PORT"},
		"an address for everybody": {[]string{"--grpc-server-addr", "127.0.0.1:0"}, "--grpc-server-with-client-auth"},
		"no mode":                  {[]string{"--grpc-server-addr", "unix:" + filepath.Join(t.TempDir(), "s"), "--grpc-server-mode", "900"}, "in octal"},
		"keep's name":              {[]string{"--keep", "a/b"}, "letters"},
		"discard without keep":     {[]string{"--discard"}, "--keep NAME"},
		"P4Info without program":   {[]string{"--p4info", info}, "JSON"},
		"program and no-p4":        {[]string{"--no-p4", "--p4info", info, json}, "--no-p4"},
		"two programs":             {[]string{json, json}, "one program"},
		"no program there":         {[]string{"--p4info", info, "/no/such/file"}, "/no/such/file"},
		"garbage as program":       {[]string{"--p4info", info, garbage}, garbage},
		"garbage as P4Info":        {[]string{"--p4info", garbage, json}, "no P4Info"},
		"no capture directory":     {[]string{"--pcap=/no/such/dir"}, "create it"},
		"log level":                {[]string{"--log-level", "loud"}, "trace"},
		"datapath":                 {[]string{"--datapath", "fast"}, "auto, ebpf or go"},
		"trace without Go":         {[]string{"--datapath", "ebpf", "--log-level", "trace", "--p4info", info, json}, "needs the Go executor"},
		"certificate without TLS":  {[]string{"--grpc-server-cert", "c.pem"}, "--grpc-server-ssl"},
		"TLS without certificate":  {[]string{"--grpc-server-ssl"}, "--grpc-server-cert"},
		"client auth without CA":   {[]string{"--grpc-server-ssl", "--grpc-server-cert", garbage, "--grpc-server-key", garbage}, "certificate"},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		_, err := execute(ctx, append([]string{"--log-level", "off"}, tc.args...)...)
		cancel()
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v; want it to mention %q", name, err, tc.want)
		}
	}
}

// A port that controllers have strings for is written, and listed, as a string.
func TestSwitchEntry_Strings(t *testing.T) {
	text, err := os.ReadFile("../testdata/basic.p4info.txt")
	if err != nil {
		t.Fatal(err)
	}
	m := &configv1.P4Info{}
	if err := prototext.Unmarshal(text, m); err != nil {
		t.Fatal(err)
	}
	m.TypeInfo = &configv1.P4TypeInfo{NewTypes: map[string]*configv1.P4NewTypeSpec{"port_t": {
		Representation: &configv1.P4NewTypeSpec_TranslatedType{TranslatedType: &configv1.P4NewTypeTranslation{
			SdnType: &configv1.P4NewTypeTranslation_SdnString_{SdnString: &configv1.P4NewTypeTranslation_SdnString{}},
		}},
	}}}
	for _, a := range m.GetActions() {
		for _, p := range a.GetParams() {
			if p.GetName() == "port" {
				p.TypeName, p.Bitwidth = &configv1.P4NamedType{Name: "port_t"}, 0
			}
		}
	}
	dir := t.TempDir()
	info, socket := filepath.Join(dir, "i"), filepath.Join(dir, "s")
	if text, err = prototext.Marshal(m); err == nil {
		err = os.WriteFile(info, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	runSwitch(t, "--log-level", "off", "--p4info", info, "../testdata/basic.json", "--grpc-server-addr", "unix:"+socket)
	do := func(args ...string) string {
		out, err := execute(t.Context(), append(args, "--grpc-addr", "unix:"+socket)...)
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return out
	}
	do("entry", "ipv4_lpm", "hdr.ipv4.dstAddr=10.0.1.1/32", "ipv4_forward", "dstAddr=08:00:00:00:01:11", "port=uplink")
	const want = "MyIngress.ipv4_lpm hdr.ipv4.dstAddr=10.0.1.1/32 MyIngress.ipv4_forward dstAddr=08:00:00:00:01:11 port=uplink\n"
	if got := do("entries"); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
