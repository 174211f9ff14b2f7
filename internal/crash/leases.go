package crash

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/crash/gen-go/actor"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
)

// Beside some programs values are shared by standing leases (Setting.Leases), all at once. A plain client, the lender, shares every other one with a node of a
// service, whose executions read it, and pass it on to the next service:
//
//	lender ── Share ▶   ── lease ──▶ execution: Borrow, Load ── pointer ──▶ execution of the next service: Read
//	lender ── Unshare ▶ ── lease ──▶ execution: nobody reads any more. The lender overwrites and frees the value.
//
// The others are shared with the lender by the program of a service without state, for some time. Everything crashes as usual. The oracle asks:
//
//   - What is read by a lease, or by a call that passes it on: is it what was shared?
//   - Does anybody read but the lessee and whom it has passed the value to, or after the lease has ended?
//   - Is a read refused before the lease has ended?
//   - Can the owner write or free what is shared?
//   - Is a call refused what it was passed, before it is done?
//
// What is left of leases in the end (records, slots, regions) the oracle finds as anything else that is left.

const (
	lenderName  = "client-lender"
	leasePrefix = "lease " // of the script of a call that is about a lease
	sharedFor   = 300 * time.Millisecond
	passedFor   = 20 * time.Millisecond
)

// share is a value that is shared, or was. The fields after it are under shares.mu.
type share struct {
	contents []byte
	owner    string // the program

	lessee netip.Addr
	ends   int64 // when its owner began to take it back, never before that
	ended  int64 // when it had, never before that
}

// shares are those of a run.
type shares struct {
	mu        sync.Mutex
	all       []*share     // the list does not change
	exporters []netip.Addr // by service: the node that has exported it last
	reads     int          // that have brought something
	passed    int          // of what was passed on
	refused   int          // that were refused
}

// drawLeases draws how many values are shared beside a seed's program. It has dice of its own: all else stays. A case with leases takes
// a third longer than one without.
func (s *Setting) drawLeases(seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0x1ea5e5))
	if r.IntN(16) == 0 && s.Calls == 0 && s.Throng == 0 {
		s.Leases = 1 + r.IntN(4)
	}
}

// aboutLease is what a call says about a lease: an execution is to read by it, to read what is passed on, or a program is to share.
type aboutLease struct {
	Share int           `json:"share"`
	Lease bifrost.Lease `json:"lease"`
	Pass  bool          `json:"pass,omitempty"` // the region lent is the value
	With  string        `json:"with,omitempty"` // the node that the service's program shares with
}

func (l *aboutLease) script() []byte {
	b, err := json.Marshal(l)
	if err != nil {
		panic(err) // nothing in it can fail
	}
	return append([]byte(leasePrefix), b...)
}

// lend is the program of the lender.
func (r *Run) lend(ctx context.Context, j join.Joiner, s control.Start) error {
	n, self, err := r.join(ctx, lenderName, j, s)
	if err == nil {
		errs := make([]error, len(r.shares.all))
		var wg sync.WaitGroup
		for k := range r.shares.all {
			wg.Go(func() {
				<-time.After(time.Duration(k)) // an instant of its own, as branches have
				if name := r.shares.all[k].owner; name == lenderName {
					errs[k] = r.lendOne(ctx, n, k)
				} else {
					errs[k] = r.borrowOne(ctx, n, self, k)
				}
			})
		}
		wg.Wait()
		err = errors.Join(errors.Join(errs...), leave(ctx, n))
	}
	if err != nil && !r.crash.wasHit(lenderName) && !r.forLoss(err) {
		r.ledger.complain("the lender: %v", err)
	}
	return nil // for the rack, it has ended
}

// newShares are the values that are to be shared.
func (r *Run) newShares() {
	l := &r.shares
	l.exporters = make([]netip.Addr, len(r.p.Services))
	for k := range r.opt.Setting.Leases {
		s := &share{contents: make([]byte, []int{64, 5000, 20_000}[k%3]), owner: lenderName, ends: never, ended: never}
		fill(s.contents, mix(r.opt.Seed, uint64(k))) //nolint:gosec // few
		if service := k % len(r.p.Services); k%2 == 1 && !r.p.Services[service].Stateful {
			s.owner = ServiceName(service)
		}
		l.all = append(l.all, s)
	}
}

// exports notes that a node exports a service.
func (l *shares) exports(service int, node netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.exporters[service] = node
}

// exporter is the node that has exported a service last.
func (l *shares) exporter(service int) netip.Addr {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.exporters[service]
}

// sharedWith notes whom a value is shared with.
func (l *shares) sharedWith(k int, node netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all[k].lessee = node
}

