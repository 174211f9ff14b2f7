package rpc_test

import (
	"context"
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
	for _, s := range b.rack.Sessions() {
		s.Explicit.Store(join.NewPolicies(list))
	}
}

// An operator's word holds for the next call, before the caller's own.
func TestPolicy_OperatorsWord(t *testing.T) {
	onBench(t, func(context.Context, *rpc.Node) error { return nil }, func(b *bench) {
		t := b.t
		down := newPeer(t, b.rack, "down", rackaddr.Service("Down"))
		n := joinNode(t, b.rack, "client")
		c := testsvc.NewTestClient(plain(n, "Down"))
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
			for m.Flags.Policy() == rpc.PolicyNone && m.Floor > m.Call.Sequence() {
				m = down.must() // the former call has been given up
			}
			if m.Flags.Policy() != tc.want || m.Flags.Exact() != (tc.want != rpc.PolicyNone) {
				t.Errorf("%s of %s: sent as %s, flags %x", tc.policy, tc.service, m.Flags.Policy(), m.Flags)
			}
			cancel()
			<-done
		}
	})
}

// A re-run makes a call as its first attempt did, whatever the operator says since.
func TestPolicy_OfReRuns(t *testing.T) {
	var down *peer
	onBench(t, func(ctx context.Context, n *rpc.Node) error {
		return testsvc.NewTestClient(n.Client("Down")).Ping(ctx)
	}, func(b *bench) {
		t := b.t
		down = newPeer(t, b.rack, "down", rackaddr.Service("Down"))
		// sent is the call that an attempt makes, and what its execution has journalled
		// before it; the call is answered, if it is logged with an answer in the log.
		sent := func(again bool, journal []trailer.Section) (rpcpacket.Message, []trailer.Section) {
			t.Helper()
			m := b.call()
			if again {
				m.Flags |= rpcpacket.FlagReplay
				m.Attempt, m.Trailer = 1, trailer.Append(nil, journal)
			}
			b.send(m)
			k := down.must()
			entries, err := trailer.Parse(k.Trailer)
			if err != nil {
				t.Fatal(err)
			}
			answer := k
			answer.Type, answer.Trailer, answer.CalleeIncarnation = rpcpacket.Exception, nil, 1
			answer.Code, answer.Payload = rpc.Overloaded, nil
			answer.Flags |= rpcpacket.FlagReleased
			down.send(b.server.Address(), answer.Append(nil))
			ack(b.gk, b.server, b.gk.must())
			return k, entries
		}
		k, journal := sent(false, nil)
		if k.Flags.Policy() != rpc.PolicyRecover || len(journal) != 0 {
			t.Fatalf("without a word: %s, journal %v", k.Flags.Policy(), journal)
		}
		b.say("Down", "none")
		if k, journal = sent(true, nil); k.Flags.Policy() != rpc.PolicyRecover || len(journal) != 0 {
			t.Errorf("a re-run of what was sent before the word: %s, journal %v", k.Flags.Policy(), journal)
		}
		b.say("Down", "tainted")
		if k, journal = sent(false, nil); k.Flags.Policy() != rpc.PolicyTainted || len(journal) != 1 || journal[0].Type != trailer.Policy || k.Index != journal[0].Index+1 {
			t.Fatalf("with a word: %s, journal %v, index %d", k.Flags.Policy(), journal, k.Index)
		}
		for _, policy := range []string{"", "none", "fate-share"} {
			b.say("Down", policy)
			if again, more := sent(true, journal); again.Flags.Policy() != rpc.PolicyTainted || again.Index != k.Index || len(more) != 0 {
				t.Errorf("a re-run, the operator says %q: %s, index %d, journal %v", policy, again.Flags.Policy(), again.Index, more)
			}
		}
		journal[0].Data = []byte{9}
		m := b.call()
		m.Flags |= rpcpacket.FlagReplay
		m.Attempt, m.Trailer = 1, trailer.Append(nil, journal)
		if a, _ := b.run(m); a.Code != rpc.Nondeterminism {
			t.Errorf("a policy that is none: %v", a.Code)
		}
	})
}
