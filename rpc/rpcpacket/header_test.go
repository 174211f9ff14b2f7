package rpcpacket

import "testing"

func TestSetCaller(t *testing.T) {
	m := sample()
	b := m.Append(nil)
	call := Header{CallerIncarnation: 99, Slot: 7777, Number: NumberOf(99, 5)}
	SetCaller(b, &call)
	got, err := Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	m.CallerIncarnation, m.Slot, m.Number = call.CallerIncarnation, call.Slot, call.Number
	if got.Header != m.Header {
		t.Errorf("%+v, want %+v", got.Header, m.Header)
	}
}
