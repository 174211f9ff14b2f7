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
	n.reports.mu.Lock()
	defer n.reports.mu.Unlock()
	return len(n.reports.running)
}
