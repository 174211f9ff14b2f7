package trace

import (
	"math"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// play has calls of a method happen: each takes so long, and ends with a code.
func play(r *Recorder, from int, method string, code fault.Code, took ...time.Duration) {
	for k, d := range took {
		id := rpcpacket.ID{1, byte(from + k)}
		at := time.Unix(1000, 0)
		r.Note(&Event{Call: id, Step: Step{Time: at, Kind: Sent}, About: About{Service: "S", Method: method}})
		r.Note(&Event{Call: id, Step: Step{Time: at, Kind: Delivered}})
		r.Note(&Event{Call: id, Step: Step{Time: at.Add(d), Kind: Answered}, Code: code})
		r.Note(&Event{Call: id, Step: Step{Time: at.Add(2 * d), Kind: Answered}, Code: code}) // the same answer again: no other call
	}
}

// The figures of a method: how many calls are under way, have ended and how, and how
// long they took, with an example for each bucket.
func TestMethods(t *testing.T) {
	r := New(100, nil)
	play(r, 0, "look", fault.OK, 3*time.Millisecond, 4*time.Millisecond, 30*time.Millisecond, time.Hour)
	play(r, 10, "look", fault.Unavailable, 200*time.Microsecond)
	begin := func(id byte, kinds ...Kind) {
		for _, k := range kinds {
			r.Note(&Event{Call: rpcpacket.ID{2, id}, Step: Step{Time: time.Unix(1000, 0), Kind: k}, About: About{Service: "S", Method: "store"}})
		}
	}
	begin(1, Sent)
	begin(2, Sent, Delivered)
	begin(3, Sent, Answered)
	all := r.Methods()
	if len(all) != 2 || all[0].Method != "look" || all[1].Method != "store" {
		t.Fatalf("methods %+v", all)
	}
	get, put := all[0], all[1]
	if get.Open != 0 || get.Ended[fault.OK] != 4 || get.Ended[fault.Unavailable] != 1 {
		t.Errorf("get: %+v", get)
	}
	if put.Open != 2 || put.Ended[fault.OK] != 1 {
		t.Errorf("put: %+v", put)
	}
	if math.Abs(get.Seconds-3600.0372) > 1e-6 {
		t.Errorf("get took %v s in all", get.Seconds)
	}
	for q, want := range map[float64][2]float64{0.2: {100e-6, 250e-6}, 0.5: {2.5e-3, 5e-3}, 0.8: {25e-3, 50e-3}, 1: {300, 300}} {
		if got, ok := get.Quantile(q); !ok || got < want[0] || got > want[1] {
			t.Errorf("quantile %v: %v, want %v", q, got, want)
		}
	}
	if e := get.Examples[len(Bounds)]; e.Call != (rpcpacket.ID{1, 3}) || e.Seconds != 3600 {
		t.Errorf("the slowest is %+v", e)
	}
	if _, ok := (&Method{}).Quantile(0.5); ok {
		t.Error("no call has a median")
	}
}

// Calls whose end is not heard of before they make way for others are not under way for ever;
// and the number of methods is bounded.
func TestMethodsBounded(t *testing.T) {
	r := New(2, nil)
	for k := range byte(10) {
		r.Note(&Event{Call: rpcpacket.ID{k + 1}, Step: Step{Kind: Sent}, About: About{Method: "m"}})
	}
	if m := r.Methods(); m[0].Open != 2 {
		t.Errorf("%+v", m[0])
	}
	for k := range MaxMethods + 10 {
		id := rpcpacket.ID{9, byte(k), byte(k >> 8)}
		r.Note(&Event{Call: id, Step: Step{Kind: Sent}, About: About{Service: string(rune(0x4e00 + k)), Method: "m"}})
	}
	all := r.Methods()
	others := uint64(0)
	for i := range all {
		if all[i].Service == OtherMethods {
			others = all[i].Open
		}
	}
	if len(all) > MaxMethods+1 || others != 2 {
		t.Errorf("%d methods, %d open calls of others", len(all), others)
	}
}
