package dsm

import (
	"sync"

	"github.com/bifrost-rack/bifrost/dsm/internal/transport"
)

// operation is a transfer whose caller waits.
type operation struct {
	transport.Transfer
	done chan struct{} // gets one value when the outcome is there
}

var operations = sync.Pool{New: func() any { return &operation{done: make(chan struct{}, 1)} }}

func getOperation() *operation {
	o := operations.Get().(*operation)
	o.Tag = o
	return o
}

// putOperation takes an operation back that the endpoint does not know any more.
func putOperation(o *operation) {
	o.Transfer = transport.Transfer{}
	operations.Put(o)
}
