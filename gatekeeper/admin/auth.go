package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"
)

// open lists the paths that need no token: they tell nothing about the rack. What
// lies below pagePath belongs to the page.
var open = map[string]bool{"/": true, "/healthz": true, "/readyz": true, "/v1/openapi.json": true}

// RequireToken lets only those requests through that carry the bearer token, and
// those for the page, its description and the health checks. It answers others
// with 401 and a problem document.
func RequireToken(token string, next http.Handler) http.Handler {
	want := sha256.Sum256([]byte(token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if open[r.URL.Path] || strings.HasPrefix(r.URL.Path, pagePath) {
			next.ServeHTTP(w, r)
			return
		}
		given, ok := bearer(r.Header.Get("Authorization"))
		got := sha256.Sum256([]byte(given)) // equal lengths, so that the comparison tells nothing
		if ok && subtle.ConstantTimeCompare(got[:], want[:]) == 1 {
			next.ServeHTTP(w, r)
			return
		}
		challenge, detail := `Bearer realm="bifrost"`, "this needs the admin token: Authorization: Bearer TOKEN"
		if ok {
			challenge, detail = challenge+`, error="invalid_token"`, "the admin token is wrong"
		}
		w.Header().Set("WWW-Authenticate", challenge)
		newProblem(http.StatusUnauthorized, detail).write(w)
	})
}

// bearer takes the token out of an Authorization header.
func bearer(header string) (token string, ok bool) {
	scheme, token, ok := strings.Cut(header, " ")
	return strings.TrimSpace(token), ok && strings.EqualFold(scheme, "bearer")
}
