package dsmclient_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/memrack"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
)

// judged is a rack whose switch judges by rights, in virtual time. Machine 1 may have two copies.
func judged(t *testing.T, imp wire.Impairment, two bool, f func(t *testing.T, r *rack, j *memrack.Rights)) {
	t.Helper()
	judgedSeed(t, 1, imp, two, f)
}

func judgedSeed(t *testing.T, seed uint64, imp wire.Impairment, two bool, f func(t *testing.T, r *rack, j *memrack.Rights)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		r := newImpairedRack(t, memrack.Virtual(seed, 1500), 1, imp)
		defer r.Close()
		j := r.Rights()
		if two {
			r.Mirror(1, r.Capacity)
		}
		f(t, r, j)
	})
}

// eachRack runs f with one copy of the machine and with two, on a good network and on a bad one.
func eachRack(t *testing.T, f func(t *testing.T, r *rack, j *memrack.Rights)) {
	t.Helper()
	for name, imp := range map[string]wire.Impairment{"good": {}, "bad": memrack.Bad} {
		for _, two := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				judged(t, imp, two, f)
			})
		}
	}
}

// What somebody else's call lends is written and freed when the call is over.
func TestLent_Waits(t *testing.T) {
	eachRack(t, func(t *testing.T, r *rack, j *memrack.Rights) {
		c, ctx := r.Client(1, 1), context.Background()
		p, data := alloc(t, c, 10_000), fill(10_000, 1)
		for name, do := range map[string]func() error{
			"write": func() error { _, err := c.Write(ctx, p, data); return err },
			"write nothing": func() error {
				return c.With(dsmclient.Scope{Execution: [16]byte{1}}, new(memrack.Execution)).Free(ctx, p)
			},
		} {
			over, began := j.Lend(1, p), time.Now()
			time.AfterFunc(time.Minute, over)
			must(t, do())
			if d := time.Since(began); d < time.Minute || d > time.Minute+10*time.Second {
				t.Errorf("%s: it took %v", name, d)
			}
		}
		got := make([]byte, len(data))
		over := j.Lend(1, p)
		if _, err := c.Read(ctx, p, got); err != nil || !slices.Equal(got, data) { // it is never lent
			t.Errorf("read: %v", err)
		}
		began := time.Now()
		time.AfterFunc(time.Minute, over)
		must(t, c.Free(ctx, p))
		if d := time.Since(began); d < time.Minute {
			t.Errorf("free: it took %v", d)
		}
		if _, err := c.Read(ctx, p, got); fault.CodeOf(err) != fault.NotFound {
			t.Errorf("read of what is freed: %v", err)
		}
	})
}

// An operation on what is lent waits as long as its context lasts, and has done nothing then, unless it was under way. It is in nobody's way.
func TestLent_Deadline(t *testing.T) {
	eachRack(t, func(t *testing.T, r *rack, j *memrack.Rights) {
		n, bad := 10_000, strings.Contains(t.Name(), "bad") // more requests than fit between a floor and the newest one
		if bad {
			n = 100
		}
		c := r.Client(1, 1)
		p, freed, other := alloc(t, c, 1<<18), alloc(t, c, 64), alloc(t, c, 64)
		over, end := j.Lend(1, p), j.Lend(1, freed)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		ended := make(chan error, 2)
		go func() { _, err := c.Write(ctx, p, fill(1<<18, 1)); ended <- err }()
		go func() { ended <- c.Free(ctx, freed) }()
		for range n {
			if _, err := c.Write(context.Background(), other, []byte{1}); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			if err := <-ended; fault.CodeOf(err) != fault.Deadline {
				t.Errorf("got %v", err)
			}
		}
		over()
		end()
		must(t, c.Settle(context.Background(), p))
		got := make([]byte, 1<<18)
		if _, err := c.Read(context.Background(), p, got); err != nil || slices.Max(got) != 0 && !bad { // there it may just have been under way
			t.Errorf("%v: something was written", err)
		}
	})
}

// A program does not wait for itself: what it lends by a call of its own that is not over is refused.
func TestLent_ByItself(t *testing.T) {
	judged(t, wire.Impairment{}, false, func(t *testing.T, r *rack, j *memrack.Rights) {
		c := r.Client(1, 1)
		p := alloc(t, c, 64)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for i, lend := range []func(){func() { must(t, c.Lend(ctx, p)) }, func() { c.Lends(p.Add(10)) }} {
			lend()
			over := j.Lend(1, p)
			_, err := c.Write(ctx, p.Add(3), []byte{1})
			want(t, err, fault.PermissionDenied, false)
			want(t, c.Free(ctx, p), fault.PermissionDenied, false)
			e := c.With(dsmclient.Scope{Execution: [16]byte{byte(i + 1)}}, new(memrack.Execution))
			want(t, e.Free(ctx, p), fault.PermissionDenied, false)
			over()
			c.Returned(p)
		}
		_, err := c.Write(ctx, p, []byte{1})
		must(t, err)
		must(t, c.Free(ctx, p))
	})
}

