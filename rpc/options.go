package rpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/pace"
	"github.com/bifrost-rack/bifrost/rpc/direct"
	"github.com/bifrost-rack/bifrost/rpc/form"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// JoinOption configures [Join].
type JoinOption interface{ applyJoin(*joinConfig) }

// ExportOption configures [Node.Export].
type ExportOption interface{ applyExport(*exportConfig) }

// ClientOption configures [Node.Client].
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
	heir       *heir // nil for a program that is no heir
}

// WithName says what people call the node, in status pages and logs. The
// default is APP/PROGRAM for a program that a deployment has started, else the name of its executable.
func WithName(name string) JoinOption {
	return joinFunc(func(c *joinConfig) { c.name = name })
}

// WithLimits bounds what the node keeps and does at a time. The default is
// [DefaultLimits].
func WithLimits(l Limits) JoinOption {
	return joinFunc(func(c *joinConfig) { c.limits = l })
}

// WithLogger says where to report what no caller can be told, such as the stack
// of a handler that panicked. The default is slog.Default(). Of warnings and errors with the same message it gets 8 within 10 s, and then one more,
// whose attribute "alike" says how many others it stands for.
func WithLogger(l *slog.Logger) JoinOption {
	return joinFunc(func(c *joinConfig) { c.logger = l })
}

// WithMaxMessage says how many bytes the Thrift message of a call or answer has at most, sent
// or received. Large messages that wait or are being received take at most as much memory for each sender, four times as much for the senders of one
// owner, and seven times as much for all. The default is [DefaultMaxMessage]. An exactly-once call and its answer need twice
// their size of room in the callee's ledger. A [Ref] to more than a node
// takes goes through memory.
func WithMaxMessage(bytes uint64) JoinOption {
	return joinFunc(func(c *joinConfig) { c.maxMessage = bytes })
}

type exportConfig struct {
	workers  int
	queue    int
	state    State
	kept     bool // WithState was given
	policies perMethod[Policy]
	failures perMethod[int]
	idl      string

	interceptors interceptors
}

func (c *exportConfig) stateful() bool { return c.kept }

// WithWorkers says how many of the service's handlers run at once; one that
// waits for a nested call does not count. The default is [DefaultWorkers]. A
// stateful service has one in any case.
func WithWorkers(n int) ExportOption {
	return exportFunc(func(c *exportConfig) { c.workers = n })
}

// WithQueue says how many calls wait for a worker, first come, first served; a
// call that finds the queue full is refused as [Overloaded]. 0 means none. The
// default is [DefaultQueue].
func WithQueue(n int) ExportOption {
	return exportFunc(func(c *exportConfig) { c.queue = n })
}

// WithState gives a service its state. Its calls run one at a time, also while one
// waits for a nested call, in the order of arrival;
// the next exactly-once call begins when the node's ledger has the answer to the one
// before. Export restores what the ledger has of the state. The
// default is a stateless service.
func WithState(s State) ExportOption {
	return exportFunc(func(c *exportConfig) { c.state, c.kept = s, true })
}

// WithMethodPolicy tells the rack what these methods of the service, or all others
// if none is named, ask for when a node fails. Callers that know the service's IDL
// go by it unless they are told otherwise; see [WithPolicy]. The default is
// [DefaultPolicy]. With [PolicyFateShare] or [PolicyTainted] callers of other deployments may
// call these methods in ways that share fates, too: whoever fails has the other's program
// started anew. Otherwise such calls of theirs fail as [PermissionDenied], unless an operator or
// the deployment has given the method such a policy.
func WithMethodPolicy(p Policy, methods ...string) ExportOption {
	return exportFunc(func(c *exportConfig) { c.policies.set(p, methods) })
}

