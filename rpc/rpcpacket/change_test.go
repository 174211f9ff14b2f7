package rpcpacket

import "testing"

// What is given up says so, and has nothing in it.
func TestAbandon(t *testing.T) {
	m := sample()
	m.Flags |= FlagHeaders
	got, err := Parse(Abandon(m.Append(nil)))
	if err != nil {
		t.Fatal(err)
	}
	if want := m.Flags&^(FlagMore|FlagHeaders) | FlagGivenUp; got.Flags != want || got.Call != m.Call || len(got.Payload)+len(got.Trailer)+len(got.Lists) > 0 {
		t.Errorf("flags %#x, want %#x; call %s, %d bytes of payload, %d of trailer", got.Flags, want, got.Call, len(got.Payload), len(got.Trailer))
	}
}

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
