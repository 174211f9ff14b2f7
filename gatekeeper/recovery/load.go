package recovery

import (
	"fmt"
	"iter"
	"net/netip"

	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
)

func key(a netip.Addr) wal.Key { return wal.Key{Kind: wal.KindRecovery, ID: wal.AddrID(a)} }

// keep writes a recovery down.
func (m *Machine) keep(r *recovery) {
	rec := wal.Record{
		Kind: wal.KindRecovery, ID: wal.AddrID(r.Node.Address), Time: r.since, Callee: r.Node,
		Attempt: uint32(r.phase), Data: []byte(r.Cause),
	}
	if r.Gone {
		rec.Order = 1
	}
	m.out.Put = append(m.out.Put, rec)
}

// Load returns the Machine whose records a log has; those of other kinds are
// passed over. It knows no memory servers: AddServer tells them, before Resume.
func Load(records iter.Seq2[wal.Record, error]) (*Machine, error) {
	m := New()
	for r, err := range records {
		if err != nil {
			return nil, err
		}
		if r.Kind != wal.KindRecovery {
			continue
		}
		phase := Phase(r.Attempt) //nolint:gosec // checked below
		if uint32(phase) != r.Attempt || phase != Fencing && phase != Restoring {
			return nil, fmt.Errorf("recovery: %s: phase %d", r.Key(), r.Attempt)
		}
		m.recoveries[r.Callee.Address] = &recovery{
			Failure: Failure{r.Callee, r.Order != 0, string(r.Data)}, since: r.Time, phase: phase, unacked: map[Server]struct{}{},
		}
	}
	return m, nil
}

// Resume emits again what a Gatekeeper that was killed may not have got done. It
// comes after Load and AddServer; Joined must be called for the nodes that are there now.
func (m *Machine) Resume() Output {
	m.out = Output{} // AddServer's fences are among what follows
	for _, r := range m.sorted() {
		if r.phase == Fencing {
			m.fence(r)
			continue
		}
		m.restore(r)
	}
	return m.take()
}
