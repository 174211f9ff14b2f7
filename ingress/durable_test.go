package ingress_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/ingress"
)

// TestCalls: calls with and without a key, and what they come to.
func TestCalls(t *testing.T) {
	onRack(t, ingress.Config{}, func(r *rig) {
		r.expect("without a key", r.buy("a", 3), 200, "3")
		r.expect("again without a key", r.buy("a", 3), 200, "6")
		r.expect("with a key", r.buy("a", 4, "Idempotency-Key", "k1"), 200, "10")
		again := r.buy("a", 4, "Idempotency-Key", `"k1"`)
		r.expect("with the key again", again, 200, "10")
		if again.header.Get("Idempotency-Replayed") != "true" {
			r.Errorf("headers %v", again.header)
		}
		r.expect("another body", r.buy("a", 5, "Idempotency-Key", "k1"), 422, "urn:bifrost:problem:key-reused")
		r.expect("another method", r.do("POST", "/call/Shop/total", `{"account":"a","cents":4}`, "Idempotency-Key", "k1"), 422, "key-reused")
		r.expect("its outcome", r.do("GET", "/outcome/k1", ""), 200, "10")
		r.expect("an exception", r.buy("a", -1, "Idempotency-Key", "k2"), 422, `"exception":{"name":"SoldOut","fields":{"item":"a","left":7}}`)
		r.expect("the exception again", r.buy("a", -1, "Idempotency-Key", "k2"), 422, "urn:bifrost:exception:SoldOut")
		r.expect("a coded error", r.do("POST", "/call/Shop/fail", `{"how":"coded"}`), 507, "the shelf is full")
		r.expect("another error", r.do("POST", "/call/Shop/fail", `{"how":"because"}`, "Idempotency-Key", "k3"), 500, "because")
		r.expect("a one-way", r.do("POST", "/call/Shop/note", `{"account":"a","cents":10}`, "Idempotency-Key", "k4"), 200, "null")
		r.expect("by reference", r.do("POST", "/call/Shop/measure", `{"body":"AAAA"}`), 200, "3")
		r.total("a", 20)
		if n := r.runs.Load(); n != 4 {
			r.Errorf("%d purchases have run", n)
		}
	})
}

// TestIngressDies: the ingress is killed while the service works. The call has one effect, and whoever comes with the key gets its answer.
func TestIngressDies(t *testing.T) {
	onRack(t, ingress.Config{}, func(r *rig) {
		r.expect("before", r.buy("a", 1), 200, "1")
		reached, goOn := make(chan struct{}), make(chan struct{})
		r.on(func(context.Context, string) { reached <- struct{}{}; <-goOn })
		first := make(chan reply)
		go func() { first <- r.buy("a", 5, "Idempotency-Key", "k") }()
		<-reached
		r.Kill("s1")
		if a := <-first; a.status < 500 {
			r.Errorf("the ingress has died: %d %s", a.status, a.body)
		}
		r.on(nil)
		r.expect("while it runs", r.until(func() reply { return r.do("GET", "/outcome/k", "") }, 404, 503), 202, "/outcome/k")
		r.expect("again", r.buy("a", 5, "Idempotency-Key", "k"), 409, "in-progress")
		close(goOn)
		r.expect("its outcome", r.until(func() reply { return r.do("GET", "/outcome/k", "") }, 202), 200, "6")
		r.expect("afterwards", r.buy("a", 5, "Idempotency-Key", "k"), 200, "6")
		r.total("a", 6)
		r.expect("the next", r.buy("a", 5, "Idempotency-Key", "k'"), 200, "11")
	})
}

// TestCalleeDies: the service is killed in its handler. The client waits, and its call has one effect.
func TestCalleeDies(t *testing.T) {
	onRack(t, ingress.Config{Timeout: 2 * time.Minute}, func(r *rig) {
		reached := make(chan struct{})
		r.on(func(ctx context.Context, _ string) { reached <- struct{}{}; <-ctx.Done() })
		first := make(chan reply)
		go func() { first <- r.buy("a", 5, "Idempotency-Key", "k") }()
		<-reached
		r.on(nil)
		r.Kill("s2")
		r.expect("the client", <-first, 200, "5")
		r.expect("again", r.buy("a", 5, "Idempotency-Key", "k"), 200, "5")
		r.total("a", 5)
	})
}

// TestDiesAnywhere: the ingress, or the service, is killed at one moment after the other of a call with a key. Whoever comes with the key
// afterwards gets an answer, and the call has one effect.
func TestDiesAnywhere(t *testing.T) {
	for _, blade := range []string{"s1", "s2"} {
		for moment := time.Duration(0); moment < 1500*time.Microsecond; moment += 50 * time.Microsecond {
			diesAt(t, blade, moment)
		}
	}
}

