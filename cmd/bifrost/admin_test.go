package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/rpc"
)

// watched is a rack with its admin API on a Unix socket, and a node on c1 with a
// region of 4 KiB, which has been called by another one that has gone. The API has
// been told of all of it. No blade is taken for dead, however slow this machine is.
func watched(t *testing.T) (address, pointer string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	rack, err := simrack.Start(ctx, simrack.Config{Heartbeat: time.Minute, Machines: [][]string{{"m1", "m2"}}})
	must(t, err)
	t.Cleanup(func() { must(t, rack.Close()) })
	address = serveRackAdmin(ctx, t, rack)
	c, err := client.New(client.Config{Address: address})
	must(t, err)
	defer c.Close()
	_, err = c.Status(ctx) // who has had an answer misses no event from now on
	must(t, err)
	n, err := rack.Join(ctx, "c1", "client")
	must(t, err)
	seen := make(pingUntil)
	must(t, n.Export(ctx, "Ping", arrays.NewPingProcessor(seen), rpc.WithIDL("service Ping { void ping() }\n")))
	caller, err := rack.Join(ctx, "c1", "caller")
	must(t, err)
	pinged := make(chan error, 1)
	go func() { pinged <- arrays.NewPingClient(caller.Client("Ping")).Ping(ctx) }()
	waitForCalls(t, ctx, c, 1)
	close(seen)
	must(t, <-pinged)
	must(t, caller.Close(ctx))
	waitForCalls(t, ctx, c, 0)
	p, err := n.Memory().Alloc(ctx, 4096)
	must(t, err)
	return address, p.String()
}

// pingUntil is a Ping whose calls last until it is closed.
type pingUntil chan struct{}

