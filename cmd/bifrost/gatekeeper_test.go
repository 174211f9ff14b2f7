package main

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4switch/shared/sdnotify"
	"github.com/bifrost-rack/bifrost/p4switch/softswitch"
)

func TestParseElection(t *testing.T) {
	for s, want := range map[string]control.Election{"": {}, "7": {Low: 7}, "3:4": {High: 3, Low: 4}, "1:0": {High: 1}} {
		if got, err := parseElection(s); err != nil || got != want {
			t.Errorf("%q: %+v, %v", s, got, err)
		}
	}
	for _, s := range []string{"0", "0:0", "x", "1:", ":1", "-1", "1:2:3"} {
		if got, err := parseElection(s); err == nil {
			t.Errorf("%q: %+v, no error", s, got)
		}
	}
}

func TestGatekeeperCmd_Refused(t *testing.T) {
	for _, c := range []struct {
		args, want string
	}{
		{"--device-id 0", "reserved by P4Runtime"}, {"--election-id 0", "--election-id 0"}, {"--log-level loud", "--log-level loud"},
		{"--tls-ca /nonexistent", "--tls-ca"}, {"--tls-cert x", "add --tls-ca"}, {"--mtu 100", "MTU of 100"},
		{"--heartbeat 1us", "heartbeat of 1µs"}, {"--dsm-prefix 256", "dsm-prefix"}, {"argument", "unknown command"},
		{"--switch localhost:9559", "--insecure"}, {"--open=false", "--port"}, {"-p c1:compute", "PORT=NAME:KIND"}, {"-p 1=c1", "NAME:KIND"}, {"-p 1=c1:switch", "of kind"},
		{"-p 1=c1:compute -p 1=c2:compute", "bound twice"}, {"-p 1=c1:compute -p 2=c1:compute", "ports 1 and 2"},
		{"-p 1=m1:memory:256", "machine id"}, {"-p 1=c1:compute:1", "has no machine id"}, {"-p 1=m1:memory:1:many", "capacity"},
	} {
		root := newRoot()
		root.SetArgs(append([]string{"gatekeeper", "--open"}, strings.Fields(c.args)...))
		ctx, cancel := context.WithTimeout(context.Background(), patience) // one that is not refused would run on
		err := root.ExecuteContext(ctx)
		if cancel(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.args, err, c.want)
		}
	}
}

// The command takes a switch over, tells whoever started it, and ends cleanly.
func TestGatekeeperCmd(t *testing.T) {
	dir := t.TempDir()
	sw, err := softswitch.New(softswitch.Config{DeviceID: 1, CPUPort: p4.CPUPort})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "switch.sock"))
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- sw.Serve(l) }()
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify.sock"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer notify.Close()
	t.Setenv(sdnotify.Variable, filepath.Join(dir, "notify.sock"))

	ctx, cancel := context.WithCancel(context.Background())
	root := newRoot()
	root.SetArgs([]string{"gatekeeper", "--open", "--switch", "unix:" + filepath.Join(dir, "switch.sock"), "--log-level", "off"})
	ended := make(chan error, 1)
	go func() { ended <- root.ExecuteContext(ctx) }()
	if err := notify.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 100)
	n, err := notify.Read(b)
	if err != nil || !strings.Contains(string(b[:n]), "READY=1") {
		t.Errorf("told %q, %v", b[:n], err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("it ended with %v", err)
	}
	if err := sw.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}
