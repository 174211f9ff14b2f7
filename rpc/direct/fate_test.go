package direct

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// sharing is a call of an execution of server, with a policy, and what else its flags say.
func sharing(policy rpcpacket.Policy, flags rpcpacket.Flags, incarnation uint32) rpcpacket.Header {
	h := child(1, incarnation, rpcpacket.Slot(incarnation), 1)
	h.Type, h.Flags = rpcpacket.Call, flags.WithPolicy(policy)
	return h
}

// starts has the handler of a call start.
func (b *bench) starts(caller [16]byte, h rpcpacket.Header) {
	b.t.Helper()
	h.CallerIncarnation = b.Starts(h.Call)
	b.write(begunWith(caller, h))
}

func begunWith(caller [16]byte, h rpcpacket.Header) *record.Begun {
	r := begun(caller, h)
	r.Call = (&rpcpacket.Message{Header: h}).Append(nil)
	return r
}

// resumes has the next incarnation take an execution up again, and reports whether it waits for its caller.
func (b *bench) resumes(id rpcpacket.ID) bool {
	b.t.Helper()
	if r := b.Resume(); len(r.Rerun) != 1 || r.Rerun[0].ID != id {
		b.t.Fatalf("%+v", r)
	}
	b.Resumes(id)
	_, _, waits := b.Waits(id)
	return waits
}

// outlived reports whether the node is to be taken back.
func (b *bench) outlived() bool {
	_, _, outlived := b.Outlived()
	return outlived
}

// again has the execution run again.
func (b *bench) again(id rpcpacket.ID) {
	b.t.Helper()
	r := *b.State().Execution(id).Begun
	r.Attempt++
	r.Incarnation = b.Starts(id)
	b.write(&r)
}

// superseded notes that a caller's earlier incarnations are dead.
func (b *bench) superseded(caller [16]byte, h rpcpacket.Header) {
	b.t.Helper()
	b.receive(caller, h, Superseded)
	b.write(b.Bury(caller, h.CallerIncarnation-1, false))
}

// A callee that begins anew runs an execution again when the caller that shares its fate has begun anew, too, has ended for
// good, or says that it does not. It does not wait for a caller that shares nothing.
func TestFate_CalleeFails(t *testing.T) {
	for _, policy := range []rpcpacket.Policy{rpcpacket.PolicyRecover, rpcpacket.PolicyFateShare, rpcpacket.PolicyTainted} {
		for name, released := range map[string]func(b *bench){
			"the caller has failed": func(b *bench) { b.superseded(server, sharing(policy, 0, 2)) },
			"the caller is gone":    func(b *bench) { b.write(b.Bury(server, 1, true)) },
			"the caller is spared":  func(b *bench) { b.Spare(server, execution(1)) },
			"nobody asks": func(b *bench) {
				b.forget(server, 1, []Item{itemOf(sharing(policy, 0, 1))})
			},
		} {
			b, h := newBench(t), sharing(policy, 0, 1)
			b.receive(server, h, Run)
			if shares := policy != rpcpacket.PolicyRecover; b.Shares(h.Call) != shares {
				t.Fatalf("%s: want %v", policy, shares)
			}
			b.starts(server, h)
			b.crash()
			if waits := b.resumes(h.Call); waits != (policy != rpcpacket.PolicyRecover) {
				t.Fatalf("%s: it waits: %v", policy, waits)
			}
			if policy == rpcpacket.PolicyRecover {
				break
			}
			b.receive(server, h, Duplicate) // of the incarnation that is to be taken back
			b.Spare(other, h.Call)          // it is not its call
			if caller, incarnation, waits := b.Waits(h.Call); caller != server || incarnation != 1 || !waits {
				t.Fatalf("%s: it waits for %d of %x: %v", policy, incarnation, caller, waits)
			}
			released(b)
			if _, _, waits := b.Waits(h.Call); waits || b.outlived() {
				t.Errorf("%s, %s: it waits: %v, or is to be taken back", policy, name, waits)
			}
		}
	}
}

// A callee whose caller has begun anew is taken back, once; not before its handler starts, and not of a call that shares
// nothing, or that is on behalf of nobody tainted.
func TestFate_CallerFails(t *testing.T) {
	for _, c := range []struct {
		policy rpcpacket.Policy
		flags  rpcpacket.Flags
		shares bool
	}{
		{rpcpacket.PolicyRecover, 0, false}, {rpcpacket.PolicyRecover, rpcpacket.FlagTainted, true},
		{rpcpacket.PolicyFateShare, 0, true}, {rpcpacket.PolicyTainted, 0, true},
	} {
		b, first, second := newBench(t), sharing(c.policy, c.flags, 1), sharing(c.policy, c.flags, 2)
		b.receive(server, first, Run)
		b.receive(server, second, Duplicate) // it runs for this one
		if c.shares && b.Starts(first.Call) != 2 {
			t.Errorf("%s: it starts for a dead incarnation", c.policy)
		}
		b = newBench(t)
		b.receive(server, first, Run)
		b.starts(server, first)
		if !c.shares {
			b.receive(server, second, Duplicate)
			b.write(b.Bury(server, 1, false))
		} else {
			b.superseded(server, second)
		}
		if b.outlived() != c.shares {
			t.Fatalf("%s, flags %x: it is taken back: %v", c.policy, c.flags, !c.shares)
		}
		b.crash()
		if b.resumes(first.Call) {
			t.Fatalf("%s: it waits for a caller that has failed", c.policy)
		}
		b.again(first.Call)
		b.receive(server, second, Duplicate)
		if b.outlived() {
			t.Errorf("%s: it is taken back once more", c.policy)
		}
		stranger := second
		stranger.CallerIncarnation, stranger.Number = 9, rpcpacket.NumberOf(9, 1)
		b.receive(other, stranger, Foreign) // its caller is another node
	}
}