func diesAt(t *testing.T, blade string, moment time.Duration) {
	onRack(t, ingress.Config{}, func(r *rig) {
		r.expect("before", r.buy("a", 1, "Idempotency-Key", "first"), 200, "1")
		done := make(chan reply)
		go func() { done <- r.buy("a", 5, "Idempotency-Key", "k") }()
		<-time.After(moment)
		r.Kill(blade)
		a := <-done
		if a.status == 200 && a.body != "6" || a.status != 200 && a.status < 500 {
			r.Errorf("%s dies after %v: %d %s", blade, moment, a.status, a.body)
		}
		r.expect("again", r.until(func() reply { return r.buy("a", 5, "Idempotency-Key", "k") }, 409, 503, 504), 200, "6")
		r.expect("the first", r.buy("a", 1, "Idempotency-Key", "first"), 200, "1")
		r.total("a", 6)
	})
}

// TestConcurrent: of two requests with a key at a time one makes the call. The other one is told so at once, or waits if it asks for that.
func TestConcurrent(t *testing.T) {
	onRack(t, ingress.Config{}, func(r *rig) {
		r.expect("before", r.buy("a", 1), 200, "1")
		reached, goOn := make(chan struct{}), make(chan struct{})
		r.on(func(context.Context, string) { reached <- struct{}{}; <-goOn })
		all := make(chan reply)
		ask := func(headers ...string) {
			go func() { all <- r.buy("a", 5, append(headers, "Idempotency-Key", "k")...) }()
		}
		ask()
		<-reached
		r.expect("at once", r.buy("a", 5, "Idempotency-Key", "k"), 409, "in-progress")
		r.expect("another body", r.buy("a", 6, "Idempotency-Key", "k"), 422, "key-reused")
		r.expect("for a second", r.buy("a", 5, "Idempotency-Key", "k", "Prefer", "wait=1"), 409, "in-progress")
		ask("Prefer", "wait=60")
		ask("Prefer", "wait=60")
		<-time.After(time.Second)
		close(goOn)
		for range 3 {
			r.expect("each", <-all, 200, "6")
		}
		r.total("a", 6)
	})
}

// TestAtOnce: of requests with a key that come in the same moment one makes the call.
func TestAtOnce(t *testing.T) {
	onRack(t, ingress.Config{}, func(r *rig) {
		r.expect("before", r.buy("a", 1), 200, "1")
		all := make(chan reply)
		for range 8 {
			go func() { all <- r.buy("a", 5, "Idempotency-Key", "k", "Prefer", "wait=60") }()
		}
		for range 8 {
			r.expect("each", <-all, 200, "6")
		}
		r.total("a", 6)
	})
}

// TestAnswered: what clients have got is in the table at once, however many call at a time. So what the ingress has yet to do for calls that are
// answered does not pile up in its ledger.
func TestAnswered(t *testing.T) {
	onRack(t, ingress.Config{}, func(r *rig) {
		r.expect("before", r.buy("a", 1), 200, "1")
		var clients sync.WaitGroup
		for c := range 32 {
			clients.Go(func() {
				for n := range 10 {
					r.expect("a call", r.buy(fmt.Sprint("account ", c), 1, "Idempotency-Key", fmt.Sprint(c, "-", n)), 200, fmt.Sprint(n+1))
				}
			})
		}
		clients.Wait()
		if n := r.server.Unsettled(r.T); n > 0 {
			r.Errorf("%d keys of calls that are answered have no outcome", n)
		}
	})
}

// TestAsync: a client that does not wait finds the outcome later, also if the ingress has died since.
func TestAsync(t *testing.T) {
	onRack(t, ingress.Config{}, func(r *rig) {
		r.expect("no key", r.buy("a", 5, "Prefer", "respond-async"), 400, "bad-key")
		r.expect("unknown", r.do("GET", "/outcome/k", ""), 404, "unknown-key")
		goOn := make(chan struct{})
		r.on(func(context.Context, string) { <-goOn })
		a := r.buy("a", 5, "Prefer", "respond-async", "Idempotency-Key", "k/ä"[:2]+"?x")
		r.expect("accepted", a, 202, "")
		at := a.header.Get("Location")
		if at != "/outcome/k%2F%3Fx" {
			r.Errorf("it is at %q", at)
		}
		r.Kill("s1")
		r.expect("running", r.until(func() reply { return r.do("GET", at, "") }, 404, 503), 202, "")
		close(goOn)
		r.expect("done", r.until(func() reply { return r.do("GET", at, "", "Prefer", "wait=10") }, 202), 200, "5")
		r.expect("again", r.buy("a", 5, "Prefer", "respond-async", "Idempotency-Key", "k/?x"), 200, "5")
		r.total("a", 5)
	})
}

