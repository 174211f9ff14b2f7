package rpc

import (
	"bytes"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// text is a state without versions; its deltas are appended.
type text struct{ all, fresh string }

func (t *text) add(s string)              { t.all, t.fresh = t.all+s, t.fresh+s }
func (t *text) Snapshot() ([]byte, error) { t.fresh = ""; return []byte(t.all), nil }
func (t *text) Restore(b []byte) error    { t.all, t.fresh = string(b), ""; return nil }
func (t *text) Apply(b []byte) error      { t.all += string(b); return nil }
func (t *text) Delta() ([]byte, error)    { d := t.fresh; t.fresh = ""; return []byte(d), nil }

// newer is the same in a later program, which reads what the former one wrote.
type newer struct {
	text
	version string
	was     []string // versions that have been restored
}

func (n *newer) Version() string { return n.version }

func (n *newer) Reads() []string { return []string{"", "2"} }

func (n *newer) RestoreVersion(version string, b []byte) error {
	n.was = append(n.was, version)
	return n.Restore(b)
}

// TestVersionedState follows a state through three programs: each is told which one wrote what
// it reads, and deltas follow snapshots of their own version only.
func TestVersionedState(t *testing.T) {
	var base []byte
	var deltas [][]byte
	change := func(k *stateManager) {
		t.Helper()
		b, err := k.change(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		sections, bad := trailer.Parse(b)
		if bad != nil {
			t.Fatal(bad)
		}
		for _, s := range sections {
			if s.Type == trailer.Snapshot {
				base, deltas = bytes.Clone(s.Data), nil
			} else {
				deltas = append(deltas, bytes.Clone(s.Data))
			}
		}
	}
	first := &text{}
	k := newStateManager(first)
	if err := k.restore([]byte("a"), nil); err != nil {
		t.Fatal(err)
	}
	base = []byte("a")
	first.add("b")
	change(k)

	second := &newer{version: "2"}
	k = newStateManager(second)
	if err := k.restore(base, deltas); err != nil || second.all != "ab" || strings.Join(second.was, ",") != "" || len(second.was) != 1 {
		t.Fatalf("%q from versions %q, %v", second.all, second.was, err)
	}
	second.add("c")
	change(k)
	if len(deltas) != 0 {
		t.Errorf("a delta of version 2 follows a snapshot of the former program: %q", deltas)
	}
	second.add("d")
	change(k)
	if len(deltas) != 1 {
		t.Errorf("%d deltas follow the own snapshot, want 1", len(deltas))
	}

	third := &newer{version: "3"}
	if err := newStateManager(third).restore(base, deltas); err != nil || third.all != "abcd" || strings.Join(third.was, ",") != "2" {
		t.Errorf("%q from versions %q, %v", third.all, third.was, err)
	}
	if err := newStateManager(&text{}).restore(base, deltas); err == nil || !strings.Contains(err.Error(), `version "2"`) {
		t.Errorf("a program without versions takes a state with one: %v", err)
	}
	for _, cut := range []int{len(versionMark), len(versionMark) + 1} {
		if err := newStateManager(third).restore(base[:cut], nil); err == nil {
			t.Errorf("a state cut after %d bytes is taken", cut)
		}
	}
	for _, version := range []string{"", strings.Repeat("v", 256)} {
		if err := newStateManager(&newer{version: version}).restore(nil, nil); err == nil {
			t.Errorf("a version of %d bytes is taken", len(version))
		}
	}
}
