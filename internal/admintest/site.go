package admintest

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"testing"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
)

// Token is the token of sites.
const Token = "a-token-that-nobody-guesses"

// Site is a server of the admin API, as its clients see it.
type Site struct {
	T      testing.TB
	URL    string
	Client *http.Client
	Token  string
}

// Serve has a server run, which is at a URL, until the test ends.
func Serve(t testing.TB, url string, run func(context.Context) error) *Site {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	transport := &http.Transport{}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		cancel()
		Must(t, <-ended)
	})
	return &Site{T: t, URL: url, Client: &http.Client{Transport: transport}, Token: Token}
}

// Request makes a request without a body, with the site's token.
func (s *Site) Request(method, path string, header ...string) *http.Request {
	s.T.Helper()
	r, err := http.NewRequestWithContext(context.Background(), method, s.URL+path, nil)
	Must(s.T, err)
	if s.Token != "" {
		r.Header.Set("Authorization", "Bearer "+s.Token)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return r
}

// Do returns a response with its body.
func (s *Site) Do(r *http.Request) (*http.Response, []byte) {
	s.T.Helper()
	resp, err := s.Client.Do(r)
	Must(s.T, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	Must(s.T, err)
	return resp, b
}

// Get returns the body of a successful GET.
func (s *Site) Get(path string) []byte {
	s.T.Helper()
	resp, b := s.Do(s.Request(http.MethodGet, path))
	if resp.StatusCode != http.StatusOK {
		s.T.Fatalf("GET %s: %s\n%s", path, resp.Status, b)
	}
	return b
}

// GetAs decodes the body of a successful GET.
func GetAs[T any](s *Site, path string) (out T) {
	s.T.Helper()
	Must(s.T, json.Unmarshal(s.Get(path), &out))
	return out
}

// Refused expects a problem document of a status.
func (s *Site) Refused(r *http.Request, status int) (p api.Problem) {
	s.T.Helper()
	resp, b := s.Do(r)
	if err := json.Unmarshal(b, &p); err != nil || resp.Header.Get("Content-Type") != "application/problem+json" ||
		resp.StatusCode != status || p.Status != status || p.Title != http.StatusText(status) || p.Type != "about:blank" || p.Detail == "" {
		s.T.Errorf("%s %s: %s, %s\n%s\nwant a problem of status %d (%v)", r.Method, r.URL, resp.Status, resp.Header.Get("Content-Type"), b, status, err)
	}
	return p
}

// Must ends the test at an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
