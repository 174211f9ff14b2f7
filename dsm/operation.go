package dsm

import (
	"sync"

	"github.com/bifrost-rack/bifrost/dsm/internal/transport"
)

// waiter is what a transfer's Tag is: ended is called when the outcome is there, with
// the link's mutex held.
type waiter interface{ ended() }

// operation is a transfer whose caller waits.
type operation struct {
	transport.Transfer
	done chan struct{} // gets one value when the outcome is there
	// sending is datagrams under way to the network that refer to Buf. It is added
	// to under the link's mutex, while the outcome is not there.
	sending sync.WaitGroup
}

// ended implements waiter.
func (o *operation) ended() { o.done <- struct{}{} } // has room for one

// operations keeps operations to use again. It is a client's own, as channels
// made in a testing/synctest bubble must stay there.
type operations struct{ pool sync.Pool }

func (s *operations) get() *operation {
	o, ok := s.pool.Get().(*operation)
	if !ok {
		o = &operation{done: make(chan struct{}, 1)}
	}
	o.Tag = o
	return o
}

// put takes an operation back that the endpoint does not know any more.
func (s *operations) put(o *operation) {
	o.Transfer = transport.Transfer{}
	s.pool.Put(o)
}
