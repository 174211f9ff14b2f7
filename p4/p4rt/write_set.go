package p4rt

import (
	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/bifrost-rack/bifrost/p4/p4rt/p4info"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// writeValueSet replaces a value set's members (section "ValueSetEntry").
func (p *pipeline) writeValueSet(m *p4v1.ValueSetEntry) error {
	v := p.info.ValueSets[m.GetValueSetId()]
	if v == nil {
		return unknown("value set", m.GetValueSetId())
	}
	if len(m.GetMembers()) > int(v.Size) {
		return status.Errorf(codes.ResourceExhausted, "value set %q has room for %d members, not %d", v.Name, v.Size, len(m.GetMembers()))
	}
	members := make([][]datapath.Match, len(m.GetMembers()))
	seen := map[string]bool{}
	for i, mm := range m.GetMembers() {
		key, err := p4info.MatchKey(v.Fields, mm.GetMatch())
		if err != nil {
			return err
		}
		id := entryKey(datapath.Entry{Match: key})
		if seen[id] {
			return status.Errorf(codes.AlreadyExists, "value set %q: member %d is there already", v.Name, i)
		}
		seen[id], members[i] = true, key
	}
	if err := p.dp.ValueSet(v.Name, members); err != nil {
		return datapathError(err)
	}
	p.store.valueSets[v.ID] = m
	return nil
}

// writeDigest enables, reconfigures or disables a digest (section "DigestEntry").
func (p *pipeline) writeDigest(op p4v1.Update_Type, m *p4v1.DigestEntry) error {
	d := p.digests[m.GetDigestId()]
	if d == nil {
		return unknown("digest", m.GetDigestId())
	}
	_, found := p.store.digests[m.GetDigestId()]
	if err := mustExist(op, found, "configuration of digest", m.GetDigestId()); err != nil {
		return err
	}
	if op == p4v1.Update_DELETE {
		d.configure(nil)
		delete(p.store.digests, m.GetDigestId())
		return nil
	}
	c := m.GetConfig()
	if c.GetMaxListSize() < 0 || c.GetMaxTimeoutNs() < 0 || c.GetAckTimeoutNs() < 0 {
		return status.Error(codes.InvalidArgument, "a digest's list size and timeouts must not be negative")
	}
	if c == nil {
		c = &p4v1.DigestEntry_Config{}
	}
	d.configure(c)
	p.store.digests[m.GetDigestId()] = m
	return nil
}
