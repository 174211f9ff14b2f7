package rpc

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// numbered is an execution that a test can tell.
func numbered(n uint64) *execution {
	e := &execution{export: &export{}}
	e.call.Number = rpcpacket.Number(n)
	return e
}

func TestPool(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		gates := map[uint64]chan struct{}{}
		var ran []uint64
		p := &pool{free: 1, limit: 2, most: DefaultLimits.Started}
		p.run = func(e *execution) {
			ran = append(ran, uint64(e.call.Number))
			<-gates[uint64(e.call.Number)]
		}
		for n := range uint64(5) {
			gates[n] = make(chan struct{})
		}
		calls := make([]*execution, 5)
		var got []admission
		for n := range calls {
			calls[n] = numbered(uint64(n))
			got = append(got, p.admit(calls[n]))
			if got[n] == begun {
				go p.work(calls[n])
				synctest.Wait()
			}
		}
		if !slices.Equal(got, []admission{begun, waiting, waiting, refused, refused}) {
			t.Errorf("admitted %v", got)
		}
		// 0 waits for a nested call: 1 gets its slot. When 0 comes back it goes
		// before 2.
		p.release()
		synctest.Wait()
		back := false
		go func() {
			p.acquire()
			back = true
		}()
		synctest.Wait()
		if back || !slices.Equal(ran, []uint64{0, 1}) {
			t.Errorf("ran %v, 0 is back: %v", ran, back)
		}
		close(gates[1])
		synctest.Wait()
		if !back || !slices.Equal(ran, []uint64{0, 1}) {
			t.Errorf("ran %v, 0 is back: %v", ran, back)
		}
		close(gates[0])
		close(gates[2])
		p.calls.Wait()
		if !slices.Equal(ran, []uint64{0, 1, 2}) || p.free != 1 || p.started != 0 {
			t.Errorf("ran %v; %d free, %d started", ran, p.free, p.started)
		}
		if p.close(); p.admit(numbered(9)) != refused {
			t.Error("a closed pool has admitted a call")
		}
	})
}

func TestFifo(t *testing.T) {
	var q fifo[int]
	next := 0
	for i := range 1000 {
		q.push(i)
		if i%3 == 2 { // two in, one out, over and over
			if got := q.pop(); got != next {
				t.Fatalf("popped %d, want %d", got, next)
			}
			next++
		}
	}
	for ; q.len() > 0; next++ {
		if got := q.pop(); got != next {
			t.Fatalf("popped %d, want %d", got, next)
		}
	}
	if next != 1000 || cap(q.items) > 2048 {
		t.Errorf("%d popped, room for %d", next, cap(q.items))
	}
}

// A pool is stalled while calls wait and none has been taken up since it was last asked.
func TestPoolStalled(t *testing.T) {
	p := &pool{free: 1, limit: 2, most: DefaultLimits.Started}
	p.run = func(*execution) {}
	for range 2 {
		if p.stalled() {
			t.Error("an idle pool is stalled")
		}
	}
	if p.admit(numbered(1)) != begun || p.admit(numbered(2)) != waiting {
		t.Fatal("admitted otherwise")
	}
	if p.stalled() {
		t.Error("stalled, though a call was begun since the last time")
	}
	if !p.stalled() {
		t.Error("not stalled, though a call waits and none was begun")
	}
}
