package admin

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// PageInput is what lists take that grow with the rack's load. It is exported so that
// huma finds its fields.
type PageInput struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"How many items a page has at most"`
	Cursor string `query:"cursor" maxLength:"4096" doc:"Where to go on: next of the page before"`
}

type regionsInput struct {
	PageInput
	Node    netip.Addr `query:"node" format:"ipv6" doc:"Only regions that this node controls, has allocated or leases"`
	Pointer netip.Addr `query:"pointer" format:"ipv6" doc:"Only the region that this global pointer lies in"`
}

type callsInput struct {
	PageInput
	Node netip.Addr `query:"node" format:"ipv6" doc:"Only calls that this node makes or serves"`
}

type slotsInput struct {
	PageInput
	Node netip.Addr `query:"node" format:"ipv6" doc:"Only slots that this node has open, as caller or callee, owner or reader"`
	Kind string     `query:"kind" enum:"lease" doc:"Only standing leases"`
}

type slotInput struct {
	Slot uint32 `path:"slot" minimum:"1" maximum:"1048575" doc:"The first slot of the call, or that of the standing lease"`
}

type callInput struct {
	ID string `path:"id" pattern:"^[0-9a-f]{32}$" doc:"The call's id: 32 hexadecimal digits"`
}

type rulesInput struct {
	PageInput
	Table string `query:"table" maxLength:"64" doc:"Only entries of this table" example:"control_rule"`
}

// registerWork serves what the rack is working at.
func (s *Server) registerWork(h huma.API) {
	get(h, "/v1/regions", "list-regions", "Work", "Regions with their controllers and leases", s.regions, http.StatusBadRequest)
	get(h, "/v1/slots", "list-slots", "Work", "Call slots that are open in the switch, read now: calls, whatever nodes tell of them, and standing leases", s.slots, http.StatusBadRequest)
	get(h, "/v1/calls", "list-calls", "Work", "Calls under way, oldest first: the call graph", s.calls, http.StatusBadRequest)
	get(h, "/v1/calls/{id}", "get-call", "Work", "One call that is under way or, if it is held, on record until its caller has settled it", s.call, http.StatusNotFound)
	s.registerQuestions(h)
	s.registerTimelines(h)
	get(h, "/v1/rules", "list-rules", "Work", "The switch's table entries, read back from the switch now", s.rules, http.StatusBadRequest, http.StatusNotFound)
	get(h, "/v1/denied", "list-denied", "Work", "The latest memory accesses that the switch has denied, oldest first", s.denied)
	get(h, "/v1/stopped", "list-stopped", "Work", "How many packets of each port switch and Gatekeeper have stopped, and why", s.stopped)
	get(h, "/v1/events/recent", "list-events", "Events", "The latest events, oldest first", s.recent)
}

func (s *Server) regions(ctx context.Context, in *regionsInput) (out api.List[api.Region], err error) {
	q := gatekeeper.RegionQuery{Node: in.Node, Limit: in.Limit}
	if in.Pointer.IsValid() {
		q.Pointer = dsmpacket.FromAddr(in.Pointer).Bare()
	}
	if in.Cursor != "" {
		if q.After, err = dsmpacket.ParsePointer(in.Cursor); err != nil {
			return out, badCursor(err)
		}
	}
	page, err := s.backend.Regions(ctx, q)
	if err != nil {
		return out, err
	}
	out.Missing = page.Missing
	out.Items, err = s.regionsOf(ctx, page.Regions)
	if page.More {
		last := netip.MustParsePrefix(page.Regions[len(page.Regions)-1].Region)
		out.Next = last.Addr().String()
	}
	return out, err
}

func (s *Server) calls(ctx context.Context, in *callsInput) (out api.List[api.Call], err error) {
	q := gatekeeper.CallQuery{Node: in.Node, Limit: in.Limit}
	if q.From, err = gatekeeper.ParseCallCursor(in.Cursor); err != nil {
		return out, badCursor(err)
	}
	page, next, err := s.backend.Calls(ctx, q)
	return api.List[api.Call]{Items: each(page, callOf), Next: next.String()}, err
}

func (s *Server) slots(ctx context.Context, in *slotsInput) (out api.List[api.Slot], err error) {
	q := gatekeeper.SlotQuery{Node: in.Node, Standing: in.Kind != "", Limit: in.Limit}
	if in.Cursor != "" {
		after, err := strconv.ParseUint(in.Cursor, 10, 20)
		if err != nil {
			return out, badCursor(err)
		}
		q.After = rpcpacket.Slot(after)
	}
	page, err := s.backend.Slots(ctx, q)
	if page.More {
		out.Next = strconv.Itoa(int(page.Slots[len(page.Slots)-1].Slot))
	}
	out.Items, out.Missing = each(page.Slots, slotOf), page.Missing
	return out, err
}

func (s *Server) call(ctx context.Context, in *callInput) (api.Call, error) {
	id, err := parseID(in.ID)
	if err != nil {
		return api.Call{}, newProblem(http.StatusUnprocessableEntity, err.Error())
	}
	k, ok, err := s.backend.Call(ctx, id)
	if err == nil && !ok {
		err = newProblem(http.StatusNotFound, "there is no call "+in.ID+" under way")
	}
	return callOf(&k), err
}

// parseID reads a call's id as String prints it.
func parseID(text string) (id rpcpacket.ID, err error) {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != len(id) {
		return id, fmt.Errorf("%q is not a call id: want %d hexadecimal digits", text, 2*len(id))
	}
	return rpcpacket.ID(b), nil
}

func badCursor(err error) error { return newProblem(http.StatusBadRequest, "cursor: "+err.Error()) }

// rules reads whole tables for each page; one request at a time, so that nobody
// keeps the switch busy.
func (s *Server) rules(ctx context.Context, in *rulesInput) (out api.List[api.Rule], err error) {
	var tables []string
	if in.Table != "" {
		if !slices.Contains(s.backend.Tables(), in.Table) {
			return out, newProblem(http.StatusNotFound, fmt.Sprintf("there is no table %s: there are %v", in.Table, s.backend.Tables()))
		}
		tables = []string{in.Table}
	}
	select {
	case s.reading <- struct{}{}:
		defer func() { <-s.reading }()
	case <-ctx.Done():
		return out, ctx.Err()
	}
	entries, err := s.backend.Rules(ctx, tables...)
	if err != nil {
		return out, err
	}
	from := 0
	if in.Cursor != "" {
		key, err := base64.RawURLEncoding.DecodeString(in.Cursor)
		if err != nil {
			return out, badCursor(err)
		}
		for from < len(entries) && entries[from].Key() <= string(key) {
			from++
		}
	}
	to := min(from+in.Limit, len(entries))
	prefix := s.backend.Settings().DSMPrefix
	out.Items = each(entries[from:to], func(e *p4rtclient.Entry) api.Rule { return ruleOf(e, prefix) })
	if to < len(entries) {
		out.Next = base64.RawURLEncoding.EncodeToString([]byte(entries[to-1].Key()))
	}
	return out, nil
}

func (s *Server) denied(ctx context.Context, _ *none) (api.List[api.Denial], error) {
	o, err := s.backend.Overview(ctx)
	return api.List[api.Denial]{Items: each(o.Denied, denialOf)}, err
}

func (s *Server) stopped(ctx context.Context, _ *none) (api.List[api.Stopped], error) {
	drops, err := s.backend.Drops(ctx)
	return api.List[api.Stopped]{Items: each(drops, func(d *gatekeeper.PortDrops) api.Stopped {
		return api.Stopped{Port: d.Port, Blade: d.Blade, Denied: d.Denied, Dropped: d.Dropped, Throttled: d.Throttled, Refused: d.Refused}
	})}, err
}

type recentInput struct {
	Limit int `query:"limit" minimum:"1" maximum:"4096" default:"100" doc:"How many events at most"`
	EventFilter
}

func (s *Server) recent(_ context.Context, in *recentInput) (api.List[api.Event], error) {
	return api.List[api.Event]{Items: each(s.hub.recent(&in.EventFilter, in.Limit), func(e *gatekeeper.Event) api.Event {
		return eventOf(s.hub.id(e.Seq), e)
	})}, nil
}
