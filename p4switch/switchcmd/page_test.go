package switchcmd

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/softswitch"
)

// openPage runs `bifrost switch page`, and returns the address that it prints, and the token.
func openPage(t *testing.T, grpcAddr string) (address, token string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	out, in := io.Pipe()
	done := make(chan error, 1)
	go func() {
		root := newRoot()
		root.SetOut(in)
		root.SetArgs([]string{"switch", "page", "--grpc-addr", grpcAddr})
		err := root.ExecuteContext(ctx)
		_ = in.CloseWithError(io.EOF)
		done <- err
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the page ended with %v", err)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("%q, %v", line, err)
	}
	address, token, ok := strings.Cut(strings.TrimSpace(line), "/#token=")
	if !ok || !strings.HasPrefix(address, "http://127.0.0.1:") {
		t.Fatalf("the address is %q", line)
	}
	return address, token
}

func fetch(t *testing.T, method, url, token, body string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	must(t, err)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := http.DefaultClient.Do(r)
	must(t, err)
	t.Cleanup(func() { _ = answer.Body.Close() })
	return answer
}

// TestSwitchPage: the page and its files are for everybody, what the switch tells only for those with the token; errors of the switch get there.
func TestSwitchPage(t *testing.T) {
	program, info := program(t)
	socket := "unix:" + filepath.Join(t.TempDir(), "s")
	runSwitch(t, "--datapath", "go", "--log-level", "off", "--p4info", info, program, "--grpc-server-addr", socket)
	if _, err := execute(t.Context(), "entry", "next_hop", "hop=7", "forward", "port=1", "dst=02:00:00:00:00:01", "src=02:00:00:00:00:02", "--grpc-addr", socket); err != nil {
		t.Fatal(err)
	}
	address, token := openPage(t, socket)
	for _, path := range []string{"/", "/page/app.js", "/page/arcs.js", "/page/style.css", "/page/icon.svg"} {
		if r := fetch(t, http.MethodGet, address+path, "", ""); r.StatusCode != http.StatusOK || !strings.Contains(r.Header.Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("%s: %s %s", path, r.Status, r.Header)
		}
	}
	for _, c := range []struct{ method, path string }{{http.MethodGet, "/api/state"}, {http.MethodGet, "/api/program"}, {http.MethodPost, "/api/trace"}, {http.MethodGet, "/api/none"}} {
		for _, wrong := range []string{"", token + "x", token[1:]} {
			if r := fetch(t, c.method, address+c.path, wrong, "{}"); r.StatusCode != http.StatusUnauthorized {
				t.Errorf("%s with token %q: %s", c.path, wrong, r.Status)
			}
		}
	}
	var st softswitch.State
	must(t, json.NewDecoder(fetch(t, http.MethodGet, address+"/api/state", token, "").Body).Decode(&st))
	known := false
	for _, table := range st.Tables {
		known = known || strings.HasSuffix(table.Table, ".next_hop") && table.Entries == 1
	}
	if !known || st.Executor != "Go" {
		t.Errorf("%+v", st)
	}
	var p softswitch.Program
	must(t, json.NewDecoder(fetch(t, http.MethodGet, address+"/api/program", token, "").Body).Decode(&p))
	if p.Number != st.Program || len(p.Graph.Parts) != 3 {
		t.Errorf("%+v", p)
	}
	var said pageTrace
	must(t, json.NewDecoder(fetch(t, http.MethodPost, address+"/api/trace", token, `{"filter":["nothing=1"]}`).Body).Decode(&said))
	if !strings.Contains(said.Error, "choose one of") {
		t.Errorf("a wrong filter: %+v", said)
	}
	for _, body := range []string{"", "{", `{"filter":7}`} {
		if r := fetch(t, http.MethodPost, address+"/api/trace", token, body); r.StatusCode != http.StatusBadRequest {
			t.Errorf("%q: %s", body, r.Status)
		}
	}
}

// TestSwitchPage_Mistakes: what cannot be is said before anything is served.
func TestSwitchPage_Mistakes(t *testing.T) {
	program, info := program(t)
	socket := "unix:" + filepath.Join(t.TempDir(), "s")
	runSwitch(t, "--datapath", "go", "--log-level", "off", "--p4info", info, program, "--grpc-server-addr", socket)
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"--grpc-addr", socket, "--listen", "0.0.0.0:0"}, "ssh -L"},
		{[]string{"--grpc-addr", socket, "--listen", "nowhere"}, "--listen"},
		{[]string{"--grpc-addr", "unix:" + filepath.Join(t.TempDir(), "none")}, "no switch with a page answers"},
	} {
		if out, err := execute(t.Context(), append([]string{"page"}, c.args...)...); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %s%v", c.args, out, err)
		}
	}
}
