package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/p4switch/shared/process"
)

// TestPrintable: nothing that a program calls itself, or says, controls the operator's terminal, in whatever pieces it is
// written; it stays readable, and JSON stays the same.
func TestPrintable(t *testing.T) {
	const evil = "a\x1b]0;title\a\u009b2J\u202e\r\x7fß\xff\n\tb"
	var whole, pieces strings.Builder
	if n, err := (&process.Printable{W: &whole}).Write([]byte(evil)); err != nil || n != len(evil) {
		t.Error(n, err)
	}
	if want := `a\u001b]0;title\u0007\u009b2J\u202e\u000d\u007fß\xff` + "\n\tb"; whole.String() != want {
		t.Errorf("shown as %q, want %q", whole.String(), want)
	}
	p := &process.Printable{W: &pieces}
	for i := range len(evil) {
		if n, err := p.Write([]byte{evil[i]}); err != nil || n != 1 {
			t.Error(n, err)
		}
	}
	if pieces.String() != whole.String() {
		t.Errorf("in pieces: %q", pieces.String())
	}
	said := strings.ToValidUTF8(evil, "?")
	var out strings.Builder
	must(t, jsonLines(&process.Printable{W: &out}, []string{said}))
	var got string
	if err := json.Unmarshal([]byte(out.String()), &got); err != nil || got != said {
		t.Errorf("JSON %q: %q, %v", out.String(), got, err)
	}
}

// TestPrintable_All: each command prints through a printable; its tables and lists have a line for each item, whatever the
// item calls itself.
func TestPrintable_All(t *testing.T) {
	root := newRoot()
	for _, c := range root.Commands() {
		if _, ok := c.OutOrStdout().(*process.Printable); !ok {
			t.Errorf("%s prints to %T", c.Name(), c.OutOrStdout())
		}
		if _, ok := c.ErrOrStderr().(*process.Printable); !ok {
			t.Errorf("%s says errors to %T", c.Name(), c.ErrOrStderr())
		}
	}
	var rows, events strings.Builder
	must(t, table(&rows, "A\tB", "one\ntwo\tthree"))
	must(t, (&eventsOptions{}).print(&events, &api.Event{Time: time.Now(), Kind: "node.left", Message: "one\ntwo"}, names{}))
	if strings.Count(rows.String(), "\n") != 2 || strings.Count(events.String(), "\n") != 1 {
		t.Errorf("rows %q, event %q", rows.String(), events.String())
	}
}
