package rpcpacket

import "testing"

func TestSetReleased(t *testing.T) {
	m := sample()
	b := m.Append(nil)
	SetReleased(b, 99)
	got, err := Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	if want := m.Flags | FlagReleased; got.Flags != want || got.CalleeIncarnation != 99 {
		t.Errorf("flags %#x, callee incarnation %d; want %#x, 99", got.Flags, got.CalleeIncarnation, want)
	}
	m.Flags, m.CalleeIncarnation = got.Flags, got.CalleeIncarnation
	if again := m.Append(nil); string(again) != string(b) {
		t.Error("something else changed as well")
	}
}
