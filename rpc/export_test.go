package rpc

// LargeInUse is how many large messages are being received, and how many bytes they
// and those in use count for.
func (n *Node) LargeInUse() (open int, claimed uint64) {
	n.large.mu.Lock()
	defer n.large.mu.Unlock()
	return n.large.in.Open(), n.large.in.Claimed()
}

// UnderWay is how many calls the Gatekeeper is told of as running.
func (n *Node) UnderWay() int {
	n.ledger.mu.Lock()
	defer n.ledger.mu.Unlock()
	return len(n.ledger.reports.running)
}
