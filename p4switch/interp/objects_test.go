package interp

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
)

// TestMeterColours follows RFC 2698, section 3, step by step.
func TestMeterColours(t *testing.T) {
	now := time.Unix(1000, 0)
	m := meterCell{}
	if got := m.colour(1000, nil); got != green {
		t.Errorf("a meter that is off says %d", got)
	}
	// 100 bytes a second, 200 at once; at most 300 a second, 400 at once.
	m.configure(&datapath.MeterConfig{CIR: 100, CBurst: 200, PIR: 300, PBurst: 400}, now)
	for i, c := range []struct {
		wait time.Duration
		size int
		want uint64
	}{
		{0, 150, green},                       // 50 committed, 250 at peak
		{0, 100, yellow},                      // 50, 150
		{0, 151, red},                         // unchanged
		{0, 150, yellow},                      // 50, 0
		{0, 1, red},                           //
		{time.Second / 2, 100, green},         // 0, 50
		{10 * time.Millisecond, 53, yellow},   // 1, 0
		{time.Hour, 200, green},               // full again: 200, 400; so 0, 200
		{0, 201, red},                         //
		{3333333 * time.Nanosecond, 0, green}, // 0.3333333 and 0.9999999 more
		{1 * time.Nanosecond, 200, yellow},    //
	} {
		now = now.Add(c.wait)
		if got := m.colour(c.size, func() time.Time { return now }); got != c.want {
			t.Errorf("step %d: %d bytes are %d, not %d", i, c.size, got, c.want)
		}
	}
	m.configure(nil, now)
	if got := m.colour(1<<30, nil); got != green {
		t.Errorf("a meter that was switched off says %d", got)
	}
}

// Rates as large as they come do not overflow.
func TestMeterExtremes(t *testing.T) {
	now := time.Unix(1000, 0)
	m := meterCell{}
	const most = 1<<63 - 1
	m.configure(&datapath.MeterConfig{CIR: most, CBurst: most, PIR: most, PBurst: most}, now)
	for range 5 {
		now = now.Add(1000 * time.Hour)
		if got := m.colour(1<<30, func() time.Time { return now }); got != green {
			t.Fatalf("colour %d", got)
		}
	}
}

// stateFrame is a packet for the program state.
func stateFrame(op, i byte) []byte { return append([]byte{op, i}, make([]byte, 15)...) }

func TestIndirectMeter(t *testing.T) {
	now := time.Unix(1000, 0)
	x := start(t, "state", Config{Now: func() time.Time { return now }})
	if err := x.Meter("I.rate", 1, &datapath.MeterConfig{CIR: 1, CBurst: 1, PIR: 2, PBurst: 2}); err != nil {
		t.Fatal(err)
	}
	var colours []string
	for range 3 {
		colours = append(colours, process(x, 1, stateFrame(4, 1)...)[0][2:14])
	}
	if got := fmt.Sprint(colours); got != "[040100000000 040100000001 040100000002]" {
		t.Errorf("colours %s", got)
	}
	rate := datapath.MeterCell{Name: "I.rate", Index: 1}
	if err := x.Meter("I.rate", 1, nil); err != nil { // goes on counting
		t.Fatal(err)
	}
	process(x, 1, stateFrame(4, 1)...)
	want := datapath.MeterCounts{Green: datapath.Counts{Packets: 2, Bytes: 34}, Yellow: datapath.Counts{Packets: 1, Bytes: 17}, Red: datapath.Counts{Packets: 1, Bytes: 17}}
	if got, err := x.MeterCounts(rate); err != nil || got != want {
		t.Errorf("counted %+v, %v", got, err)
	}
	if err := x.SetMeterCounts(rate, datapath.MeterCounts{}); err != nil {
		t.Fatal(err)
	}
	if got, err := x.MeterCounts(rate); err != nil || got != (datapath.MeterCounts{}) {
		t.Errorf("%+v is left, %v", got, err)
	}
	for index, want := range map[int]error{4: datapath.ErrNotFound, -1: datapath.ErrNotFound} {
		if err := x.Meter("I.rate", index, nil); !errors.Is(err, want) {
			t.Errorf("meter cell %d: %v", index, err)
		}
		if _, err := x.MeterCounts(datapath.MeterCell{Name: "I.rate", Index: index}); !errors.Is(err, want) {
			t.Errorf("counts of meter cell %d: %v", index, err)
		}
	}
	if err := x.Meter("I.speed", 0, nil); !errors.Is(err, datapath.ErrNotFound) {
		t.Errorf("cell of a direct meter: %v", err)
	}
}

