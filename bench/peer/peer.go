// Package peer holds what the benchmarks compare: Bifröst in its ways of making a
// call, and what one would use instead. Each peer is a server and a client of the
// same few operations, set up as its users would for speed; how, is said in the
// comment of each file, and in docs/evaluation.md.
//
//	udp, tcp          bare sockets and blocking system calls, as netperf does it
//	udp-spin          the same, and no end sleeps
//	thrift-framed     Apache Thrift for Go over TCP
//	thrift-buffered
//	grpc              gRPC-Go
//	thrift-udp        Thrift over Bifröst's UDP runtime, arguments by value
//	thrift-udp-exact  the same, and every call executes exactly once
//	bifrost           the same, arguments by reference
//	bifrost-regions   the same, each in a region that the program makes
//	bifrost-regions-exact   the same, and every call executes exactly once
//	bifrost-unjudged        bifrost-regions while the switch judges no rights
//	bifrost-unjudged-exact
//	bifrost-kept      the same, by a program that keeps its arguments' regions
//	ref-chosen        values by reference that travel as the runtime likes
//	ref-value         the same, inside messages always
//	ref-region        the same, in memory always
//	bifrost-exact     by reference, and every call executes exactly once
//	memory-single     reads and writes of memory with one copy
//	memory-mirrored   the same with two copies
//	redis             GET and SET
//	redis-replica     the same, and a SET is done when a replica has it
package peer

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Operations that peers perform. Sizes are bytes of each array.
const (
	Ping      = "ping"      // a call without arguments
	Transfer  = "transfer"  // Size bytes there, Reply bytes back
	Increment = "increment" // an array there and back
	Add       = "add"       // two arrays there, one back
	Chain     = "chain"     // an array through Hops calls
	Read      = "read"      // Size bytes of memory
	Write     = "write"
	Hold      = "hold" // Size bytes of memory, with which nothing is done
)

// Limits of what can be measured.
const (
	// MaxSize is the largest array in bytes: one frame of every peer holds it.
	MaxSize = 8 << 20
	// MaxTransfer is the largest Size and Reply of Transfer: the longest message.
	MaxTransfer = 1 << 30
	// MaxHops is the longest chain.
	MaxHops = 8
	// firstPort is where the first peer serves; each has as many ports as a chain
	// needs, and the main one.
	firstPort = 7100
)

// Work is one operation, to be repeated.
type Work struct {
	Op    string `json:"op"`
	Size  int    `json:"size,omitempty"`
	Reply int    `json:"reply,omitempty"` // of Transfer
	Hops  int    `json:"hops,omitempty"`  // of Chain
}

// Site is where a peer's parts are.
type Site struct {
	// Servers are the blades that serve; the hops of a chain take turns on them.
	Servers []netip.Addr `json:"servers"`
	// Index is the server's own number in Servers.
	Index int `json:"index,omitempty"`
	// Nodes, if not 0, is how many servers there are that serve calls without arguments and
	// nothing else, each under a name of its own. Callers take them in turn. Bifröst only.
	Nodes int `json:"nodes,omitempty"`
	// Chain is whether the hops of a chain are served, too.
	Chain bool `json:"chain,omitempty"`
	// Port is where everything but hops is served; hop n has Port+n.
	Port uint16 `json:"port"`
}

// NewSite returns a peer's site, on ports of its own.
func NewSite(peer string, chain bool, servers ...netip.Addr) Site {
	i := slices.IndexFunc(All, func(p Peer) bool { return p.Name == peer })
	return Site{Servers: servers, Chain: chain, Port: uint16(firstPort + (i+1)*(MaxHops+1))}
}

// main is the address of everything but hops.
func (s Site) main() netip.AddrPort { return netip.AddrPortFrom(s.Servers[0], s.Port) }

// hop is the address of hop n of a chain, from 1 on.
func (s Site) hop(n int) netip.AddrPort {
	return netip.AddrPortFrom(s.Servers[(n-1)%len(s.Servers)], s.Port+uint16(n))
}

// own lists the hops that this server serves.
func (s Site) own() (hops []int) {
	for n := 1; s.Chain && n <= MaxHops; n++ {
		if (n-1)%len(s.Servers) == s.Index {
			hops = append(hops, n)
		}
	}
	return hops
}

// Server serves until it is closed.
type Server interface {
	Close() error
}

// Client makes operations ready.
type Client interface {
	// Prepare returns an operation that one goroutine may repeat, and releases what
	// it holds by the second function.
	Prepare(ctx context.Context, w Work) (Operation, func(), error)
	Close() error
}

// Operation is done once by a call of it; it fails on a wrong result, too. What
// checking costs beside what a user would do anyway is told to the clock.
type Operation func(ctx context.Context, c *Clock) error

// Clock is one operation's: its parts, and what is not to be counted.
type Clock struct {
	// Phases, if not nil, is told of the parts.
	Phases *Phases
	idle   time.Duration
}

// Pause returns a function that ends a time that does not count.
func (c *Clock) Pause() func() {
	start := time.Now()
	return func() { c.idle += time.Since(start) }
}

// Idle returns the time that does not count, and forgets it.
func (c *Clock) Idle() time.Duration {
	d := c.idle
	c.idle = 0
	return d
}

// Peer is a way to make calls.
type Peer struct {
	Name string
	// Title is what tables and pictures call it.
	Title string
	// Managed peers need the rack's Gatekeeper and daemons; the others work over any switch.
	Managed bool
	// Setup says how it is set up, for the report.
	Setup string
	// Missing, if not nil, says what has to be installed first.
	Missing func() error
	Serve   func(ctx context.Context, s Site) (Server, error)
	Dial    func(ctx context.Context, s Site) (Client, error)
}

// All are the peers in the order in which they are told of.
var All = []Peer{udp, udpSpin, tcp, thriftFramed, thriftBuffered, grpcPeer, thriftUDP, bifrostPeer, bifrostRegions, bifrostRegionsExact, bifrostUnjudged, bifrostUnjudgedExact, bifrostKept, bifrostExact, redis, memorySingle, memoryMirrored, redisReplica, thriftUDPExact, refChosen, refValue, refRegion}

// Find returns a peer.
func Find(name string) (Peer, error) {
	i := slices.IndexFunc(All, func(p Peer) bool { return p.Name == name })
	if i < 0 {
		return Peer{}, fmt.Errorf("no peer %q", name)
	}
	return All[i], nil
}

// check refuses work that nobody can do.
func (w Work) check() error {
	most := MaxSize
	if w.Op == Transfer {
		most = MaxTransfer
	}
	if w.Size < 0 || w.Size > most || w.Reply < 0 || w.Reply > most {
		return fmt.Errorf("%s of %d bytes, reply of %d: sizes are 0 to %d bytes", w.Op, w.Size, w.Reply, most)
	}
	if w.Hops < 0 || w.Hops > MaxHops {
		return fmt.Errorf("a chain of %d calls: it has 1 to %d", w.Hops, MaxHops)
	}
	return nil
}

// cannot is the error of a peer that an operation means nothing to.
func cannot(peer string, w Work) error { return fmt.Errorf("%s cannot %s", peer, w.Op) }
