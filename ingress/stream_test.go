package ingress_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/ingress"
)

const rawMedia = "application/octet-stream"

// stream makes a request whose body is an argument.
func (r *rig) stream(method, arguments string, body io.Reader, headers ...string) reply {
	path := "/call/Shop/" + method
	if arguments != "" {
		path += "?arguments=" + url.QueryEscape(arguments)
	}
	req := r.request(http.MethodPost, path, body, append([]string{"Content-Type", rawMedia}, headers...)...)
	w := httptest.NewRecorder()
	r.present().ServeHTTP(w, req)
	b, _ := io.ReadAll(w.Result().Body)
	return reply{w.Code, w.Header(), string(b)}
}

// deposit makes the call deposit with a body.
func (r *rig) deposit(account, body string, headers ...string) reply {
	return r.stream("deposit", fmt.Sprintf(`{"account":%q}`, account), strings.NewReader(body), headers...)
}

// receipt is what deposit answers.
func receipt(account, body string) string {
	return fmt.Sprintf("%q", fmt.Sprintf("%s %x", account, sha256.Sum256([]byte(body))))
}

// pattern is a body of so many bytes.
func pattern(size int) string {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i ^ i>>8 ^ i>>16)
	}
	return string(b)
}

// TestStream: bodies larger than JSON may be are arguments by reference, with and without a key.
func TestStream(t *testing.T) {
	onRack(t, ingress.Config{MaxBody: 64 << 10, MaxStream: 4 << 20}, func(r *rig) {
		for _, size := range []int{0, 1, 256 << 10, 3<<20 + 7} {
			body := pattern(size)
			r.expect(fmt.Sprint(size), r.deposit("a", body), 200, receipt("a", body))
			unknown := r.stream("deposit", `{"account":"a"}`, io.MultiReader(strings.NewReader(body)))
			r.expect(fmt.Sprint(size, " of unknown length"), unknown, 200, receipt("a", body))
		}
		r.total("a", 2*(1+256<<10+3<<20+7))
		r.expect("without other arguments", r.stream("measure", "", strings.NewReader(pattern(100_000))), 200, "100000")
		r.expect("an exception", r.deposit("", "x"), 422, `"name":"SoldOut"`)
		body := pattern(1 << 20)
		first := r.deposit("b", body, "Idempotency-Key", "k")
		r.expect("with a key", first, 200, receipt("b", body))
		again := r.deposit("b", body, "Idempotency-Key", "k")
		r.expect("again", again, 200, first.body)
		if again.header.Get("Idempotency-Replayed") != "true" {
			r.Errorf("again: headers %v", again.header)
		}
		r.expect("another body", r.deposit("b", body[1:], "Idempotency-Key", "k"), 422, "key-reused")
		r.expect("another account", r.deposit("c", body, "Idempotency-Key", "k"), 422, "key-reused")
		r.expect("in JSON", r.do("POST", "/call/Shop/deposit", `{"account":"b","body":"AA=="}`, "Idempotency-Key", "k"), 422, "key-reused")
		r.expect("without waiting", r.deposit("b", body, "Idempotency-Key", "l", "Prefer", "respond-async"), 202, "/outcome/l")
		r.expect("its outcome", r.do("GET", "/outcome/l", "", "Prefer", "wait=10"), 200, receipt("b", body))
		r.total("b", 2<<20)
		r.total("c", 0)
		if n := r.runs.Load(); n != 8+1+2 {
			r.Errorf("%d deposits have run", n)
		}
	})
}

// TestStream_AtOnce: of requests with a key that come in the same moment one makes the call.
func TestStream_AtOnce(t *testing.T) {
	onRack(t, ingress.Config{}, func(r *rig) {
		body := pattern(1 << 20)
		all := make(chan reply)
		for range 4 {
			go func() { all <- r.deposit("a", body, "Idempotency-Key", "k", "Prefer", "wait=60") }()
		}
		for range 4 {
			r.expect("each", <-all, 200, receipt("a", body))
		}
		r.total("a", 1<<20)
	})
}