func TestDirect(t *testing.T) {
	now := time.Unix(1000, 0)
	x := start(t, "state", Config{Now: func() time.Time { return now }})
	e := datapath.Entry{Table: "I.direct", Match: []datapath.Match{{Value: []byte{7}}}, Action: act("metered")}
	if err := x.EntryMeter(e, nil); !errors.Is(err, datapath.ErrNotFound) {
		t.Errorf("meter of an entry that is not there: %v", err)
	}
	if err := x.Apply(datapath.Insert, e); err != nil {
		t.Fatal(err)
	}
	if err := x.EntryMeter(e, &datapath.MeterConfig{CIR: 1, CBurst: 17, PIR: 1, PBurst: 34}); err != nil {
		t.Fatal(err)
	}
	var colours string
	for range 3 {
		colours += process(x, 1, stateFrame(12, 7)...)[0][12:14]
	}
	process(x, 1, stateFrame(12, 8)...)
	if colours != "000102" {
		t.Errorf("colours %s", colours)
	}
	if got, err := x.EntryCounts(e); err != nil || got != (datapath.Counts{Packets: 3, Bytes: 51}) {
		t.Errorf("counted %+v, %v", got, err)
	}
	one := datapath.Counts{Packets: 1, Bytes: 17}
	if got, err := x.MeterCounts(datapath.MeterCell{Entry: &e}); err != nil || got != (datapath.MeterCounts{Green: one, Yellow: one, Red: one}) {
		t.Errorf("by colour %+v, %v", got, err)
	}
	if got, err := x.EntryCounts(datapath.Entry{Table: "I.direct"}); err != nil || got != (datapath.Counts{Packets: 1, Bytes: 17}) {
		t.Errorf("misses counted %+v, %v", got, err)
	}
	if err := x.SetEntryCounts(e, datapath.Counts{Packets: 10, Bytes: 100}); err != nil {
		t.Fatal(err)
	}
	e.Action = &datapath.Action{Name: "NoAction"}
	if err := x.Apply(datapath.Modify, e); err != nil { // keeps the counter
		t.Fatal(err)
	}
	process(x, 1, stateFrame(12, 7)...)
	if got, _ := x.EntryCounts(e); got != (datapath.Counts{Packets: 11, Bytes: 117}) {
		t.Errorf("counted %+v after a modification", got)
	}
	if got := x.TableStats()["I.direct"]; got != (datapath.TableCounts{Hits: 4, Misses: 1}) {
		t.Errorf("table statistics %+v", got)
	}
}

func TestRegisters(t *testing.T) {
	x := start(t, "state", Config{})
	value := []byte{0xaa, 2, 3, 4, 5, 6, 7, 8, 9}
	if err := x.SetRegister("I.wides", 1, value); err != nil {
		t.Fatal(err)
	}
	if got, err := x.Register("I.wides", 1); err != nil || fmt.Sprintf("%x", got) != "aa0203040506070809" {
		t.Errorf("register is %x, %v", got, err)
	}
	if got := process(x, 1, stateFrame(2, 1)...); fmt.Sprint(got) != "[2:020100000000aa02030405060708090000]" {
		t.Errorf("the program reads %v", got)
	}
	if _, err := x.Register("I.wides", 2); !errors.Is(err, datapath.ErrNotFound) {
		t.Errorf("cell beyond the end: %v", err)
	}
	if _, err := x.Register("I.none", 0); !errors.Is(err, datapath.ErrNotFound) {
		t.Errorf("no such register: %v", err)
	}
	if err := x.SetRegister("I.sums", 0, value); err == nil {
		t.Error("9 bytes fit 32 bits")
	}
}

func TestCounters(t *testing.T) {
	x := start(t, "state", Config{})
	if err := x.SetCounter("I.seen", 3, datapath.Counts{Packets: 5, Bytes: 6}); err != nil {
		t.Fatal(err)
	}
	process(x, 1, stateFrame(3, 3)...)
	if got, err := x.Counter("I.seen", 3); err != nil || got != (datapath.Counts{Packets: 6, Bytes: 23}) {
		t.Errorf("counted %+v, %v", got, err)
	}
	for name, index := range map[string]int{"I.seen": 4, "I.hits": 0, "I.none": 0} {
		if _, err := x.Counter(name, index); !errors.Is(err, datapath.ErrNotFound) {
			t.Errorf("counter %s[%d]: %v", name, index, err)
		}
	}
}

func TestRandom(t *testing.T) {
	seen := map[string]int{}
	x := start(t, "state", Config{})
	for range 300 {
		seen[process(x, 1, stateFrame(11, 0)...)[0][6:14]]++
	}
	if len(seen) != 3 || seen["0000000a"] < 50 || seen["0000000b"] < 50 || seen["0000000c"] < 50 {
		t.Errorf("random numbers of 10 to 12: %v", seen)
	}
}
