package interp

import (
	"math/rand/v2"

	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// maxKeyWords bounds a table's or transition's key.
const maxKeyWords = 32

// loss is why a packet is lost on its way through a pipeline.
type loss uint8

const (
	kept            loss = iota
	assertionFailed      // of the program
	endlessLoop          // in an action
)

// state is one packet on its way through the program.
type state struct {
	// w holds the fields, as layout says; varbit the bytes of headers'
	// variable-length fields, by header.
	w      []uint64
	varbit [][]byte

	// frame is the packet as it came; pos is how far the parser got, so
	// frame[pos:] is the payload.
	frame []byte
	pos   int

	// args are the arguments of the action that runs.
	args []uint64
	// pc is where in the action a jump leads, or -1.
	pc   int
	exit bool

	// failed and code: the parser has stopped with an error.
	failed bool
	code   uint64
	// badChecksum: a checksum was found wrong.
	badChecksum bool
	// lost, if not kept, is why the packet goes nowhere, whatever the program says.
	lost loss

	// inLen is the length that counters and meters count. length is what
	// packet_length will be in egress: headers made valid or invalid change it.
	inLen  int
	length uint64
	// limit is the longest that the packet may leave; negative means no limit.
	limit int

	orders
	scratch
	shard *shard
	tr    *packetTrace
	// queued: the packet waits for its turn.
	queued bool
}

// orders are what the program has said is to become of the packet.
type orders struct {
	clone       bool
	session     uint32
	cloneFields *v1model.FieldList
	digest      *digest
	resubmit    *v1model.FieldList
	recirculate *v1model.FieldList
}

// scratch is memory that steps use and leave dirty.
type scratch struct {
	key  [maxKeyWords]uint64
	hash []byte
	rand func() uint64
}

func newState(l *layout, headers int) *state {
	return &state{
		w:       make([]uint64, l.words),
		varbit:  make([][]byte, headers),
		scratch: scratch{rand: rand.Uint64},
	}
}

// begin makes the state that of a packet that comes in.
func (s *state) begin(l *layout, frame []byte) {
	copy(s.w, l.reset)
	for _, i := range l.varbits {
		s.varbit[i] = s.varbit[i][:0]
	}
	s.frame, s.pos = frame, 0
	s.args, s.exit, s.lost = nil, false, kept
	s.inLen, s.length = len(frame), uint64(len(frame))
	s.limit = -1
	s.orders = orders{}
}

// become copies another state's packet, without its orders and its limit.
func (s *state) become(l *layout, o *state) {
	copy(s.w, o.w)
	for _, i := range l.varbits {
		s.varbit[i] = append(s.varbit[i][:0], o.varbit[i]...)
	}
	s.frame, s.pos = o.frame, o.pos
	s.args, s.exit, s.lost = nil, false, kept
	s.inLen, s.length = o.inLen, o.length
	s.limit = -1
	s.orders = orders{}
	s.shard, s.tr = o.shard, o.tr
}

// resetMetadata zeroes all metadata.
func (s *state) resetMetadata(l *layout) {
	for _, r := range l.metadata {
		clear(s.w[r[0]:r[1]])
	}
	for _, i := range l.metadataVarbits {
		s.varbit[i] = s.varbit[i][:0]
	}
}

// keep copies the fields of a list from another state of the same program.
func (s *state) keep(l *layout, o *state, list *v1model.FieldList) {
	for _, f := range list.Fields {
		sl := l.slot(f)
		copy(s.w[sl.at:sl.at+sl.n], o.w[sl.at:sl.at+sl.n])
		if f.Def().Varbit {
			i := f.Header.Index
			s.varbit[i] = append(s.varbit[i][:0], o.varbit[i]...)
		}
	}
}

// fail stops the parser with an error code.
func (s *state) fail(code uint64) {
	s.failed, s.code = true, code
}

// payload is what the parser left.
func (s *state) payload() []byte { return s.frame[s.pos:] }
