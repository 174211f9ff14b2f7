package p4rt

import (
	"encoding/binary"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/p4rt/p4info"
	"github.com/bifrost-rack/bifrost/p4switch/shared/outstream"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/protobuf/proto"
)

// digestChannel is the state of one digest (section "DigestEntry"): a buffer of
// distinct samples that becomes a list when it is long or old enough, and a
// cache of the samples that were sent and not acknowledged, which are not sent
// again before their time is up.
type digestChannel struct {
	digest *p4info.Digest
	send   func(*p4v1.DigestList) bool

	mu      sync.Mutex
	config  *p4v1.DigestEntry_Config // nil while disabled
	buffer  []*p4v1.P4Data
	pending map[string]bool      // keys of the buffer
	timer   *time.Timer          // runs while the buffer holds anything
	cached  map[string]uint64    // key of an unacknowledged sample → its list
	lists   map[uint64]*sentList // unacknowledged lists
	order   []uint64             // ids of lists, oldest first; may name gone ones
	lastID  uint64
}

// sentList is a list that waits for its acknowledgement.
type sentList struct {
	keys  []string
	timer *time.Timer // forgets the list
}

func newDigestChannel(d *p4info.Digest, send func(*p4v1.DigestList) bool) *digestChannel {
	return &digestChannel{
		digest: d, send: send,
		pending: map[string]bool{}, cached: map[string]uint64{}, lists: map[uint64]*sentList{},
	}
}

// configure enables the digest with a configuration, or disables it with nil.
func (c *digestChannel) configure(cfg *p4v1.DigestEntry_Config) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.config = cfg
	if cfg == nil {
		c.reset()
		return
	}
	if len(c.buffer) > 0 && c.full() {
		c.flush()
	}
}

// sample takes one sample from the packet path; it is false if the sample is
// lost because nobody wants it or could be told.
func (c *digestChannel) sample(fields [][]byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.config == nil {
		return false
	}
	key := sampleKey(fields)
	if _, sent := c.cached[key]; sent || c.pending[key] {
		return true
	}
	data, err := c.digest.Sample.Data(fields)
	if err != nil {
		return false
	}
	c.buffer = append(c.buffer, data)
	c.pending[key] = true
	if c.full() {
		return c.flush()
	}
	if c.timer == nil {
		c.timer = time.AfterFunc(time.Duration(c.config.GetMaxTimeoutNs()), c.timeout)
	}
	return true
}

// full tells whether the buffer must be sent now.
func (c *digestChannel) full() bool {
	limit := int(c.config.GetMaxListSize())
	if limit == 0 || limit > maxDigestList {
		limit = maxDigestList
	}
	return len(c.buffer) >= limit || c.config.GetMaxTimeoutNs() <= 0
}

func (c *digestChannel) timeout() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.buffer) > 0 {
		c.flush()
	}
}

// flush sends the buffer as one list and remembers it until it is acknowledged.
func (c *digestChannel) flush() bool {
	c.lastID++
	id := c.lastID
	list := &p4v1.DigestList{DigestId: c.digest.ID, ListId: id, Data: c.buffer, Timestamp: time.Now().UnixNano()}
	keys := c.pending
	c.buffer, c.pending = nil, map[string]bool{}
	c.stopTimer()
	if !c.send(list) {
		return false // the samples may come again
	}
	if ack := time.Duration(c.config.GetAckTimeoutNs()); ack > 0 {
		c.remember(id, keys, ack)
	}
	return true
}

func (c *digestChannel) remember(id uint64, keys map[string]bool, ack time.Duration) {
	l := &sentList{timer: time.AfterFunc(ack, func() { c.ack(id) })}
	for k := range keys {
		l.keys = append(l.keys, k)
		c.cached[k] = id
	}
	c.lists[id] = l
	c.order = append(c.order, id)
	for len(c.cached) > maxDigestCache {
		c.forget(c.order[0])
		c.order = c.order[1:]
	}
}

// ack forgets a list: its samples may be sent again.
func (c *digestChannel) ack(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget(id)
	for len(c.order) > 0 && c.lists[c.order[0]] == nil {
		c.order = c.order[1:]
	}
}

func (c *digestChannel) forget(id uint64) {
	l := c.lists[id]
	if l == nil {
		return
	}
	l.timer.Stop()
	delete(c.lists, id)
	for _, k := range l.keys {
		if c.cached[k] == id {
			delete(c.cached, k)
		}
	}
}

// stop disables the digest for good.
func (c *digestChannel) stop() { c.configure(nil) }

func (c *digestChannel) reset() {
	c.stopTimer()
	c.buffer, c.pending = nil, map[string]bool{}
	c.clearCache()
}

// forgetAll forgets all lists, acknowledged or not, as the specification allows
// when the primary changes.
func (c *digestChannel) forgetAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clearCache()
}

func (c *digestChannel) clearCache() {
	for id := range c.lists {
		c.forget(id)
	}
	c.order = nil
}

func (c *digestChannel) stopTimer() {
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
}

// sampleKey is equal for equal samples only: each field with its length.
func sampleKey(fields [][]byte) string {
	var room [128]byte
	b := room[:0]
	for _, f := range fields {
		b = binary.AppendUvarint(b, uint64(len(f)))
		b = append(b, f...)
	}
	return string(b)
}

// Digest implements datapath.Sink.
func (p *pipeline) Digest(d datapath.Digest) {
	info := p.info.DigestByName(d.Name)
	if info == nil || !p.digests[info.ID].sample(d.Fields) {
		p.srv.stats.digestDrops.Add(1)
	}
}

func (p *pipeline) sendDigests(l *p4v1.DigestList) bool {
	m := &p4v1.StreamMessageResponse{Update: &p4v1.StreamMessageResponse_Digest{Digest: l}}
	name := p.info.Name(l.GetDigestId())
	return p.srv.tell(outstream.NoFlow, m, proto.Size(l), (*outstream.Sender).Offer, func(sc *scope) bool { return sc.object(name) })
}