// WithIDL tells the rack the Thrift definition of the service, of at most 128 KiB, for
// those who ask ([Node.Service], `bifrost services --idl`). Stubs of `bifrost gen` do so by themselves. With plain
// Thrift, embed the file that the service was generated from:
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
	plain    bool // WithPlainCalls was given

	interceptors interceptors
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
// the IDL's, and [DefaultPolicy] if that says nothing. Services of other deployments take
// [PolicyFateShare] and [PolicyTainted] only if their methods have such a policy; see
// [WithMethodPolicy].
func WithPolicy(p Policy, methods ...string) ClientOption {
	return clientFunc(func(c *clientConfig) { c.chosen.set(p, methods) })
}

// WithPlainCalls lets a client of a node that serves make calls outside of any handler, for what comes to the program from outside of the
// rack. They are those of a plain client: they are gone with the program, and each that has begun runs to its end. Without the option they
// fail as [BadRequest] unless their policy is [PolicyNone], since a handler that does not pass its context on would leave its execution. With
// it such a handler makes calls that a re-run repeats.
func WithPlainCalls() ClientOption {
	return clientFunc(func(c *clientConfig) { c.plain = true })
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
// and answer in that of the call; what is in neither is refused as [BadRequest]. The default
// is Binary.
func WithProtocol(p Protocol) ClientOption {
	return clientFunc(func(c *clientConfig) { c.protocol = p })
}

// Limits bound what a node keeps and does at a time (see [WithLimits]). What goes beyond
// waits, or is dropped and sent again by its caller; Stats counts that. A field that
// is 0 stands for its default.
type Limits struct {
	// Started bounds the handlers of a service that have begun, those that wait for
	// nested calls included. Default: 4096, some 64 MiB.
	Started int
	// Detached is how many one-ways, and calls given up that lend memory, are out at
	// once; a further one waits. Default: 1024.
	Detached int
	// Slots is how many callers' call slots are remembered, in which one call at a time is out, and NodeSlots how many of
	// one node, at some 200 bytes each. Defaults: 262,144 and 1,024, which is as many as a node may have.
	Slots, NodeSlots int
	// ReplyBytes is how many bytes of answers are kept to be sent again. Default: 64 MiB.
	ReplyBytes int
	// Memory are those of the node's memory client.
	Memory dsm.Limits
	// Lifetime is for how long nothing must have been heard of a slot until it is
	// forgotten. No packet may live as long in the network, and no caller be silent as
	// long while it waits. Default: 10 minutes.
	Lifetime time.Duration
}

// DefaultLimits are the defaults.
var DefaultLimits = Limits{
	Started: 4096, Detached: 1024, Slots: direct.DefaultLimits.Slots, NodeSlots: direct.DefaultLimits.NodeSlots,
	ReplyBytes: direct.DefaultLimits.ReplyBytes, Lifetime: direct.DefaultLimits.Lifetime,
}

// withDefaults fills in what is left out. What is negative is an error.
func (l Limits) withDefaults() (Limits, error) {
	d := DefaultLimits
	for _, f := range []struct {
		name      string
		value     *int
		otherwise int
	}{
		{"Started", &l.Started, d.Started}, {"Detached", &l.Detached, d.Detached}, {"Slots", &l.Slots, d.Slots},
		{"NodeSlots", &l.NodeSlots, d.NodeSlots}, {"ReplyBytes", &l.ReplyBytes, d.ReplyBytes},
	} {
		switch {
		case *f.value < 0:
			return l, fault.New(BadRequest, "join", "Limits.%s of %d: want 1 at least, or 0 for the default of %d", f.name, *f.value, f.otherwise)
		case *f.value == 0:
			*f.value = f.otherwise
		}
	}
	memory := dsmclient.Limits(l.Memory)
	if err := memory.Check(); err != nil {
		return l, coded("join", err)
	}
	switch {
	case l.Lifetime < 0:
		return l, fault.New(BadRequest, "join", "Limits.Lifetime of %v: want more than 0, or 0 for the default of %v", l.Lifetime, d.Lifetime)
	case l.Lifetime == 0:
		l.Lifetime = d.Lifetime
	}
	return l, nil
}

// callee are those of the calls that the node serves.
func (l *Limits) callee() direct.Limits {
	return direct.Limits{Slots: l.Slots, NodeSlots: l.NodeSlots, ReplyBytes: l.ReplyBytes, Lifetime: l.Lifetime}
}

// Defaults and limits of the runtime, in one place.
const (
	// DefaultPolicy is that of calls of which nobody has said another: not the
	// operator, the caller, nor the service's IDL.
	DefaultPolicy = PolicyRecover

	// DefaultFailures is after how many failures of its program an execution is given up
	// (WithMaxFailures).
	DefaultFailures = rpcpacket.DefaultFailures

	// DefaultMaxMessage is how many bytes the Thrift message of a call or answer
	// has at most: 1 GiB and what a struct around such a value takes.
	DefaultMaxMessage = 1<<30 + 64<<10

	// DefaultWorkers is how many handlers of an export run at once. Handlers
	// mostly wait for memory, so it is far more than there are CPUs; one that
	// waits for a nested call does not count.
	DefaultWorkers = 64

	// DefaultQueue is how many calls of an export wait for a worker. At 64
	// workers and a millisecond a call, the last in the queue waits 16 ms.
	DefaultQueue = 1024

	// MaxRef is how long a value that travels by reference may be, in bytes.
	MaxRef = form.MaxSize

	// MaxHeaders is how many headers a call or an answer has at most, and MaxHeaderBytes how
	// many bytes in all, 4 for each header included.
	MaxHeaders     = rpcpacket.MaxHeaders
	MaxHeaderBytes = rpcpacket.MaxHeaderBytes

	// withdrawPatience is how long Close waits for the rack to send calls elsewhere, and
	// for those that are held for the node: less than the 3 s after which a daemon that
	// stops kills its programs.
	withdrawPatience = 2 * time.Second

	// onewayLifetime is how long a one-way whose context has no deadline is
	// re-sent until its callee has it.
	onewayLifetime = 30 * time.Second

	// minMTU is the smallest MTU of IPv6 (RFC 8200), in bytes.
	minMTU = 1280

	// maxMessage is how many bytes an error's message has at most that travels.
	maxMessage = 4096

	// readBatch is how many datagrams a reader takes at once. Their buffers are
	// 64 KiB each.
	readBatch = 8
)

// policy is what becomes of a call that is made now: what an operator or a deployment
// has said of the method goes before what this side knows.
//
// A re-run has to make its calls as they were made before, else an exactly-once one
// might run once more as one that is not. So an execution that goes by another's word
// journals that, as an operation in front of the call; and one that is run again
// goes by its journal, and where that says nothing by this side's word alone. (A
// durable main, which cannot know whether it ran before, does so until its first
// checkpoint.)
func (c *client) policy(b *opSequence, name string) (Policy, error) {
	own := c.config.policy(name)
	if !b.journalled() {
		if p, said := explicit(c.node.session.Policies(), c.service, name); said {
			return p, nil
		}
		return own, nil
	}
	known := b.e.journal.knows(b.ahead(), trailer.Policy)
	p, said := explicit(c.node.session.Policies(), c.service, name)
	if !known && (b.e.mayBeAgain() || !said || p == own) {
		return own, nil
	}
	o, err := b.begin("call "+c.service+"."+name, trailer.Policy)
	if err != nil {
		return own, err
	}
	defer o.end()
	if o.known == nil {
		o.record(trailer.Policy, []byte{byte(p)})
		return p, nil
	}
	if d := o.known.Data; len(d) == 1 && Policy(d[0]) <= PolicyTainted {
		return Policy(d[0]), nil
	}
	return own, o.diverged("the journal names no policy")
}

// explicit is what a set says of a method; of one's form by reference what it says of
// the method.
func explicit(set *join.Policies, service, name string) (Policy, bool) {
	return set.Of(service, rpcpacket.PlainMethod(name))
}

// mayBeAgain reports whether the execution may have run before.
func (e *execution) mayBeAgain() bool {
	if e.main != nil {
		return !e.main.begun.Load()
	}
	return e.resumed
}

// ahead is the place of the next operation.
func (b *opSequence) ahead() position {
	b.e.mu.Lock()
	defer b.e.mu.Unlock()
	return position{b.number, b.index + 1}
}

// knows reports whether a former attempt has made an entry of a type at a place.
func (j *journal) knows(at position, t trailer.Type) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.past[at].Type == t
}

