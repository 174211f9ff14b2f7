package stf

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// Switch is what a script is run against.
type Switch interface {
	datapath.Datapath
	// Process runs a packet; it emits all that the packet becomes before it
	// returns.
	Process(in datapath.Port, frame []byte, emit func(datapath.Port, []byte))
}

// Runner runs scripts. It is the switch's sink, so that a script can expect
// digests.
type Runner struct {
	prog *v1model.Program
	sw   Switch

	used     map[datapath.Port]bool // by the script
	any      map[datapath.Port]bool // where anything may come out
	expected map[datapath.Port][]string
	received map[datapath.Port][][]byte

	nodes    [][]datapath.Replica // of mc_node_create
	groups   map[uint32][]datapath.Replica
	sessions map[uint32]uint32 // clone session to multicast group
	handles  map[string]datapath.Entry

	wantDigests, digests []string
	allDigests           bool // there are no others than wantDigests
}

// New makes a runner for a program. Attach must follow.
func New(prog *v1model.Program) *Runner {
	return &Runner{
		prog: prog, used: map[datapath.Port]bool{}, any: map[datapath.Port]bool{},
		expected: map[datapath.Port][]string{}, received: map[datapath.Port][][]byte{},
		groups: map[uint32][]datapath.Replica{}, sessions: map[uint32]uint32{}, handles: map[string]datapath.Entry{},
	}
}

// Attach gives the runner its switch.
func (r *Runner) Attach(sw Switch) { r.sw = sw }

// PacketIn implements datapath.Sink.
func (r *Runner) PacketIn([]byte) {}

// Idle implements datapath.Sink.
func (r *Runner) Idle(datapath.Entry) {}

// Digest implements datapath.Sink.
func (r *Runner) Digest(d datapath.Digest) {
	s := d.Name
	for _, f := range d.Fields {
		s += " " + hex.EncodeToString(f)
	}
	r.digests = append(r.digests, s)
}

// Run runs a script and returns the first thing that went wrong.
func (r *Runner) Run(script io.Reader) error {
	lines := bufio.NewScanner(script)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		line, _, _ := strings.Cut(lines.Text(), "#")
		if err := r.command(strings.TrimSpace(line)); err != nil {
			return &Error{n, strings.TrimSpace(line), err}
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return r.compare()
}

// command runs one line. Commands that only print something are skipped.
func (r *Runner) command(line string) error {
	verb, rest, _ := strings.Cut(line, " ")
	rest = strings.TrimSpace(rest)
	switch verb {
	case "add":
		return r.add(rest)
	case "setdefault":
		return r.setDefault(rest)
	case "packet", "expect":
		return r.packet(verb, rest)
	case "mc_mgrp_create", "mc_node_create", "mc_node_associate", "mirroring_add", "mirroring_add_mc",
		"register_write", "register", "counter", "meter":
		words := strings.Fields(rest)
		return r.object(verb, words)
	case "check_counter":
		return r.checkCount(rest)
	case "digest":
		r.allDigests = true
		if rest != "none" {
			r.wantDigests = append(r.wantDigests, strings.Join(strings.Fields(rest), " "))
		}
	default:
		if _, known := commands[verb]; !known && verb != "" {
			return unknown(verb)
		}
	}
	return nil
}

func (r *Runner) packet(verb, rest string) error {
	number, data, _ := strings.Cut(rest, " ")
	n, err := strconv.ParseUint(number, 0, 32)
	if err != nil {
		return fmt.Errorf("port %q: %w", number, err)
	}
	port := datapath.Port(n)
	r.used[port] = true
	data = strings.ToUpper(strings.Join(strings.Fields(data), ""))
	if verb == "expect" {
		if data == "" {
			r.any[port] = true
		} else {
			r.expected[port] = append(r.expected[port], data)
		}
		return nil
	}
	frame, err := hex.DecodeString(data)
	if err != nil {
		return err
	}
	r.sw.Process(port, frame, func(out datapath.Port, b []byte) {
		r.received[out] = append(r.received[out], append([]byte(nil), b...))
	})
	return nil
}

// compare tells the first difference between what came and what was expected.
func (r *Runner) compare() error {
	for port := range r.used {
		want, got := r.expected[port], r.received[port]
		if r.any[port] {
			continue
		}
		for i := range max(len(want), len(got)) {
			switch {
			case i >= len(got):
				return fmt.Errorf("port %d: packet %d of %d did not come: %s", port, i+1, len(want), want[i])
			case i >= len(want):
				return fmt.Errorf("port %d: packet %d where %d were expected: %X", port, i+1, len(want), got[i])
			case !matches(want[i], fmt.Sprintf("%X", got[i])):
				return fmt.Errorf("port %d: packet %d:\n got %X\nwant %s", port, i+1, got[i], want[i])
			}
		}
	}
	if r.allDigests && strings.Join(r.digests, "\n") != strings.Join(r.wantDigests, "\n") {
		return fmt.Errorf("digests:\n got %q\nwant %q", r.digests, r.wantDigests)
	}
	return nil
}

// matches compares hex digits; the packet may be longer unless want ends in $.
func matches(want, got string) bool {
	want, exact := strings.CutSuffix(want, "$")
	if len(got) < len(want) || exact && len(got) != len(want) {
		return false
	}
	for i := range want {
		if want[i] != '*' && want[i] != got[i] {
			return false
		}
	}
	return true
}
