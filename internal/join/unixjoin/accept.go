package unixjoin

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/bifrost-rack/bifrost/internal/pace"
	"golang.org/x/sys/unix"
)

// pauses is how long an acceptor waits after an error.
var pauses = pace.Pauses{First: 5 * time.Millisecond, Most: time.Second}

// acceptor takes connections. What goes wrong with one of them ends nothing. It keeps a spare descriptor: when the process
// has no other, it takes a connection with that one, and closes it at once, so that whoever connects hears of it.
type acceptor struct {
	listener net.Listener
	log      *slog.Logger
	spare    *os.File
	pause    time.Duration // 0 after a success
}

// accept takes the next connection. It fails when ctx has ended or the listener is closed.
func (a *acceptor) accept(ctx context.Context) (net.Conn, error) {
	for {
		a.keep()
		conn, err := a.listener.Accept()
		switch {
		case err == nil:
			a.pause = 0
			return conn, nil
		case ctx.Err() != nil, errors.Is(err, net.ErrClosed):
			return nil, err
		case a.pause == 0:
			a.log.Error("a program's connection cannot be taken", "err", err, "remedy", "if it is for lack of descriptors, raise the limit (LimitNOFILE, ulimit -n)")
		}
		if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
			a.turnAway()
		}
		a.pause = pauses.Next(a.pause)
		select {
		case <-time.After(a.pause):
		case <-ctx.Done():
		}
	}
}

// keep opens the spare descriptor, if there is none.
func (a *acceptor) keep() {
	if a.spare == nil {
		a.spare, _ = os.Open(os.DevNull) // there may be no descriptor: it is tried again each time
	}
}

// turnAway takes a connection with the spare descriptor, if there is one, and closes it.
func (a *acceptor) turnAway() {
	l, ok := a.listener.(*net.UnixListener)
	if a.spare == nil || !ok || l.SetDeadline(time.Now().Add(pauses.First)) != nil {
		return
	}
	a.close()
	if conn, err := l.Accept(); err == nil {
		conn.Close()
	}
	_ = l.SetDeadline(time.Time{}) // it is closed, else
	a.keep()
}

func (a *acceptor) close() {
	if a.spare != nil {
		a.spare.Close()
		a.spare = nil
	}
}
