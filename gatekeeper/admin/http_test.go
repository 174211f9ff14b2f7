package admin

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"
)

// Every error is a problem document, and none is cached, sniffed or framed.
func TestProblems(t *testing.T) {
	s := startSite(t, stopped{})
	for what, tc := range map[string]struct {
		method, path string
		status       int
		allow        string
	}{
		"an unknown path":              {"GET", "/v1/none", 404, ""},
		"an unknown version":           {"GET", "/v2/status", 404, ""},
		"a path below":                 {"GET", "/v1/status/x", 404, ""},
		"no such file of the page":     {"GET", "/page/none.js", 404, ""},
		"the page's directory":         {"GET", "/page/", 404, ""},
		"a method that changes":        {"POST", "/v1/status", 405, "GET, HEAD"},
		"a method for nothing":         {"BREW", "/v1/blades/c1", 405, "GET, HEAD"},
		"posting to the page":          {"POST", "/", 405, "GET, HEAD"},
		"posting to health":            {"DELETE", "/healthz", 405, "GET, HEAD"},
		"several mistakes":             {"GET", "/v1/regions?limit=0&pointer=x", 422, ""},
		"a parameter that is not":      {"GET", "/v1/status?x=1", 422, ""},
		"a Gatekeeper that has ended":  {"GET", "/v1/status", 503, ""},
		"one that is not ready either": {"GET", "/readyz", 503, ""},
	} {
		p := s.Refused(s.Request(tc.method, tc.path), tc.status)
		resp, _ := s.Do(s.Request(tc.method, tc.path))
		if got := resp.Header.Get("Allow"); got != tc.allow {
			t.Errorf("%s: Allow %q", what, got)
		}
		if h := resp.Header; h.Get("Cache-Control") != "no-store" || h.Get("X-Content-Type-Options") != "nosniff" ||
			!strings.Contains(h.Get("Content-Security-Policy"), "frame-ancestors 'none'") {
			t.Errorf("%s: headers %v", what, h)
		}
		if tc.status == 422 && (len(p.Errors) == 0 || !strings.HasPrefix(p.Errors[0].Location, "query.")) {
			t.Errorf("%s: it is not said where: %+v", what, p)
		}
	}
	if p := s.Refused(s.Request("GET", "/v1/regions?limit=0&pointer=x"), 422); len(p.Errors) != 2 {
		t.Errorf("of two mistakes: %+v", p)
	}
}

func TestLimits(t *testing.T) {
	s := startSite(t, stopped{})
	r := s.Request(http.MethodGet, "/v1/status", "X-Long", strings.Repeat("x", 2*maxHeader))
	resp, err := s.Client.Do(r)
	if err != nil {
		return // the server hangs up before everything is sent, so the answer may get lost
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a long header: %s", resp.Status)
	}
}

// problemStatus is the status that a problem document gives, 0 if it is none.
func problemStatus(body []byte) int {
	var p struct{ Status int }
	if json.Unmarshal(body, &p) != nil {
		return 0
	}
	return p.Status
}

// FuzzRequest: no path, query or header makes the API fail in another way than with
// a problem document.
func FuzzRequest(f *testing.F) {
	s, err := New(Config{Backend: stopped{}, Grants: OneToken(testToken)})
	if err != nil {
		f.Fatal(err)
	}
	h := s.Handler(true)
	for _, q := range []string{"limit=1", "cursor=0:0:1001::40", "pointer=::1&node=::2", "kind=a,b&limit=4096", "table=control_rule&cursor=aGk", "%zz", "limit=1;x"} {
		f.Add("regions", q, "")
	}
	f.Add(".", "limit=1;x", "") // cleaned, it is nothing either
	f.Add("events", "replay=1", "b-1")
	f.Add("calls/00000000000000000000000000000001", "", "")
	f.Add("nodes/fd00::1%25eth0", "", "")
	f.Add("blades/%2e%2e%2f", "", "")
	f.Fuzz(func(t *testing.T, path, query, last string) {
		u := &url.URL{Path: "/v1/" + path, RawQuery: query}
		if !utf8.ValidString(path) || strings.HasPrefix(path, "events") && !strings.HasPrefix(path, "events/") && last == "" {
			return // a stream does not end by itself
		}
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.URL = u
		ctx, cancel := contextThatHasEnded()
		defer cancel()
		r = r.WithContext(ctx)
		if last != "" {
			r.Header["Last-Event-Id"] = []string{last}
		}
		w := handle(h, r)
		kind := w.Header().Get("Content-Type")
		switch {
		case w.Code == http.StatusInternalServerError:
			t.Errorf("%s: %s", u, w.Body)
		case w.Code >= 400 && (kind != "application/problem+json" || problemStatus(w.Body.Bytes()) != w.Code):
			t.Errorf("%s: %d %s: %s", u, w.Code, kind, w.Body)
		case w.Code/100 == 3 && w.Header().Get("Location") == "":
			t.Errorf("%s: %d", u, w.Code)
		}
	})
}

