package switches

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
	"github.com/bifrost-rack/bifrost/p4"
	"golang.org/x/sys/unix"
)

// revocation is how many rules are deleted with one Write when that is timed:
// what a call that passes a pointer revokes.
const revocation = 3

// large is how many updates a large Write has.
const large = 100

// measureWrites measures for some time each: updates one by one, in batches, and
// revocations.
func (c *controller) measureWrites(ctx context.Context, rules int, d time.Duration, w *writes) (err error) {
	if w.single, err = c.updateRate(ctx, rules, 1, d); err != nil {
		return err
	}
	if w.batched, err = c.updateRate(ctx, rules, large, d); err != nil {
		return err
	}
	in, out := rulesFrom(rules, revocation)
	for start := time.Now(); time.Since(start) < d; {
		if err := c.client.Write(ctx, in); err != nil {
			return err
		}
		begin := time.Now()
		if err := c.client.Write(ctx, out); err != nil {
			return err
		}
		w.revoke = append(w.revoke, time.Since(begin))
	}
	return nil
}

// rulesFrom are Writes that insert and delete n rules beside those that are
// there.
func rulesFrom(first, n int) (in, out []p4rtclient.Update) {
	var es []p4rtclient.Entry
	for i := range n {
		es = append(es, rule(first+i))
	}
	return updates(p4rtclient.Insert, es), updates(p4rtclient.Delete, es)
}

func (c *controller) updateRate(ctx context.Context, rules, size int, d time.Duration) (float64, error) {
	in, out := rulesFrom(rules, size)
	n, begin := 0, time.Now()
	for ; time.Since(begin) < d; n += 2 * size {
		if err := c.client.Write(ctx, in); err != nil {
			return 0, err
		}
		if err := c.client.Write(ctx, out); err != nil {
			return 0, err
		}
	}
	return float64(n) / time.Since(begin).Seconds(), nil
}

// effect deletes and inserts the identity of the sending host again and again,
// and watches the verdicts.
func (r *running) effect(ctx context.Context, d time.Duration) (e Effect, err error) {
	var stop atomic.Bool
	var sender sync.WaitGroup
	err = r.flooding(&stop, &sender)
	defer sender.Wait()
	defer stop.Store(true)
	if err != nil {
		return e, err
	}
	c := r.control
	who := []p4rtclient.Entry{identity(0)}
	first, err := c.verdicts(ctx)
	for start := time.Now(); err == nil && time.Since(start) < d; e.Deletions++ {
		var late int64
		if late, err = c.lateAfter(ctx, who); err == nil {
			e.Late += late
			err = c.client.Write(ctx, updates(p4rtclient.Insert, who))
		}
	}
	if err != nil {
		return e, err
	}
	last, err := c.verdicts(ctx)
	for i := range last {
		e.Packets += last[i] - first[i]
	}
	return e, err
}

// lateAfter deletes entries and counts the packets that are forwarded after the
// answer, until some have been refused.
func (c *controller) lateAfter(ctx context.Context, es []p4rtclient.Entry) (int64, error) {
	before, err := c.verdicts(ctx)
	if err != nil {
		return 0, err
	}
	if err := c.client.Write(ctx, updates(p4rtclient.Delete, es)); err != nil {
		return 0, err
	}
	answered, err := c.verdicts(ctx)
	if err != nil {
		return 0, err
	}
	const enough = 20
	for deadline := time.Now().Add(10 * time.Second); ; {
		now, err := c.verdicts(ctx)
		if err != nil {
			return 0, err
		}
		if now[p4.NoIdentity] >= max(answered[p4.NoIdentity], before[p4.NoIdentity])+enough {
			return now[p4.Forwarded] - answered[p4.Forwarded], nil
		}
		if time.Now().After(deadline) {
			return 0, fmt.Errorf("no packet came within ten seconds")
		}
	}
}

// flooding starts to send datagrams from the first host to the second, which
// does not read them.
func (l *lab) flooding(stop *atomic.Bool, sender *sync.WaitGroup) error {
	from, err := l.connected()
	if err != nil {
		return err
	}
	to, err := l.socket(1, unix.SOCK_DGRAM)
	if err != nil {
		closeFD(from)
		return err
	}
	sender.Go(func() {
		pin(0)
		defer closeFD(to)
		defer closeFD(from)
		for buf := make([]byte, smallDatagram); !stop.Load(); {
			_, _ = unix.Write(from, buf) // a full queue is an error, and passes
		}
	})
	return nil
}
