package rpc

import (
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Memory operations are an execution's only if somebody will commit it.
func TestScopeOfMemory(t *testing.T) {
	first := rpcpacket.Message{Header: rpcpacket.Header{Call: rpcpacket.ID{1, 2}}}
	id := [16]byte{1, 2}
	for _, c := range []struct {
		e      *execution
		branch uint32
		want   dsmclient.Scope
	}{
		{&execution{call: first}, 0, dsmclient.Scope{}},
		{&execution{call: first, journal: new(journal)}, 0, dsmclient.Scope{Execution: id}},
		{&execution{call: first, journal: new(journal)}, 7, dsmclient.Scope{Execution: id, Branch: 7}},
		{&execution{journal: new(journal), main: &main{memory: id}, resumed: true}, 7, dsmclient.Scope{Execution: id, Branch: 7}},
	} {
		if got := (&opSequence{e: c.e, number: c.branch}).scope(); got.Execution != c.want.Execution || got.Branch != c.want.Branch {
			t.Errorf("%+v, want %+v", got, c.want)
		}
	}
}