// TestAsync_Dies: what a client is told is accepted runs, though the ingress dies at that moment.
func TestAsync_Dies(t *testing.T) {
	onRack(t, ingress.Config{}, func(r *rig) {
		r.expect("accepted", r.buy("a", 5, "Prefer", "respond-async", "Idempotency-Key", "k"), 202, "")
		r.Kill("s1")
		r.expect("done", r.until(func() reply { return r.do("GET", "/outcome/k", "") }, 202, 503), 200, "5")
		r.total("a", 5)
	})
}

// TestIDLChanges: a kept answer stays as it is when the service's next version has another IDL, or none of its methods.
func TestIDLChanges(t *testing.T) {
	onRack(t, ingress.Config{}, func(r *rig) {
		first := r.buy("a", 5, "Idempotency-Key", "k")
		r.expect("before", first, 200, "5")
		r.mu.Lock()
		r.idl = "service Shop { i64 buy(1: string account, 2: i64 cents, 3: string currency) }"
		r.mu.Unlock()
		r.Kill("s2")
		r.expect("a new key", r.until(func() reply { return r.buy("a", 5) }, 200, 503), 400, "/currency")
		again := r.buy("a", 5, "Idempotency-Key", "k")
		r.expect("the key", again, 200, "5")
		if again.header.Get("Idempotency-Replayed") != "true" {
			r.Errorf("headers %v", again.header)
		}
	})
}

// TestDeadline: the deadline of a request bounds how long it waits. A call with a key goes on.
func TestDeadline(t *testing.T) {
	onRack(t, ingress.Config{}, func(r *rig) {
		r.expect("before", r.buy("a", 1), 200, "1")
		goOn := make(chan struct{})
		r.on(func(context.Context, string) { <-goOn })
		start := time.Now()
		r.expect("with a key", r.buy("a", 5, "Request-Timeout", "2.5", "Idempotency-Key", "k"), 504, "/outcome/k")
		if d := time.Since(start); d != 2500*time.Millisecond {
			r.Errorf("it took %v", d)
		}
		close(goOn)
		r.expect("its outcome", r.until(func() reply { return r.do("GET", "/outcome/k", "") }, 202), 200, "6")
		r.on(func(ctx context.Context, _ string) { <-ctx.Done() })
		r.expect("without a key", r.buy("b", 5, "Request-Timeout", "1"), 504, "deadline")
		for _, bad := range []string{"0", "-1", "x", "1e9", "NaN"} {
			r.expect(bad, r.buy("b", 5, "Request-Timeout", bad), 400, "bad-timeout")
		}
	})
}

// TestExpiry: a key is forgotten after its time, and then its request is a new one.
func TestExpiry(t *testing.T) {
	onRack(t, ingress.Config{Lifetime: time.Minute}, func(r *rig) {
		r.expect("first", r.buy("a", 1, "Idempotency-Key", "k"), 200, "1")
		<-time.After(59 * time.Second)
		r.expect("in time", r.buy("a", 1, "Idempotency-Key", "k"), 200, "1")
		<-time.After(2 * time.Second)
		r.expect("forgotten", r.do("GET", "/outcome/k", ""), 404, "kept for 1m0s")
		r.expect("anew", r.buy("a", 1, "Idempotency-Key", "k"), 200, "2")
	})
}

// TestFull: a new key is refused when there is no room for it; known ones are not.
func TestFull(t *testing.T) {
	onRack(t, ingress.Config{Keys: 2, Lifetime: time.Minute}, func(r *rig) {
		r.expect("one", r.buy("a", 1, "Idempotency-Key", "1"), 200, "1")
		r.expect("two", r.buy("a", 1, "Idempotency-Key", "2"), 200, "2")
		a := r.buy("a", 1, "Idempotency-Key", "3")
		r.expect("three", a, 507, "the ingress keeps 2 keys")
		if a.problem() != "keys-full" {
			r.Errorf("it is a problem %q", a.problem())
		}
		r.expect("two again", r.buy("a", 1, "Idempotency-Key", "2"), 200, "2")
		<-time.After(time.Minute)
		r.expect("three in time", r.buy("a", 1, "Idempotency-Key", "3"), 200, "3")
		r.total("a", 3)
	})
}

// TestNeverBegan: a call that has never begun leaves its key free, unless the client was told that the call is accepted.
func TestNeverBegan(t *testing.T) {
	onRack(t, ingress.Config{}, func(r *rig) {
		r.expect("before", r.buy("a", 1), 200, "1")
		r.CrashBlade("s2") // it takes a while until the rack knows
		r.expect("too late", r.buy("a", 1, "Request-Timeout", "1"), 504, "deadline")
		r.expect("bad", r.do("POST", "/call/Shop/buy", `{"account":"a"}`, "Idempotency-Key", "k"), 400, "/cents")
		r.BootBlade("s2")
		r.expect("good", r.until(func() reply { return r.buy("a", 1, "Idempotency-Key", "k") }, 503, 504, 409), 200, "2")
	})
}