// ending notes that the owner takes a lease back, ended that it has it.
func (l *shares) ending(k int, now int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all[k].ends = now
}

func (l *shares) ended(k int, now int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all[k].ended = now
}

// tolerable reports whether an error of what concerns a lease is one that a crash explains: calls and memory are judged elsewhere.
func (r *Run) tolerable(err error) bool {
	return err == nil || r.crash.hits() > 0 || r.forLoss(err)
}

// lendOne shares a value with a service's node.
func (r *Run) lendOne(ctx context.Context, n *rpc.Node, k int) error {
	l, service := &r.shares, k%len(r.p.Services)
	s, lessee := l.all[k], l.exporter(service)
	ref := rpc.RefOf(bytes.Clone(s.contents))
	l.sharedWith(k, lessee)
	lease, err := ref.Share(ctx, n, lessee)
	if err != nil {
		if r.tolerable(err) {
			_ = ref.Free(ctx) // it may stand in memory already
			return nil
		}
		return fmt.Errorf("share %d: %w", k, err)
	}
	p := dsm.Pointer(lease.Address)
	reads := func() error { return r.toldTo(ctx, n, service, &aboutLease{Share: k, Lease: *lease}) }
	err = reads()
	r.mustNot(n, k, "writes", func() error { _, err := n.Memory().Write(ctx, p, []byte{0}); return err })
	r.mustNot(n, k, "frees", func() error { return ref.Free(ctx) })
	beside := make(chan error, 1)
	go func() { beside <- reads() }()
	if k%4 < 2 { // the value is passed on when its lease is to end
		<-time.After(passedFor / 2) // virtual
	}
	l.ending(k, r.ledger.now())
	e := ref.Unshare(ctx, lease)
	if e != nil {
		err = errors.Join(err, fmt.Errorf("unshare %d: %w", k, e), <-beside)
		return r.unlessTolerable(err)
	}
	l.ended(k, r.ledger.now())
	_, e = n.Memory().Write(ctx, p, make([]byte, len(s.contents)))
	err = errors.Join(err, <-beside, e, reads(), ref.Free(ctx))
	return r.unlessTolerable(err)
}

func (r *Run) unlessTolerable(err error) error {
	if r.tolerable(err) {
		return nil
	}
	return err
}

// mustNot does what the switch or the node forbids the owner while the value is shared.
func (r *Run) mustNot(n *rpc.Node, k int, what string, f func() error) {
	if f() == nil {
		r.ledger.complain("node %s %s what it shares: value %d", n.Name(), what, k)
	}
}

// toldTo calls a service about a lease.
func (r *Run) toldTo(ctx context.Context, n *rpc.Node, service int, about *aboutLease) error {
	_, err := actor.NewActorClient(n.Client(ServiceName(service), rpc.WithPolicy(r.leasePolicy(about.Share)))).Act(ctx, about.script(), 0, references(nil))
	return err
}

// leasePolicy is that of the calls about a value.
func (r *Run) leasePolicy(k int) rpc.Policy {
	if k%4 >= 2 {
		return rpc.PolicyNone
	}
	return rpc.PolicyRecover
}

// borrowOne reads a value that a service's program shares, until it does no longer.
func (r *Run) borrowOne(ctx context.Context, n *rpc.Node, self join.Identity, k int) error {
	service := k % len(r.p.Services)
	r.shares.sharedWith(k, self.Address)
	out, err := actor.NewActorClient(n.Client(ServiceName(service), rpc.WithPolicy(rpc.PolicyNone))).Act(ctx, (&aboutLease{Share: k, With: self.Address.String()}).script(), 0, references(nil))
	if err != nil {
		return r.unlessTolerable(err)
	}
	var lease bifrost.Lease
	if err := json.Unmarshal(out.Padding, &lease); err != nil {
		return err
	}
	for range 4 {
		if err := r.loads(ctx, n, self, k, &lease, func() {}); err != nil {
			return nil // it was judged
		}
		<-time.After(sharedFor / 2) // virtual
	}
	return nil
}

// loads reads a value by its lease, does something, and lets go of the value.
func (r *Run) loads(ctx context.Context, n *rpc.Node, self join.Identity, k int, lease *bifrost.Lease, then func()) error {
	ref := rpc.RefOf[[]byte](nil)
	if err := ref.Borrow(n, lease); err != nil {
		return err
	}
	from := r.ledger.now()
	got, err := ref.Load(ctx)
	r.judgeRead(k, self.Address, from, got, err, false)
	then()
	return errors.Join(err, ref.Free(ctx))
}