// NeverBegan reports whether a call that failed with err certainly did not begin to run,
// and will not. False says nothing: the call may have run.
func NeverBegan(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.NeverBegan
}

// Retry says when a call of policy none is made again that has failed as [Overloaded] or
// Unavailable. Calls of other policies need none: the rack sees to it that they run.
type Retry struct {
	// Attempts is how often a call is made at most, the first time included; less than 2
	// is no retry.
	Attempts int
	// Backoff is the pause before the second attempt; it doubles with each one, up to
	// MaxBackoff. The actual pause is drawn at random from the upper half. Defaults: 5 ms
	// and 1 s.
	Backoff, MaxBackoff time.Duration
	// Idempotent says that it does no harm to run the call more than once. Else it is made
	// again only if it never began.
	Idempotent bool
}

// Defaults of a [Retry].
const (
	defaultBackoff    = 5 * time.Millisecond
	defaultMaxBackoff = time.Second
)

// WithRetry has calls of policy none to these methods, or to all others if none is named,
// made again when they fail. All attempts together end with the call's context. In an
// exactly-once execution each attempt is an operation of its own. The default is none.
func WithRetry(r Retry, methods ...string) ClientOption {
	return clientFunc(func(c *clientConfig) { c.retries.set(r, methods) })
}

// perMethod is an option's value for methods. The zero perMethod has none.
type perMethod[T any] struct {
	general *T // for the methods that have none of their own
	methods map[string]T
}

