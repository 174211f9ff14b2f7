package rpc

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/share"
)

// TestShortage_ManyOwners: however many owners were dropped once, it is known of another one since when it has been, though others are accepted.
func TestShortage_ManyOwners(t *testing.T) {
	owner := func(n int) share.Owner {
		return share.Stranger(netip.AddrFrom16([16]byte(binary.BigEndian.AppendUint64(make([]byte, 8, 16), uint64(n)))))
	}
	var r room
	for n := range 2 * mostShort {
		if since := r.isShort(owner(n), true, time.Second); since != time.Second || len(r.shortOf) > mostShort {
			t.Fatalf("owner %d: dropped since %s; %d owners are known", n, since, len(r.shortOf))
		}
	}
	const first = 100 * time.Second
	for now := first; now < first+20*time.Second; now += 2 * time.Second {
		if since := r.isShort(owner(-1), true, now); since != first {
			t.Errorf("at %s: dropped since %s, want %s", now, since, first)
		}
		r.short = shortage{} // another owner's call is accepted
	}
}
