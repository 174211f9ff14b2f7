package peer

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

// redis is Redis as a cache in memory: nothing is written to disk, one thread, as
// it comes. The client speaks its protocol directly on a connection of its own for
// each caller, which is less work than a client library does.
var redis = Peer{
	Name: "redis", Title: "Redis", Serve: serveRedis, Dial: dialRedis, Missing: redisMissing,
	Setup: "redis-server without persistence, RESP on a TCP connection with NODELAY, GET and SET",
}

// redisReplica is Redis with one replica: a SET is done when the replica has it (WAIT 1), as
// a write of mirrored memory is when both copies have.
var redisReplica = Peer{
	Name: "redis-replica", Title: "Redis, one replica", Serve: serveRedis, Dial: dialRedisReplica, Missing: redisMissing,
	Setup: "as Redis, with a second redis-server that replicates the first; SET, then WAIT 1, in one packet",
}

// ErrNoRedis is that redis-server is not installed.
var ErrNoRedis = errors.New("redis-server is not installed: apt-get install redis-server")

func redisMissing() error {
	if _, err := exec.LookPath("redis-server"); err != nil {
		return ErrNoRedis
	}
	return nil
}

// redisServer is a redis-server that ends with this process.
type redisServer struct {
	cmd    *exec.Cmd
	ended  chan struct{} // closed when it has ended
	status error         // how, then
}

func serveRedis(ctx context.Context, s Site) (Server, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, ErrNoRedis
	}
	at := netip.AddrPortFrom(s.Servers[s.Index], s.Port)
	args := []string{"--bind", at.Addr().String(), "--port", strconv.Itoa(int(at.Port())), "--save", "", "--appendonly", "no",
		"--protected-mode", "no", "--daemonize", "no", "--dir", "/tmp", "--repl-diskless-sync-delay", "0"}
	if s.Index > 0 {
		args = append(args, "--replicaof", s.main().Addr().String()+" "+strconv.Itoa(int(s.Port)))
	}
	cmd := exec.Command(path, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	r := &redisServer{cmd: cmd, ended: make(chan struct{})}
	started := make(chan error, 1)
	go func() { r.run(started) }()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	if err := r.await(ctx, at); err != nil {
		_ = r.Close()
		return nil, fmt.Errorf("%w; it printed last: %s", err, lastLine(said.Bytes()))
	}
	return r, nil
}

// startTime bounds how long redis-server may take to answer.
const startTime = 5 * time.Second

// await waits until the server takes connections.
func (r *redisServer) await(ctx context.Context, at netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	var d net.Dialer
	for {
		if conn, err := d.DialContext(ctx, "tcp", at.String()); err == nil {
			return conn.Close()
		}
		select {
		case <-r.ended:
			return fmt.Errorf("redis-server has ended: %w", r.status)
		case <-ctx.Done():
			return fmt.Errorf("redis-server does not answer at %s within %v", at, startTime)
		case <-tick.C:
		}
	}
}

func lastLine(b []byte) []byte {
	b = bytes.TrimSpace(b)
	return b[bytes.LastIndexByte(b, '\n')+1:]
}

// Close ends the server.
func (r *redisServer) Close() error {
	_ = r.cmd.Process.Kill() // it keeps nothing; if it has ended, all the better
	<-r.ended
	return nil
}

type redisClient struct {
	to      netip.AddrPort
	replica bool // that has to have what is set
}

func dialRedis(_ context.Context, s Site) (Client, error) { return redisClient{to: s.main()}, nil }

// dialRedisReplica waits until the replica follows: WAIT without a limit of time.
func dialRedisReplica(_ context.Context, s Site) (Client, error) {
	return redisClient{to: s.main(), replica: true}, nil
}

// Close does nothing.
func (redisClient) Close() error { return nil }

// redisBuffer is the size of the client's buffers in bytes.
const redisBuffer = 64 << 10

// redisConn is one connection.
type redisConn struct {
	net.Conn
	replica bool
	in      *bufio.Reader
	out     *bufio.Writer
}

// Prepare implements Client.
func (c redisClient) Prepare(ctx context.Context, w Work) (Operation, func(), error) {
	if err := w.check(); err != nil {
		return nil, nil, err
	}
	if w.Op != Read && w.Op != Write {
		return nil, nil, cannot("Redis", w)
	}
	var d net.Dialer
	raw, err := d.DialContext(ctx, "tcp", c.to.String())
	if err != nil {
		return nil, nil, fmt.Errorf("connect to redis-server: %w", err)
	}
	conn := &redisConn{raw, c.replica, bufio.NewReaderSize(raw, redisBuffer), bufio.NewWriterSize(raw, redisBuffer)}
	data := pattern(w.Size, 1)
	if err := conn.set(data); err != nil {
		return nil, nil, errors.Join(err, raw.Close())
	}
	release := func() { _ = raw.Close() }
	if w.Op == Write {
		return func(context.Context, *Clock) error { return conn.set(data) }, release, nil
	}
	got, v := make([]byte, w.Size), &verifier{want: data}
	return func(_ context.Context, k *Clock) error { return v.check(k, got, conn.get(got)) }, release, nil
}

func (c *redisConn) set(data []byte) error {
	fmt.Fprintf(c.out, "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n", len(data))
	_, _ = c.out.Write(data) // Flush returns the first error
	_, _ = c.out.WriteString("\r\n")
	if c.replica {
		_, _ = c.out.WriteString("*3\r\n$4\r\nWAIT\r\n$1\r\n1\r\n$1\r\n0\r\n")
	}
	if err := c.out.Flush(); err != nil {
		return err
	}
	if err := c.expect("+OK\r\n"); err != nil || !c.replica {
		return err
	}
	return c.expect(":1\r\n")
}

// expect reads an answer of one line.
func (c *redisConn) expect(want string) error {
	line, err := c.in.ReadSlice('\n')
	if err == nil && string(line) != want {
		err = fmt.Errorf("redis answers %q", line)
	}
	return err
}

func (c *redisConn) get(into []byte) error {
	_, _ = c.out.WriteString("*2\r\n$3\r\nGET\r\n$1\r\nk\r\n")
	if err := c.out.Flush(); err != nil {
		return err
	}
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return err
	}
	if n, err := strconv.Atoi(string(bytes.TrimSpace(line[1:]))); line[0] != '$' || err != nil || n != len(into) {
		return fmt.Errorf("redis answers %q", line)
	}
	if _, err := io.ReadFull(c.in, into); err != nil {
		return err
	}
	_, err = c.in.Discard(len("\r\n"))
	return err
}

// run starts the server and waits for its end, on one thread, with which the
// kernel would end the server.
func (r *redisServer) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := r.cmd.Start()
	started <- err
	if err == nil {
		r.status = r.cmd.Wait()
		close(r.ended)
	}
}