func (s *perMethod[T]) set(v T, methods []string) {
	if len(methods) == 0 {
		s.general = &v
	}
	for _, m := range methods {
		if s.methods == nil {
			s.methods = make(map[string]T)
		}
		s.methods[m] = v
	}
}

// only refuses values for methods that a service does not have.
func (s *perMethod[T]) only(what string, has map[string]thrift.TProcessorFunction) error {
	for name := range s.methods {
		if has[name] == nil {
			return fmt.Errorf("a %s is given for method %s, which the service does not have", what, name)
		}
	}
	return nil
}

// of is the value for a method, false if there is none.
func (s *perMethod[T]) of(method string) (v T, ok bool) {
	if v, ok = s.methods[method]; ok || s.general == nil {
		return v, ok
	}
	return *s.general, true
}

// attempts makes a call until it succeeds, or must not be made again.
func (c *client) attempts(ctx context.Context, m *method, codec *codec, args, result thrift.TStruct) error {
	err := c.call(ctx, m, codec, args, result)
	if err == nil || m.policy != PolicyNone {
		return err
	}
	r, _ := c.config.retries.of(m.name)
	pauses := pace.Pauses{First: cmp.Or(max(r.Backoff, 0), defaultBackoff), Most: cmp.Or(max(r.MaxBackoff, 0), defaultMaxBackoff)}
	for n := 1; n < r.Attempts && r.again(err); n++ {
		pause := pauses.After(n - 1)
		if !wait(ctx, pause/2+rand.N(pause/2+1)) {
			break
		}
		codec.reset()
		if err = c.call(ctx, m, codec, args, result); err == nil {
			break
		}
	}
	return err
}

// again reports whether a call that failed may be made again.
func (r *Retry) again(err error) bool {
	switch fault.CodeOf(err) {
	case Overloaded, Unavailable:
		return r.Idempotent || NeverBegan(err)
	}
	return false
}

// wait reports whether d has passed before the context's end.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
