package p4rt

import (
	"sync"

	"github.com/bifrost-rack/bifrost/internal/outstream"
	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/bifrost-rack/bifrost/p4/p4rt/p4info"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/protobuf/proto"
)

// pipeline is one loaded program with what was written to it. It is also the
// sink of its datapath: what a program has for the controller is told in the
// words of its own P4Info.
type pipeline struct {
	srv     *Server
	msg     *p4v1.ForwardingPipelineConfig
	info    *p4info.Info
	dp      datapath.Datapath
	store   *store                    // guarded by Server.mu
	digests map[uint32]*digestChannel // by digest id; the map never changes
	idle    idleQueue
	made    []*p4v1.Update // what the server's Keeper has not been told; guarded by Server.mu

	closing sync.Once
}

// newPipeline checks and loads a configuration. Errors are INVALID_ARGUMENT:
// the configuration "cannot be realized".
func (s *Server) newPipeline(m *p4v1.ForwardingPipelineConfig) (*pipeline, error) {
	info, err := p4info.Parse(m.GetP4Info())
	if err != nil {
		return nil, err
	}
	p := &pipeline{srv: s, msg: m, info: info, digests: map[uint32]*digestChannel{}}
	for _, d := range info.DigestOrder {
		p.digests[d.ID] = newDigestChannel(d, p.sendDigests)
	}
	p.idle.init(p.reportIdle)
	dp, err := s.cfg.Load(info, deviceConfig(m.GetP4DeviceConfig()), p)
	if err != nil {
		p.idle.stop()
		return nil, unrealizable(err)
	}
	p.dp = dp
	if p.store, err = newStore(info, dp); err != nil {
		_ = p.close() // with the lock held: nothing has been written, so nothing is idle
		return nil, unrealizable(err)
	}
	return p, nil
}

// close stops the datapath and everything that waits on its behalf. A nil
// pipeline is closed already.
func (p *pipeline) close() (err error) {
	if p == nil {
		return nil
	}
	p.closing.Do(func() {
		err = p.dp.Close()
		for _, d := range p.digests {
			d.stop()
		}
		p.idle.stop()
	})
	return err
}

// PacketIn implements datapath.Sink: to every primary, on the caller's goroutine.
func (p *pipeline) PacketIn(frame []byte) {
	md, payload, err := p.info.PacketIn.Decode(frame)
	if err != nil {
		p.srv.stats.packetInErrors.Add(1)
		return
	}
	m := &p4v1.StreamMessageResponse{Update: &p4v1.StreamMessageResponse_Packet{
		Packet: &p4v1.PacketIn{Payload: payload, Metadata: md},
	}}
	offer := (*outstream.Sender).Offer
	if p.info.PacketIn.Urgent(md) {
		offer = (*outstream.Sender).Urgent
	}
	if !p.srv.tell(m, len(frame), offer, func(sc *scope) bool { return sc.packetIn }) {
		p.srv.stats.packetInDrops.Add(1)
	}
}

// tell offers a message to every primary whose scope includes it; it is false
// if nobody took it.
func (s *Server) tell(m *p4v1.StreamMessageResponse, size int, offer func(*outstream.Sender, proto.Message, int) bool, includes func(*scope) bool) bool {
	taken := false
	for _, p := range s.arb.primaries() {
		if includes(p.scope) {
			taken = offer(p.out, m, size) || taken
		}
	}
	return taken
}
