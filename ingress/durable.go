package ingress

import (
	"bytes"
	"context"
	"sync"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/ingress/gen-go/durable"
	"github.com/bifrost-rack/bifrost/ingress/keys"
	"github.com/bifrost-rack/bifrost/rpc"
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
	// ahead are entries whose outcome is in the ledger, and is on its way to the table. They are not part of the state.
	ahead map[string]*durable.Entry
}

var (
	_ durable.Keys         = (*keeper)(nil)
	_ rpc.IncrementalState = (*keeper)(nil)
)

func newKeeper(l keys.Limits, own func(context.Context) error) *keeper {
	return &keeper{own: own, table: keys.New(l), waiting: map[string]chan struct{}{}, ahead: map[string]*durable.Entry{}}
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

// Settle implements the service. The one-way leaves with the commit of the call's execution, so what it says cannot change any more:
// whoever waits may be told before the table is in the ledger.
func (k *keeper) Settle(ctx context.Context, e *durable.Entry) error {
	if err := k.own(ctx); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.table.Settle(e)
	delete(k.ahead, string(e.Key))
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

// foresee takes an outcome that the caller's execution has answered with: the ledger has it, and the one-way that settles the entry. So
// whoever has got the answer finds it with the key at once.
func (k *keeper) foresee(e *durable.Entry, o *durable.Outcome) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.table.Look(e.Key, e.Accepted)
	if now == nil || now.Outcome != nil || !bytes.Equal(now.Nonce, e.Nonce) {
		return // it is settled
	}
	done := *now
	done.Outcome = o
	k.ahead[string(e.Key)] = &done
	k.tell(e.Key)
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
	if done := k.ahead[string(key)]; done != nil {
		return done, nil
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

	mu sync.Mutex
	// claimed are those who wait until a call has its key, by the nonces of their requests.
	claimed map[string]chan<- struct{}
}

var _ durable.Caller = (*caller)(nil)

// Call implements the service: it is what a re-run repeats.
func (c *caller) Call(ctx context.Context, r *durable.Request) (*durable.Answer, error) {
	if err := c.s.ownCall(ctx); err != nil {
		return nil, err
	}
	table := durable.NewKeysClient(c.s.node.Client(keysService))
	a, err := table.Claim(ctx, r.Entry)
	if err != nil || a.Verdict != durable.Verdict_FRESH {
		return a, err
	}
	c.tell(r.Entry.Nonce)
	outcome, begun := c.s.perform(ctx, r)
	settled := *r.Entry
	if settled.Outcome = outcome; !begun && !r.Promised {
		settled.Outcome = nil
	}
	// An operator who cancels the call cancels what the client asked for, not that the client is told.
	if err := table.Settle(context.WithoutCancel(ctx), &settled); err != nil {
		return nil, err
	}
	return &durable.Answer{Verdict: durable.Verdict_FRESH, Outcome: outcome, Kept: settled.Outcome != nil}, nil
}

// tell tells who waits that a call has its key. By then the call is in the ledger.
func (c *caller) tell(nonce []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.claimed[string(nonce)]; w != nil {
		close(w)
		delete(c.claimed, string(nonce))
	}
}

// flight is a durable call that this process has made.
type flight struct {
	claimed <-chan struct{} // closed when the call has its key
	done    <-chan struct{} // closed when there is an answer, or an error
	answer  *durable.Answer // of which these are valid from then on
	err     error
}

// fly makes a durable call, which goes on whatever becomes of the HTTP request. Over is called at its end.
func (c *caller) fly(ctx context.Context, r *durable.Request, over func()) *flight {
	claimed, done := make(chan struct{}), make(chan struct{})
	f := &flight{claimed: claimed, done: done}
	c.mu.Lock()
	c.claimed[string(r.Entry.Nonce)] = claimed
	c.mu.Unlock()
	go func() {
		defer over()
		defer close(done)
		a, err := durable.NewCallerClient(c.s.node.Client(callerService, rpc.WithPlainCalls())).Call(context.WithoutCancel(ctx), r)
		if f.answer, f.err = a, err; err == nil && a.Verdict == durable.Verdict_FRESH && a.Kept {
			c.s.keeper.foresee(r.Entry, a.Outcome)
		}
		c.mu.Lock()
		delete(c.claimed, string(r.Entry.Nonce))
		c.mu.Unlock()
	}()
	return f
}

// arguments are a struct of arguments that is in Thrift's binary protocol already.
type arguments []byte

// Write implements thrift.TStruct. Clients of a node write the binary protocol unless they are told otherwise.
func (a arguments) Write(_ context.Context, p thrift.TProtocol) error {
	_, err := p.Transport().Write(a)
	return err
}

// Read implements thrift.TStruct.
func (a arguments) Read(context.Context, thrift.TProtocol) error {
	return thrift.NewTProtocolException(errWriteOnly)
}
