package admin

import (
	"slices"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
)

// The graph has the calls of the rack, by service and by node, also when only a part of it is asked for.
func TestGraph(t *testing.T) {
	b := startBusy(t)
	s := startSite(t, b.Gatekeeper())
	edges := func(query string) string {
		var all []string
		g := getAs[api.Graph](s, "/v1/graph"+query)
		for _, e := range g.Edges {
			if e.Calls != 1 || e.Open != 1 || e.Failed+e.Declared+e.Rerun != 0 {
				t.Errorf("%s: edge %+v", query, e)
			}
			all = append(all, e.From+" → "+e.To)
			for _, name := range []string{e.From, e.To} {
				if !slices.ContainsFunc(g.Vertices, func(v api.Vertex) bool { return v.Name == name && (v.Node != "") == (v.Kind == "node") }) {
					t.Errorf("%s: %s is no vertex of %+v", query, name, g.Vertices)
				}
			}
		}
		slices.Sort(all)
		return strings.Join(all, ", ")
	}
	for query, want := range map[string]string{
		"":                                     "Arrays → Inner, client/ → Arrays",
		"?service=Inner":                       "Arrays → Inner",
		"?service=None":                        "",
		"?by=node":                             "c1/client → s2/front, s2/front → s1/back",
		"?by=node&node=fd00::9":                "",
		"?node=" + b.Caller.Address().String(): "client/ → Arrays",
	} {
		if got := edges(query); got != want {
			t.Errorf("/v1/graph%s: %q, want %q", query, got, want)
		}
	}
	if g := getAs[api.Graph](s, "/v1/graph?limit=1"); len(g.Edges) != 1 || len(g.Vertices) != 2 || g.Calls != 2 || g.Folded != (api.Folded{Edges: 1, Calls: 1}) {
		t.Errorf("of two edges: %+v", g)
	}
	b.Over()
	if g := getAs[api.Graph](s, "/v1/graph"); len(g.Edges) != 2 || g.Edges[0].Open != 0 {
		t.Errorf("when all calls are over: %+v", g)
	}
}

// A program with many nodes is one program.
func TestProgramOfNode(t *testing.T) {
	for name, want := range map[string]string{"c1/client": "client/", "c1/shop/front/12": "shop/front/", "c1/7": "7/", "c1/a/b": "a/b/", "fd00::1/": "/"} {
		if got := programOfNode(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// Lists come in pages, in the order of names; each item is there once, and words choose.
func TestListsInPages(t *testing.T) {
	b := startBusy(t)
	s := startSite(t, b.Gatekeeper())
	for path, want := range map[string][]string{
		"/v1/blades":   {"c1", "m1", "m2", "m3", "s1", "s2"},
		"/v1/services": {"Arrays", "Inner"},
	} {
		var got []string
		for _, v := range inPages[struct{ Name string }](s, path+"?limit=1") {
			got = append(got, v.Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s in pages: %v, want %v", path, got, want)
		}
	}
	if l := getAs[api.List[api.Node]](s, "/v1/nodes?limit=2"); l.Total != 3 || len(l.Items) != 2 || l.Next == "" || l.Items[0].Blade != "c1" {
		t.Errorf("the first nodes: %+v", l)
	}
	if l := getAs[api.List[api.Node]](s, "/v1/nodes?limit=2&match=S2+front"); l.Total != 1 || len(l.Items) != 1 || l.Next != "" || l.Items[0].Name != "front" {
		t.Errorf("nodes by words: %+v", l)
	}
	if l := getAs[api.List[api.Node]](s, "/v1/nodes?match=nobody"); len(l.Items) != 0 || l.Items == nil {
		t.Errorf("nobody: %+v", l)
	}
	if l := getAs[api.List[api.MethodFigures]](s, "/v1/methods?limit=9&service=Inner"); len(l.Items) != 1 || l.Items[0].Method != "incrementRef" {
		t.Errorf("methods of a service: %+v", l)
	}
	for _, p := range getAs[api.List[api.Policy]](s, "/v1/policies?limit=1000&service=Arrays").Items {
		if p.Service != "Arrays" {
			t.Errorf("policies of a service: %+v", p)
		}
	}
	if l := getAs[api.List[api.App]](s, "/v1/apps?limit=3&cursor=zzz"); len(l.Items) != 0 {
		t.Errorf("behind the last one: %+v", l)
	}
}
