package rpc

import (
	"log/slog"
	"time"
)

// JoinOption configures Join.
type JoinOption interface{ applyJoin(*joinConfig) }

// ExportOption configures Node.Export.
type ExportOption interface{ applyExport(*exportConfig) }

// ClientOption configures Node.Client.
type ClientOption interface{ applyClient(*clientConfig) }

type (
	joinFunc   func(*joinConfig)
	exportFunc func(*exportConfig)
	clientFunc func(*clientConfig)
)

func (f joinFunc) applyJoin(c *joinConfig)       { f(c) }
func (f exportFunc) applyExport(c *exportConfig) { f(c) }
func (f clientFunc) applyClient(c *clientConfig) { f(c) }

type joinConfig struct {
	name   string
	logger *slog.Logger

	maxMessage uint64
	limits     Limits
}

// WithName says what people call the node, in status pages and logs. The
// default is the program's name.
func WithName(name string) JoinOption {
	return joinFunc(func(c *joinConfig) { c.name = name })
}

// WithLimits bounds what the node keeps and does at a time. The default is
// DefaultLimits.
func WithLimits(l Limits) JoinOption {
	return joinFunc(func(c *joinConfig) { c.limits = l })
}

// WithLogger says where to report what no caller can be told, such as the stack
// of a handler that panicked. The default is slog.Default().
func WithLogger(l *slog.Logger) JoinOption {
	return joinFunc(func(c *joinConfig) { c.logger = l })
}

// WithMaxMessage says how many bytes the Thrift message of a call or answer of policy
// none has at most, sent or received. Large messages that wait or are being received
// take at most as much memory for each sender, and four times as much for all. The
// default is DefaultMaxMessage. Messages that are logged, as those with other policies
// are, have at most a little over a megabyte (packet.MaxWhole).
func WithMaxMessage(bytes uint64) JoinOption {
	return joinFunc(func(c *joinConfig) { c.maxMessage = bytes })
}

type exportConfig struct {
	workers  int
	queue    int
	state    State
	kept     bool // WithState was given
	policies perMethod[Policy]
	idl      string
}

func (c *exportConfig) stateful() bool { return c.kept }

// WithWorkers says how many of the service's handlers run at once; one that
// waits for a nested call does not count. The default is DefaultWorkers. A
// stateful service has one in any case.
func WithWorkers(n int) ExportOption {
	return exportFunc(func(c *exportConfig) { c.workers = n })
}

// WithQueue says how many calls wait for a worker, first come, first served; a
// call that finds the queue full is refused as Overloaded. 0 means none. The
// default is DefaultQueue.
func WithQueue(n int) ExportOption {
	return exportFunc(func(c *exportConfig) { c.queue = n })
}

// WithState gives a service its state. Its calls run one at a time, also while one
// waits for a nested call, in the order that the Gatekeeper has numbered them in,
// or of arrival; the next exactly-once call begins when the answer to the one
// before is logged. Export restores what the rack has kept of the state. The
// default is a stateless service.
func WithState(s State) ExportOption {
	return exportFunc(func(c *exportConfig) { c.state, c.kept = s, true })
}

// WithMethodPolicy tells the rack what these methods of the service, or all others
// if none is named, ask for when a node fails. Callers that know the service's IDL
// go by it unless they are told otherwise; see WithPolicy. The default is
// DefaultPolicy.
func WithMethodPolicy(p Policy, methods ...string) ExportOption {
	return exportFunc(func(c *exportConfig) { c.policies.set(p, methods) })
}

// WithIDL tells the rack the Thrift definition of the service, of at most 128 KiB, for
// those who ask (Node.Service, `bifrost services --idl`). Embed the file that the service
// was generated from:
//
//	//go:embed arrays.thrift
//	var idl string
//
// The default is none.
func WithIDL(text string) ExportOption {
	return exportFunc(func(c *exportConfig) { c.idl = text })
}

type clientConfig struct {
	chosen   perMethod[Policy] // by the caller
	declared perMethod[Policy] // by the service's IDL
	protocol Protocol
	retries  perMethod[Retry]
	hedges   perMethod[time.Duration]
}

// policy is that of a method as far as this side knows.
func (c *clientConfig) policy(method string) Policy {
	if p, ok := c.chosen.of(method); ok {
		return p
	}
	if p, ok := c.declared.of(method); ok {
		return p
	}
	return DefaultPolicy
}

// WithPolicy says what becomes of the calls of these methods, or of all others
// if none is named, when a node fails. It goes before what the service's IDL asks
// for, but an operator's word or the deployment's goes before it. The default is
// the IDL's, and DefaultPolicy if that says nothing.
func WithPolicy(p Policy, methods ...string) ClientOption {
	return clientFunc(func(c *clientConfig) { c.chosen.set(p, methods) })
}

// withDeclaredPolicy passes on what the IDL says of these methods, or of all others if
// none is named.
func withDeclaredPolicy(p Policy, methods ...string) ClientOption {
	return clientFunc(func(c *clientConfig) { c.declared.set(p, methods) })
}

// Protocol is how Thrift messages are encoded.
type Protocol uint8

// The protocols.
const (
	Binary  Protocol = iota // the default, and the faster one
	Compact                 // smaller integers, shorter field headers
)

// WithProtocol says how the calls of a client are encoded. Services take both protocols
// and answer in that of the call; what is in neither is refused as BadRequest. The default
// is Binary.
func WithProtocol(p Protocol) ClientOption {
	return clientFunc(func(c *clientConfig) { c.protocol = p })
}
