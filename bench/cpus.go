package bench

import "slices"

// CPUs says what runs where. An unpinned round trip has two modes, by whether
// client and server happen to share a CPU.
type CPUs struct {
	Client, Server, Other []int
	// Rack has the switch, the Gatekeeper, the memory blades and the harness.
	Rack []int
}

// AssignCPUs shares a machine's CPUs out: the last is the client's, the one before
// the server's, the one before that another server's, and the rest, with that one,
// the rack's. With fewer, parts share.
func AssignCPUs(n int) CPUs {
	last := func(i int) []int { return []int{max(0, n-1-i)} }
	c := CPUs{Client: last(0), Server: last(1), Other: last(2)}
	for i := range max(1, n-2) {
		c.Rack = append(c.Rack, i)
	}
	return c
}

// of returns the CPUs of what runs on a blade.
func (c CPUs) of(blade string) []int {
	switch blade {
	case clientBlade:
		return c.Client
	case serverBlade:
		return c.Server
	case otherBlade:
		return c.Other
	}
	return c.Rack
}

// pinned is the assignment as reports tell it.
func (c CPUs) pinned() map[string][]int {
	return map[string][]int{
		"client": slices.Clone(c.Client), "server": slices.Clone(c.Server), "second server": slices.Clone(c.Other),
		"switch, Gatekeeper, memory blades": slices.Clone(c.Rack),
	}
}
