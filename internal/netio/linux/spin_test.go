//go:build linux

package linux

import "testing"

// Spinning that does not pay is tried less and less often, and again at once when
// it has paid.
func TestSpinner(t *testing.T) {
	var s spinner
	for i, want := range []int{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 512} {
		tried := 0
		if s.spin(func() bool { tried++; return false }) || tried == 0 {
			t.Fatalf("failure %d: %d tries", i, tried)
		}
		for skipped := range want {
			if s.spin(func() bool { t.Error("tried"); return true }) {
				t.Fatalf("failure %d, read %d of %d after it", i, skipped, want)
			}
		}
	}
	for range 3 {
		if !s.spin(func() bool { return true }) {
			t.Fatal("it does not spin where it pays")
		}
	}
	s.spin(func() bool { return false })
	if s.left != 1 {
		t.Errorf("skips %d after the first failure", s.left)
	}
}
