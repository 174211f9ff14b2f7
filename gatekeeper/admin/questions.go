package admin

import (
	"context"
	"net/http"
	"net/netip"

	"github.com/danielgtaylor/huma/v2"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
)

type pointerInput struct {
	Pointer netip.Addr `path:"pointer" format:"ipv6" doc:"A global pointer" example:"0:0:1001::4000:0"`
}

// registerQuestions serves the questions to the call graph.
func (s *Server) registerQuestions(h huma.API) {
	get(h, "/v1/calls/{id}/chain", "get-chain", "Questions", "The call and those on whose behalf it was made, innermost first",
		s.chain, http.StatusNotFound)
	get(h, "/v1/nodes/{address}/calls", "get-node-calls", "Questions", "What a node waits for, and what it is working on",
		s.nodeCalls, http.StatusNotFound)
	get(h, "/v1/pointers/{pointer}", "get-holders", "Questions", "Who holds a pointer", s.holders, http.StatusNotFound)
	get(h, "/v1/blades/{name}/domain", "get-failure-domain", "Questions", "What would fail with a blade", s.domain, http.StatusNotFound)
}

func (s *Server) chain(ctx context.Context, in *callInput) (api.List[api.Call], error) {
	id, err := parseID(in.ID)
	if err != nil {
		return api.List[api.Call]{}, newProblem(http.StatusUnprocessableEntity, err.Error())
	}
	chain, err := s.backend.Chain(ctx, id)
	return api.List[api.Call]{Items: each(chain, callOf)}, err
}

func (s *Server) nodeCalls(ctx context.Context, in *addressInput) (api.NodeCalls, error) {
	n, err := s.backend.NodeCalls(ctx, in.Address)
	return api.NodeCalls{Waits: each(n.Waits, callOf), Serves: each(n.Serves, callOf)}, err
}

func (s *Server) holders(ctx context.Context, in *pointerInput) (out api.Holders, err error) {
	found, err := s.backend.Holders(ctx, dsmpacket.FromAddr(in.Pointer).Bare())
	if err != nil {
		return out, err
	}
	regions, err := s.regionsOf(ctx, []gatekeeper.RegionState{found.Region})
	if err != nil {
		return out, err
	}
	return api.Holders{Region: regions[0], Calls: each(found.Calls, callOf)}, nil
}

func (s *Server) domain(ctx context.Context, in *NameInput) (out api.FailureDomain, err error) {
	d, err := s.backend.FailureDomain(ctx, in.Name)
	if err != nil {
		return out, s.suggested(ctx, err, in.Name)
	}
	regions, err := s.regionsOf(ctx, d.Regions)
	return api.FailureDomain{
		Nodes: list(d.Nodes), Regions: regions, Missing: d.Missing, Rerun: each(d.Rerun, callOf), Cut: each(d.Cut, callOf),
		Out: each(d.Out, callOf), Waiting: each(d.Waiting, callOf),
	}, err
}

// regionsOf asks which blades hold the regions.
func (s *Server) regionsOf(ctx context.Context, regions []gatekeeper.RegionState) ([]api.Region, error) {
	o, err := s.backend.Overview(ctx)
	return regionsOf(regions, &o), err
}