// TestStream_Refused: what is no body of a call is refused before it is read, and a body that does not come whole makes no call. The key is
// free then.
func TestStream_Refused(t *testing.T) {
	onRack(t, ingress.Config{MaxStream: 1 << 20}, func(r *rig) {
		untouched := readFunc(func([]byte) (int, error) { r.Error("the body is read"); return 0, io.EOF })
		for _, c := range []struct {
			name, method, arguments string
			status                  int
			want                    string
		}{
			{"no reference", "buy", `{"account":"a"}`, 415, "one argument that is marked"},
			{"two references", "both", "", 415, "one argument that is marked"},
			{"no such method", "nothing", "", 404, "no method"},
			{"no JSON", "deposit", `{"account"`, 400, "mismatch"},
			{"an argument too few", "deposit", "", 400, "/account"},
			{"the body twice", "deposit", `{"account":"a","body":"AA=="}`, 400, "/body"},
		} {
			r.expect(c.name, r.stream(c.method, c.arguments, untouched), c.status, c.want)
			r.expect(c.name+" with a key", r.stream(c.method, c.arguments, untouched, "Idempotency-Key", "k"), c.status, c.want)
		}
		long := pattern(1<<20 + 1)
		for _, key := range [][]string{nil, {"Idempotency-Key", "k"}} {
			r.expect("too long", r.deposit("a", long, key...), 413, "too-large")
			r.expect("of unknown length", r.stream("deposit", `{"account":"a"}`, io.MultiReader(strings.NewReader(long)), key...), 413, `"neverBegan":true`)
			cut := io.MultiReader(strings.NewReader(long[:300_000]), readFunc(func([]byte) (int, error) { return 0, errors.New("the wire is cut") }))
			r.expect("cut short", r.stream("deposit", `{"account":"a"}`, cut, key...), 400, "cut-short")
			r.expect("nothing is known", r.do("GET", "/outcome/k", ""), 404, "unknown-key")
		}
		r.expect("whole", r.deposit("a", long[1:], "Idempotency-Key", "k"), 200, receipt("a", long[1:]))
		cut := readFunc(func([]byte) (int, error) { return 0, errors.New("the wire is cut") })
		r.expect("cut, with a known key", r.stream("deposit", `{"account":"a"}`, cut, "Idempotency-Key", "k"), 400, "cut-short")
		r.total("a", 1<<20)
	})
}

// readFunc is a reader made of a function.
type readFunc func([]byte) (int, error)

func (f readFunc) Read(b []byte) (int, error) { return f(b) }

// TestStream_Dies: the ingress, or the service, is killed at one moment after the other of a call with a body and a key. Whoever comes with
// the key afterwards gets an answer, and the call has one effect.
func TestStream_Dies(t *testing.T) {
	body := pattern(300_000)
	for _, blade := range []string{"s1", "s2"} {
		for moment := time.Duration(0); moment < 8*time.Millisecond; moment += 400 * time.Microsecond {
			onRack(t, ingress.Config{}, func(r *rig) {
				r.expect("before", r.deposit("a", "x", "Idempotency-Key", "first"), 200, receipt("a", "x"))
				done := make(chan reply)
				go func() { done <- r.deposit("a", body, "Idempotency-Key", "k") }()
				<-time.After(moment)
				r.Kill(blade)
				if a := <-done; a.status == 200 && a.body != receipt("a", body) || a.status != 200 && a.status < 500 {
					r.Errorf("%s dies after %v: %d %s", blade, moment, a.status, a.body)
				}
				again := r.until(func() reply { return r.deposit("a", body, "Idempotency-Key", "k") }, 409, 500, 503, 504)
				r.expect(fmt.Sprint(blade, " dies after ", moment, ": again"), again, 200, receipt("a", body))
				r.total("a", 300_001)
				r.nothingLeft()
			})
		}
	}
}

// TestStream_DiesBefore: the ingress is killed while the body comes. Nothing has happened, and nothing is left in memory.
func TestStream_DiesBefore(t *testing.T) {
	onRack(t, ingress.Config{}, func(r *rig) {
		body := pattern(1 << 20)
		dies := readFunc(func([]byte) (int, error) { r.Kill("s1"); return 0, io.ErrUnexpectedEOF })
		a := r.stream("deposit", `{"account":"a"}`, io.MultiReader(strings.NewReader(body), dies), "Idempotency-Key", "k")
		if a.status == 200 {
			r.Errorf("cut short: %s", a.body)
		}
		r.expect("its key", r.until(func() reply { return r.do("GET", "/outcome/k", "") }, 503), 404, "unknown-key")
		r.total("a", 0)
		r.expect("again", r.until(func() reply { return r.deposit("a", body, "Idempotency-Key", "k") }, 503), 200, receipt("a", body))
		r.total("a", 1<<20)
		r.nothingLeft()
	})
}

// nothingLeft checks that no body and no result is in memory.
func (r *rig) nothingLeft() {
	r.Helper()
	if n := r.Regions(); n > 0 {
		r.Errorf("%d regions are left", n)
	}
}

