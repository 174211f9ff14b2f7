package ingress

import (
	"context"
	"testing"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/ingress/gen-go/durable"
)

// Unsettled is how many keys of an ingress have no outcome yet.
func (s *Server) Unsettled(t *testing.T) (n int) {
	t.Helper()
	b, err := s.keeper.Snapshot()
	var all durable.Change
	if err == nil {
		err = thrift.NewTDeserializer().Read(context.Background(), &all, b)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all.Entries {
		if e.Outcome == nil {
			n++
		}
	}
	return n
}
