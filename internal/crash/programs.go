package crash

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/crash/gen-go/actor"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/rpc"
)

// joiner notes where a program runs, and as what.
type joiner struct {
	join.Joiner
	run  *Run
	name string
	at   control.Start
	as   *join.Identity // that it gets
}

// Join implements join.Joiner.
func (j joiner) Join(ctx context.Context, name string) (join.Session, error) {
	s, err := j.Joiner.Join(ctx, name)
	if err == nil {
		j.run.judgeIdentity(begun{s.Node().Address, s.Node().Incarnation, j.as}, s.Node().Blade)
		j.run.mu.Lock()
		defer j.run.mu.Unlock()
		*j.as = s.Node()
		j.run.places[j.name] = place{s.Node().Blade, j.at.Name}
		j.run.crash.back(j.name)
	}
	return s, err
}

// where tells where a program runs, or has run last.
func (r *Run) where(name string) (place, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, ok := r.places[name]
	return p, ok
}

// on are the programs that run on a blade, or have run there last, or may be about
// to join there.
func (r *Run) on(blade string) (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, c := range r.p.Clients {
		if !c.Main && blade == "c1" {
			names = append(names, r.p.clientName(i))
		}
	}
	for name, p := range r.places {
		if p.blade == blade {
			names = append(names, name)
		}
	}
	return names
}

// join makes a program a node, and tells as what. Each program has an instant of
// its own to do so at: which of a blade's programs comes first would be up to the scheduler.
func (r *Run) join(ctx context.Context, name string, j join.Joiner, s control.Start) (n *rpc.Node, self join.Identity, err error) {
	if s.Address.IsValid() {
		r.judgeIdentity(begun{s.Address, s.After + 1, &self}, "") // or a later one: the rack numbers it when it joins
	}
	<-time.After(time.Duration(1 + slices.Index(r.p.Victims(), name)))
	n, err = rpc.Join(join.NewContext(ctx, joiner{j, r, name, s, &self}), rpc.WithName(name), rpc.WithLogger(r.opt.Log), rpc.WithLimits(r.opt.Setting.nodeLimits(len(r.p.Clients))))
	r.noteLedger(name, self)
	return n, self, err
}

// leave ends a node in an orderly way, unless its program was killed.
func leave(ctx context.Context, n *rpc.Node) error {
	if errors.Is(context.Cause(ctx), simrack.ErrKilled) {
		return nil // like a process: not another word
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return n.Close(ctx)
}

// serve is the program of a service.
func (r *Run) serve(ctx context.Context, service int, j join.Joiner, s control.Start) error {
	name := ServiceName(service)
	n, self, err := r.join(ctx, name, j, s)
	if err != nil {
		return err
	}
	defer r.crash.wentDirect(n)
	for next := service; next == service || next < len(r.p.Services) && r.p.Services[next].Beside; next++ {
		if err := r.export(ctx, next, n, self); err != nil {
			return err
		}
	}
	if !r.byHand(service) { // the rack ends a program whose node has ended
		<-ctx.Done()
		return leave(ctx, n)
	}
	select {
	case <-ctx.Done():
		return leave(ctx, n)
	case <-n.Done():
		return nil // somebody starts it again
	}
}

// export exports a service.
func (r *Run) export(ctx context.Context, service int, n *rpc.Node, self join.Identity) error {
	name := ServiceName(service)
	a := &performer{run: r, service: service, node: n, self: self, program: ctx}
	r.shares.exports(service, self.Address)
	opts := []rpc.ExportOption{rpc.WithMethodPolicy(rpc.PolicyTainted)} // mains and the other services may belong to other deployments
	if kind := r.p.Services[service]; kind.Stateful {
		a.books = &books{large: 4 * r.opt.Setting.Large}
		if kind.Deltas {
			opts = append(opts, rpc.WithState(&deltaBooks{books: a.books}))
		} else {
			opts = append(opts, rpc.WithState(a.books))
		}
	}
	err := n.Export(ctx, name, actor.NewActorProcessor(a), opts...)
	if err == nil {
		r.once(r.up[name])
	}
	return err
}

// once closes a channel that may be closed already.
func (r *Run) once(c chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-c:
	default:
		close(c)
	}
}

