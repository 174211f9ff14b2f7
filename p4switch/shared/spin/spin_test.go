package spin

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// Spinning that does not pay is tried less and less often, and again at once when
// it has paid.
func TestSpinner(t *testing.T) {
	others(t, 0)
	var s Spinner
	for i, want := range []int{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 512} {
		tried := 0
		if s.Spin(func() bool { tried++; return false }) || tried == 0 {
			t.Fatalf("failure %d: %d tries", i, tried)
		}
		for skipped := range want {
			if s.Spin(func() bool { t.Error("tried"); return true }) {
				t.Fatalf("failure %d, read %d of %d after it", i, skipped, want)
			}
		}
	}
	for range 3 {
		if !s.Spin(func() bool { return true }) {
			t.Fatal("it does not spin where it pays")
		}
	}
	s.Spin(func() bool { return false })
	if s.left != 1 {
		t.Errorf("skips %d after the first failure", s.left)
	}
}

// others have the CPU for so long whenever a reader yields, for this test, whose time is made of that and of a
// microsecond for each look at the clock. It returns how often a reader has yielded.
func others(t *testing.T, have time.Duration) *int {
	t.Helper()
	wasYield, wasClock, times, now := yield, clock, new(int), time.Now()
	t.Cleanup(func() { yield, clock = wasYield, wasClock })
	yield = func() { *times++; now = now.Add(have) }
	clock = func() time.Time { now = now.Add(time.Microsecond); return now }
	return times
}

// A spinner gives its CPU to others before each look. When they have had it in vain, it sleeps.
func TestSpinner_GivesWay(t *testing.T) {
	for _, tt := range []struct {
		name  string
		have  time.Duration
		tries int // the first that succeeds; 0: none
		ok    bool
		skips int
		looks int
	}{
		{"in vain", shared, 0, false, 1, triesAtOnce},
		{"they have answered", shared, 2, true, 0, 2},
		{"they answer too late", shared, triesAtOnce + 1, false, 1, triesAtOnce},
		{"they do something else", busy, 1, true, 1, 1},
		{"nobody is there", 0, 3 * triesAtOnce, true, 0, 3 * triesAtOnce},
	} {
		t.Run(tt.name, func(t *testing.T) {
			yields := others(t, tt.have)
			s, looks := Spinner{}, 0
			ok := s.Spin(func() bool { looks++; return looks == tt.tries })
			if ok != tt.ok || s.left != tt.skips || looks != tt.looks {
				t.Errorf("%v after %d looks, skips %d; want %v after %d, %d", ok, looks, s.left, tt.ok, tt.looks, tt.skips)
			}
			if *yields == 0 {
				t.Error("it has not yielded")
			}
		})
	}
}

// A connection that spins reads like any other.
func TestConn(t *testing.T) {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Fatal(err)
	}
	l = Listener(l)
	defer func() { _ = l.Close() }()
	dialed, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	a, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	b := Conn(dialed)
	buf := make([]byte, 16)
	for i := range 3 {
		for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
			if _, err := way[0].Write([]byte{byte(i), 7}); err != nil {
				t.Fatal(err)
			}
			if n, err := io.ReadFull(way[1], buf[:2]); err != nil || buf[0] != byte(i) {
				t.Fatalf("read %d bytes, %v", n, err)
			}
		}
	}
	if n, err := a.Read(nil); n != 0 || err != nil {
		t.Errorf("a read of nothing: %d, %v", n, err)
	}
	if err := a.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after its deadline: %v", err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Read(buf); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if _, err := b.Read(buf); !errors.Is(err, io.EOF) {
		t.Errorf("after the other side's Close: %v", err)
	}
	_ = b.Close()
}

// A connection within the process stays what it is.
func TestConn_NotTheKernels(t *testing.T) {
	a, b := net.Pipe()
	defer func() { _, _ = a.Close(), b.Close() }()
	if Conn(a) != a {
		t.Error("a pipe spins")
	}
}
