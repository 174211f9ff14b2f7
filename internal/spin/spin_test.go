package spin

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// preempts has others take this thread's CPU as often as times says, for this test.
func preempts(t *testing.T, times func() int64) {
	t.Helper()
	was := preemptions
	t.Cleanup(func() { preemptions = was })
	preemptions = func() (uintptr, int64) { return 1, times() }
}

// Spinning that does not pay is tried less and less often, and again at once when
// it has paid.
func TestSpinner(t *testing.T) {
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

// A spinner yields its CPU less and less often to what keeps it for long, and ever more often
// again to what does not.
func TestSpinner_Yields(t *testing.T) {
	var s Spinner
	for i, want := range []int{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 512} {
		if !s.mayYield() || s.yielded(longYield) {
			t.Fatalf("long yield %d: it does not yield, or goes on", i)
		}
		for kept := range want {
			if s.mayYield() {
				t.Fatalf("long yield %d: yields after %d of %d spins", i, kept, want)
			}
		}
	}
	for i := maxSkip - 1; i >= 0; i-- {
		if !s.mayYield() || !s.yielded(longYield-1) || s.keep != i {
			t.Fatalf("short yields: %d instead of %d", s.keep, i)
		}
	}
	if !s.yielded(0) || s.keep != 0 {
		t.Errorf("after many short yields: %d", s.keep)
	}
}

// A spinner that gives way rests where others need the CPU, twice as long each time that this happens again.
func TestSpinner_Rests(t *testing.T) {
	var times int64
	preempts(t, func() int64 { return times })
	spins := func(s *Spinner) (spun bool) {
		s.Spin(func() bool { spun = true; times++; return true })
		return spun
	}
	for range 3 {
		if !spins(&Spinner{}) {
			t.Fatal("it rests without giving way")
		}
	}
	s := Spinner{GivesWay: true, rest: maxRest, till: time.Now()}
	if !spins(&s) || spins(&s) {
		t.Error("it does not rest after others have taken its CPU")
	}
	if s.till = time.Now(); !spins(&s) {
		t.Error("it does not spin after its rest")
	}
	s = Spinner{GivesWay: true}
	at := time.Now()
	for want := minRest; want < maxRest; want *= 2 {
		if s.preempted(at); s.rest != want || !s.till.Equal(at.Add(want)) {
			t.Fatalf("it rests for %v, want %v", s.rest, want)
		}
		at = s.till.Add(soonAfter*s.rest - 1)
	}
	if s.preempted(at); s.rest != maxRest {
		t.Errorf("the longest rest is %v", s.rest)
	}
	if s.preempted(s.till.Add(soonAfter * maxRest)); s.rest != minRest {
		t.Errorf("after long in peace it rests for %v", s.rest)
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
