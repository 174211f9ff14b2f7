package stf

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
)

// Error tells which line of a script failed, and why.
type Error struct {
	Line int    // from 1
	Text string // the line, without its comment
	Err  error
}

func (e *Error) Error() string {
	text := e.Text
	if len(text) > 80 {
		text = text[:80] + "…"
	}
	return fmt.Sprintf("line %d: %s: %v", e.Line, text, e.Err)
}

// Unwrap makes errors.Is and errors.As work.
func (e *Error) Unwrap() error { return e.Err }

// commands are what a script may say; those that are false print something, or wait, and mean nothing here.
var commands = map[string]bool{
	"add": true, "setdefault": true, "packet": true, "expect": true, "digest": true, "check_counter": true,
	"mc_mgrp_create": true, "mc_node_create": true, "mc_node_associate": true, "mirroring_add": true, "mirroring_add_mc": true,
	"register_write": true, "register": true, "counter": true, "meter": true,
	"wait": false, "mirroring_get": false, "counter_read": false, "register_read": false, "meter_get_rates": false,
}

// unknown is what is wrong with a command that there is not.
func unknown(verb string) error {
	var known []string
	for c := range commands {
		known = append(known, c)
	}
	slices.Sort(known)
	return fmt.Errorf("there is no command %q: use one of %s", verb, strings.Join(known, ", "))
}

// checkCount compares a counter's cell, or that of an entry which has a handle:
//
//	check_counter NAME(INDEX) packets|bytes OPERATOR NUMBER
//	check_counter NAME($HANDLE) …
func (r *Runner) checkCount(rest string) error {
	const form = "write NAME(INDEX) or NAME($HANDLE), and perhaps packets or bytes, an operator and a number"
	name, rest, ok := strings.Cut(rest, "(")
	index, rest, closed := strings.Cut(rest, ")")
	if !ok || !closed {
		return fmt.Errorf("no index: %s", form)
	}
	got, err := r.countAt(strings.TrimSpace(name), strings.TrimSpace(index))
	if err != nil {
		return err
	}
	words := strings.Fields(rest)
	if len(words) == 0 {
		return nil // only that it can be read
	}
	if len(words) != 3 || words[0] != "packets" && words[0] != "bytes" {
		return fmt.Errorf("%q: %s", rest, form)
	}
	want, err := number(words[2])
	if err != nil {
		return err
	}
	have := got.Packets
	if words[0] == "bytes" {
		have = got.Bytes
	}
	c, holds := cmp.Compare(have, want.Uint64()), false
	switch words[1] {
	case "==":
		holds = c == 0
	case "!=":
		holds = c != 0
	case "<":
		holds = c < 0
	case "<=":
		holds = c <= 0
	case ">":
		holds = c > 0
	case ">=":
		holds = c >= 0
	default:
		return fmt.Errorf("operator %q: %s", words[1], form)
	}
	if !holds {
		return fmt.Errorf("it is %d", have)
	}
	return nil
}

func (r *Runner) countAt(name, index string) (datapath.Counts, error) {
	if handle, ok := strings.CutPrefix(index, "$"); ok {
		e, ok := r.handles[handle]
		if !ok {
			return datapath.Counts{}, fmt.Errorf("no entry has the handle $%s: add TABLE … = $%s", handle, handle)
		}
		return r.sw.EntryCounts(e)
	}
	i, err := strconv.Atoi(index)
	if err != nil {
		return datapath.Counts{}, fmt.Errorf("index %q is no number", index)
	}
	c, err := r.counter(name)
	if err != nil {
		return datapath.Counts{}, err
	}
	return r.sw.Counter(c.Name, i)
}