// No operation of an execution is tried again after the execution's end.
func TestLent_Finished(t *testing.T) {
	judged(t, wire.Impairment{}, false, func(t *testing.T, r *rack, j *memrack.Rights) {
		r.KeepUndo()
		c, ctx := r.Client(1, 1), context.Background()
		p := alloc(t, c, 64)
		e := c.With(dsmclient.Scope{Execution: [16]byte{1}}, new(memrack.Execution))
		over := j.Lend(1, p)
		ended := make(chan error, 1)
		go func() { _, err := e.Write(ctx, p, []byte{1}); ended <- err }()
		<-time.After(time.Second)
		must(t, e.Finish(ctx))
		over()
		want(t, <-ended, fault.BadRequest, false)
		r.Undone()
	})
}

// owns checks what a client takes for its node's.
func owns(t *testing.T, c *dsmclient.Client, all ...dsmclient.Pointer) {
	t.Helper()
	got := c.Account()
	slices.SortFunc(all, func(p, q dsmclient.Pointer) int { return int(p.ID().Slot()) - int(q.ID().Slot()) })
	if !slices.Equal(got, all) {
		t.Errorf("the account has %v, want %v", got, all)
	}
}

// A node's account is what the switch's words say that it owns, but for what has been freed.
func TestAccount(t *testing.T) {
	eachRack(t, func(t *testing.T, r *rack, j *memrack.Rights) {
		c, ctx := r.Client(1, 1), context.Background()
		other := r.Client(2, 1)
		a, b, d := alloc(t, c, 64), alloc(t, c, 64), alloc(t, other, 64)
		owns(t, c, a, b)
		j.GiveAway(d, 1)
		c.Gained(d)
		owns(t, c, a, b, d)
		j.GiveAway(b, 2)
		c.Gave(b.Add(5))
		owns(t, c, a, d)
		c.Received(a, d)
		owns(t, c, a, d)
		must(t, c.Free(ctx, d))
		want(t, c.Free(ctx, b), fault.PermissionDenied, true)
		owns(t, c, a)
		must(t, c.Free(ctx, a))
		want(t, c.Free(ctx, a), fault.NotFound, true)
		owns(t, c)
		j.Forbid(1, true)
		_, err := c.Alloc(ctx, 64)
		want(t, err, fault.PermissionDenied, true)
		owns(t, c)
		c.Received(dsmpacket.Make(prefix, 1, dsmpacket.IDOf(7, 2)))
		c.Received(dsmpacket.Make(prefix, 1, dsmpacket.IDOf(7, 1))) // it was there before
		owns(t, c, dsmpacket.Make(prefix, 1, dsmpacket.IDOf(7, 2)))
	})
}

// What is not the node's is not handed over, and nothing beside it.
func TestAccount_HandsOver(t *testing.T) {
	eachRack(t, func(t *testing.T, r *rack, _ *memrack.Rights) {
		c, ctx := r.Client(1, 1), context.Background()
		a, b, d := alloc(t, c, 64), alloc(t, c, 64), alloc(t, r.Client(2, 1), 64)
		want(t, c.HandOver(ctx, a.Add(8), d), fault.PermissionDenied, false)
		owns(t, c, a, b)
		must(t, c.HandOver(ctx, a.Add(8), b, a))
		owns(t, c, a, b) // until the answer is kept
		want(t, c.HandOver(ctx, b), fault.PermissionDenied, false)
		if c.Owns(a) || c.Owns(b) {
			t.Error("what is handed over counts as the node's")
		}
		c.Kept(b)
		must(t, c.HandOver(ctx, b))
		c.Gave(b, a)
		owns(t, c)
		c.Received(a) // again
		must(t, c.HandOver(ctx, a))
	})
}

// Of regions it is told which of them the node has not owned, or a later one in the same slot, since some time.
func TestAccount_Watch(t *testing.T) {
	eachRack(t, func(t *testing.T, r *rack, _ *memrack.Rights) {
		c := r.Client(1, 1)
		region := func(slot, generation uint32) dsmpacket.Pointer {
			return dsmpacket.Make(prefix, 1, dsmpacket.IDOf(slot, generation))
		}
		before, kept, comes, goes, never := region(1, 1), region(2, 2), region(3, 1), region(4, 3), region(5, 1)
		c.Received(before, kept)
		c.Gave(before)
		end := c.Watch()
		c.Received(comes, goes)
		c.Gave(kept, goes)
		all := []dsmpacket.Pointer{before, kept, comes, goes, never, region(2, 3), region(4, 2)}
		if got, want := end(all), []dsmpacket.Pointer{before, never, region(2, 3)}; !slices.Equal(got, want) {
			t.Errorf("never owned: %v, want %v", got, want)
		}
		if got := c.Watch()(all[1:3]); !slices.Equal(got, all[1:2]) {
			t.Errorf("never owned since: %v, want %v", got, all[1:2])
		}
	})
}

