package rpc_test

import (
	"context"
	"errors"
	"testing"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/internal/testsvc"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// say makes an operator's word known to the nodes.
func (b *bench) say(service, policy string) {
	var list []control.MethodPolicy
	if policy != "" {
		list = append(list, control.MethodPolicy{Service: service, Policy: policy})
	}
	b.rack.Explicit.Store(join.NewPolicies(list))
}

// policyOf is with what policy a call was made, whichever of its callees it has come to.
func policyOf(t *testing.T, m rpcpacket.Message) rpc.Policy {
	t.Helper()
	return m.Flags.Policy()
}

// An operator's word holds for the next call, before the caller's own.
func TestPolicy_OperatorsWord(t *testing.T) {
	onBench(t, func(context.Context, *rpc.Node) error { return nil }, func(b *bench) {
		t := b.t
		down := newCallee(t, b.rack, "down", rackaddr.Node(78), "Down")
		n := joinNode(t, b.rack, "client")
		c, known := testsvc.NewTestClient(plain(n, "Down")), map[rpcpacket.ID]bool{}
		for _, tc := range []struct {
			service, policy string
			want            rpc.Policy
		}{
			{"", "", rpc.PolicyNone}, {"Down", "tainted", rpc.PolicyTainted}, {"Down", "none", rpc.PolicyNone}, {"Other", "recover", rpc.PolicyNone},
		} {
			b.say(tc.service, tc.policy)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = c.Ping(ctx)
			}()
			m := down.must()
			for known[m.Call] {
				m = down.must() // the former call has been given up, and is sent until it is answered
			}
			known[m.Call] = true
			if policyOf(t, m) != tc.want {
				t.Errorf("%s of %s: sent as %s", tc.policy, tc.service, m.Flags.Policy())
			}
			cancel()
			<-done
		}
	})
}

// A re-run makes a call as its first attempt did, whatever the operator says since.
func TestPolicy_OfReRuns(t *testing.T) {
	onBench(t, func(ctx context.Context, n *rpc.Node) error {
		return errors.Join(testsvc.NewTestClient(n.Client("Down")).Ping(ctx), noted(ctx))
	}, func(b *bench) {
		t := b.t
		down := newCallee(t, b.rack, "down", rackaddr.Node(78), "Down")
		// sent is the call that an execution makes, and what it has journalled before it.
		sent := func(again bool, journal []trailer.Section) (rpcpacket.Message, []trailer.Section) {
			t.Helper()
			m := b.call()
			if again {
				b.begun(m, journal)
			} else {
				b.send(m)
			}
			k := down.must()
			entries := b.journal(m)
			down.send(b.server.Address(), answer(k, pong(t)))
			b.answer(m)
			return k, entries
		}
		k, journal := sent(false, nil)
		if policyOf(t, k) != rpc.PolicyRecover || len(journal) != 0 {
			t.Fatalf("without a word: %s, journal %v", k.Flags.Policy(), journal)
		}
		b.say("Down", "none")
		if k, journal = sent(true, nil); policyOf(t, k) != rpc.PolicyRecover || len(journal) != 0 {
			t.Errorf("a re-run of what was sent before the word: %s, journal %v", k.Flags.Policy(), journal)
		}
		b.say("Down", "tainted")
		if k, journal = sent(false, nil); policyOf(t, k) != rpc.PolicyTainted || len(journal) != 1 || journal[0].Type != trailer.Policy || k.Index != journal[0].Index+1 {
			t.Fatalf("with a word: %s, journal %v, index %d", k.Flags.Policy(), journal, k.Index)
		}
		for _, policy := range []string{"", "none", "fate-share"} {
			b.say("Down", policy)
			if again, all := sent(true, journal); policyOf(t, again) != rpc.PolicyTainted || again.Index != k.Index || len(all) != 1 {
				t.Errorf("a re-run, the operator says %q: %s, index %d, journal %v", policy, again.Flags.Policy(), again.Index, all)
			}
		}
		journal[0].Data = []byte{9}
		if a := b.rerun(journal); a.Code != rpc.Nondeterminism {
			t.Errorf("a policy that is none: %v", a.Code)
		}
	})
}