func (p pingUntil) Ping(ctx context.Context) error {
	select {
	case <-p:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// waitForCalls waits until the API knows of so many calls that are under way. A callee tells the
// Gatekeeper of calls that last.
func waitForCalls(t *testing.T, ctx context.Context, c *client.Client, want int) {
	t.Helper()
	for got := -1; got != want; {
		got = 0
		for _, err := range c.Calls(ctx, netip.Addr{}) {
			must(t, err)
			got++
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("%d calls, want %d", got, want)
		}
	}
}

// bifrost runs a command and returns what it prints.
func bifrost(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(&out)
	root.SetErr(io.Discard)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := root.ExecuteContext(ctx)
	return out.String(), err
}

// The commands print what the API says, for people and as JSON.
func TestWatch(t *testing.T) {
	address, pointer := watched(t)
	ever := time.Duration(math.MaxInt64).String()
	for command, want := range map[string]string{
		"status":                      `(?s)^gatekeeper v1.2.3, switch connected\n1 nodes, 1 services, 1 regions, 0 calls.*\nc1 +compute +in use +1 +fd00:b1f0:0:1::1 +1 +96 nodes +- +c1/client\n.*\n\nMACHINE .*\n1 +m1 \+ m2 +2 +.* +256 MiB +mirrored\n2 +m3 +1 +.* +256 MiB +one copy: blade m3 is not paired with another one\n$`,
		"machines":                    `^MACHINE .*\n1 +m1 \+ m2 +2 `,
		"blades":                      `\nm3 +memory +\S+( use)? +6 +\S+ +\S+ \S+ +256 MiB +(-|0 B of 1 GiB) +-\n$`,
		"nodes":                       `\nfd00:b1f0:0:2::1 +client +c1 +1 +\S+ MiB +(-|0 B of \S+ MiB) +Ping\n$`,
		"services":                    `\nPing +ping +c1/client +1\n$`,
		"services --idl Ping":         `^service Ping { void ping\(\) }\n$`,
		"regions":                     `\n\S+/116 +4 KiB +m\d +c1/client +- +-\n$`,
		"regions --node fd00::9":      `^REGION.*STATE\n$`,
		"who " + pointer:              `\n\S+/116 +4 KiB +m\d +c1/client +- +-\n$`,
		"calls":                       `^CALL.*\n$`,
		"calls --longer-than " + ever: `^CALL.*\n$`,
		"rules --table control_rule":  `\ncontrol_rule +batch=\d+ machine=\d row=\d+ +allocates`,
		"denied":                      `^TIME +NODE.*\n$`,
		"denied --ports":              `^PORT +BLADE +DENIED +DROPPED +THROTTLED +REFUSED\n(\d+ +\S+ +\d+ .*\n)*$`,
		"events --last 100":           `node.joined +c1/client\n`,
		"trace":                       `^SENT.*\n\S+ +[0-9a-f]{32} +Ping.ping +c1/caller +c1/client +\d+\.\d+ ms +ok\n$`,
		"trace last":                  `^\S+ \S+, 1 calls in \d+\.\d+ ms\n\n\* Ping.ping  c1/caller → c1/client │.*▒│ \d+.\d+ ms  recover  ok\n`,
		"trace --failed":              `^SENT.*\n$`,
		"trace --service Ping --method ping --code ok --since 1h": `^SENT.*\n\S+ +[0-9a-f]{32} +Ping.ping +c1/caller +c1/client `,
		"trace --service Pong":                              `^SENT.*\n$`,
		"trace --rerun":                                     `^SENT.*\n$`,
		"trace --code unavailable":                          `^SENT.*\n$`,
		"trace --until 1h":                                  `^SENT.*\n$`,
		"trace --longer-than " + ever:                       `^SENT.*\n$`,
		"trace --caller fd00:b1f0:0:2::1":                   `^SENT.*\n$`,
		"trace --caller fd00:b1f0:0:2::2":                   `Ping.ping +c1/caller +c1/client `,
		"events --service Ping":                             `^\S+ +service.exported +c1/client +Ping\n$`,
		"events --kind node.joined --node fd00:b1f0:0:2::1": `^\S+ +node.joined +c1/client\n$`,
		"events --blade m1 --kind node.joined":              `^$`,
		"events --app nobody":                               `^$`,
		"history":                                           `^MINUTE +CALLS +FAILED +HALF WITHIN +99 % WITHIN\n`,
		"apps":                                              `^APP.*\n$`,
		"policy":                                            `\nPing +ping +recover +default +16 +default\n$`,
		"policy Ping.ping":                                  `\nPing +ping +recover +default +16 +default\n$`,
		"policy None.m default":                             `\nNone +m +recover +default +16 +default\n$`,
		"domain c1":                                         `^nodes: c1/client\n$`,
		"reconcile":                                         `^0 entries repaired\n$`,
		"drain s1 --cause dust":                             `^s1 is draining: dust\n$`,
		"fail s2":                                           `^s2 is failed: marked failed by an operator\n$`,
	} {
		got, err := bifrost(t, append(strings.Fields(command), "--admin-addr", address)...)
		if err != nil || !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("bifrost %s: %v\n%swant %s", command, err, got, want)
		}
	}
	if got, err := bifrost(t, "return", "s1", "--admin-addr", address); err != nil || got != "s1 is free\n" {
		t.Errorf("bifrost return s1: %q, %v", got, err)
	}
	for _, command := range []string{"status", "blades", "machines", "nodes", "services", "regions", "rules", "events", "who " + pointer, "domain m1", "reconcile", "drain s1", "trace", "trace last", "policy", "policy None.m default"} {
		got, err := bifrost(t, append(strings.Fields(command), "--json", "--admin-addr", address)...)
		lines := strings.Split(strings.TrimSpace(got), "\n")
		if err != nil || got == "" || slices.ContainsFunc(lines, func(l string) bool { return !json.Valid([]byte(l)) || l[0] != '{' }) {
			t.Errorf("bifrost %s --json: %v\n%s", command, err, got)
		}
	}
	for command, want := range map[string]string{
		"drain m9": "no blade is called", "logs shop --since " + ever: "nothing is deployed as shop", "domain m9": "there is no blade", "who fd00::1": "lies in no region", "who m1": "global pointer",
		"regions --node x": "want an IPv6 address", "rules --table none": "there is no table none", "undeploy none": "no deployment",
		"events --last 9999": "limit: expected number <= 4096", "policy Ping often": "policy: expected value to be one of", "trace xyz": "none of the latest calls", "trace " + strings.Repeat("0", 32): "not among those", "trace --node x": "want an IPv6", "policy Nobody": "nobody exports it", "policy Later tainted": "deploy it first", "policy Ping.": "want SERVICE",
	} {
		if got, err := bifrost(t, append(strings.Fields(command), "--admin-addr", address)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("bifrost %s: %q, %v, want %q", command, got, err, want)
		}
	}
}

// bifrost events -f goes on until it is stopped.
func TestEvents_Follow(t *testing.T) {
	address, _ := watched(t)
	r, w := io.Pipe()
	root := newRoot()
	root.SetArgs([]string{"events", "-f", "--last", "1000", "--kind", "node.joined", "--admin-addr", address})
	root.SetOut(w)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- root.ExecuteContext(ctx)
		w.Close()
	}()
	lines := bufio.NewReader(r)
	line, err := lines.ReadString('\n')
	if err != nil || !strings.Contains(line, "node.joined       c1/client") {
		t.Errorf("the first event: %q, %v", line, err)
	}
	cancel()
	go func() { _, _ = io.Copy(io.Discard, lines) }() // what it was about to print
	if err := <-ended; err != nil {
		t.Errorf("when stopped: %v", err)
	}
}

