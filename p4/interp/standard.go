package interp

import "github.com/bifrost-rack/bifrost/p4/v1model"

// Instance types of packets: how a packet or copy came about.
const (
	instanceNormal      = 0
	instanceClone       = 1 // of ingress
	instanceEgressClone = 2
	instanceRecirculate = 4
	instanceReplication = 5
	instanceResubmit    = 6
)

// standard says where the architecture's fields lie. Fields that the program
// lacks or never looks at are nowhere.
type standard struct {
	ingressPort, egressSpec, egressPort, instanceType, packetLength stdField
	parserError, checksumError, mcastGroup, egressRID               stdField
	ingressTime, egressTime, enqueueTime                            stdField
}

// stdField is the place of a field of at most 64 bits; nowhere is no place.
type stdField struct {
	at   int
	mask uint64
}

func (f stdField) exists() bool { return f.at >= 0 }

func (f stdField) set(s *state, v uint64) {
	if f.at >= 0 {
		s.w[f.at] = v & f.mask
	}
}

func (f stdField) get(s *state) uint64 {
	if f.at < 0 {
		return 0
	}
	return s.w[f.at]
}

func newStandard(c *compiler) standard {
	m := &c.prog.Std
	field := func(r v1model.FieldRef) stdField {
		if !r.Valid() {
			return stdField{at: -1}
		}
		sl := c.lay.slot(r)
		return stdField{sl.at, mask64(sl.width)}
	}
	// A clock need not be read for a field that nobody reads.
	ifUsed := func(r v1model.FieldRef) stdField {
		if !c.prog.Uses(r) {
			return stdField{at: -1}
		}
		return field(r)
	}
	return standard{
		ingressPort: field(m.IngressPort), egressSpec: field(m.EgressSpec), egressPort: field(m.EgressPort),
		instanceType: field(m.InstanceType), packetLength: field(m.PacketLength),
		parserError: field(m.ParserError), checksumError: field(m.ChecksumError),
		mcastGroup: field(m.MulticastGroup), egressRID: field(m.EgressRID),
		ingressTime: ifUsed(m.IngressTimestamp), egressTime: ifUsed(m.EgressTimestamp),
		enqueueTime: ifUsed(m.EnqueueTimestamp),
	}
}
