package host

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/bifrost-rack/bifrost/rpc"
)

// state is what a service of the child keeps: values by key. The host has it, and the child reads and writes its entries. So neither
// what is kept nor what is taken back passes through the child.
//
// It belongs to whoever has the one slot of a service with state.
type state struct {
	entries map[string][]byte
	changed map[string]bool // keys that have been set or deleted since the last Delta, Snapshot, Restore or Apply
	size    int             // bytes of keys and values
}

var _ rpc.IncrementalState = (*state)(nil)

func newState() *state {
	return &state{entries: map[string][]byte{}, changed: map[string]bool{}}
}

// maxState is how many bytes a state has at most in the host's memory. A ledger takes less, unless somebody has given it more room.
const maxState = 1 << 30

// set sets an entry.
func (s *state) set(key string, value []byte) error {
	size := s.size + len(value)
	if old, ok := s.entries[key]; ok {
		size -= len(old)
	} else {
		size += len(key)
	}
	if size > maxState {
		return rpc.Errorf(rpc.NoSpace, "the state would have %d bytes: want %d at most", size, maxState)
	}
	s.entries[key], s.size, s.changed[key] = value, size, true
	return nil
}

// remove deletes an entry, if there is one.
func (s *state) remove(key string) {
	if old, ok := s.entries[key]; ok {
		delete(s.entries, key)
		s.size -= len(key) + len(old)
		s.changed[key] = true
	}
}

// keys are those that begin with a text, in order.
func (s *state) keys(prefix string) (all []string) {
	for k := range s.entries {
		if strings.HasPrefix(k, prefix) {
			all = append(all, k)
		}
	}
	slices.Sort(all)
	return all
}

// A snapshot, and a delta, begin with a byte that names the form. Entries follow, in the order of their keys:
//
//	length of the key | key | 0            of one that was deleted
//	length of the key | key | length of the value + 1 | value
//
// Lengths are unsigned varints.
const stateForm = 1

func appendEntry(b []byte, key string, value []byte, there bool) []byte {
	b = append(binary.AppendUvarint(b, uint64(len(key))), key...)
	if !there {
		return append(b, 0)
	}
	return append(binary.AppendUvarint(b, uint64(len(value))+1), value...)
}

// Snapshot implements rpc.State.
func (s *state) Snapshot() ([]byte, error) {
	b := make([]byte, 1, s.size+16*len(s.entries)+1)
	b[0] = stateForm
	for _, k := range slices.Sorted(maps.Keys(s.entries)) {
		b = appendEntry(b, k, s.entries[k], true)
	}
	clear(s.changed)
	return b, nil
}

// Delta implements rpc.IncrementalState.
func (s *state) Delta() ([]byte, error) {
	if len(s.changed) == 0 {
		return nil, nil
	}
	b := []byte{stateForm}
	for _, k := range slices.Sorted(maps.Keys(s.changed)) {
		v, there := s.entries[k]
		b = appendEntry(b, k, v, there)
	}
	clear(s.changed)
	return b, nil
}

// Restore implements rpc.State.
func (s *state) Restore(b []byte) error {
	fresh := newState()
	if err := fresh.apply(b, false); err != nil {
		return err
	}
	*s = *fresh
	return nil
}

// Apply implements rpc.IncrementalState.
func (s *state) Apply(b []byte) error { return s.apply(b, true) }

var errState = errors.New("no state of a host")

// apply sets and deletes entries, if all can be read.
func (s *state) apply(b []byte, deletes bool) error {
	if len(b) == 0 || b[0] != stateForm {
		return fmt.Errorf("%w: it begins with % x, want %x: another program has kept it", errState, b[:min(len(b), 4)], stateForm)
	}
	type entry struct {
		key   string
		value []byte // nil: deleted
	}
	var all []entry
	for b = b[1:]; len(b) > 0; {
		key, rest, err := takeBytes(b, 0)
		if err != nil {
			return err
		}
		if len(all) > 0 && string(key) <= all[len(all)-1].key {
			return fmt.Errorf("%w: key %.100q follows %.100q", errState, key, all[len(all)-1].key)
		}
		value, rest, err := takeBytes(rest, 1)
		if err != nil {
			return err
		}
		if value == nil && !deletes {
			return fmt.Errorf("%w: a snapshot deletes %.100q", errState, key)
		}
		all, b = append(all, entry{string(key), value}), rest
	}
	for _, e := range all {
		if e.value == nil {
			s.remove(e.key)
		} else if err := s.set(e.key, e.value); err != nil {
			return err
		}
	}
	clear(s.changed)
	return nil
}

// takeBytes takes bytes off that have their length, and so much more, in front. They are nil if that is 0 in all.
func takeBytes(b []byte, more uint64) (value, rest []byte, err error) {
	n, size := binary.Uvarint(b)
	if size <= 0 || n >= more && n-more > uint64(len(b)-size) {
		return nil, nil, fmt.Errorf("%w: it ends within an entry", errState)
	}
	b = b[size:]
	if n < more {
		return nil, b, nil
	}
	return append([]byte{}, b[:n-more]...), b[n-more:], nil
}