// Which Gatekeeper is meant, with which token.
func TestClientTarget(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	t.Setenv(tokenVariable, "")
	t.Setenv(addressVariable, "")
	file := filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(file, []byte("a-token-in-a-file\n"), 0o600))
	for what, tc := range map[string]struct {
		o              clientOptions
		env, tokenEnv  string
		address, token string
		wrong          string
	}{
		"an address":             {clientOptions{address: "a:1"}, "b:2", "", "a:1", "", ""},
		"an address and a token": {clientOptions{address: "a:1", tokenFile: file}, "", "elsewhere", "a:1", "a-token-in-a-file", ""},
		"a socket":               {clientOptions{address: "unix:/x", tokenFile: file}, "", "", "unix:/x", "", ""},
		"a rack":                 {clientOptions{rack: "demo"}, "b:2", "x", "unix:/run/bifrost/demo/admin.sock", "", ""},
		"the environment":        {clientOptions{}, "b:2", "from-the-environment", "b:2", "from-the-environment", ""},
		"both":                   {clientOptions{rack: "demo", address: "a:1"}, "", "", "", "", "both say"},
		"no such file":           {clientOptions{address: "a:1", tokenFile: file + "x"}, "", "", "", "", "no such file"},
		"no such CA":             {clientOptions{address: "a:1", ca: file + "x"}, "", "", "", "", "--admin-ca"},
		"a CA that is none":      {clientOptions{address: "a:1", ca: file}, "", "", "", "", "holds no certificate"},
		"a rack's name":          {clientOptions{rack: "../x"}, "", "", "", "", "lower-case letters"},
		"a rack, by environment": {clientOptions{}, "rack demo", "x", "unix:/run/bifrost/demo/admin.sock", "", ""},
		"another rack":           {clientOptions{rack: "other"}, "rack demo", "", "unix:/run/bifrost/other/admin.sock", "", ""},
		"an address, not a rack": {clientOptions{address: "unix:/x"}, "rack demo", "", "unix:/x", "", ""},
		"both, by environment":   {clientOptions{}, "b:2 demo", "", "", "", "$BIFROST_ADMIN_ADDR and $BIFROST_RACK both say"},
	} {
		address, name, _ := strings.Cut(tc.env, " ")
		t.Setenv(addressVariable, strings.TrimPrefix(address, "rack"))
		t.Setenv(rackVariable, name)
		t.Setenv(tokenVariable, tc.tokenEnv)
		cfg, err := tc.o.target()
		if tc.wrong != "" {
			if err == nil || !strings.Contains(err.Error(), tc.wrong) {
				t.Errorf("%s: %+v, %v", what, cfg, err)
			}
			continue
		}
		if err != nil || cfg.Address != tc.address || cfg.Token != tc.token {
			t.Errorf("%s: %+v, %v", what, cfg, err)
		}
	}
}

