package devrack

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/join/unixjoin"
	"github.com/bifrost-rack/bifrost/rpc"
)

// running is a rack that runs.
type running struct {
	*testing.T
	Addresses
	page  string
	lines chan string
	stop  context.CancelFunc
	ended chan error
}

// up is the line in which a test is told where the rack is reached.
const up = "a rack is up"

func run(t *testing.T, cfg Config) *running {
	t.Helper()
	page, err := admin.Listen("127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	r := &running{T: t, page: page.Addr().String(), lines: make(chan string, 1000), ended: make(chan error, 1)}
	ready := make(chan Addresses, 1)
	outside, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Page, cfg.Token, cfg.Ingress = page, strings.Repeat("t", 52), outside
	cfg.Print = func(program, line string) { r.lines <- program + ": " + line }
	cfg.Ready = func(a Addresses) {
		r.lines <- up
		ready <- a
	}
	ctx, stop := context.WithCancel(t.Context())
	r.stop = stop
	go func() { r.ended <- Run(ctx, cfg) }()
	select {
	case r.Addresses = <-ready:
	case err := <-r.ended:
		t.Fatal("the rack does not start: ", err)
	}
	return r
}

func (r *running) end() {
	r.Helper()
	r.stop()
	if err := <-r.ended; err != nil {
		r.Error(err)
	}
}

// node joins as a program that somebody has started.
func (r *running) node(name string) *rpc.Node {
	r.Helper()
	n, err := rpc.Join(join.NewContext(r.Context(), unixjoin.Joiner{Socket: r.Join}), rpc.WithName(name))
	if err != nil {
		r.Fatal(err)
	}
	return n
}

// A rack without a directory serves programs of other processes, whatever size their messages have, and leaves nothing.
func TestRun(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	r := run(t, Config{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	callee, caller := r.node("callee"), r.node("caller")
	if err := callee.Export(ctx, "Arrays", arrays.NewArraysProcessor(&service.Arrays{})); err != nil {
		t.Fatal(err)
	}
	client := arrays.NewArraysClient(caller.Client("Arrays", rpc.WithPolicy(rpc.PolicyRecover)))
	for _, n := range []int{0, 1, 1000, 62000, 70000, 3 << 20} {
		a, b := bytes.Repeat([]byte{1}, n), bytes.Repeat([]byte{2}, n)
		sum, err := client.Add(ctx, a, b)
		if err != nil || !bytes.Equal(sum, bytes.Repeat([]byte{3}, n)) {
			t.Fatalf("the sum of %d bytes has %d: %v", n, len(sum), err)
		}
		p, err := caller.Memory().Alloc(ctx, uint64(n)+1)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := caller.Memory().Write(ctx, p, a); err != nil {
			t.Fatal(err)
		}
		ref, err := client.IncrementRef(ctx, rpc.GlobalPointer(p), int64(n), 1)
		if err != nil {
			t.Fatal(err)
		}
		at, err := rpc.PointerOf(ref)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, n)
		if _, err := caller.Memory().Read(ctx, at, got); err != nil || !bytes.Equal(got, b) {
			t.Fatalf("%d bytes by reference: %v", n, err)
		}
	}
	for _, n := range []*rpc.Node{caller, callee} {
		if err := n.Close(ctx); err != nil {
			t.Error(err)
		}
	}
	if figures := r.get("/metrics"); !strings.Contains(figures, `bifrost_dev_dropped_datagrams_total{blade="c1",reason="queue_full"} 0`) {
		t.Errorf("metrics do not count drops: %s", figures)
	}
	r.end()
	if left, _ := os.ReadDir(os.TempDir()); len(left) > 0 {
		t.Error("files are left:", left)
	}
}

// get asks the page's server.
func (r *running) get(path string) string {
	r.Helper()
	q, err := http.NewRequestWithContext(r.Context(), http.MethodGet, "http://"+r.page+path, nil)
	if err != nil {
		r.Fatal(err)
	}
	q.Header.Set("Authorization", "Bearer "+strings.Repeat("t", 52))
	answer, err := http.DefaultClient.Do(q)
	if err != nil {
		r.Fatal(err)
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		r.Fatal(answer.Status, err)
	}
	return string(b)
}

// A node whose rack ends hears of it, and a call that it makes then fails.
func TestRun_End(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	r := run(t, Config{})
	n := r.node("left")
	r.end()
	<-n.Done()
	if _, err := arrays.NewArraysClient(n.Client("Arrays")).Add(t.Context(), nil, nil); rpc.CodeOf(err) != rpc.Stale && rpc.CodeOf(err) != rpc.Unavailable {
		t.Error(err)
	}
}

// Where a rack is reached is said before what happens in it: a program that waits for the rack joins after that.
func TestRun_Introduced(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	dir := t.TempDir()
	run(t, Config{Dir: dir}).end()
	d := &directory{path: dir}
	socket, err := d.socket(computeBlades[0])
	if err != nil {
		t.Fatal(err)
	}
	joined := make(chan error, 1)
	go func() {
		n, err := rpc.Join(join.NewContext(t.Context(), unixjoin.Joiner{Socket: socket}), rpc.WithName("early"))
		for rpc.CodeOf(err) == rpc.Unavailable && t.Context().Err() == nil { // the socket is not there yet
			n, err = rpc.Join(join.NewContext(t.Context(), unixjoin.Joiner{Socket: socket}), rpc.WithName("early"))
		}
		if err == nil {
			err = n.Export(t.Context(), "Arrays", arrays.NewArraysProcessor(&service.Arrays{}))
		}
		joined <- err
	}()
	r := run(t, Config{Dir: dir})
	if line := <-r.lines; line != up {
		t.Fatalf("%q is said before the rack is introduced", line)
	}
	if err := <-joined; err != nil {
		t.Fatal(err)
	}
	r.until("early serves Arrays")
	r.end()
}

// A run that was saved is one to begin with once: what happens after that is not undone by it.
func TestRun_Saved(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	dir := t.TempDir()
	r := run(t, Config{Dir: dir})
	r.end()
	d := &directory{path: dir}
	if _, err := os.Lstat(d.file(savedName)); err != nil {
		t.Fatal("nothing is saved:", err)
	}
	r = run(t, Config{Dir: dir})
	if _, err := os.Lstat(d.file(savedName)); !os.IsNotExist(err) {
		t.Error("the backup is still there while the rack goes on:", err)
	}
	r.end()
	if left, _ := os.ReadDir(os.TempDir()); len(left) > 0 {
		t.Error("files are left:", left)
	}
}

// until waits for a line with a text.
func (r *running) until(text string) {
	r.Helper()
	late := time.After(time.Minute)
	for {
		select {
		case line := <-r.lines:
			if strings.Contains(line, text) {
				return
			}
		case <-late:
			r.Fatalf("nobody prints %q", text)
		}
	}
}

// What the app file says after a change is what runs. A file that cannot be read changes nothing.
func TestRun_Changed(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	file := filepath.Join(t.TempDir(), "app.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	r := run(t, Config{Apps: []App{{File: file, Read: func() (resources.Spec, error) {
		b, err := os.ReadFile(file)
		if err == nil && string(b) == "wrong" {
			err = errors.New("the file is wrong")
		}
		return resources.Spec{Name: "app", Programs: []resources.Program{
			{Name: "p", Nodes: 1, Args: []string{"/bin/sh", "-c", "echo it runs $0; exec sleep 1000", string(b)}},
		}}, err
	}}}})
	r.until("app/p/1: it runs first")
	write("wrong")
	r.until("the file is wrong")
	write("second")
	r.until("app has changed")
	r.until("app/p/1: it runs second")
	r.end()
}
