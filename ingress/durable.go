package ingress

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/ingress/gen-go/durable"
	"github.com/bifrost-rack/bifrost/ingress/keys"
	"github.com/bifrost-rack/bifrost/internal/duration"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
)

// The names of the ingress' own services. A rack has one node with the latter, since it has state, and so one ingress.
const (
	callerService = "Bifrost.Ingress"
	keysService   = "Bifrost.IngressKeys"
)

// keeper is the service Keys: the table, and who waits for what becomes of a key.
type keeper struct {
	own func(context.Context) error // refuses callers other than the ingress itself

	mu      sync.Mutex
	table   *keys.Table
	waiting map[string]chan struct{} // closed when the key's outcome is known
}

var (
	_ durable.Keys         = (*keeper)(nil)
	_ rpc.IncrementalState = (*keeper)(nil)
)

func newKeeper(l keys.Limits, own func(context.Context) error) *keeper {
	return &keeper{own: own, table: keys.New(l), waiting: map[string]chan struct{}{}}
}

// Claim implements the service.
func (k *keeper) Claim(ctx context.Context, e *durable.Entry) (*durable.Answer, error) {
	if err := k.own(ctx); err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.table.Claim(e), nil
}

// Settle implements the service. By now the ledger has all that the outcome comes from, so a re-run of the call's execution comes to the same:
// whoever waits may be told before the table is in the ledger.
func (k *keeper) Settle(ctx context.Context, e *durable.Entry) error {
	if err := k.own(ctx); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.table.Settle(e)
	k.tell(e.Key)
	return nil
}

// tell tells who waits for a key's outcome. The caller holds the lock.
func (k *keeper) tell(key []byte) {
	if w := k.waiting[string(key)]; w != nil {
		close(w)
		delete(k.waiting, string(key))
	}
}

// look returns what is known of a key, nil if nothing is, and what is closed when its call is over.
func (k *keeper) look(key []byte) (e *durable.Entry, over <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e = k.table.Look(key, time.Now().UnixMilli())
	if e == nil {
		k.tell(key) // its time is over
	}
	if e == nil || e.Outcome != nil {
		return e, nil
	}
	w := k.waiting[string(key)]
	if w == nil {
		w = make(chan struct{})
		k.waiting[string(key)] = w
	}
	return e, w
}

// figures are how many keys there are, and how many bytes they take.
func (k *keeper) figures() (entries, bytes int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.table.Len(), k.table.Bytes()
}

// Snapshot, Restore, Delta and Apply implement rpc.IncrementalState.
func (k *keeper) Snapshot() ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.table.Snapshot()
}

// Restore is part of rpc.State.
func (k *keeper) Restore(b []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.table.Restore(b)
}

// Delta is part of rpc.IncrementalState.
func (k *keeper) Delta() ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.table.Delta()
}

// Apply is part of rpc.IncrementalState.
func (k *keeper) Apply(b []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.table.Apply(b)
}

// caller is the service Caller.
type caller struct {
	s *Server

	mu      sync.Mutex
	flights map[string]*flight // by the nonces of their requests
}

var _ durable.Caller = (*caller)(nil)

