package softswitch

import (
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// The switch has no queues of its own, but a port's interface has one in the kernel: its root queueing discipline. While the
// program that is committed uses enq_qdepth or deq_qdepth, and only then, a goroutine asks the kernel how many packets wait in
// each, and tells the executor.

// queuesEvery is how often the kernel is asked. A queue of a link of 512 kbit/s has one full packet less after 24 ms.
const queuesEvery = time.Millisecond

// queueReader is an executor whose program may use the depths of queues.
type queueReader interface {
	model() *v1model.Program
	// SetQueueDepth says how many packets wait in a port's queue, for a second at least.
	SetQueueDepth(num datapath.Port, packets uint32)
}

// depths are how many packets wait in the ports' queues: 0 where there is none.
type depths [numPorts]uint32

// queues tells the committed executor the depths of queues.
type queues struct {
	stop chan struct{} // nil while the program does not use them; guarded by Switch.moving
	done sync.WaitGroup
}

// follow makes it tell another executor, or nobody if that does not ask. It does not wait for the goroutine before, which may
// tell an executor that is closed, to no effect. Callers hold s.moving.
func (q *queues) follow(s *Switch, e Executor) {
	q.end()
	x, ok := e.(queueReader)
	if !ok || !x.model().UsesQueues() {
		return
	}
	stop := make(chan struct{})
	q.stop = stop
	q.done.Go(func() { s.tellQueues(x, stop) })
}

// end makes it tell nobody any more. Callers hold s.moving.
func (q *queues) end() {
	if q.stop != nil {
		close(q.stop)
		q.stop = nil
	}
}

// tellQueues tells an executor the depths of queues until stop is closed.
func (s *Switch) tellQueues(x queueReader, stop <-chan struct{}) {
	tick := time.NewTicker(queuesEvery)
	defer tick.Stop()
	var told depths
	for failing := false; ; {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		now, err := s.queueDepths(told)
		if err != nil && !failing {
			s.log.Warn("the queues of ports are unknown, and count as empty", "error", err)
		}
		failing = err != nil
		for num, n := range now {
			if n != 0 || told[num] != 0 {
				x.SetQueueDepth(datapath.Port(num), n) //nolint:gosec // small
			}
		}
		told = now
	}
}
