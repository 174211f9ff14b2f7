package main

import (
	"bytes"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/shared/process"
)

func TestConsole(t *testing.T) {
	var out bytes.Buffer
	c := newConsole(&process.Printable{W: &out})
	c.print("", "up")
	c.print("wall/wall/1", "hello\x1b[2J")
	c.print("", "two\nlines")
	c.color = true
	c.print("a", "x")
	want := "bifrost | up\nwall/wall/1 | hello\\u001b[2J\nbifrost     | two\\nlines\n"
	if got := out.String(); !bytes.HasPrefix(out.Bytes(), []byte(want)) {
		t.Errorf("%q, want %q", got, want)
	}
	colored := out.String()[len(want):]
	if len(colored) < 10 || colored[0] != 0x1b || !bytes.HasSuffix(out.Bytes(), []byte(" |\x1b[0m x\n")) {
		t.Errorf("%q has no colour", colored)
	}
}
