package p4rt

import (
	"fmt"

	"github.com/bifrost-rack/bifrost/p4/datapath"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
)

// Keeper keeps the committed pipeline and what controllers have written to it, for
// a server that starts after this process has died (Restore). Counters and
// registers belong to the data plane, which keeps them itself or not at all. The
// server makes its calls one at a time.
type Keeper interface {
	// Begin replaces all that is kept by a pipeline and the updates that give it its
	// state. dp is the pipeline's datapath, which is about to be committed or has
	// been. The messages are the server's.
	Begin(dp datapath.Datapath, config *p4v1.ForwardingPipelineConfig, updates []*p4v1.Update) error
	// Append adds updates that have been made, before the controller is answered.
	// With long, the updates kept are many more than the state needs, and the server
	// calls Begin.
	Append(updates []*p4v1.Update) (long bool, err error)
}

// Restore commits a pipeline that a Keeper has kept, and makes its updates, which
// next gives in order until it returns nil.
func (s *Server) Restore(config *p4v1.ForwardingPipelineConfig, next func() (*p4v1.Update, error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := s.newPipeline(config)
	if err != nil {
		return err
	}
	for n := 1; ; n++ {
		u, err := next()
		if u == nil && err == nil {
			break
		}
		if err == nil {
			err = p.update(u)
		}
		if err != nil {
			_ = p.close() // nothing is idle: it has never been committed
			return fmt.Errorf("update %d: %w", n, err)
		}
	}
	for _, old := range s.commit(p) {
		_ = old.close()
	}
	return nil
}

// begin makes the server's Keeper keep p, which is about to be committed or has
// been.
func (s *Server) begin(p *pipeline) {
	if s.cfg.Keeper == nil {
		return
	}
	var updates []*p4v1.Update
	err := p.replay(false, func(u *p4v1.Update) error {
		updates = append(updates, u)
		return nil
	})
	if err == nil {
		err = s.cfg.Keeper.Begin(p.dp, p.msg, updates)
	}
	p.made = nil
	if err != nil {
		s.log.Error("the pipeline is not kept: it would be gone if this process died", "error", err)
	}
}

// keep makes the server's Keeper keep the updates made since the last time.
// Callers hold s.mu and have not answered the controller yet.
func (s *Server) keep() {
	p := s.pipe
	if p == nil || len(p.made) == 0 {
		return
	}
	long, err := s.cfg.Keeper.Append(p.made)
	p.made = nil
	if err != nil {
		s.log.Error("updates are not kept: they would be gone if this process died", "error", err)
	}
	if long {
		s.begin(p)
	}
}

// keeps tells whether an update is one that a Keeper keeps.
func keeps(u *p4v1.Update) bool {
	switch u.GetEntity().GetEntity().(type) {
	case *p4v1.Entity_CounterEntry, *p4v1.Entity_DirectCounterEntry, *p4v1.Entity_RegisterEntry:
		return false
	}
	return true
}