// What is kept for later is the node's, and what was allocated ahead. When all is freed the account is empty, though nobody has waited for that.
func TestAccount_Kept(t *testing.T) {
	judged(t, memrack.Bad, true, func(t *testing.T, r *rack, j *memrack.Rights) {
		c, ctx := r.ClientWith(1, dsmclient.Config{Incarnation: 1, Keep: true}), context.Background()
		for range 200 {
			p := alloc(t, c, 4096)
			q := alloc(t, c, 64)
			_, err := c.Write(ctx, p, []byte{1})
			must(t, err)
			must(t, c.Free(ctx, q))
			if !slices.Contains(c.Account(), p) {
				t.Fatalf("%s is not in the account", p)
			}
			must(t, c.HandOver(ctx, p))
			j.GiveAway(p, 2)
			c.Gave(p)
		}
		<-time.After(5 * time.Minute)
		owns(t, c)
		live := 0
		list, err := r.Memories[0].Regions(control.Regions{})
		must(t, err)
		for _, id := range list.Regions {
			if slices.Contains(j.Owned(1), id.ID) {
				live++
			}
		}
		if live > 0 {
			t.Errorf("%d regions are left", live)
		}
	})
}

// A free whose caller has gone is noted when it has come to its end.
func TestAccount_Cancelled(t *testing.T) {
	judged(t, wire.Impairment{Delay: time.Second}, true, func(t *testing.T, r *rack, j *memrack.Rights) {
		c := r.Client(1, 1)
		p := alloc(t, c, 64)
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		want(t, c.Free(ctx, p), fault.Deadline, false)
		owns(t, c, p)
		ctx, cancel = context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		_, err := c.Alloc(ctx, 64)
		want(t, err, fault.Deadline, false)
		<-time.After(time.Minute)
		owns(t, c)
		if n := r.Memories[0].RegionBytes(); n != 0 {
			t.Errorf("%d bytes are in use", n)
		}
	})
}

// What is owed goes, whoever has allocated it and whatever the client has done with it, and what is not the node's any more counts as gone.
func TestFreeOwed(t *testing.T) {
	eachRack(t, func(t *testing.T, r *rack, j *memrack.Rights) {
		ctx := context.Background()
		first := r.Client(1, 1)
		former, freed, given := alloc(t, first, 64), alloc(t, first, 64), alloc(t, first, 64)
		must(t, first.Free(ctx, freed))
		must(t, first.Close())
		c := r.ClientWith(1, dsmclient.Config{Incarnation: 2, Keep: true})
		c.Received(former, given)
		j.GiveAway(given, 2)
		known, idle := alloc(t, c, 4096), kept(t, c, 4096)
		must(t, c.Free(ctx, idle))
		if !slices.Contains(c.Account(), idle) {
			t.Error("what is kept is not in the account")
		}
		must(t, c.FreeOwed(ctx, known, idle))
		if p := alloc(t, c, 4096); p == idle || p == known {
			t.Errorf("%s is given out again", p)
		} else {
			must(t, c.Free(ctx, p))
		}
		over := j.Lend(1, former)
		time.AfterFunc(time.Minute, over)
		c.Lends(former)
		must(t, c.FreeOwed(ctx, former, freed, given, known, idle))
		must(t, c.FreeOwed(ctx, former, freed, given, known, idle))
		must(t, c.FreeOwed(ctx))
		<-time.After(5 * time.Second) // nothing is kept any more
		owns(t, c)
		for _, s := range r.Copies(1) {
			list, err := s.Regions(control.Regions{})
			must(t, err)
			for _, id := range list.Regions {
				if id.ID != given.ID() && slices.Contains([]dsmpacket.RegionID{former.ID(), known.ID(), idle.ID()}, id.ID) {
					t.Errorf("%s is there", id.ID)
				}
			}
		}
	})
}

