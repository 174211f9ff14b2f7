package admin

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
)

// NameInput names what an operation is about. It is exported so that huma finds its
// field.
type NameInput struct {
	Name string `path:"name" maxLength:"255" doc:"Its name" example:"s2"`
}

type addressInput struct {
	Address netip.Addr `path:"address" format:"ipv6" doc:"Its address" example:"fd00:b1f0:0:2::1"`
}

// registerRack serves what the rack consists of.
func (s *Server) registerRack(h huma.API) {
	get(h, "/v1/status", "get-status", "Rack", "The Gatekeeper and its rack at a glance", s.status)
	get(h, "/v1/counters", "get-counters", "Rack", "What has happened since the Gatekeeper started", s.counters)
	get(h, "/v1/blades", "list-blades", "Rack", "All blades, those included that have failed", s.blades)
	get(h, "/v1/blades/{name}", "get-blade", "Rack", "One blade", s.blade, http.StatusNotFound)
	get(h, "/v1/machines", "list-machines", "Rack", "All memory machines, with the blades that hold copies of them", s.machines)
	get(h, "/v1/nodes", "list-nodes", "Rack", "All nodes", s.nodes)
	get(h, "/v1/names", "list-names", "Rack", "The names of all nodes, those included that have left; of these the latest 8192", s.nodeNames)
	get(h, "/v1/nodes/{address}", "get-node", "Rack", "One node", s.node, http.StatusNotFound)
	get(h, "/v1/services", "list-services", "Rack", "All services with their methods and routes", s.services)
	get(h, "/v1/services/{name}", "get-service", "Rack", "One service", s.service, http.StatusNotFound)
}

func (s *Server) status(ctx context.Context, _ *none) (api.Status, error) {
	o, err := s.backend.Overview(ctx)
	return statusOf(s.version, s.backend.Settings(), &o), err
}

func (s *Server) counters(ctx context.Context, _ *none) (api.Counters, error) {
	o, err := s.backend.Overview(ctx)
	return countersOf(&o.Counters), err
}

func (s *Server) blades(ctx context.Context, in *ListInput) (api.List[api.Blade], error) {
	return whole(ctx, s, in, bladesOf, func(b *api.Blade) string { return b.Name })
}

func (s *Server) blade(ctx context.Context, in *NameInput) (api.Blade, error) {
	b, err := one(ctx, s, bladesOf, func(b *api.Blade) bool { return b.Name == in.Name }, "blade "+in.Name)
	return b, s.suggested(ctx, err, in.Name)
}

func (s *Server) machines(ctx context.Context, in *ListInput) (api.List[api.Machine], error) {
	return whole(ctx, s, in, machinesOf, func(m *api.Machine) string { return fmt.Sprintf("%03d %s", m.Machine, strings.Join(m.Blades, " ")) })
}

func (s *Server) nodes(ctx context.Context, in *ListInput) (api.List[api.Node], error) {
	return whole(ctx, s, in, nodesOf, func(n *api.Node) string { return n.Blade + "/" + n.Name + " " + n.Address.String() })
}

func (s *Server) node(ctx context.Context, in *addressInput) (api.Node, error) {
	return one(ctx, s, nodesOf, func(n *api.Node) bool { return n.Address == in.Address }, "node "+in.Address.String())
}

func (s *Server) services(ctx context.Context, in *ListInput) (api.List[api.Service], error) {
	list, err := whole(ctx, s, in, servicesOf, func(v *api.Service) string { return v.Name })
	for i := range list.Items {
		list.Items[i].IDL = ""
	}
	return list, err
}

func (s *Server) service(ctx context.Context, in *NameInput) (api.Service, error) {
	return one(ctx, s, servicesOf, func(v *api.Service) bool { return v.Name == in.Name }, "service "+in.Name)
}

// whole lists what there is of something that the overview has.
func whole[T any](ctx context.Context, s *Server, in *ListInput, of func(*gatekeeper.Overview) []T, key func(*T) string) (out api.List[T], err error) {
	o, err := s.backend.Overview(ctx)
	if err != nil {
		return out, err
	}
	return paged(in, of(&o), key), nil
}

// ListInput is what lists take of which a rack has hundreds. It is exported so that huma finds its fields.
type ListInput struct {
	Match  string `query:"match" maxLength:"255" doc:"Only items whose names have all of these words in them, in any order; case does not count"`
	Limit  int    `query:"limit" minimum:"0" maximum:"1000" doc:"How many items a page has at most, in the order of their names; all if it is 0"`
	Cursor string `query:"cursor" maxLength:"1024" doc:"Where to go on: next of the page before"`
}

// paged is the page of a list that in asks for. No two items have the same key: it is the cursor of the page that begins behind its item.
func paged[T any](in *ListInput, all []T, key func(*T) string) api.List[T] {
	words := strings.Fields(strings.ToLower(in.Match))
	if len(words) > 0 {
		all = slices.DeleteFunc(all, func(v T) bool {
			name := strings.ToLower(key(&v))
			return slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(name, w) })
		})
	}
	out := api.List[T]{Items: all}
	if in.Limit == 0 {
		return out
	}
	out.Total = len(all)
	slices.SortFunc(all, func(a, b T) int { return cmp.Compare(key(&a), key(&b)) })
	if first := slices.IndexFunc(all, func(v T) bool { return key(&v) > in.Cursor }); first >= 0 {
		all = all[first:]
	} else {
		all = all[:0]
	}
	if out.Items = all; len(all) > in.Limit {
		out.Items = all[:in.Limit]
		out.Next = key(&all[in.Limit-1])
	}
	return out
}

// one finds one thing that the overview has.
func one[T any](ctx context.Context, s *Server, of func(*gatekeeper.Overview) []T, match func(*T) bool, what string) (found T, err error) {
	o, err := s.backend.Overview(ctx)
	if err != nil {
		return found, err
	}
	all := of(&o)
	for i := range all {
		if match(&all[i]) {
			return all[i], nil
		}
	}
	return found, newProblem(http.StatusNotFound, fmt.Sprintf("there is no %s", what))
}
