package admin

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"
)

// open lists the paths that need no token: they tell nothing about the rack. What
// lies below pagePath belongs to the page.
var open = map[string]bool{"/": true, "/healthz": true, "/readyz": true, "/v1/openapi.json": true}

// Role says what a token is good for. Each role includes those before it.
type Role uint8

// The roles.
const (
	// RoleMetrics reads /metrics.
	RoleMetrics Role = iota + 1
	// RoleRead reads everything but the values in the environments of programs and in the headers of calls.
	RoleRead
	// RoleOperate acts upon blades, nodes, calls and policies, too.
	RoleOperate
	// RoleDeploy acts upon deployments, too, and makes backups: it chooses what runs on the rack,
	// and gets what services keep.
	RoleDeploy
	roleEnd
)

var roleNames = [...]string{"none", "metrics", "read", "operate", "deploy"}

// String returns the role's name.
func (r Role) String() string {
	if r < roleEnd {
		return roleNames[r]
	}
	return fmt.Sprintf("role %d", uint8(r))
}

// RoleOf returns the role of a name.
func RoleOf(name string) (Role, error) {
	for r := RoleMetrics; r < roleEnd; r++ {
		if r.String() == name {
			return r, nil
		}
	}
	return 0, fmt.Errorf("role %q: want %s", name, strings.Join(roleNames[1:], ", "))
}

// needs returns the role that a request needs.
func needs(r *http.Request) Role {
	switch {
	case r.Method == http.MethodGet && r.URL.Path == "/metrics":
		return RoleMetrics
	case r.Method == http.MethodGet, r.Method == http.MethodHead:
		return RoleRead
	case strings.HasPrefix(r.URL.Path, "/v1/apps/"), r.URL.Path == backupPath:
		return RoleDeploy
	}
	return RoleOperate
}

// Grant is what a token stands for.
type Grant struct {
	// Name says whose token it is, for the audit log.
	Name string
	Role Role
	// Hash is the SHA-256 of the token.
	Hash [sha256.Size]byte
}

// Grants are the tokens that a server takes. Its methods may be called concurrently.
type Grants interface {
	// Current returns the grants as of now.
	Current() []Grant
}

// OneToken takes a single token, for everything.
type OneToken string

// Current implements Grants.
func (t OneToken) Current() []Grant {
	return []Grant{{Name: "admin", Role: RoleDeploy, Hash: sha256.Sum256([]byte(t))}}
}

// local is who comes by a way that only trusted people have.
var local = &Grant{Name: "local", Role: RoleDeploy}

type grantKey struct{}

// Authorize lets only those requests through whose bearer token is granted the role
// that they need, and those for the page, its description and the health checks.
// It answers others with 401, 403 if the role is too small, or 503 if the token has its share of connections, and a problem document.
// refused, if it is not nil, is told of each of them.
func Authorize(grants Grants, refused func(r *http.Request, reason string), next http.Handler) http.Handler {
	if refused == nil {
		refused = func(*http.Request, string) {}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if open[r.URL.Path] || strings.HasPrefix(r.URL.Path, pagePath) {
			next.ServeHTTP(w, r)
			return
		}
		given, ok := bearer(r.Header.Get("Authorization"))
		challenge := `Bearer realm="bifrost"`
		if !ok {
			refused(r, "no token")
			deny(w, http.StatusUnauthorized, challenge, "this needs a token of the admin API: Authorization: Bearer TOKEN")
			return
		}
		g := find(grants.Current(), given)
		if g == nil {
			refused(r, "unknown token")
			deny(w, http.StatusUnauthorized, challenge+`, error="invalid_token"`, "the token is wrong, or has been revoked")
			return
		}
		if need := needs(r); g.Role < need {
			refused(r, "role")
			deny(w, http.StatusForbidden, challenge+`, error="insufficient_scope"`,
				fmt.Sprintf("the token %q has the role %s, and this needs %s", g.Name, g.Role, need))
			return
		}
		if !admitted(r.Context(), g.Name) {
			refused(r, "connections")
			w.Header().Set("Connection", "close")
			newProblem(http.StatusServiceUnavailable, fmt.Sprintf("the token %q has its share of %d connections", g.Name, maxConns)).write(w)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), grantKey{}, g)))
	})
}

func deny(w http.ResponseWriter, status int, challenge, detail string) {
	w.Header().Set("WWW-Authenticate", challenge)
	newProblem(status, detail).write(w)
}

// find returns the grant of a token, nil if there is none. It takes as long for all of them.
func find(grants []Grant, token string) (found *Grant) {
	got := sha256.Sum256([]byte(token)) // equal lengths, so that the comparison tells nothing
	for i := range grants {
		if subtle.ConstantTimeCompare(got[:], grants[i].Hash[:]) == 1 {
			found = &grants[i]
		}
	}
	return found
}

// bearer takes the token out of an Authorization header.
func bearer(header string) (token string, ok bool) {
	scheme, token, ok := strings.Cut(header, " ")
	return strings.TrimSpace(token), ok && strings.EqualFold(scheme, "bearer")
}

// whoAsks is whose token a request has.
func whoAsks(ctx context.Context) *Grant {
	if who, _ := ctx.Value(grantKey{}).(*Grant); who != nil {
		return who
	}
	return local
}

// audit logs who has changed what, with what result.
func audit(log *slog.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if needs(r) <= RoleRead {
			next.ServeHTTP(w, r)
			return
		}
		who := whoAsks(r.Context())
		start := time.Now()
		sw := &statusWriter{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(sw, r)
		log.Info("audit", "token", who.Name, "role", who.Role.String(), "from", r.RemoteAddr, "method", r.Method, "path", r.URL.Path,
			"status", sw.status, "took", time.Since(start).Round(time.Microsecond))
	})
}