// What its machine has lost is as good as freed.
func TestFreeOwed_Lost(t *testing.T) {
	judged(t, wire.Impairment{}, true, func(t *testing.T, r *rack, j *memrack.Rights) {
		c := r.Client(1, 1)
		p := alloc(t, c, 64)
		lost := dsmpacket.Make(prefix, 1, dsmpacket.IDOf(p.ID().Batch()*dsmpacket.BatchSlots+dsmpacket.BatchSlots-1, 1))
		j.GiveAway(lost, 1)
		c.Received(lost)
		owns(t, c, p, lost)
		for i, s := range r.Copies(1) {
			must(t, s.Become(control.Mirror{Epoch: 1, Incarnation: uint32(i + 1), Copy: uint8(i), Members: 2, Lost: lost.ID().Generation()}))
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		must(t, c.FreeOwed(ctx, lost))
		owns(t, c, p)
	})
}

// It waits for a machine that does not answer, as long as its context lasts, and for the end of executions that have changed the region.
func TestFreeOwed_Waits(t *testing.T) {
	judged(t, wire.Impairment{}, false, func(t *testing.T, r *rack, j *memrack.Rights) {
		r.KeepUndo()
		c := r.Client(1, 1)
		p := alloc(t, c, 64)
		execution := &memrack.Execution{ID: [16]byte{1}}
		e := c.With(dsmclient.Scope{Execution: execution.ID}, execution)
		_, err := e.Write(context.Background(), p, []byte{1})
		must(t, err)
		h := r.Net.Host("m1")
		h.SetLink(false)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		want(t, c.FreeOwed(ctx, p), fault.Deadline, false)
		owns(t, c, p)
		h.SetLink(true)
		time.AfterFunc(5*time.Minute, func() { r.Commit(c, 1, execution) })
		began := time.Now()
		must(t, c.FreeOwed(context.Background(), p))
		if d := time.Since(began); d < 5*time.Minute {
			t.Errorf("it took %v", d)
		}
		owns(t, c)
		_, err = r.Memories[0].Fence(control.Fence{Node: rackaddr.Node(1), Incarnation: 1})
		must(t, err)
		want(t, c.FreeOwed(context.Background(), dsmpacket.Make(prefix, 1, p.ID()+1).Base()), fault.Stale, true)
		must(t, c.Close())
		want(t, c.FreeOwed(context.Background(), p), fault.Canceled, false)
	})
}

// Two nodes allocate, free, lend and hand over, on a bad network. The accounts are what there is at the end, at each copy, and when they are freed nothing
// is left.
func TestAccount_Random(t *testing.T) {
	for seed := range uint64(40) {
		judgedSeed(t, seed, memrack.Bad, seed%2 == 0, func(t *testing.T, r *rack, j *memrack.Rights) {
			ctx, rng := context.Background(), rand.New(rand.NewPCG(seed, 1))
			var clients [2]*dsmclient.Client
			for i := range clients {
				clients[i] = r.ClientWith(uint64(i+1), dsmclient.Config{Incarnation: 1, Keep: rng.IntN(2) == 0})
			}
			var calls sync.WaitGroup
			var held [2][]dsmclient.Pointer // by the program
			for range 60 {
				i := rng.IntN(2)
				c := clients[i]
				var p dsmclient.Pointer
				if len(held[i]) > 0 {
					p = held[i][rng.IntN(len(held[i]))]
				}
				without := func() { held[i] = slices.DeleteFunc(held[i], func(o dsmclient.Pointer) bool { return o == p }) }
				got := func(q dsmclient.Pointer, err error) {
					if err == nil {
						held[i] = append(held[i], q)
					}
				}
				short, cancel := context.WithTimeout(ctx, time.Duration(rng.IntN(200))*time.Millisecond)
				switch what := rng.IntN(6); {
				case p.IsNil() || what == 0:
					got(c.Alloc(ctx, 64<<rng.IntN(4)))
				case what == 1:
					got(c.Alloc(short, 64))
				case what == 2:
					if fault.CodeOf(c.Free(short, p)) != fault.PermissionDenied { // else it is lent
						without()
					}
				case what == 3:
					_, _ = c.Write(short, p, []byte{1})
				case what == 4:
					if c.Lend(ctx, p) == nil {
						over := j.Lend(uint64(i+1), p)
						calls.Go(func() {
							<-time.After(time.Duration(i) * time.Second)
							over()
							c.Returned(p)
						})
					}
				default:
					calls.Wait()
					if c.HandOver(ctx, p) == nil {
						without()
						j.GiveAway(p, uint64(2-i))
						c.Gave(p)
						clients[1-i].Gained(p)
						held[1-i] = append(held[1-i], p)
					}
				}
				cancel()
			}
			calls.Wait()
			<-time.After(5 * time.Minute)
			var known []dsmpacket.RegionID
			for _, c := range clients {
				for _, p := range c.Account() {
					known = append(known, p.ID())
				}
			}
			slices.Sort(known)
			for k, s := range r.Copies(1) {
				var there []dsmpacket.RegionID
				list, err := s.Regions(control.Regions{})
				must(t, err)
				for _, id := range list.Regions {
					there = append(there, id.ID)
				}
				if !slices.Equal(there, known) {
					t.Errorf("seed %d: copy %d has %v, the accounts have %v", seed, k, there, known)
				}
			}
			for _, c := range clients {
				must(t, c.FreeOwed(ctx, c.Account()...))
				owns(t, c)
			}
			level(t, r, 0)
		})
	}
}