// plain is the program of a plain client. It runs once.
func (r *Run) plain(ctx context.Context, i int, j join.Joiner, s control.Start) error {
	defer r.once(r.over[i])
	r.sitIdle(ctx, i)
	name := r.p.clientName(i)
	n, _, err := r.join(ctx, name, j, s)
	if err == nil {
		err = r.calls(ctx, i, n)
		err = errors.Join(err, leave(ctx, n))
	}
	if err != nil && !r.crash.wasHit(name) && !r.forLoss(err) {
		r.ledger.complain("%s: %v", name, err)
	}
	return nil // for the rack, it has ended
}

// sitIdle lets the last client wait before it begins: see Setting.Idle.
func (r *Run) sitIdle(ctx context.Context, i int) {
	if i == len(r.p.Clients)-1 {
		select {
		case <-time.After(time.Until(r.began.Add(r.opt.Setting.Idle))):
		case <-ctx.Done():
		}
	}
}

// calls is what a plain client does.
func (r *Run) calls(ctx context.Context, i int, n *rpc.Node) error {
	script := &r.p.Clients[i].Script
	w := &rackWorld{run: r, ctx: ctx, node: n, memory: func(context.Context) *dsm.Client { return n.Memory() }, by: r.ledger.begin(-1-i, 0, 1)}
	out, err := newMachine(script, 0, nil).run(ctx, w, script)
	if err == nil {
		r.ledger.finish(i, out)
	}
	return err
}

// errHopeless ends the program of a durable main that can never come to its end, since something was lost: the rack
// starts it again and again.
var errHopeless = errors.New("it has failed for good")

// durable is the program of a durable main.
func (r *Run) durable(ctx context.Context, i int, j join.Joiner, s control.Start) error {
	r.sitIdle(ctx, i)
	name := r.p.clientName(i)
	select {
	case <-r.over[i]:
		if !r.ended(name) {
			return errHopeless
		}
	default:
	}
	n, self, err := r.join(ctx, name, j, s)
	if err != nil {
		return err
	}
	defer r.crash.wentDirect(n)
	script := &r.p.Clients[i].Script
	gaveUp := false
	err = rpc.Main(ctx, n, name, func(ctx context.Context, state []byte) error {
		r.mu.Lock()
		r.begun[name] = true
		r.mu.Unlock()
		r.judgeFormer(name, self)
		m := newMachine(script, 0, nil)
		if state != nil {
			if err := json.Unmarshal(state, m); err != nil {
				return err
			}
		}
		w := &rackWorld{run: r, ctx: ctx, node: n, memory: rpc.Memory, by: r.ledger.begin(-1-i, m.Next, self.Incarnation), durable: true}
		over := r.ledger.stints(ctx, w.by)
		out, err := m.run(ctx, w, script)
		over(err)
		r.ledger.failed(w.by, err)
		switch {
		case err == nil:
			r.ledger.finish(i, out)
		case ctx.Err() == nil && r.forLoss(err): // no run will ever come further
			gaveUp = true
			return nil
		}
		return err
	})
	if gaveUp && rpc.CodeOf(err) == rpc.Nondeterminism { // it has not done all that it did before: it cannot end in this way
		r.once(r.over[i])
		return err
	}
	if r.mainLost(name, err) {
		r.once(r.over[i])
		return err
	}
	if err != nil {
		r.mainFailed(name, err)
		return err
	}
	err = leave(ctx, n)
	r.once(r.over[i])
	return err
}

// errTwin ends the second run of a durable main, which leaves everything to the first.
var errTwin = errors.New("a second run")

