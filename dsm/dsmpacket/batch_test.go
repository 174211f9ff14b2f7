package dsmpacket

import (
	"bytes"
	"errors"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
)

// FuzzSlots: the states of a batch's slots are what they were when they are written again, and no slot is live and free.
func FuzzSlots(f *testing.F) {
	f.Add(AppendSlots(nil, &[BatchSlots]SlotState{{Generation: 3}, {Generation: 4, Live: true}, {Generation: MaxGeneration, Rests: true}}))
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, b []byte) {
		states, err := ParseSlots(b)
		if err != nil {
			if !errors.Is(err, wirefmt.ErrFormat) {
				t.Errorf("an error of no type: %v", err)
			}
			return
		}
		if again := AppendSlots(nil, &states); !bytes.Equal(again, b) {
			t.Errorf("%x became %x", b, again)
		}
		for i, s := range states {
			if s.Generation > MaxGeneration || s.Live && (s.Rests || s.Generation == 0) {
				t.Errorf("slot %d is %+v", i, s)
			}
		}
	})
}
