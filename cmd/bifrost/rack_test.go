package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/rack"
)

// The command of rack exec is taken as it is, with and without -- before it.
func TestSplitExec(t *testing.T) {
	for _, tc := range []struct{ args, command []string }{
		{[]string{"c1", "--", "ping", "-c", "1"}, []string{"ping", "-c", "1"}},
		{[]string{"c1", "ping", "-c", "1"}, []string{"ping", "-c", "1"}},
		{[]string{"c1", "sh", "-c", "x", "--", "y"}, []string{"sh", "-c", "x", "--", "y"}},
		{nil, nil}, {[]string{"c1"}, nil}, {[]string{"c1", "--"}, nil},
	} {
		blade, command, err := splitExec(tc.args)
		if !slices.Equal(command, tc.command) || (err == nil) != (tc.command != nil) || err == nil && blade != "c1" {
			t.Errorf("%q: %s, %q, %v", tc.args, blade, command, err)
		}
	}
}

// The rack commands take the rack that $BIFROST_ADMIN_ADDR means, as the others do.
func TestRackOf(t *testing.T) {
	h := &rack.Host{}
	for address, want := range map[string]string{
		"unix:" + h.AdminSocket("demo"): "demo", "unix:/tmp/admin.sock": "", "127.0.0.1:8045": "", "": "",
	} {
		if got := rackOf(h, address); got != want {
			t.Errorf("%q is rack %q, want %q", address, got, want)
		}
	}
}

// A bad rack file is refused before anything is done, with line and remedy.
func TestRackUpRefuses(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "rack.yaml")
	if err := os.WriteFile(bad, []byte("blades:\n- {name: c1, kind: compute}\nmtu: 9001x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ args, want string }{
		{"up -c " + bad, bad + ":3: mtu: \"9001x\" is not a number in range"},
		{"up -c /no/such/file", "/no/such/file"},
		{"up --switch ovs", "use bifrost or bmv2"},
		{"up --rack a-b", "lower-case letters and digits"},
		{"status --rack ../x", "lower-case letters and digits"},
		{"exec c1", "needs a blade and a command"},
	} {
		root := newRoot()
		root.SetArgs(append([]string{"rack"}, strings.Fields(tc.args)...))
		root.SetOut(&bytes.Buffer{})
		if err := root.Execute(); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("rack %s: %v, want %q", tc.args, err, tc.want)
		}
	}
}
