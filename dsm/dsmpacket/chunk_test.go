package dsmpacket

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
)

func TestRecords(t *testing.T) {
	chunks := []Chunk{
		{Number: 7, Data: AppendRecord(AppendRecord(nil, []byte("one")), nil)},
		{Number: 8, Continues: true, Data: []byte("lo")},
		{Number: 9, Continues: true},
		{Number: 10, Data: []byte("ng")},
		{Number: 11, Data: AppendRecord(nil, []byte("last"))},
	}
	var r Records
	var got []string
	for i, c := range chunks {
		if err := r.Chunk(c, func(b []byte) { got = append(got, string(b)) }); err != nil {
			t.Fatal(err)
		}
		if whole := i != 1 && i != 2; r.Whole() != whole {
			t.Errorf("after chunk %d whole is %v", c.Number, r.Whole())
		}
	}
	if want := []string{"one", "", "long", "last"}; len(got) != 4 || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] || got[3] != want[3] {
		t.Errorf("records %q, want %q", got, want)
	}
	for name, c := range map[string]Chunk{
		"a gap": {Number: 13}, "a copy": {Number: 11}, "cut short": {Number: 12, Data: []byte{5, 'x'}},
		"no length": {Number: 12, Data: bytes.Repeat([]byte{0xff}, 11)}, "chunk 0": {},
	} {
		again := r
		if err := again.Chunk(c, func([]byte) {}); !errors.Is(err, wirefmt.ErrFormat) {
			t.Errorf("%s: error %v, want one that wraps ErrFormat", name, err)
		}
	}
}

func FuzzRecords(f *testing.F) {
	f.Add([]byte("\x03one\x00"), false)
	f.Fuzz(func(t *testing.T, data []byte, continues bool) {
		var r Records
		var all, twice [][]byte
		var again []byte
		err := r.Chunk(Chunk{Number: 1, Continues: continues, Data: data}, func(b []byte) { all, again = append(all, b), AppendRecord(again, b) })
		if r.Whole() == continues || continues && (err != nil || len(all) > 0) || !continues && len(again) > len(data) {
			t.Fatalf("%d records, %v, of %x, which continues: %v", len(all), err, data, continues)
		}
		if continues { // the record goes on, and ends
			if err := r.Chunk(Chunk{Number: 2, Data: []byte("end")}, func(b []byte) { all = append(all, b) }); err != nil || len(all) != 1 || string(all[0]) != string(data)+"end" {
				t.Fatalf("%x goes on as %x, %v", data, all, err)
			}
			return
		}
		r = Records{}
		if e := r.Chunk(Chunk{Number: 1, Data: again}, func(b []byte) { twice = append(twice, b) }); e != nil || !slices.EqualFunc(twice, all, bytes.Equal) {
			t.Fatalf("%x became %x, %v", all, twice, e)
		}
		if err == nil && string(bytes.Join(all, nil)) == "" && len(data) > 0 && !slices.Contains(data, 0) {
			t.Fatalf("nothing of %x", data)
		}
	})
}
