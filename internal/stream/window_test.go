package stream

import "testing"

// TestWindow_Limit: a loss halves the window and its limit. What is answered twice was none, unless what was sent after the loss has
// been answered before.
func TestWindow_Limit(t *testing.T) {
	const part = 1000
	type step func(*Window)
	lost := func(sending, next uint64) step { return func(w *Window) { w.Lost(sending, next) } }
	answered := func(sending uint64, once bool) step { return func(w *Window) { w.Answered(0, sending, once) } }
	twice := (*Window).Twice
	for name, c := range map[string]struct {
		steps []step
		limit int
	}{
		"lost":                         {[]step{lost(3, 10)}, 6},
		"lost at once":                 {[]step{lost(3, 10), lost(4, 11)}, 6},
		"lost again":                   {[]step{lost(3, 10), lost(10, 20)}, 4},
		"late":                         {[]step{lost(3, 10), twice}, 12},
		"late, and late again":         {[]step{lost(3, 10), lost(10, 20), twice, twice}, 12},
		"late, older ones answered":    {[]step{lost(3, 10), answered(4, true), answered(12, false), twice}, 12},
		"lost, as newer ones show":     {[]step{lost(3, 10), answered(10, true), twice}, 6},
		"lost, then late":              {[]step{lost(3, 10), answered(10, true), lost(15, 20), twice}, 6},
		"answered twice for no reason": {[]step{twice}, 12},
	} {
		w := NewWindow(12*part, 12*part, 4*part, part)
		for _, s := range c.steps {
			s(&w)
		}
		if w.limit != c.limit*part || w.size > w.limit || w.size < least*part {
			t.Errorf("%s: limit %d, window %d, want a limit of %d parts", name, w.limit, w.size, c.limit)
		}
	}
}

// TestWindow_Grows: a window doubles with each round trip until a loss, which halves it, and then grows by a part with each. It stays
// between two parts and its limit.
func TestWindow_Grows(t *testing.T) {
	const part = 100
	w, sending := NewWindow(4*part, 64*part, 64*part, part), uint64(0)
	trip := func() {
		for range w.Size() / part {
			sending++
			w.Answered(part, sending, true)
		}
	}
	for _, want := range []int{8, 16, 32, 64, 64} {
		if trip(); w.Size() != want*part {
			t.Fatalf("a window of %d, want %d parts", w.Size(), want)
		}
	}
	w.Lost(sending, sending+1)
	for _, want := range []int{32, 33, 34} {
		if got := w.Size(); got < want*part-part/2 || got > want*part {
			t.Fatalf("a window of %d after a loss, want %d parts", got, want)
		}
		trip()
	}
	for range 10 {
		sending++
		w.Lost(sending, sending+1)
	}
	if w.Size() != least*part || !w.Fits(part, part) || w.Fits(part, part+1) || !w.Fits(0, 9*part) {
		t.Errorf("a window of %d after many losses", w.Size())
	}
	if small := NewWindow(10, 10, 10, 100); small.Size() != 100 {
		t.Errorf("a window of %d, a part has 100", small.Size())
	}
}
