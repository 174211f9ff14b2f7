package p4rt

import (
	"context"
	"sync"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/p4rt/p4info"
	"github.com/bifrost-rack/bifrost/p4switch/shared/outstream"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
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
	made    []*p4v1.Update // what the server's Persister has not been told; guarded by Server.mu

	// after is the pipeline that was committed last when this one was loaded, if this one goes on with its registers. Of goesOn there may have been none.
	goesOn bool
	after  *pipeline

	// replaying is set while what was written before is written again: ports that it names may not have come yet, or be gone.
	replaying bool

	closing sync.Once
}

// newPipeline checks and loads a configuration, which may take seconds; with goOn, as one that has the registers of what was committed last. Errors are
// INVALID_ARGUMENT: the configuration "cannot be realized".
func (s *Server) newPipeline(m *p4v1.ForwardingPipelineConfig, goOn bool) (*pipeline, error) {
	info, err := p4info.Parse(m.GetP4Info())
	if err != nil {
		return nil, err
	}
	p := &pipeline{srv: s, msg: m, info: info, digests: map[uint32]*digestChannel{}, goesOn: goOn}
	if goOn {
		p.after = s.live.Load()
	}
	for _, d := range info.DigestOrder {
		p.digests[d.ID] = newDigestChannel(d, p.sendDigests)
	}
	p.idle.init(p.reportIdle)
	dp, err := s.cfg.Load(info, deviceConfig(m.GetP4DeviceConfig()), p, goOn)
	if err != nil {
		p.idle.stop()
		return nil, unrealizable(err)
	}
	p.dp = dp
	if p.store, err = newStore(info, dp); err != nil {
		_ = p.close()
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
	flow := uint32(outstream.NoFlow)
	if port, ok := p.info.PacketIn.Port(md); ok {
		flow = port + 1
	}
	if !p.srv.tell(flow, m, len(frame), offer, func(sc *scope) bool { return sc.packetIn }) {
		p.srv.stats.packetInDrops.Add(1)
	}
}

// tell offers a message of a flow to every primary whose scope includes it; it is false
// if nobody took it.
func (s *Server) tell(flow uint32, m *p4v1.StreamMessageResponse, size int, offer func(*outstream.Sender, uint32, proto.Message, int) bool, includes func(*scope) bool) bool {
	taken := false
	for _, p := range s.arb.primaries() {
		if includes(p.scope) {
			taken = offer(p.out, flow, m, size) || taken
		}
	}
	return taken
}

// SetForwardingPipelineConfig implements the RPC of that name. The program is loaded
// without the lock: writes, reads and arbitration go on meanwhile, and whoever is no
// primary any more when that is done changes nothing.
func (s *Server) SetForwardingPipelineConfig(ctx context.Context, r *p4v1.SetForwardingPipelineConfigRequest) (*p4v1.SetForwardingPipelineConfigResponse, error) {
	p, err := s.realize(ctx, r)
	if err != nil {
		return nil, err
	}
	old, err := s.configure(r, p)
	for _, p := range old {
		if cerr := p.close(); cerr != nil {
			s.log.Error("closing a replaced pipeline", "error", cerr)
		}
	}
	if err != nil {
		return nil, err
	}
	return &p4v1.SetForwardingPipelineConfigResponse{}, nil
}

// mayConfigure checks a request for a configuration.
func (s *Server) mayConfigure(r *p4v1.SetForwardingPipelineConfigRequest) error {
	sc, err := s.mayChange(r)
	switch {
	case err != nil:
		return err
	case !sc.pipeline:
		return status.Error(codes.PermissionDenied, "the role may not change the pipeline")
	case r.GetAction() < p4v1.SetForwardingPipelineConfigRequest_VERIFY || r.GetAction() > p4v1.SetForwardingPipelineConfigRequest_RECONCILE_AND_COMMIT:
		return status.Errorf(codes.InvalidArgument, "action %v", r.GetAction())
	}
	commit := r.GetAction() == p4v1.SetForwardingPipelineConfigRequest_COMMIT
	switch {
	case commit && r.GetConfig() != nil:
		return status.Error(codes.InvalidArgument, "COMMIT takes no config, it commits the saved one")
	case !commit && r.GetConfig() == nil:
		return status.Errorf(codes.InvalidArgument, "action %v needs a config", r.GetAction())
	}
	return nil
}

// realize loads the program that a request has, one at a time; COMMIT has none.
func (s *Server) realize(ctx context.Context, r *p4v1.SetForwardingPipelineConfigRequest) (*pipeline, error) {
	if err := s.mayConfigure(r); err != nil || r.GetConfig() == nil {
		return nil, err
	}
	select {
	case s.loading <- struct{}{}:
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	defer func() { <-s.loading }()
	return s.newPipeline(r.GetConfig(), keepsRegisters(ctx, r.GetAction()))
}

// KeepRegisters is a key of a SetForwardingPipelineConfig's gRPC metadata, an extension of P4Runtime: with VERIFY_AND_COMMIT, which clears the
// forwarding state, registers keep what packets have written there if both programs have the same ones, by name, width and size, in the same
// order. Any value will do. Servers that do not know it clear them, too.
const KeepRegisters = "bifrost-keep-registers"

// keepsRegisters tells whether registers outlive a new pipeline.
func keepsRegisters(ctx context.Context, action p4v1.SetForwardingPipelineConfigRequest_Action) bool {
	switch action {
	case p4v1.SetForwardingPipelineConfigRequest_RECONCILE_AND_COMMIT:
		return true
	case p4v1.SetForwardingPipelineConfigRequest_VERIFY_AND_COMMIT:
		return len(metadata.ValueFromIncomingContext(ctx, KeepRegisters)) > 0
	default:
		return false
	}
}

// configure changes the configuration to what realize has made of the request, and
// returns the pipelines that nothing uses any more. They are closed without the lock,
// which their goroutines may be waiting for.
func (s *Server) configure(r *p4v1.SetForwardingPipelineConfigRequest, p *pipeline) (unused []*pipeline, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.mayConfigure(r); err != nil {
		return []*pipeline{p}, err
	}
	if p != nil && p.goesOn && p.after != s.live.Load() {
		return []*pipeline{p}, status.Error(codes.Aborted, "another pipeline was committed meanwhile, and packets may have changed its registers")
	}
	switch r.GetAction() {
	case p4v1.SetForwardingPipelineConfigRequest_COMMIT:
		return s.commitSaved()
	case p4v1.SetForwardingPipelineConfigRequest_VERIFY:
		return []*pipeline{p}, nil
	case p4v1.SetForwardingPipelineConfigRequest_VERIFY_AND_SAVE:
		return s.save(p), nil
	case p4v1.SetForwardingPipelineConfigRequest_RECONCILE_AND_COMMIT:
		if old := s.live.Load(); old != nil {
			if err := p.adopt(old); err != nil {
				return []*pipeline{p}, err
			}
		}
	default: // to commit, below; others were refused above
	}
	return s.commit(p), nil
}

// commitSaved commits what VERIFY_AND_SAVE left. The writes since then went to
// its own datapath, so there is nothing to replay.
func (s *Server) commitSaved() ([]*pipeline, error) {
	if s.pipe == nil || s.pipe == s.live.Load() {
		return nil, status.Error(codes.NotFound, "no config has been saved")
	}
	return s.commit(s.pipe), nil
}

// save makes p what reads and writes refer to. A pipeline that was saved before
// and never committed is unused then.
func (s *Server) save(p *pipeline) (unused []*pipeline) {
	if s.pipe != nil && s.pipe != s.live.Load() {
		unused = append(unused, s.pipe)
	}
	s.pipe = p
	return unused
}

// commit makes p the path of all packets.
func (s *Server) commit(p *pipeline) (unused []*pipeline) {
	if s.pipe != p {
		unused = s.save(p)
	}
	s.begin(p)
	if s.cfg.Commit != nil {
		s.cfg.Commit(p.dp)
	}
	if old := s.live.Swap(p); old != nil {
		unused = append(unused, old)
	}
	s.log.Info("forwarding pipeline committed", "tables", len(p.info.Tables), "cookie", p.msg.GetCookie().GetCookie())
	return unused
}

// LoadConfig commits a configuration that does not come from a controller, such
// as one named on the command line. Registers keep what they have, as with KeepRegisters.
func (s *Server) LoadConfig(c *p4v1.ForwardingPipelineConfig) error {
	p, err := s.newPipeline(c, true)
	if err != nil {
		return err
	}
	s.mu.Lock()
	unused := s.commit(p)
	s.mu.Unlock()
	for _, p := range unused {
		_ = p.close()
	}
	return nil
}

// GetForwardingPipelineConfig implements the RPC of that name: the newest
// config, which is what reads and writes refer to.
func (s *Server) GetForwardingPipelineConfig(_ context.Context, r *p4v1.GetForwardingPipelineConfigRequest) (*p4v1.GetForwardingPipelineConfigResponse, error) {
	if r.GetDeviceId() != s.cfg.DeviceID {
		return nil, s.wrongDevice(r.GetDeviceId())
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.pipe == nil {
		return &p4v1.GetForwardingPipelineConfigResponse{}, nil
	}
	c := &p4v1.ForwardingPipelineConfig{Cookie: s.pipe.msg.GetCookie()}
	switch t := r.GetResponseType(); t {
	case p4v1.GetForwardingPipelineConfigRequest_ALL:
		c = s.pipe.msg
	case p4v1.GetForwardingPipelineConfigRequest_COOKIE_ONLY:
	case p4v1.GetForwardingPipelineConfigRequest_P4INFO_AND_COOKIE:
		c.P4Info = s.pipe.msg.GetP4Info()
	case p4v1.GetForwardingPipelineConfigRequest_DEVICE_CONFIG_AND_COOKIE:
		c.P4DeviceConfig = s.pipe.msg.GetP4DeviceConfig()
	default:
		return nil, status.Errorf(codes.InvalidArgument, "response type %v", t)
	}
	return &p4v1.GetForwardingPipelineConfigResponse{Config: c}, nil
}

// unrealizable gives an error in a configuration its code.
func unrealizable(err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Errorf(codes.InvalidArgument, "the config cannot be realized: %v", err)
}

// deviceConfig is the program in a P4Runtime device config: p4c's bmv2 JSON as
// it is, or inside the old p4.tmp.P4DeviceConfig message (field 3), which bmv2
// still takes too. What is not such a message through and through is taken as it
// is.
func deviceConfig(b []byte) []byte {
	const deviceData = 3
	var data []byte
	for rest := b; len(rest) > 0; {
		num, typ, n := protowire.ConsumeTag(rest)
		if n < 0 || num > deviceData {
			return b
		}
		rest = rest[n:]
		if num == deviceData && typ == protowire.BytesType {
			v, n := protowire.ConsumeBytes(rest)
			if n < 0 {
				return b
			}
			data, rest = v, rest[n:]
			continue
		}
		n = protowire.ConsumeFieldValue(num, typ, rest)
		if n < 0 {
			return b
		}
		rest = rest[n:]
	}
	if data == nil {
		return b
	}
	return data
}
