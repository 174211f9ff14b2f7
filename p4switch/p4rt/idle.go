package p4rt

import (
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/shared/outstream"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/protobuf/proto"
)

// idleQueue takes idle notifications off the packet path: to tell the
// controller its own words for an entry, the store must be read, whose lock the
// packet path must not wait for. One goroutine per pipeline serves it.
type idleQueue struct {
	entries chan datapath.Entry
	quit    chan struct{}
	done    sync.WaitGroup
}

func (q *idleQueue) init(report func([]datapath.Entry)) {
	q.entries, q.quit = make(chan datapath.Entry, maxIdleQueue), make(chan struct{})
	q.done.Go(func() {
		for {
			select {
			case <-q.quit:
				return
			case e := <-q.entries:
				report(q.more(e))
			}
		}
	})
}

// more adds what waits already, so that one message tells of all.
func (q *idleQueue) more(e datapath.Entry) []datapath.Entry {
	batch := []datapath.Entry{e}
	for len(batch) < maxIdleQueue {
		select {
		case e := <-q.entries:
			batch = append(batch, e)
		default:
			return batch
		}
	}
	return batch
}

func (q *idleQueue) stop() {
	close(q.quit)
	q.done.Wait()
}

// Idle implements datapath.Sink.
func (p *pipeline) Idle(e datapath.Entry) {
	select {
	case p.idle.entries <- e:
	default:
		p.srv.stats.idleDrops.Add(1)
	}
}

// reportIdle notifies each primary of its tables' entries (section "Table Idle
// Timeout Notification"). Entries that have been deleted meanwhile are left out.
func (p *pipeline) reportIdle(batch []datapath.Entry) {
	var entries []*p4v1.TableEntry
	p.srv.mu.RLock()
	for _, e := range batch {
		if found := p.store.find(e); found != nil {
			entries = append(entries, found.msg)
		}
	}
	p.srv.mu.RUnlock()
	now := time.Now().UnixNano()
	for _, pr := range p.srv.arb.primaries() {
		m := &p4v1.IdleTimeoutNotification{Timestamp: now}
		for _, e := range entries {
			if pr.scope.object(p.info.Name(e.GetTableId())) {
				m.TableEntry = append(m.TableEntry, e)
			}
		}
		if len(m.TableEntry) == 0 {
			continue
		}
		msg := &p4v1.StreamMessageResponse{Update: &p4v1.StreamMessageResponse_IdleTimeoutNotification{IdleTimeoutNotification: m}}
		if !pr.out.Offer(outstream.NoFlow, msg, proto.Size(m)) {
			p.srv.stats.idleDrops.Add(uint64(len(m.TableEntry)))
		}
	}
}
