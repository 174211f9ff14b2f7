package admin

import (
	"bytes"
	"context"
	"crypto/sha256"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/gatekeeper/trace"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

func grant(name string, role Role) Grant {
	return Grant{Name: name, Role: role, Hash: sha256.Sum256([]byte("the token of " + name))}
}

// as makes a request with the token of a name.
func as(name, method, path string) *http.Request {
	r := httptest.NewRequest(method, path, nil)
	if name != "" {
		r.Header.Set("Authorization", "Bearer the token of "+name)
	}
	return r
}

// Each role may do what it and the roles before it are for, and nothing else. What is
// refused is counted; what changes the rack is in the audit log.
func TestRoles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin.tokens")
	names := map[Role]string{RoleMetrics: "prometheus", RoleRead: "viewer", RoleOperate: "operator", RoleDeploy: "ci"}
	var all []Grant
	for role, name := range names {
		all = append(all, grant(name, role))
	}
	must(t, WriteGrants(path, all))
	var log bytes.Buffer
	s, err := New(Config{Backend: stopped{}, Grants: &GrantsFile{Path: path}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	must(t, err)
	h := s.Handler(false)
	for op, need := range map[string]Role{
		"GET /metrics": RoleMetrics, "GET /v1/status": RoleRead, "GET /v1/regions": RoleRead,
		"POST /v1/blades/m1/drain": RoleOperate, "PUT /v1/policies/S": RoleOperate, "DELETE /v1/policies/S/m": RoleOperate, "DELETE /v1/nodes/fd00::1": RoleOperate,
		"POST /v1/reconcile": RoleOperate, "PUT /v1/apps/a": RoleDeploy, "DELETE /v1/apps/a": RoleDeploy,
	} {
		method, path, _ := strings.Cut(op, " ")
		for role, name := range names {
			log.Reset()
			w := handle(h, as(name, method, path))
			if refused := w.Code == http.StatusForbidden; refused != (role < need) {
				t.Errorf("%s as %s: %d %s", op, role, w.Code, w.Body)
			}
			audited := strings.Contains(log.String(), "msg=audit token="+name+" role="+role.String())
			if changes := method != http.MethodGet && role >= need; audited != changes {
				t.Errorf("%s as %s: audited %v: %s", op, role, audited, &log)
			}
		}
	}
	if n := testutil.ToFloat64(s.traffic.refused.WithLabelValues("role")); n != 18 {
		t.Errorf("%v requests with too small a role were counted, want 18", n)
	}
	handle(h, as("", http.MethodGet, "/v1/status"))
	handle(h, as("nobody", http.MethodGet, "/v1/status"))
	for _, reason := range []string{"no token", "unknown token"} {
		if n := testutil.ToFloat64(s.traffic.refused.WithLabelValues(reason)); n != 1 {
			t.Errorf("%v requests with %s were counted", n, reason)
		}
	}
}

// deployed is a backend with a deployment whose program has a secret in its environment, and a call with one in a header.
type deployed struct{ stopped }

func (deployed) Deployments(context.Context) ([]resources.Deployment, error) {
	return []resources.Deployment{{Spec: resources.Spec{Name: "a", Programs: []resources.Program{{Name: "p", Args: []string{"p"}, Env: map[string]string{"PASSWORD": "secret"}}}}}}, nil
}

var withSecret = trace.Call{
	ID: rpcpacket.ID{1}, Over: true,
	Details: trace.Details{Text: "no such key", Headers: []control.Header{{Name: "PASSWORD", Value: "secret"}, {Name: "traceparent", Value: "00-1"}}},
}

func (deployed) Timelines(context.Context, trace.Query) ([]trace.Call, uint64, error) {
	return []trace.Call{withSecret}, 0, nil
}

func (deployed) Timeline(context.Context, rpcpacket.ID, int) ([]trace.Leaf, bool, error) {
	return []trace.Leaf{{Call: withSecret}}, false, nil
}

// TestRoles_Secrets: only who may deploy reads what the environments of deployments' programs, and the headers of calls, have; who may
// read sees which ones there are.
func TestRoles_Secrets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin.tokens")
	names := map[Role]string{RoleRead: "viewer", RoleOperate: "operator", RoleDeploy: "ci"}
	var all []Grant
	for role, name := range names {
		all = append(all, grant(name, role))
	}
	must(t, WriteGrants(path, all))
	s, err := New(Config{Backend: deployed{}, Grants: &GrantsFile{Path: path}, Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	for role, name := range names {
		for _, of := range []string{"/v1/apps", "/v1/apps/a", "/v1/timelines", "/v1/calls/" + withSecret.ID.String() + "/timeline"} {
			w := handle(s.Handler(false), as(name, http.MethodGet, of))
			if body := w.Body.String(); w.Code != http.StatusOK || !strings.Contains(body, "PASSWORD") || strings.Contains(body, "secret") != (role == RoleDeploy) ||
				strings.Contains(body, "no such key") != strings.Contains(body, "00-1") {
				t.Errorf("%s as %s: %d %s", of, role, w.Code, body)
			}
		}
	}
	if w := handle(s.Handler(true), as("", http.MethodGet, "/v1/apps")); !strings.Contains(w.Body.String(), "secret") {
		t.Errorf("at the Unix socket: %s", w.Body)
	}
}

// A token counts from the moment on when it is in the file, until it is taken out.
func TestGrantsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deep", "admin.tokens")
	f := &GrantsFile{Path: path, Admin: testToken}
	h := Authorize(f, nil, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	try := func(name string) int { return handle(h, as(name, http.MethodGet, "/v1/status")).Code }
	if got := try("ci"); got != http.StatusUnauthorized {
		t.Errorf("without a file: %d", got)
	}
	must(t, WriteGrants(path, []Grant{grant("ci", RoleRead)}))
	if got := try("ci"); got != http.StatusOK {
		t.Errorf("granted: %d", got)
	}
	must(t, WriteGrants(path, []Grant{grant("other", RoleRead)}))
	if got := try("ci"); got != http.StatusUnauthorized {
		t.Errorf("revoked: %d", got)
	}
	must(t, os.Chmod(path, 0o666))
	if _, err := ReadGrants(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a file that others may write: %v", err)
	}
	must(t, os.WriteFile(path, []byte("nonsense of a line too many\n"), 0o600))
	if got := try("other"); got != http.StatusUnauthorized {
		t.Errorf("a file that cannot be read grants: %d", got)
	}
	r := httptest.NewRequest(http.MethodGet, "/v1/status", nil)
	r.Header.Set("Authorization", "Bearer "+testToken)
	if w := handle(h, r); w.Code != http.StatusOK {
		t.Errorf("the admin token: %d", w.Code)
	}
}

func FuzzGrants(f *testing.F) {
	f.Add("# comment\n\nci deploy " + strings.Repeat("0a", sha256.Size))
	f.Add("ci king 00")
	f.Fuzz(func(t *testing.T, text string) {
		all, err := ParseGrants([]byte(text))
		if err != nil {
			return
		}
		path := filepath.Join(t.TempDir(), "tokens")
		must(t, WriteGrants(path, all))
		if again, err := ReadGrants(path); err != nil || !slices.Equal(again, all) {
			t.Fatalf("%+v became %+v, %v", all, again, err)
		}
	})
}
