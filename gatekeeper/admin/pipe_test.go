package admin

import (
	"io"
	"net"
	"sync"
)

// pipes is a listener whose connections are in memory and hold nothing, so that they
// work in virtual time and a reader that does not read is felt at once.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn, 8), done: make(chan struct{})} }

// pipe is a client's end.
type pipe struct{ net.Conn }

func (p *pipes) dial() *pipe {
	client, server := net.Pipe()
	p.conns <- server
	return &pipe{client}
}

// readAll reads until the other side closes.
func (p *pipe) readAll() string {
	b, _ := io.ReadAll(p)
	return string(b)
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Net: "unix", Name: "pipes"} }