func TestListen(t *testing.T) {
	dir := t.TempDir()
	for address, want := range map[string]string{
		"nonsense": "HOST:PORT, unix:PATH or fd:N", "0.0.0.0:0": "needs TLS", "[::]:0": "needs TLS", ":0": "needs TLS",
		"unix:" + dir: "no socket", "unix:" + dir + "/none/x.sock": "no such file",
	} {
		if l, err := Listen(address, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", address, l, err)
		}
	}
	for _, address := range []string{"127.0.0.1:0", "[::1]:0", "localhost:0"} {
		l, err := Listen(address, nil)
		must(t, err)
		if l.Trusted || l.TLS {
			t.Errorf("%s: %+v", address, l)
		}
		must(t, l.Close())
	}
}

// A socket that listens already is taken over by its descriptor; no other file is.
func TestListen_Inherited(t *testing.T) {
	made, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	f, err := made.(*net.TCPListener).File()
	must(t, err)
	fd, err := syscall.Dup(int(f.Fd()))
	must(t, err)
	address := made.Addr().String()
	must(t, errors.Join(made.Close(), f.Close()))
	l, err := Listen(fmt.Sprintf("fd:%d", fd), nil)
	must(t, err)
	if l.Trusted || l.Addr().String() != address || l.visitors == nil {
		t.Errorf("it is %+v at %v", l, l.Addr())
	}
	must(t, l.Close())
	for _, bad := range []string{"fd:", "fd:x", "fd:-1", "fd:99999"} {
		if l, err := Listen(bad, nil); err == nil {
			t.Errorf("%s is %v", bad, l.Addr())
		}
	}
}

func TestListen_UnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin.sock")
	l, err := Listen("unix:"+path, nil)
	must(t, err)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 || !l.Trusted {
		t.Errorf("the socket is %v, %v, %+v", info.Mode(), err, l)
	}
	if _, err := Listen("unix:"+path, nil); err == nil || !strings.Contains(err.Error(), "somebody listens") {
		t.Errorf("a socket in use: %v", err)
	}
	must(t, l.Close())
	if left, _ := filepath.Glob(filepath.Dir(path) + "/.*"); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the socket is left behind")
	}
	// A process that was killed leaves its socket.
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	must(t, err)
	dead.SetUnlinkOnClose(false)
	must(t, dead.Close())
	l, err = Listen("unix:"+path, nil)
	must(t, err)
	must(t, l.Close())
}

func TestRun_RefusesWithoutToken(t *testing.T) {
	s, err := New(Config{Backend: stopped{}})
	must(t, err)
	l, err := Listen("127.0.0.1:0", nil)
	must(t, err)
	if err := s.Run(t.Context(), l); err == nil || !strings.Contains(err.Error(), "needs a token") {
		t.Errorf("TCP without a token: %v", err)
	}
	if _, err := New(Config{}); err == nil {
		t.Error("a server without a Gatekeeper")
	}
}

// With TLS any address will do; who speaks plain text gets nothing.
func TestTLS(t *testing.T) {
	cert, pool := certificate(t)
	l, err := Listen("0.0.0.0:0", &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12})
	must(t, err)
	s, err := New(Config{Backend: stopped{}, Grants: OneToken(testToken)})
	must(t, err)
	ended := make(chan error, 1)
	ctx, cancel := contextUntil(t)
	go func() { ended <- s.Run(ctx, l) }()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	client := &http.Client{Transport: transport}
	resp, err := client.Get("https://127.0.0.1:" + port + "/v1/openapi.json")
	must(t, err)
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK || resp.TLS == nil {
		t.Errorf("over TLS: %s", resp.Status)
	}
	if resp, err := client.Get("http://127.0.0.1:" + port + "/"); err == nil {
		resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("in plain text: %s", resp.Status)
		}
	}
	transport.CloseIdleConnections()
	cancel()
	must(t, <-ended)
}

// certificate makes one for 127.0.0.1 that only its pool trusts.
func certificate(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{{127, 0, 0, 1}},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	leaf, err := x509.ParseCertificate(der)
	must(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

func TestHealth(t *testing.T) {
	b := startBusy(t)
	s := startSite(t, b.Gatekeeper())
	s.Token = ""
	for _, path := range []string{"/healthz", "/readyz"} {
		if got := s.Get(path); !bytes.Equal(got, []byte("ok\n")) {
			t.Errorf("%s: %q", path, got)
		}
	}
}

// A request that still waits when the server ends is told so: nothing is broken.
func TestProblem_ServerEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var p *problem
	if err := failed(fmt.Errorf("survey: %w", context.Cause(ctx))); !errors.As(err, &p) || p.Status != http.StatusServiceUnavailable {
		t.Errorf("got %v", err)
	}
}
