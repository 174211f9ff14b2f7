package unixjoin

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/p4switch/shared/privilege"
)

// A user has its share of the connections, and is told so when it wants more. Whoever has none gets some.
func TestConnections(t *testing.T) {
	h, socket := start(t)
	s, _ := joinNode(t, h, socket) // before
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	refused := ""
	for len(conns) < 2*64+moreConnections && refused == "" {
		c, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
		// An answer says that the connection counts; status needs no join.
		_ = writeLine(c, request{ID: 1, Op: opStatus}) // it may be closed by now: the line tells
		line, err := bufio.NewReader(c).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(line, "its share of") {
			refused = line
		}
	}
	total := uint64(2*64 + moreConnections)
	if got := uint64(len(conns)); refused == "" || got < total/2 || got > total-total/8 {
		t.Fatalf("%d of %d connections are one user's: %s", got, total, refused)
	}
	if _, err := AskStatus(t.Context(), socket); fault.CodeOf(err) != fault.Overloaded || !strings.Contains(err.Error(), "end programs of that user") {
		t.Errorf("a program is told %v", err)
	}
	if err := s.Close(t.Context()); err != nil { // the node is well
		t.Error(err)
	}
}

// Each user has its share of connections and of memory for lines, and leaves some to others.
func TestLimits(t *testing.T) {
	l := NewLimits(64)
	for l.connect(1000) == nil {
	}
	for l.take(1000, maxLine) == nil {
	}
	if err := l.connect(1001); err != nil {
		t.Error(err)
	}
	if err := l.take(1001, 2*maxLine); err != nil {
		t.Error(err)
	}
	refused := map[string]uint64{}
	l.Refused(func(user, what string, n uint64) { refused[user+" "+what] += n })
	if len(refused) != 2 || refused["1000 connections"] != 1 || refused["1000 bytes"] != 1 {
		t.Errorf("refused: %v", refused)
	}
	l.disconnect(1000)
	l.disconnect(1001)
	l.give(1000, maxLine)
	l.give(1001, 2*maxLine)
	if l.connect(1000) != nil || l.take(1000, maxLine) != nil {
		t.Error("what was given back is not there again")
	}
}

// A connection takes memory as its lines come, and what a user's lines take together is bounded: also lines that wait for their end, and replies
// that nobody reads.
func TestLines_Memory(t *testing.T) {
	_, socket := start(t)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for range 40 {
		c, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := writeLine(c, request{ID: 1, Op: opStatus}); err != nil {
			t.Fatal(err)
		}
		if _, err := bufio.NewReaderSize(c, 512).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 40*64<<10 {
		t.Errorf("40 idle connections take %d bytes", grown)
	}
	held, l := 0, NewLimits(64)
	r := newReader(strings.NewReader(strings.Repeat("x", 3*firstBuffer)))
	r.take = func(n int) error { held += n; return l.take(1, n) }
	r.give = func(n int) { held -= n; l.give(1, n) }
	if _, err := r.read(new(request)); err == nil || held != 0 {
		t.Errorf("a line without an end: %v, %d bytes are still taken", err, held)
	}
	r.in.Reset(strings.NewReader(`{"id":1,"op":"` + strings.Repeat("x", 3*firstBuffer) + "\"}\n"))
	if n, err := r.read(new(request)); err != nil || n < 3*firstBuffer || held != n {
		t.Errorf("a line of %d bytes has taken %d: %v", n, held, err)
	}
}

// faulty is a listener whose first Accepts fail.
type faulty struct {
	net.Listener
	errs []error
}

func (l *faulty) Accept() (net.Conn, error) {
	if len(l.errs) > 0 {
		err := l.errs[0]
		l.errs = l.errs[1:]
		return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", err)}
	}
	return l.Listener.Accept()
}

// Errors of Accept end nothing.
func TestAcceptErrors(t *testing.T) {
	socket := fmt.Sprintf("@bifrost/test-%d-%d", os.Getpid(), started.Add(1))
	l, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	h := &fakeHost{nodes: make(chan *fakeNode, 10)}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error)
	go func() {
		served <- Serve(ctx, &faulty{l, []error{unix.EMFILE, unix.ECONNABORTED, unix.ENFILE, unix.ENOMEM}}, h, NewLimits(64), slog.New(slog.DiscardHandler))
	}()
	if _, err := AskStatus(t.Context(), socket); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// With the spare descriptor a connection is turned away when there is no other, and hears of it.
func TestAcceptor_TurnsAway(t *testing.T) {
	socket := fmt.Sprintf("@bifrost/test-%d-%d", os.Getpid(), started.Add(1))
	l, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a := acceptor{listener: l}
	defer a.close()
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	a.keep()
	a.turnAway()
	if _, err := c.Read(make([]byte, 1)); err == nil || a.spare == nil {
		t.Errorf("read: %v, spare: %v", err, a.spare)
	}
	a.turnAway() // of nobody
	c, err = net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	taken, err := a.accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	taken.Close()
}

// A program believes root, its own user and the daemon's, and nobody else.
func TestCheckUser(t *testing.T) {
	for _, tc := range []struct {
		uid    uint32
		daemon string
		ok     bool
	}{
		{0, "bifrost", true}, {uint32(os.Geteuid()), "", true}, {990, "990", true},
		{60002, "990", false}, {60002, "bifrost", false}, {60002, "", false},
	} {
		if err := checkUser("@x", tc.uid, tc.daemon); (err == nil) != tc.ok || err != nil && fault.CodeOf(err) != fault.PermissionDenied {
			t.Errorf("user %d, daemon's user %q: %v", tc.uid, tc.daemon, err)
		}
	}
	t.Setenv(DaemonUserVariable, "root")
	if got := daemonUser(); got != "0" {
		t.Errorf("the daemon's user is %q", got)
	}
	t.Setenv(DaemonUserVariable, "4711")
	if got := daemonUser(); got != "4711" {
		t.Errorf("the daemon's user is %q", got)
	}
}

// An impostor has bound the name: programs do not join there.
func TestImpostor(t *testing.T) {
	privilege.Need(t)
	socket := fmt.Sprintf("@bifrost/test-%d-%d", os.Getpid(), started.Add(1))
	var l net.Listener
	var err error
	var wg sync.WaitGroup
	wg.Go(func() {
		runtime.LockOSThread() // and never unlocked: the thread is another user's
		const id = 60002
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, id, id, id); errno != 0 {
			err = errno
			return
		}
		l, err = net.Listen("unix", socket)
	})
	if wg.Wait(); err != nil {
		t.Fatal(err)
	}
	h := &fakeHost{nodes: make(chan *fakeNode, 10)}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error)
	go func() { served <- Serve(ctx, l, h, NewLimits(64), slog.New(slog.DiscardHandler)) }()
	_, err = Joiner{Socket: socket}.Join(t.Context(), "credulous")
	if fault.CodeOf(err) != fault.PermissionDenied || !strings.Contains(err.Error(), strconv.Itoa(60002)) {
		t.Errorf("join at an impostor: %v", err)
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
