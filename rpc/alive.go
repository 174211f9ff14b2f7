package rpc

import "github.com/bifrost-rack/bifrost/internal/join"

// A program's daemon asks now and then whether it still works. The answer comes from the
// node's pulse, which everything depends on that is to happen after a while, and after it
// has had each of the node's locks. So a program that is stopped or deadlocked does not answer.

// listenForPings has the daemon's questions answered, if it asks any.
func (n *Node) listenForPings() {
	p, ok := n.session.(join.Pinged)
	if !ok {
		return
	}
	p.OnPing(func() {
		n.pinged.Store(true)
		n.wakeAt(n.now())
	})
}

// answerPing answers the daemon's question, if there is one.
func (n *Node) answerPing() {
	if !n.pinged.Swap(false) {
		return
	}
	n.out.mu.Lock()
	n.out.mu.Unlock() //nolint:staticcheck // that it could be had is the point
	n.in.mu.Lock()
	n.in.mu.Unlock() //nolint:staticcheck // as above
	n.mu.Lock()
	defer n.mu.Unlock()
	stalled := false
	for _, x := range n.exports {
		stalled = x.pool.stalled() || stalled
	}
	n.session.(join.Pinged).Alive(stalled)
}

// stalled reports whether calls wait, and none has been taken up since the last time that
// this was asked.
func (p *pool) stalled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.judged
	p.judged = p.begun
	return p.queue.len() > 0 && p.begun == before
}
