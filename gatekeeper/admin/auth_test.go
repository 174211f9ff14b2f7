package admin

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestToken_IsRequired(t *testing.T) {
	s, err := New(Config{Backend: stopped{}, Grants: OneToken(testToken)})
	must(t, err)
	h := s.Handler(false)
	paths := []string{"/v1/status", "/v1/events", "/v1/regions", "/metrics", "/v1/none", "/none", "/v1/../v1/status", "//v1/status"}
	for i, path := range paths {
		paths[i] = "GET " + path
	}
	var document struct{ Paths map[string]map[string]any }
	must(t, json.Unmarshal(s.document, &document))
	for path, methods := range document.Paths {
		for method := range methods {
			paths = append(paths, strings.ToUpper(method)+" "+path)
		}
	}
	for _, op := range paths {
		method, path, _ := strings.Cut(op, " ")
		for what, header := range map[string]string{
			"no token": "", "a wrong token": "Bearer " + testToken + "x", "an empty token": "Bearer ", "no scheme": testToken,
			"another scheme": "Basic " + testToken, "a prefix of the token": "Bearer " + testToken[:20],
		} {
			r := httptest.NewRequest(method, path, nil)
			r.Header.Set("Authorization", header)
			w := handle(h, r)
			if w.Code != http.StatusUnauthorized || !strings.HasPrefix(w.Header().Get("WWW-Authenticate"), `Bearer realm="bifrost"`) ||
				w.Header().Get("Content-Type") != "application/problem+json" {
				t.Errorf("%s with %s: %d %v", path, what, w.Code, w.Header())
			}
		}
	}
	for _, header := range []string{"Bearer " + testToken, "bearer  " + testToken} {
		r := httptest.NewRequest(http.MethodGet, "/v1/status", nil)
		r.Header.Set("Authorization", header)
		if w := handle(h, r); w.Code != http.StatusServiceUnavailable {
			t.Errorf("with %q: %d", header, w.Code)
		}
	}
}

func TestToken_IsNotNeeded(t *testing.T) {
	s, err := New(Config{Backend: stopped{}, Grants: OneToken(testToken)})
	must(t, err)
	for path, want := range map[string]int{"/": 200, "/v1/openapi.json": 200, "/healthz": 503, "/readyz": 503} {
		if w := handle(s.Handler(false), httptest.NewRequest(http.MethodGet, path, nil)); w.Code != want {
			t.Errorf("%s without a token: %d, want %d", path, w.Code, want)
		}
	}
	if w := handle(s.Handler(true), httptest.NewRequest(http.MethodGet, "/v1/status", nil)); w.Code != http.StatusServiceUnavailable {
		t.Errorf("by a trusted way: %d", w.Code)
	}
}

func TestToken_Weak(t *testing.T) {
	for _, token := range []string{"short", "with spaces in its middle", "with a line break\n....", "höchst geheim, aber ä"} {
		if _, err := New(Config{Backend: stopped{}, Grants: OneToken(token)}); err == nil {
			t.Errorf("token %q is taken", token)
		}
	}
	one, other := NewToken(), NewToken()
	if err := CheckToken(one); err != nil || one == other {
		t.Errorf("new tokens %q, %q: %v", one, other, err)
	}
}

func TestTokenFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deep", "admin.token")
	if _, err := ReadToken(path); err == nil {
		t.Error("a token without a file")
	}
	var wg sync.WaitGroup
	tokens := make([]string, 8)
	for i := range tokens { // Gatekeepers that start at the same time
		wg.Go(func() {
			var err error
			if tokens[i], err = ReadOrMakeToken(path); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, token := range tokens {
		if token != tokens[0] || CheckToken(token) != nil {
			t.Errorf("tokens %q", tokens)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v, %v", info.Mode(), err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	must(t, os.Chmod(path, 0o640))
	if _, err := ReadOrMakeToken(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a file that others read: %v", err)
	}
	must(t, os.Chmod(path, 0o600))
	must(t, os.WriteFile(path, []byte("weak\n"), 0o600))
	if _, err := ReadToken(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a weak token: %v", err)
	}
}

func FuzzBearer(f *testing.F) {
	f.Add("Bearer abc")
	f.Add("bearer")
	f.Add(" ")
	f.Fuzz(func(t *testing.T, header string) {
		token, ok := bearer(header)
		scheme, rest, _ := strings.Cut(header, " ")
		if ok != (len(header) > 6 && strings.EqualFold(header[:6], "bearer") && header[6] == ' ') || strings.TrimSpace(rest) != token {
			t.Errorf("%q gives %q, %v: its scheme is %q", header, token, ok, scheme)
		}
	})
}