// Call implements the service: it is what a re-run repeats.
func (c *caller) Call(ctx context.Context, r *durable.Request) (*durable.Answer, error) {
	if err := c.s.ownCall(ctx); err != nil {
		return nil, err
	}
	var body *bifrost.Reference
	if r.IsSetBody() {
		b, err := durable.NewCallerClient(c.s.node.Client(callerService)).Receive(ctx, r.Entry.Nonce)
		if err != nil {
			return nil, err
		}
		body, r.Entry.Hash = b.Content, withBody(r.Entry.Hash, b.Hash)
	}
	if len(r.Entry.Key) == 0 {
		ctx, cancel := context.WithTimeout(ctx, duration.Times(r.Timeout, time.Millisecond))
		defer cancel()
		outcome, _ := c.s.perform(ctx, r, body)
		return &durable.Answer{Verdict: durable.Verdict_FRESH, Outcome: outcome}, nil
	}
	table := durable.NewKeysClient(c.s.node.Client(keysService))
	a, err := table.Claim(ctx, r.Entry)
	if err != nil || a.Verdict != durable.Verdict_FRESH {
		return a, err
	}
	f := c.flight(r.Entry.Nonce)
	close(f.claimed)
	outcome, begun := c.s.perform(ctx, r, body)
	settled := *r.Entry
	if settled.Outcome = outcome; !begun && !r.Promised {
		settled.Outcome = nil
	}
	// An operator who cancels the call cancels what the client asked for, not that the client is told.
	if err := table.Settle(context.WithoutCancel(ctx), &settled); err != nil {
		return nil, err
	}
	a.Outcome = outcome
	f.finish(a, nil) // the outcome is in the ledger: the client need not wait for the end of the execution
	return a, nil
}

// Receive implements the service.
func (c *caller) Receive(ctx context.Context, nonce []byte) (*durable.Body, error) {
	if err := c.s.ownCall(ctx); err != nil {
		return nil, err
	}
	return c.flight(nonce).in.store(ctx, c.s)
}

// flight is a call of the service that this process has made.
type flight struct {
	in      *inflow       // the request's body, if it goes into memory
	out     *outflow      // the answer, if it leaves as it is read
	claimed chan struct{} // closed when the call has its key. By then the call is in the ledger
	once    sync.Once
	done    chan struct{}   // closed when there is an answer, or an error
	answer  *durable.Answer // of which these are valid from then on
	err     error
}

// finish tells what the call has come to.
func (f *flight) finish(a *durable.Answer, err error) {
	f.once.Do(func() {
		f.answer, f.err = a, err
		close(f.done)
	})
}

// flight is that of a request. One of a former incarnation has nobody who waits.
func (c *caller) flight(nonce []byte) *flight {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.flights[string(nonce)]; f != nil {
		return f
	}
	return &flight{in: &inflow{over: make(chan struct{})}, out: &outflow{}, claimed: make(chan struct{}), done: make(chan struct{})}
}

// fly makes a call of the service, which goes on whatever becomes of the HTTP request. Over is called at its end.
func (c *caller) fly(ctx context.Context, r *durable.Request, a *attempt, over func()) *flight {
	f := &flight{in: a.in, out: a.out, claimed: make(chan struct{}), done: make(chan struct{})}
	c.mu.Lock()
	c.flights[string(r.Entry.Nonce)] = f
	c.mu.Unlock()
	go func() {
		defer over()
		f.finish(durable.NewCallerClient(c.s.node.Client(callerService, rpc.WithPlainCalls())).Call(context.WithoutCancel(ctx), r))
		c.mu.Lock()
		delete(c.flights, string(r.Entry.Nonce))
		c.mu.Unlock()
	}()
	return f
}

// arguments are a struct of arguments: most of it is in Thrift's binary protocol already.
type arguments struct {
	plain []byte
	body  *bifrost.Reference // goes in as the field of that number, unless it is nil
	id    int16
}

// Write implements thrift.TStruct. Clients of a node write the binary protocol unless they are told otherwise.
func (a *arguments) Write(ctx context.Context, p thrift.TProtocol) error {
	if a.body == nil {
		_, err := p.Transport().Write(a.plain)
		return err
	}
	_, err := p.Transport().Write(a.plain[:len(a.plain)-1]) // the last byte says that no field follows
	return errors.Join(err, p.WriteFieldBegin(ctx, "", thrift.STRUCT, a.id), a.body.Write(ctx, p), p.WriteFieldEnd(ctx), p.WriteFieldStop(ctx))
}

// Read implements thrift.TStruct.
func (a *arguments) Read(context.Context, thrift.TProtocol) error {
	return thrift.NewTProtocolException(errWriteOnly)
}
