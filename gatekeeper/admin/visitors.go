package admin

import (
	queue "container/list"
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/internal/share"
)

// visitors is a listener whose connections begin as strangers': until a request on one of them has had a valid token. Strangers
// have few connections. When another one comes, the oldest of theirs is closed. So whoever has a token can always connect. Connections with a
// token are divided among the tokens (package share). Methods may be called concurrently.
type visitors struct {
	net.Listener
	turnedAway func() // is told of each stranger whose connection is closed for another one's; nil tells nobody

	mu        sync.Mutex
	strangers queue.List // of *visitor, the oldest first
	tokens    *share.Pool[string]
}

// visitor is a connection.
type visitor struct {
	net.Conn
	of *visitors

	// Guarded by of.mu:
	place *queue.Element // among the strangers; nil for others
	token string         // the name of its token
	until time.Time      // the read deadline that the server has set last
	gone  bool
}

func newVisitors(l net.Listener) *visitors {
	return &visitors{Listener: l, tokens: share.New[string](maxConns)}
}

// Accept implements net.Listener.
func (l *visitors) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	v := &visitor{Conn: conn, of: l}
	l.mu.Lock()
	var oldest *visitor
	if l.strangers.Len() >= maxStrangers {
		oldest = l.strangers.Front().Value.(*visitor)
		oldest.leave()
	}
	v.place = l.strangers.PushBack(v)
	l.mu.Unlock()
	if oldest != nil {
		if l.turnedAway != nil {
			l.turnedAway()
		}
		_ = oldest.Conn.Close()
	}
	return v, nil
}

// leave takes a connection out of the books. The caller holds the lock.
func (v *visitor) leave() {
	switch {
	case v.gone:
	case v.place != nil:
		v.of.strangers.Remove(v.place)
		v.place = nil
	default:
		v.of.tokens.Release(v.token, 1)
	}
	v.gone = true
}

// Close implements net.Conn.
func (v *visitor) Close() error {
	v.of.mu.Lock()
	v.leave()
	v.of.mu.Unlock()
	return v.Conn.Close()
}

// SetReadDeadline implements net.Conn. A stranger's connection lives for strangerTimeout without a request.
func (v *visitor) SetReadDeadline(t time.Time) error {
	v.of.mu.Lock()
	defer v.of.mu.Unlock()
	v.until = t
	stranger := v.place != nil
	if soon := time.Now().Add(strangerTimeout); stranger && (t.IsZero() || t.After(soon)) {
		t = soon
	}
	return v.Conn.SetReadDeadline(t)
}

// admit says that a request on the connection has had a valid token. It is false if that token has its share of connections. The request may
// take as long as the server says from now on: net/http gives a request up whose connection's read deadline passes.
func (v *visitor) admit(token string) bool {
	v.of.mu.Lock()
	defer v.of.mu.Unlock()
	switch {
	case v.gone || v.place == nil:
		return true
	case !v.of.tokens.Take(token, 1):
		return false
	}
	v.of.strangers.Remove(v.place)
	v.place, v.token = nil, token
	_ = v.Conn.SetReadDeadline(v.until) // it fails if the connection is closed, which ends the request
	return true
}

type visitorKey struct{}

// withVisitor puts a connection that came by visitors into the context of its requests.
func withVisitor(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	if v, ok := c.(*visitor); ok {
		return context.WithValue(ctx, visitorKey{}, v)
	}
	return ctx
}

// admitted reports whether a token may have the connection that a request came by.
func admitted(ctx context.Context, token string) bool {
	v, ok := ctx.Value(visitorKey{}).(*visitor)
	return !ok || v.admit(token)
}
