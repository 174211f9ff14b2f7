// Package sdnotify tells whoever started a process that it is ready, by
// systemd's notification protocol (sd_notify(3)): a datagram "READY=1" to the
// Unix socket that NOTIFY_SOCKET names. Bifröst's daemons send it when their
// work can begin (the switch takes commands, a blade is registered), so the
// same binaries serve systemd units of Type=notify and `bifrost rack up`.
package sdnotify

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"
)

// Variable names the environment variable that holds the socket's path.
const Variable = "NOTIFY_SOCKET"

// ready is the assignment that ends the wait; a datagram may hold others, one
// per line.
const ready = "READY=1"

// Ready says that this process is ready. Without NOTIFY_SOCKET nobody asked and
// it does nothing. The variable is removed, so that children do not answer for
// their parent.
func Ready() error {
	path := os.Getenv(Variable)
	if path == "" {
		return nil
	}
	if err := os.Unsetenv(Variable); err != nil {
		return fmt.Errorf("notify: %w", err)
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("notify: %w", err)
	}
	_, err = conn.Write([]byte(ready))
	if err = errors.Join(err, conn.Close()); err != nil {
		return fmt.Errorf("notify: %w", err)
	}
	return nil
}

// Listener receives one process's notifications.
type Listener struct{ conn *net.UnixConn }

// Listen opens the socket at path, which must not exist. Set Variable to path in
// the environment of the process to start.
func Listen(path string) (*Listener, error) {
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("notify: %w", err)
	}
	return &Listener{conn: conn}, nil
}

// Wait returns nil when the process has said that it is ready, or ctx's error.
func (l *Listener) Wait(ctx context.Context) error {
	if err := l.conn.SetReadDeadline(time.Time{}); err != nil { // an earlier Wait may have left one
		return fmt.Errorf("notify: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = l.conn.SetReadDeadline(time.Unix(1, 0)) }) // wakes the read; it cannot fail on an open socket
	defer stop()
	b := make([]byte, 4096)
	for {
		n, err := l.conn.Read(b)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return fmt.Errorf("notify: %w", err)
		}
		for line := range strings.Lines(string(b[:n])) {
			if strings.TrimSpace(line) == ready {
				return nil
			}
		}
	}
}

// Close removes the socket.
func (l *Listener) Close() error {
	path := l.conn.LocalAddr().String()
	err := l.conn.Close()
	if !strings.HasPrefix(path, "@") { // an abstract socket has no file
		err = errors.Join(err, os.Remove(path))
	}
	return err
}
