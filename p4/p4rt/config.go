package p4rt

import (
	"context"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// SetForwardingPipelineConfig implements the RPC of that name.
func (s *Server) SetForwardingPipelineConfig(_ context.Context, r *p4v1.SetForwardingPipelineConfigRequest) (*p4v1.SetForwardingPipelineConfigResponse, error) {
	old, err := s.configure(r)
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

// configure changes the configuration and returns the pipelines that nothing
// uses any more. They are closed without the lock, which their goroutines may
// be waiting for.
func (s *Server) configure(r *p4v1.SetForwardingPipelineConfigRequest) (unused []*pipeline, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sc, err := s.mayChange(r)
	if err != nil {
		return nil, err
	}
	if !sc.pipeline {
		return nil, status.Error(codes.PermissionDenied, "the role may not change the pipeline")
	}
	if r.GetAction() == p4v1.SetForwardingPipelineConfigRequest_COMMIT {
		return s.commitSaved(r.GetConfig())
	}
	if r.GetAction() < p4v1.SetForwardingPipelineConfigRequest_VERIFY || r.GetAction() > p4v1.SetForwardingPipelineConfigRequest_RECONCILE_AND_COMMIT {
		return nil, status.Errorf(codes.InvalidArgument, "action %v", r.GetAction())
	}
	if r.GetConfig() == nil {
		return nil, status.Errorf(codes.InvalidArgument, "action %v needs a config", r.GetAction())
	}
	p, err := s.newPipeline(r.GetConfig())
	if err != nil {
		return nil, err
	}
	switch r.GetAction() {
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
	}
	return s.commit(p), nil
}

// commitSaved commits what VERIFY_AND_SAVE left. The writes since then went to
// its own datapath, so there is nothing to replay.
func (s *Server) commitSaved(config *p4v1.ForwardingPipelineConfig) ([]*pipeline, error) {
	if config != nil {
		return nil, status.Error(codes.InvalidArgument, "COMMIT takes no config, it commits the saved one")
	}
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
// as one named on the command line.
func (s *Server) LoadConfig(c *p4v1.ForwardingPipelineConfig) error {
	s.mu.Lock()
	p, err := s.newPipeline(c)
	if err != nil {
		s.mu.Unlock()
		return err
	}
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