// twin starts a durable main a second time, on another blade. It is refused, or goes on in
// place of a first one that has failed; then it ends without having done anything.
func (r *Run) twin(name string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	program := fmt.Sprint(twinName(name), len(r.twins))
	twin, err := r.rack.Run("c1", program, func(ctx context.Context, j join.Joiner, _ control.Start) error {
		n, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName(twinName(name)), rpc.WithLogger(r.opt.Log), rpc.WithLimits(r.opt.Setting.nodeLimits(len(r.p.Clients))))
		if err != nil {
			return nil // its blade is not there
		}
		r.mu.Lock()
		alone := r.crash.hits() == 1 && r.begun[name] // else this may be the first run
		r.mu.Unlock()
		err = rpc.Main(ctx, n, name, func(context.Context, []byte) error {
			if alone && r.crash.hits() == 1 && !r.ended(name) {
				r.ledger.complain("%s runs a second time while it runs", name)
			}
			return errTwin
		})
		switch rpc.CodeOf(err) {
		case rpc.PermissionDenied, rpc.BadRequest, rpc.Unavailable, rpc.Canceled, rpc.Stale, rpc.Internal, rpc.OK: // Internal: errTwin
		default:
			r.ledger.complain("%s, started a second time: %v", name, err)
		}
		_ = leave(ctx, n) // its blade may be gone
		return nil
	})
	if err == nil {
		r.twins = append(r.twins, twin)
		r.hands.wg.Go(func() { r.forgetTwin(twin, twinName(name)) })
	}
	return err
}

// ended reports whether a client has come to its end, or is about to.
func (r *Run) ended(name string) bool {
	for i := range r.p.Clients {
		if r.p.clientName(i) == name {
			_, over := r.ledger.outcome(i)
			return over
		}
	}
	return false
}

// endTwins ends the mains that second runs have begun anew: their records would stay for
// whoever goes on with them.
func (r *Run) endTwins(ctx context.Context) error {
	for _, twin := range r.twins { // nobody starts more
		select {
		case <-twin.Done():
		case <-ctx.Done():
			return fmt.Errorf("ending mains: a second run does not end: %w", ctx.Err())
		}
	}
	for i, c := range r.p.Clients {
		if !c.Main {
			continue
		}
		if err := r.endMain(ctx, r.p.clientName(i)); err != nil {
			return fmt.Errorf("ending main %s: %w", r.p.clientName(i), err)
		}
	}
	return nil
}

// endMain ends a main as its second runs do, to whom its name belongs if they have begun
// it anew.
func (r *Run) endMain(ctx context.Context, name string) error {
	n, err := r.enter(ctx, twinName(name))
	if err != nil {
		return err
	}
	for wait := time.Millisecond; wait < time.Minute; wait *= 2 { // while the second one leaves, or the first one's deployment
		<-time.After(wait)
		err = rpc.Main(ctx, n, name, func(context.Context, []byte) error { return nil })
		if code := rpc.CodeOf(err); code != rpc.BadRequest && code != rpc.PermissionDenied {
			break
		}
		if err := r.forgetLost(name); err != nil {
			return errors.Join(err, n.Close(ctx))
		}
	}
	return errors.Join(err, n.Close(ctx))
}

// twinName is the name of the nodes on which a main runs a second time.
func twinName(main string) string { return main + "-twin" }

// mainFailed judges the error of a durable main. Its program is started again after
// any, so only the end counts; but there are errors that no crash explains.
func (r *Run) mainFailed(name string, err error) {
	switch rpc.CodeOf(err) {
	case rpc.Unavailable, rpc.Canceled, rpc.Stale, rpc.NotFound: // the node is gone, and may not know it yet
		if r.crash.hits() > 0 {
			return
		}
	case rpc.BadRequest: // its twin runs
		if r.crash.happened("program twin") {
			return
		}
	}
	r.ledger.complain("%s: %v", name, err)
}
