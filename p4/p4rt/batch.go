package p4rt

import (
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// batch applies a batch as its atomicity asks for (section "Batch Atomicity");
// errs has one element per update. An error of its own means that nothing was
// attempted.
func (p *pipeline) batch(sc *scope, r *p4v1.WriteRequest) (errs []error, err error) {
	updates := r.GetUpdates()
	switch a := r.GetAtomicity(); a {
	case p4v1.WriteRequest_CONTINUE_ON_ERROR:
		errs = make([]error, len(updates))
		for i, u := range updates {
			errs[i] = p.permitted(sc, u)
		}
		return errs, nil
	case p4v1.WriteRequest_ROLLBACK_ON_ERROR:
		return p.allOrNone(sc, updates), nil
	case p4v1.WriteRequest_DATAPLANE_ATOMIC:
		if len(updates) > 1 || len(updates) == 1 && !p.atomic(updates[0]) {
			return nil, status.Error(codes.Unimplemented, "the data plane changes in single steps: DATAPLANE_ATOMIC is supported for one update that is one step")
		}
		return p.allOrNone(sc, updates), nil
	default:
		return nil, status.Errorf(codes.InvalidArgument, "atomicity %v", a)
	}
}

// allOrNone applies updates until one fails, and then undoes those before it.
// Updates that were undone or not attempted fail with ABORTED.
func (p *pipeline) allOrNone(sc *scope, updates []*p4v1.Update) []error {
	errs := make([]error, len(updates))
	undo := make([][]*p4v1.Update, 0, len(updates))
	for i, u := range updates {
		inverse := p.inverse(u)
		if errs[i] = p.permitted(sc, u); errs[i] == nil {
			undo = append(undo, inverse)
			continue
		}
		p.rollBack(undo)
		for j := range errs {
			if j != i {
				errs[j] = status.Errorf(codes.Aborted, "rolled back, because update %d failed", i)
			}
		}
		break
	}
	return errs
}

func (p *pipeline) rollBack(undo [][]*p4v1.Update) {
	for i := len(undo) - 1; i >= 0; i-- {
		for _, u := range undo[i] {
			if err := p.update(u); err != nil {
				p.srv.log.Error("rolling back", "update", u, "error", err)
			}
		}
	}
}