// Who cannot be reached or says no is answered with what to do.
func TestClientErrors(t *testing.T) {
	if _, err := bifrost(t, "status", "--admin-addr", "unix:"+t.TempDir()+"/none"); err == nil || !strings.Contains(err.Error(), "is a Gatekeeper running there?") {
		t.Errorf("nobody there: %v", err)
	}
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	away := httptest.NewServer(http.NotFoundHandler())
	away.Close()
	for what, address := range map[string]string{"nobody": away.Listener.Addr().String(), "no socket": "unix:" + t.TempDir() + "/none", "something else": web.Listener.Addr().String()} {
		for _, command := range []string{"status", "drain s1", "events --last 3", "backup " + filepath.Join(t.TempDir(), "x")} {
			_, err := bifrost(t, append(strings.Fields(command), "--admin-addr", address)...)
			before, after, named := strings.Cut(fmt.Sprint(err), strings.TrimPrefix(address, "unix:"))
			if !named {
				t.Errorf("%s, %s: %v", what, command, err)
				continue
			}
			for _, word := range []string{"http", "GET", "Get", "POST", "Post", "/v1", "404", "dial", "Not Found"} { // of HTTP, and of sockets
				if strings.Contains(before+after, word) { // a port may be 40439
					t.Errorf("%s, %s: %q says %q", what, command, err, word)
				}
			}
		}
	}
}

// noGatekeeper is enough to make a server of.
type noGatekeeper struct{ admin.Backend }

func (noGatekeeper) Settings() (s gatekeeper.Settings) { return s }

// The Gatekeeper's side: what its flags give, and what they refuse.
func TestAdminOptions(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	t.Setenv(tokenVariable, "")
	log := slog.New(slog.DiscardHandler)
	o := adminOptions{addresses: []string{"127.0.0.1:0", "unix:" + dir + "/s"}}
	token, err := o.token(log)
	must(t, err)
	if again, err := o.token(log); err != nil || again != token || admin.CheckToken(token) != nil {
		t.Errorf("tokens %q and %q, %v", token, again, err)
	}
	if found, err := (&clientOptions{}).token(); err != nil || found != token {
		t.Errorf("the client finds %q, %v", found, err)
	}
	if token, err := (&adminOptions{addresses: []string{"unix:/x"}}).token(log); token != "" || err != nil {
		t.Errorf("a socket needs no token, but %q, %v", token, err)
	}
	for what, tc := range map[string]struct {
		o    adminOptions
		want string
	}{
		"a certificate without a key": {adminOptions{addresses: []string{"127.0.0.1:0"}, cert: "x"}, "go together"},
		"no such certificate":         {adminOptions{addresses: []string{"127.0.0.1:0"}, cert: "x", key: "y"}, "--admin-tls-cert"},
		"an address for everybody":    {adminOptions{addresses: []string{"127.0.0.1:0", "0.0.0.0:0"}}, "needs TLS"},
	} {
		if _, _, err := tc.o.open(noGatekeeper{}, nil, log); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if s, l, err := (&adminOptions{addresses: []string{"none"}}).open(nil, nil, log); s != nil || l != nil || err != nil {
		t.Errorf("turned off: %v, %v, %v", s, l, err)
	}
}

// serveRackAdmin serves the API of a rack's Gatekeeper until the test ends. It returns its address.
func serveRackAdmin(ctx context.Context, t *testing.T, rack *simrack.Rack) (address string) {
	t.Helper()
	address = "unix:" + filepath.Join(t.TempDir(), "admin.sock")
	l, err := admin.Listen(address, nil)
	must(t, err)
	s, err := admin.New(admin.Config{Backend: rack.Gatekeeper(), Version: "v1.2.3"})
	must(t, err)
	serving, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- s.Run(serving, l) }()
	t.Cleanup(func() {
		stop()
		must(t, <-ended)
	})
	return address
}

// Who lists regions or slots, or asks what would fail with a blade, is told who has not answered, beside the list.
func TestMissing(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/v1/regions", "/v1/slots":
			io.WriteString(w, `{"items":[],"missing":["switch","m1"]}`)
		case "/v1/blades/m2/domain":
			io.WriteString(w, `{"nodes":[],"regions":[],"rerun":[],"cut":[],"out":[],"waiting":[],"missing":["m1","switch"]}`)
		default:
			io.WriteString(w, `{"items":[]}`)
		}
	}))
	t.Cleanup(web.Close)
	for _, command := range []string{"regions", "regions --json", "slots", "slots --json", "domain m2", "domain m2 --json"} {
		_, says, err := waited(t, strings.Fields(command+" --admin-addr "+web.Listener.Addr().String())...)
		if err != nil || says != "not complete, since there was no answer from: m1, switch\n" {
			t.Errorf("%s: %v, %q", command, err, says)
		}
	}
}
