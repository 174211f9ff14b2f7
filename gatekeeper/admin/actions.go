package admin

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/internal/suggest"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

type causeInput struct {
	NameInput
	Body *api.Cause
}

type mirrorInput struct {
	NameInput
	Body api.MirrorOnto
}

// registerActions serves what people do to the rack.
func (s *Server) registerActions(h huma.API) {
	act(h, http.MethodPost, "/v1/blades/{name}/drain", "drain-blade", "Let a blade run empty: it takes nothing new, deployed programs move elsewhere", s.drain)
	act(h, http.MethodPost, "/v1/blades/{name}/fail", "fail-blade", "Take a blade out of service at once: its nodes are fenced, its memory is unavailable", s.fail)
	act(h, http.MethodPost, "/v1/blades/{name}/return", "return-blade", "Put a blade back into service after drain or fail", s.giveBack)
	act(h, http.MethodPost, "/v1/blades/{name}/mirror", "mirror-blade", "Give the memory machine of a blade a second copy on another blade, which is filled while the rack works", s.mirror)
	act(h, http.MethodPost, "/v1/blades/{name}/unmirror", "unmirror-blade", "Take a blade's copy from its memory machine, which has one copy then", s.unmirror)
	act(h, http.MethodDelete, "/v1/nodes/{address}", "forget-node", "Forget a node that waits for its program, which somebody had started by hand: its states, durable mains, regions and ledger go, and calls to it fail", s.forgetNode)
	act(h, http.MethodPost, "/v1/calls/{id}/cancel", "cancel-call", "Cancel a call where it runs: its handler's context ends, and what the handler then returns is the answer", s.cancelCall)
	act(h, http.MethodPost, "/v1/slots/{slot}/cancel", "cancel-slot", "End a standing lease, or a call that nobody else would end: its caller gets unavailable. The node that is called must not know it", s.cancelSlot)
	act(h, http.MethodDelete, "/v1/pointers/{pointer}", "free-region", "Free a frozen region: one of which nobody can say whose it is, since the switch has lost its registers", s.freeRegion)
	act(h, http.MethodPost, "/v1/reconcile", "reconcile", "Read the switch's tables back and make them what they should be", s.reconcile)
}

// act registers an operation that changes the rack.
func act[I, O any](h huma.API, method, path, id, summary string, f func(ctx context.Context, in *I) (O, error)) {
	op := operation(method, path, id, "Actions", summary)
	op.Errors = append(op.Errors, http.StatusBadRequest, http.StatusNotFound, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusInsufficientStorage)
	serve(h, op, f)
}

func (in *causeInput) cause() string {
	if in.Body == nil {
		return ""
	}
	return in.Body.Cause
}

func (s *Server) drain(ctx context.Context, in *causeInput) (api.Blade, error) {
	return s.operate(ctx, in.Name, s.backend.Drain(ctx, in.Name, or(in.cause(), "drained by an operator")))
}

func (s *Server) fail(ctx context.Context, in *causeInput) (api.Blade, error) {
	return s.operate(ctx, in.Name, s.backend.MarkFailed(ctx, in.Name, or(in.cause(), "marked failed by an operator")))
}

func (s *Server) giveBack(ctx context.Context, in *NameInput) (api.Blade, error) {
	return s.operate(ctx, in.Name, s.backend.ReturnToService(ctx, in.Name))
}

func (s *Server) mirror(ctx context.Context, in *mirrorInput) (api.Machine, error) {
	if err := s.backend.Mirror(ctx, in.Name, in.Body.Onto); err != nil {
		return api.Machine{}, s.suggested(ctx, err, in.Name, in.Body.Onto)
	}
	return s.machineOf(ctx, in.Name)
}

func (s *Server) unmirror(ctx context.Context, in *causeInput) (api.Machine, error) {
	if err := s.backend.Unmirror(ctx, in.Name, or(in.cause(), "taken out by an operator")); err != nil {
		return api.Machine{}, s.suggested(ctx, err, in.Name)
	}
	return s.machineOf(ctx, in.Name)
}

// machineOf returns the memory machine that a blade is to serve.
func (s *Server) machineOf(ctx context.Context, blade string) (api.Machine, error) {
	return one(ctx, s, machinesOf, func(m *api.Machine) bool { return slices.Contains(m.Blades, blade) }, "memory machine of blade "+blade)
}

// operate returns a blade as it is after something was done to it.
func (s *Server) operate(ctx context.Context, blade string, err error) (api.Blade, error) {
	if err != nil {
		return api.Blade{}, s.suggested(ctx, err, blade)
	}
	return s.blade(ctx, &NameInput{Name: blade})
}

// suggested adds to an error about a blade that does not exist which blade may have been
// meant.
func (s *Server) suggested(ctx context.Context, err error, names ...string) error {
	var p *problem
	if !errors.As(failed(err), &p) || p.Status != http.StatusNotFound {
		return err
	}
	o, unknown := s.backend.Overview(ctx)
	if unknown != nil {
		return err
	}
	blades := each(o.Blades, func(b *gatekeeper.BladeState) string { return b.Name })
	for _, name := range names {
		if !slices.Contains(blades, name) {
			return newProblem(http.StatusNotFound, p.Detail+suggest.Text(name, blades))
		}
	}
	return err
}

// forgetNode returns the node as it was.
func (s *Server) forgetNode(ctx context.Context, in *addressInput) (api.Node, error) {
	n, err := s.node(ctx, in)
	if err != nil {
		return n, err
	}
	return n, s.backend.ForgetNode(ctx, in.Address)
}

func (s *Server) reconcile(ctx context.Context, _ *none) (api.Reconciled, error) {
	n, err := s.backend.Reconcile(ctx)
	return api.Reconciled{Repaired: n}, err
}

// cancelCall returns the call as it is when its program has been told: it may not be over yet.
func (s *Server) cancelCall(ctx context.Context, in *callInput) (api.Call, error) {
	id, err := parseID(in.ID)
	if err != nil {
		return api.Call{}, newProblem(http.StatusUnprocessableEntity, err.Error())
	}
	before, _, err := s.backend.Call(ctx, id)
	if err == nil {
		err = s.backend.CancelCall(ctx, id)
	}
	if err != nil {
		return api.Call{}, err
	}
	if now, ok, err := s.backend.Call(ctx, id); err == nil && ok {
		before = now
	}
	return callOf(&before), nil
}

// cancelSlot returns the slot as it was; a standing lease, as it ends.
func (s *Server) cancelSlot(ctx context.Context, in *slotInput) (api.Slot, error) {
	k, err := s.backend.CancelSlot(ctx, rpcpacket.Slot(in.Slot))
	return slotOf(&k), err
}

// freeRegion returns the region as it was.
func (s *Server) freeRegion(ctx context.Context, in *pointerInput) (api.Region, error) {
	r, err := s.backend.FreeRegion(ctx, dsmpacket.FromAddr(in.Pointer).Bare())
	if err != nil {
		return api.Region{}, err
	}
	all, err := s.regionsOf(ctx, []gatekeeper.RegionState{r})
	if err != nil {
		return api.Region{}, err
	}
	return all[0], nil
}

func or(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}