// TestStream_Out: a result by reference leaves as it is if the client takes that. One that is too large to be kept leaves all the same,
// once.
func TestStream_Out(t *testing.T) {
	onRack(t, ingress.Config{MaxAnswer: 100_000}, func(r *rig) {
		raw := []string{"Accept", "text/plain, " + rawMedia}
		of := func(size int) string {
			b := make([]byte, size)
			for i := range b {
				b[i] = byte(i)
			}
			return string(b)
		}
		take := func(size int, headers ...string) reply {
			return r.do("POST", "/call/Shop/make", fmt.Sprintf(`{"size":%d}`, size), headers...)
		}
		for _, size := range []int{0, 1, 5_000, 100_000, 100_001, 2 << 20} {
			a := take(size, raw...)
			if a.status != 200 || a.body != of(size) || a.header.Get("Content-Type") != rawMedia || a.header.Get("Content-Length") != strconv.Itoa(size) {
				r.Errorf("%d bytes: %d, %d bytes, %v", size, a.status, len(a.body), a.header)
			}
		}
		r.expect("as JSON", take(1000), 200, base64.StdEncoding.EncodeToString([]byte(of(1000))))
		r.expect("too large for JSON", take(100_000), 502, "too large")
		key := append([]string{"Idempotency-Key", "small"}, raw...)
		for range 2 {
			r.expect("a small one with a key", take(5_000, key...), 200, of(5_000))
		}
		key[1] = "large"
		r.expect("a large one with a key", take(1<<20, key...), 200, of(1<<20))
		r.expect("again", take(1<<20, key...), 507, "not-kept")
		key = append(key, "Prefer", "respond-async")
		key[1] = "async"
		r.expect("a large one that nobody waits for", take(1<<20, key...), 202, "")
		r.expect("its outcome", r.do("GET", "/outcome/async", "", "Prefer", "wait=10"), 507, "not-kept")
		body := pattern(70_000)
		both := r.stream("repeat", `{"times":3}`, strings.NewReader(body), raw...)
		r.expect("in and out", both, 200, body+body+body)
		r.expect("in, and out as JSON", r.stream("repeat", `{"times":1}`, strings.NewReader(body)), 200, base64.StdEncoding.EncodeToString([]byte(body)))
		r.expect("a result by value", r.buy("a", 1, raw...), 200, "1")
		r.expect("an exception", r.stream("deposit", `{"account":""}`, strings.NewReader(body), raw...), 422, "SoldOut")
		r.nothingLeft()
	})
}

// TestStream_Memory: the ingress holds a part of a body, and of a result, at a time.
func TestStream_Memory(t *testing.T) {
	const size, most = 48 << 20, 8 << 20
	onRack(t, ingress.Config{Timeout: 10 * time.Minute}, func(r *rig) {
		r.expect("before", r.deposit("a", "x"), 200, "a ")
		before := liveHeap()
		var sent, peak int64
		sample := func(n int) {
			if sent/(4<<20) != (sent+int64(n))/(4<<20) {
				peak = max(peak, liveHeap()-before)
			}
			sent += int64(n)
		}
		h := sha256.New()
		part := []byte(pattern(100_000))
		body := readFunc(func(b []byte) (int, error) {
			n := copy(b[:min(int64(len(b)), size-sent)], part)
			_, _ = h.Write(b[:n])
			if sample(n); n == 0 {
				return 0, io.EOF
			}
			return n, nil
		})
		r.expect("in", r.stream("deposit", `{"account":"a"}`, io.LimitReader(body, size)), 200, fmt.Sprintf("%x", h.Sum(nil)))
		if sent != size || peak > most {
			r.Errorf("%d bytes went in, and took %d", sent, peak)
		}
		sent, peak = 0, 0
		req := r.request(http.MethodPost, "/call/Shop/make", strings.NewReader(fmt.Sprintf(`{"size":%d}`, size)), "Content-Type", "application/json", "Accept", rawMedia)
		r.present().ServeHTTP(&sink{recorder: recorder{header: http.Header{}}, took: sample}, req)
		if sent != size || peak > most {
			r.Errorf("%d bytes went out, and took %d", sent, peak)
		}
	})
}

// sink is told how much of an answer has come.
type sink struct {
	recorder
	took func(n int)
}

func (s *sink) Write(b []byte) (int, error) { s.took(len(b)); return len(b), nil }

// liveHeap is how many bytes of the heap are in use.
func liveHeap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // less than 63 bits
}

// TestStream_Slow: a body that does not come in time is refused.
func TestStream_Slow(t *testing.T) {
	at := live(t, ingress.Config{BodyTimeout: 100 * time.Millisecond, MaxBody: 1000})
	gate, open := io.Pipe()
	defer open.Close()
	go func() { _, _ = io.WriteString(open, pattern(500)) }() // and no more
	resp, err := postRaw(t.Context(), at+"/call/Shop/measure", gate)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode != http.StatusRequestTimeout || !strings.Contains(string(b), ":slow") {
		t.Errorf("half a body: %s %s", resp.Status, b)
	}
	resp, err = postRaw(t.Context(), at+"/call/Shop/measure", strings.NewReader(pattern(1<<20)))
	if err != nil {
		t.Fatal(err)
	}
	b, _ = io.ReadAll(resp.Body)
	resp.Body.Close()
	if string(b) != strconv.Itoa(1<<20) {
		t.Errorf("afterwards: %s %s", resp.Status, b)
	}
}

func postRaw(ctx context.Context, url string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", rawMedia)
	return http.DefaultClient.Do(req)
}
