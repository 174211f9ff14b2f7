package rpc

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"time"

	"github.com/bifrost-rack/bifrost/internal/netio"
)

// chair is the right to read the node's endpoint. A caller that waits for its
// answer takes it if it is vacant and reads the network itself: waking another
// goroutine would cost more than the rest of the call. Once it has its answer it
// leaves, and the next caller that waits sits down. When nobody has wanted the
// chair for a while, a goroutine of the node's own takes it, for what comes
// unasked, and leaves it as soon as it has served a caller.
//
//	       ┌────────────────── vacant ◀───────────────┐
//	a caller waits │                  │ for a beat    │ has its answer, or
//	               ▼                  ▼               │ has served a caller
//	            lead ──────────────── sit ────────────┘
type chair struct {
	vacant chan struct{} // holds a token while nobody sits
	reader *reader       // whoever sits may use it
	left   atomic.Bool   // somebody has left it since the last pulse
	watch  netio.Watch   // interrupts the read; of whoever sits, too
}

// await waits until p is answered, and reports false if ctx ended first.
func (n *Node) await(ctx context.Context, p *pending) bool {
	for {
		select {
		case <-p.ready:
			return true
		case <-ctx.Done():
			return false
		case <-n.chair.vacant:
			if n.lead(ctx, p) {
				<-p.ready
				return true
			}
		}
	}
}

// lead reads the node's endpoint until p is answered, ctx ends or the node does,
// and reports whether p has been answered.
func (n *Node) lead(ctx context.Context, p *pending) bool {
	defer n.leave()
	n.chair.watch.Set(ctx, n.interrupt)
	for len(p.ready) == 0 && ctx.Err() == nil {
		if _, err := n.readAnswers(); err != nil {
			break
		}
	}
	return len(p.ready) > 0
}

// interrupt ends the read of whoever sits. It may come late and hit the wrong
// one, who then goes on reading.
func (n *Node) interrupt() { _ = n.conn.SetReadDeadline(time.Unix(1, 0)) }

// leave vacates the chair.
func (n *Node) leave() {
	n.chair.left.Store(true)
	n.chair.vacant <- struct{}{}
	n.wakeAt(n.now() + beat)
}

// sit is the node's own turn in the chair, if that is vacant; if not, whoever
// leaves it will see to it. It returns at once.
func (n *Node) sit() {
	select {
	case <-n.chair.vacant:
	default:
		return
	}
	if !n.enter() {
		n.chair.vacant <- struct{}{}
		return
	}
	go func() {
		defer n.readers.Done()
		defer n.leave()
		for {
			served, err := n.readAnswers()
			if served || err != nil {
				return
			}
		}
	}()
}

// enter counts a goroutine among the readers that Close waits for, unless the
// node has ended.
func (n *Node) enter() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ended {
		return false
	}
	n.readers.Add(1)
	return true
}

// readAnswers reads the node's endpoint once, and reports whether a caller has
// been served. The caller sits in the chair.
func (n *Node) readAnswers() (served bool, err error) {
	r := n.chair.reader
	count, err := r.next()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return false, n.conn.SetReadDeadline(time.Time{})
	}
	if err != nil {
		n.readFailed(err)
		return false, err
	}
	for i := range count {
		if n.receiveAnswer(r, i) {
			served = true
		}
	}
	return served, nil
}