// aboutLease is what an execution, or a handler of policy none, does about a lease.
func (a *performer) aboutLease(ctx context.Context, script []byte, lent []*bifrost.GlobalPointer) (*actor.Outcome, error) {
	var about aboutLease
	if err := json.Unmarshal(script, &about); err != nil {
		return nil, err
	}
	answer, k := &actor.Outcome{Marks: []*actor.Mark{}}, about.Share
	switch {
	case about.With != "":
		lease, err := a.shares(k, about.With)
		if err != nil {
			return nil, err
		}
		answer.Padding, err = json.Marshal(lease)
		return answer, err
	case about.Pass:
		p, err := rpc.PointerOf(lent[0])
		if err != nil {
			return nil, err
		}
		for range 2 { // meanwhile its lease does not end
			b, from := make([]byte, len(a.run.shares.all[k].contents)), a.run.ledger.now()
			if _, err = rpc.Memory(ctx).Read(ctx, p, b); ctx.Err() == nil {
				a.run.judgeRead(k, a.self.Address, from, b, err, true)
			}
			<-time.After(passedFor) // virtual
		}
		return answer, nil
	}
	_ = a.run.loads(ctx, a.node, a.self, k, &about.Lease, func() { a.passesOn(ctx, &about) })
	return answer, ctx.Err()
}

// passesOn passes a borrowed value to the next service, whether it could be read or not: a re-run does the same.
func (a *performer) passesOn(ctx context.Context, about *aboutLease) {
	next, k := a.service+1, about.Share
	if next == len(a.run.p.Services) {
		return
	}
	to := actor.NewActorClient(a.node.Client(ServiceName(next), rpc.WithPolicy(a.run.leasePolicy(k))))
	_, _ = to.Act(ctx, (&aboutLease{Share: k, Pass: true}).script(), 0, references([]dsm.Pointer{dsm.Pointer(about.Lease.Address)}))
}

// shares has the program share a value for some time, and take it back and free it then.
func (a *performer) shares(k int, with string) (*bifrost.Lease, error) {
	lessee, err := netip.ParseAddr(with)
	if err != nil {
		return nil, err
	}
	s, l, ref := a.run.shares.all[k], &a.run.shares, rpc.RefOf(bytes.Clone(a.run.shares.all[k].contents))
	lease, err := ref.Share(a.program, a.node, lessee)
	if err != nil {
		_ = ref.Free(a.program)
		return nil, err
	}
	a.run.hands.wg.Go(func() {
		select {
		case <-time.After(sharedFor): // virtual
		case <-a.program.Done():
		}
		l.ending(k, a.run.ledger.now())
		if err := ref.Unshare(a.program); err != nil {
			return // its node has ended, and with it the lease
		}
		l.ended(k, a.run.ledger.now())
		_, _ = a.node.Memory().Write(a.program, dsm.Pointer(lease.Address), make([]byte, len(s.contents)))
		_ = ref.Free(a.program)
	})
	return lease, nil
}

// judgeRead looks at what somebody has read of a shared value, or why not. Passed says that it was passed on.
func (r *Run) judgeRead(k int, reader netip.Addr, from int64, got []byte, err error, passed bool) {
	l, now := &r.shares, r.ledger.now()
	hit, moved := r.crash.wasHit(l.all[k].owner), r.crash.happened("program drain") || r.crash.happened("program redeploy") || r.crash.happened("blade drain")
	l.mu.Lock()
	s := *l.all[k]
	l.reads += btoi(err == nil && !passed)
	l.passed += btoi(err == nil && passed)
	l.refused += btoi(rpc.CodeOf(err) == rpc.PermissionDenied)
	l.mu.Unlock()
	select {
	case <-r.void:
		return
	default:
	}
	switch {
	case err == nil && !bytes.Equal(got, s.contents):
		r.ledger.complain("value %d: node %s reads something else than was shared", k, reader)
	case err == nil && !passed && reader != s.lessee:
		r.ledger.complain("value %d: node %s reads what is shared with node %s", k, reader, s.lessee)
	case err == nil && from > s.ended:
		r.ledger.complain("value %d: node %s reads at %s, and the lease has ended at %s", k, reader, time.Duration(from), time.Duration(s.ended))
	case rpc.CodeOf(err) != rpc.PermissionDenied:
	case passed:
		r.ledger.complain("value %d: node %s may not read what it was passed: %v", k, reader, err)
	case reader == s.lessee && s.ends > now && !hit && (!moved || s.owner == lenderName):
		r.ledger.complain("value %d: node %s may not read, and the lease has not ended: %v", k, reader, err)
	}
}
