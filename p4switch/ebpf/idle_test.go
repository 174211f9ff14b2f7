//go:build linux

package ebpf

import (
	"errors"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
)

// idles is a sink that is told of idle entries.
type idles struct {
	discard
	told chan datapath.Entry
}

func (i idles) Idle(e datapath.Entry) {
	select {
	case i.told <- e:
	default:
	}
}

// An entry that is not hit for its timeout is told of, once for each timeout that
// passes; a hit begins it anew.
func TestIdleTimeout(t *testing.T) {
	needRoot(t)
	x, err := New(load(t, "testdata/idle.json"), Config{Sink: idles{told: make(chan datapath.Entry, 1)}})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	const hour = int64(time.Hour)
	entry := func(key byte, timeout int64) datapath.Entry {
		return datapath.Entry{
			Table: "I.seen", Match: []datapath.Match{{Value: []byte{key}}}, Action: &datapath.Action{Name: "I.leave"}, IdleTimeoutNs: timeout,
		}
	}
	for _, e := range []datapath.Entry{entry(1, hour), entry(2, 0)} {
		if err := x.Apply(datapath.Insert, e); err != nil {
			t.Fatal(err)
		}
	}
	table := x.tables["I.seen"]
	idle := func(after int64) int {
		t.Helper()
		got, err := table.idleAt(after)
		if err != nil {
			t.Fatal(err)
		}
		return len(got)
	}
	made := monotonic()
	if n := idle(made + hour + 1); n != 1 {
		t.Errorf("%d entries are idle after their timeout", n)
	}
	if n := idle(made + 2*hour); n != 0 {
		t.Errorf("%d are told of again before the timeout has passed once more", n)
	}
	if err := x.Apply(datapath.Modify, entry(1, hour)); err != nil {
		t.Fatal(err)
	}
	// As if it had been hit long ago; a packet makes it now.
	if err := table.maps.hits.Put(uint32(1), int64(1)); err != nil {
		t.Fatal(err)
	}
	frame := make([]byte, 60)
	frame[0] = 1
	before := monotonic()
	x.Process(1, frame, func(datapath.Port, []byte) {})
	hit := monotonic()
	if n := idle(before + hour - 1); n != 0 {
		t.Errorf("%d are idle though a packet has hit them", n)
	}
	if since, err := x.SinceHit(entry(1, hour)); err != nil || since < 0 || since > time.Hour {
		t.Errorf("hit %v ago: %v", since, err)
	}
	if n := idle(hit + hour + 1); n != 1 {
		t.Errorf("%d are idle after the hit's timeout", n)
	}
	if err := x.Apply(datapath.Delete, entry(1, 0)); err != nil {
		t.Fatal(err)
	}
	if n := idle(hit + 9*hour); n != 0 {
		t.Errorf("%d are idle that were deleted", n)
	}
	if err := x.Apply(datapath.Insert, entry(3, 1)); err != nil {
		t.Fatal(err)
	}
	if e := <-x.sink.(idles).told; e.Match[0].Value[0] != 3 { // the goroutine looks by itself
		t.Errorf("told of %v", e)
	}
	plain := entry(3, 1)
	plain.Table = "I.plain"
	if err := x.Apply(datapath.Insert, plain); !errors.Is(err, datapath.ErrUnsupported) {
		t.Errorf("a timeout in a table without them: %v", err)
	}
}
