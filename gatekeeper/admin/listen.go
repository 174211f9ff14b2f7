package admin

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/net/netutil"
)

// Listener is a place where the API is served.
type Listener struct {
	net.Listener
	// Trusted means that whoever can connect is let in without a token.
	Trusted bool
	// TLS tells whether it speaks TLS.
	TLS bool

	visitors *visitors // nil for a trusted one
}

// Listen opens HOST:PORT, with TLS if a configuration is given, or unix:PATH, a
// socket of mode 0600 whose users are trusted. fd:N is a TCP socket that listens already, as
// descriptor N of the process. Beyond loopback TLS is required: a token is not to be sent in the clear.
func Listen(address string, cfg *tls.Config) (Listener, error) {
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		return listenUnix(path)
	}
	l, err := listenTCP(address)
	if err != nil {
		return Listener{}, err
	}
	if a, ok := l.Addr().(*net.TCPAddr); cfg == nil && ok && !a.IP.IsLoopback() {
		return Listener{}, errors.Join(
			fmt.Errorf("admin address %s can be reached from elsewhere: it needs TLS, or a loopback address", address), l.Close())
	}
	visitors := newVisitors(l)
	if l = visitors; cfg != nil {
		l = tls.NewListener(l, cfg)
	}
	return Listener{Listener: l, TLS: cfg != nil, visitors: visitors}, nil
}

// listenTCP opens HOST:PORT, or takes fd:N.
func listenTCP(address string) (net.Listener, error) {
	n, inherited := strings.CutPrefix(address, "fd:")
	fd, err := strconv.ParseUint(n, 10, 31)
	if inherited && err == nil {
		f := os.NewFile(uintptr(fd), address)
		l, err := net.FileListener(f)
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, fmt.Errorf("admin address %s: no socket that listens: %w", address, err)
		}
		if _, tcp := l.(*net.TCPListener); !tcp {
			return nil, errors.Join(fmt.Errorf("admin address %s: no TCP socket", address), l.Close())
		}
		return l, nil
	}
	if _, _, err := net.SplitHostPort(address); err != nil || inherited {
		return nil, fmt.Errorf("admin address %q: want HOST:PORT, unix:PATH or fd:N", address)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("admin API: %w", err)
	}
	return l, nil
}

// listenUnix opens a socket, also in the place of one that nobody listens on. It
// is made where nobody else can reach it, and moved when its mode is right.
func listenUnix(path string) (_ Listener, err error) {
	if err := checkFree(path); err != nil {
		return Listener{}, fmt.Errorf("admin API: %w", err)
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), ".admin") // mode 0700
	if err != nil {
		return Listener{}, fmt.Errorf("admin API: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	made := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: made})
	if err != nil {
		return Listener{}, fmt.Errorf("admin API: %w", err)
	}
	l.SetUnlinkOnClose(false)
	if err = os.Chmod(made, 0o600); err == nil {
		err = os.Rename(made, path)
	}
	if err != nil {
		return Listener{}, errors.Join(fmt.Errorf("admin API: %w", err), l.Close())
	}
	return Listener{Listener: &unixListener{Listener: netutil.LimitListener(l, maxConns), path: path}, Trusted: true}, nil
}

// unixListener removes its socket when it is closed.
type unixListener struct {
	net.Listener
	path string
	once sync.Once
}

// Close removes the socket and stops listening.
func (l *unixListener) Close() error {
	l.once.Do(func() { _ = os.Remove(l.path) })
	return l.Listener.Close()
}

// Addr is where the socket is.
func (l *unixListener) Addr() net.Addr { return &net.UnixAddr{Net: "unix", Name: l.path} }

// checkFree refuses a path where something is other than the socket of a process
// that was killed.
func checkFree(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode()&os.ModeSocket == 0:
		return fmt.Errorf("%s is there already, and is no socket: choose another path", path)
	}
	conn, err := net.Dial("unix", path)
	if err == nil {
		return errors.Join(fmt.Errorf("%s: somebody listens there already: choose another path", path), conn.Close())
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil
	}
	return err
}
