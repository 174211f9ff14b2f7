package join

import "testing"

func TestDefaultName(t *testing.T) {
	for _, k := range []struct{ instance, executable, want string }{
		{"", "/usr/bin/bank", "bank"}, {"bank/front/1", "/usr/bin/bank", "bank/front"}, {"bank/back/12", "bank", "bank/back"}, {"odd", "bank", "bank"},
	} {
		if got := DefaultName(k.instance, k.executable); got != k.want {
			t.Errorf("%q, %q: %q, want %q", k.instance, k.executable, got, k.want)
		}
	}
}
