package gatekeeper

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Of a node's batches the last one is that which it got last, also after a restart, and if it was another node's and has a lower number: the switch tells of it.
func TestRestore_LastBatch(t *testing.T) {
	inLogged(t, func(s *small) {
		wants := func(n *testNode, want int) []uint32 {
			t.Helper()
			all, err := n.wantsBatches(1, want)
			if err != nil || len(all) != want {
				t.Fatalf("batches %v, %v", all, err)
			}
			return all
		}
		former := wants(s.c, 1)[0]
		wants(s.a, 1)
		if err := s.gk.do(t.Context(), func() {
			c := s.gk.ctl
			n := c.nodes[s.c.address]
			c.change(nil, c.unwantBatches(n))
			c.freeBatches(n)
		}); err != nil {
			t.Fatal(err)
		}
		all := wants(s.a, 2)
		if all[1] != former || all[0] < former {
			t.Fatalf("batches %v: want %d last", all, former)
		}
		s.restart()
		if n := s.snapshot().Counters.Reconciled; n != 0 {
			t.Errorf("%d entries were repaired", n)
		}
		if again := wants(s.a, 2); !slices.Equal(again, all) {
			t.Errorf("batches %v, before %v", again, all)
		}
	})
}

// A Gatekeeper that is started again finds the switch as it should be, knows the
// blades and nodes, and releases what is unfinished.
func TestRestore(t *testing.T) {
	inLogged(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		q := s.m1.alloc(s.b, 1, 2)
		m := s.a.message("Arrays", "add", p)
		s.a.call("Arrays", m)
		call := s.b.message1()
		before := s.snapshot()
		s.restart()
		after := s.snapshot()
		if n := after.Counters.Reconciled; n != 0 {
			t.Errorf("%d entries were repaired", n)
		}
		for what, pair := range map[string][2]any{
			"nodes": {before.Nodes, after.Nodes}, "services": {before.Services, after.Services},
			"regions": {before.Regions, after.Regions}, "calls": {before.Calls, after.Calls}, "blades": {before.Blades, after.Blades},
		} {
			if a, b := fmt.Sprintf("%+v", pair[0]), fmt.Sprintf("%+v", pair[1]); a != b {
				t.Errorf("%s: before\n%s\nafter\n%s", what, a, b)
			}
		}
		quiet("a call that is under way", s.b)
		for _, b := range []*testBlade{s.m1, s.a.testBlade, s.b.testBlade, s.c.testBlade} {
			var reply control.HeartbeatReply
			if err := b.ask(control.KindHeartbeat, control.Heartbeat{Blade: b.name, Boot: b.boot}, &reply); err != nil || !reply.Known || len(reply.Gone) > 0 {
				t.Errorf("blade %s: %+v, %v", b.name, reply, err)
			}
		}
		s.b.reply(s.a.address, &call, q)
		if got := s.a.message1(); got.Type != rpcpacket.Reply || got.Call != call.Call {
			t.Errorf("the caller got %+v", got.Header)
		}
		for _, r := range []dsmpacket.Pointer{p, q} {
			if a, b := s.a.may(s.m1, r), s.b.may(s.m1, r); a != "read+write" || b != "nothing" {
				t.Errorf("%s: a may %s, b %s", r, a, b)
			}
		}
	})
}

// A rack keeps its secret: the ids of calls that executions have made follow from it.
func TestSecretIsKept(t *testing.T) {
	var c controller
	c.cfg.Logger, c.logger, c.secret = slog.New(slog.DiscardHandler), slog.New(slog.DiscardHandler), endpoint.Secret{7}
	for range 2 {
		data, err := json.Marshal(c.rackRecord())
		if err != nil {
			t.Fatal(err)
		}
		c.secret = endpoint.Secret{9} // of a Gatekeeper that begins
		if err := c.restoreRack(&wal.Record{Kind: wal.KindRack, Data: data}); err != nil {
			t.Fatal(err)
		}
		if c.secret != (endpoint.Secret{7}) {
			t.Errorf("the secret has become %x", c.secret)
		}
	}
}

// A log of another format is refused as what it is, not as corrupt, with what an operator can do, whatever else is in it. Nothing
// is written to it.
func TestRestore_OtherFormat(t *testing.T) {
	for _, format := range []int{0, logFormat - 1, logFormat + 1} {
		l, err := wal.OpenMemory(new(wal.Disk), wal.Options{})
		if err != nil {
			t.Fatal(err)
		}
		var b wal.Batch
		b.Put(wal.Record{Kind: wal.KindNode, ID: wal.ID{1}, Data: []byte("of another format")})
		b.Put(wal.Record{Kind: wal.KindRack, Data: fmt.Appendf(nil, `{"format":%d}`, format)})
		if err := l.Append(t.Context(), &b); err != nil {
			t.Fatal(err)
		}
		err = newController(Config{Store: l, Logger: slog.New(slog.DiscardHandler)}).restore(l)
		if !errors.Is(err, wal.ErrVersion) || errors.Is(err, wal.ErrCorrupt) || !strings.Contains(err.Error(), "begins a new rack") {
			t.Errorf("format %d: %v", format, err)
		}
		if n := l.Stats().Records; n != 2 {
			t.Errorf("format %d: %d records", format, n)
		}
		_ = l.Close()
	}
}

// The election id is on the log before a switch can see it, so that a successor whose
// clock is behind takes a higher one.
func TestElectionIsLoggedFirst(t *testing.T) {
	disk := new(wal.Disk)
	var before control.Election
	for _, low := range []uint64{1000, 5} { // the second one's clock is behind
		store, err := wal.OpenMemory(disk, wal.Options{})
		if err != nil {
			t.Fatal(err)
		}
		g, err := New(Config{Conn: new(grpc.ClientConn), Open: true, Election: control.Election{Low: low}, Store: store})
		if err != nil {
			t.Fatal(err)
		}
		if got := g.Settings().Election; !before.Less(got) {
			t.Errorf("election id %+v after %+v", got, before)
		} else {
			before = got
		}
		disk.Crash() // what is not logged is lost
		_ = store.Close()
	}
}