// Who is gone for good takes nobody back, nor does a call in a session, or a one-way.
func TestFate_Nobodys(t *testing.T) {
	b, h := newBench(t), sharing(rpcpacket.PolicyFateShare, 0, 1)
	b.receive(server, h, Run)
	b.starts(server, h)
	if b.write(b.Bury(server, 1, true)); b.outlived() {
		t.Error("a caller that is gone takes its callee back")
	}
	for _, h := range []rpcpacket.Header{plain(9, 1), child(1, 1, 9, 1)} {
		h.Flags = h.Flags.WithPolicy(rpcpacket.PolicyTainted) | rpcpacket.FlagTainted
		if h.Type = rpcpacket.Call; h.Call.Derived() {
			h.Type = rpcpacket.Oneway
		}
		b := newBench(t)
		b.receive(client, h, Run)
		if b.Shares(h.Call) {
			t.Errorf("type %s, flags %x: it shares a fate", h.Type, h.Flags)
		}
	}
}

// pair is a caller and a callee whose call shares fates, each with what it does when, and how often each has failed.
type pair struct {
	*bench
	policy rpcpacket.Policy
	caller uint32 // its incarnation
	runs   bool   // the handler, at the callee
	// broken are the incarnations of the caller for which a run of the handler was cut off.
	broken map[uint32]bool
	forWho uint32 // the incarnation for which the handler runs
}

// TestFate_Model has the two sides of a call fail at random. The callee's handler never runs twice for the same incarnation of
// its caller; a run whose caller has failed is noticed when that calls again; and in the end the call is done.
func TestFate_Model(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		k := &pair{
			bench: newBench(t), policy: rapid.SampledFrom([]rpcpacket.Policy{rpcpacket.PolicyFateShare, rpcpacket.PolicyTainted}).Draw(r, "policy"),
			caller: 1, broken: map[uint32]bool{},
		}
		for range rapid.IntRange(0, 40).Draw(r, "steps") {
			switch rapid.IntRange(0, 5).Draw(r, "step") {
			case 0: // the caller fails
				k.caller++
			case 1:
				k.calleeFails()
			default:
				k.call(r)
			}
		}
		for step := 0; !k.runs || k.forWho != k.caller; step++ {
			if step > 10 {
				r.Fatalf("the call of incarnation %d does not run: it runs %v for %d", k.caller, k.runs, k.forWho)
			}
			k.call(r)
		}
		h := sharing(k.policy, 0, k.caller)
		k.write(done(server, h))
		k.receive(server, h, Answer)
	})
}

// calleeFails has the callee begin anew. It may be that it is to run the handler again.
func (k *pair) calleeFails() {
	if k.runs {
		k.broken[k.forWho] = true
	}
	k.runs = false
	k.crash()
	again := k.Resume()
	for _, e := range again.Rerun {
		k.Resumes(e.ID)
		k.goOn(e.ID)
	}
}

// goOn has the callee run the handler again, unless that waits for the caller: then this is asked to be taken back.
func (k *pair) goOn(id rpcpacket.ID) {
	_, incarnation, waits := k.Waits(id)
	switch {
	case !waits:
		r := *k.State().Execution(id).Begun
		r.Attempt++
		r.Incarnation = k.Starts(id)
		k.write(&r)
		k.runs, k.forWho = true, r.Incarnation
	case incarnation == k.caller:
		k.caller++ // it is taken back
	}
}

// call has a copy of the call arrive.
func (k *pair) call(r *rapid.T) {
	h := sharing(k.policy, 0, k.caller)
	switch v, _ := k.Receive(server, &h, 7); v {
	case Run:
		k.starts(server, h)
		k.runs, k.forWho = true, k.caller
	case Superseded:
		if b := k.Bury(server, k.caller-1, false); b != nil {
			k.write(b)
		}
		switch {
		case k.outlived():
			k.calleeFails()
		case k.runs:
			r.Fatalf("it runs for %d, and the caller is in incarnation %d", k.forWho, k.caller)
		default:
			k.goOn(h.Call)
		}
	case Duplicate:
		if k.runs && k.forWho != k.caller {
			r.Fatalf("it runs for %d, and the caller is in incarnation %d", k.forWho, k.caller)
		}
		if !k.runs {
			k.goOn(h.Call) // it asks again
		}
	default:
		r.Fatalf("call of incarnation %d: %s", k.caller, v)
	}
	if k.runs && k.broken[k.forWho] {
		r.Fatalf("the handler runs again for incarnation %d", k.forWho)
	}
}
