package ingress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/bifrost-rack/bifrost/ingress/gen-go/durable"
	"github.com/bifrost-rack/bifrost/ingress/keys"
	"github.com/bifrost-rack/bifrost/ingress/thriftjson"
)

// routes are what the ingress answers. Each request has a client, whose rights are known, from admit on.
func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /call/{service}/{method}", s.call)
	mux.HandleFunc("GET /outcome/{key...}", s.outcome)
	mux.HandleFunc("GET /openapi.json", s.openapi)
	mux.HandleFunc("GET /{$}", s.index)
	mux.HandleFunc("POST /form/{service}/{method}", s.form)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		noMethod(fmt.Sprintf("there is no %s %.128s", r.Method, r.URL.Path)).write(w)
	})
	crossOrigin := http.NewCrossOriginProtection() // a page of somewhere else makes no calls by a user's browser
	crossOrigin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		refusal(http.StatusForbidden, "cross-origin", "the request comes from a page of another origin").write(w)
	}))
	return s.observe(s.admit(crossOrigin.Handler(mux)))
}

// attempt is a call that a client asks for.
type attempt struct {
	visit   *visit
	key     string // "" without
	wants   preferences
	timeout time.Duration
	service string
	method  string
	body    []byte
}

// call serves POST /call/SERVICE/METHOD.
func (s *Server) call(w http.ResponseWriter, r *http.Request) {
	a, refused := s.attempt(w, r)
	if refused != nil {
		refused.write(w)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), a.timeout)
	defer cancel()
	s.run(ctx, w, a)
}

// run makes the call, and answers.
func (s *Server) run(ctx context.Context, w http.ResponseWriter, a *attempt) {
	if a.key != "" {
		s.durably(ctx, w, a)
		return
	}
	request, refused := s.convert(ctx, a)
	if refused == nil {
		refused = s.clients.begin(a.visit)
	}
	if refused != nil {
		refused.write(w)
		return
	}
	defer s.clients.end(a.visit)
	o, _ := s.perform(ctx, request)
	s.send(w, o)
}

// attempt reads a request.
func (s *Server) attempt(w http.ResponseWriter, r *http.Request) (a *attempt, refused *problem) {
	a = &attempt{visit: visitOf(r.Context()), service: r.PathValue("service"), method: r.PathValue("method"), wants: preferencesOf(r.Header)}
	if !a.visit.mayCall(a.service) {
		return nil, neverBegan(refusal(http.StatusForbidden, "forbidden", fmt.Sprintf("this token may not call service %q", a.service)))
	}
	var err error
	if a.key, err = keyOf(r.Header); err != nil {
		return nil, neverBegan(refusal(http.StatusBadRequest, "bad-key", err.Error()))
	}
	if a.wants.async && a.key == "" {
		return nil, neverBegan(refusal(http.StatusBadRequest, "bad-key", "a call without waiting (Prefer: respond-async) needs an Idempotency-Key, by which its outcome is found"))
	}
	if a.timeout, err = s.config.timeoutOf(r.Header); err != nil {
		return nil, neverBegan(refusal(http.StatusBadRequest, "bad-timeout", err.Error()))
	}
	a.body, refused = s.body(w, r)
	return a, refused
}

// body reads the body of a request, which the client has BodyTimeout for.
func (s *Server) body(w http.ResponseWriter, r *http.Request) ([]byte, *problem) {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(s.config.BodyTimeout)) // a recorder of tests has none
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(s.config.MaxBody)))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, neverBegan(refusal(http.StatusRequestEntityTooLarge, "too-large", fmt.Sprintf("the body has more than %d bytes", large.Limit)))
	case errors.Is(err, os.ErrDeadlineExceeded):
		w.Header().Set("Connection", "close")
		return nil, neverBegan(refusal(http.StatusRequestTimeout, "slow", fmt.Sprintf("the body has not come within %v", s.config.BodyTimeout)))
	case err != nil:
		return nil, neverBegan(refusal(http.StatusBadRequest, "cut-short", "the body ends too early: "+err.Error()))
	}
	_ = control.SetReadDeadline(time.Time{})
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); len(body) > 0 && (err != nil || media != jsonMedia) {
		return nil, neverBegan(refusal(http.StatusUnsupportedMediaType, "media-type",
			fmt.Sprintf("the body is of type %.128q: want Content-Type: %s", r.Header.Get("Content-Type"), jsonMedia)))
	}
	return body, nil
}

func neverBegan(p *problem) *problem {
	p.NeverBegan = true
	return p
}

// convert makes what is to be called of a request's JSON.
func (s *Server) convert(ctx context.Context, a *attempt) (*durable.Request, *problem) {
	o, err := s.catalog.find(ctx, a.service)
	if err != nil {
		return nil, neverBegan(failed(err))
	}
	if o == nil {
		return nil, noMethod(fmt.Sprintf("no node of the rack exports a service %.128q", a.service))
	}
	m, refused := o.method(a.method)
	if refused != nil {
		return nil, refused
	}
	a.visit.service, a.visit.method = a.service, a.method
	args, err := thriftjson.Arguments(m, a.body)
	if err != nil {
		return nil, mismatch(err)
	}
	return newRequest(a.service, m, args), nil
}

// send answers with what a call has come to. The client has BodyTimeout to take it.
func (s *Server) send(w http.ResponseWriter, o *durable.Outcome) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.config.BodyTimeout)) // a recorder of tests has none
	writeOutcome(w, o)
}

// mostTries is how often a request looks again at a key whose call has never begun.
const mostTries = 4

// durably makes a call with a key, or answers with what the key's call has come to.
func (s *Server) durably(ctx context.Context, w http.ResponseWriter, a *attempt) {
	key, hash := scoped(a.visit.scope, a.key), hashOf(a.service, a.method, a.body)
	for range mostTries {
		if e, over := s.keeper.look(key); e != nil {
			if keys.Verdict(e, hash) == durable.Verdict_RUNNING && !a.wants.async && a.wants.wait > 0 && await(ctx, over, a.wants.wait) {
				continue
			}
			s.known(w, a, keys.Verdict(e, hash), e.Outcome)
			return
		}
		request, refused := s.convert(ctx, a)
		if refused == nil {
			refused = s.clients.begin(a.visit)
		}
		if refused != nil {
			refused.write(w)
			return
		}
		request.Promised = a.wants.async
		request.Entry = &durable.Entry{Key: key, Hash: hash, Nonce: newNonce(), Accepted: time.Now().UnixMilli()}
		f := s.caller.fly(ctx, request, func() { s.clients.end(a.visit) })
		if again := s.await(ctx, w, a, f); !again {
			return
		}
	}
	s.known(w, a, durable.Verdict_RUNNING, nil)
}

// await answers when a call has come to something, or has its key if the client does not want to wait. It is true if another request
// has the key, and the client waits for that.
func (s *Server) await(ctx context.Context, w http.ResponseWriter, a *attempt, f *flight) (again bool) {
	claimed := f.claimed
	if !a.wants.async {
		claimed = nil
	}
	select {
	case <-claimed:
		s.accepted(w, a.key)
		return false
	case <-ctx.Done():
		p := refusal(http.StatusGatewayTimeout, "timeout", "the call goes on: its answer will be at "+outcomePath(a.key)).again(1)
		w.Header().Set("Location", outcomePath(a.key))
		p.write(w)
		return false
	case <-f.done:
	}
	switch {
	case f.err != nil:
		p := failed(f.err)
		p.Detail = "come again with the same key: " + p.Detail
		p.again(1).write(w)
	case f.answer.Verdict == durable.Verdict_RUNNING && a.wants.wait > 0:
		return true
	case f.answer.Verdict == durable.Verdict_FRESH && !a.wants.async:
		s.send(w, f.answer.Outcome)
	case f.answer.Verdict == durable.Verdict_FRESH:
		s.accepted(w, a.key)
	default:
		s.known(w, a, f.answer.Verdict, f.answer.Outcome)
	}
	return false
}

// known answers a request whose key is in use.
func (s *Server) known(w http.ResponseWriter, a *attempt, v durable.Verdict, o *durable.Outcome) {
	switch v {
	case durable.Verdict_DONE:
		w.Header().Set("Idempotency-Replayed", "true")
		s.send(w, o)
	case durable.Verdict_OTHER:
		refusal(http.StatusUnprocessableEntity, "key-reused", "the Idempotency-Key was used for another service, method or body").write(w)
	case durable.Verdict_FULL:
		neverBegan(refusal(http.StatusInsufficientStorage, "keys-full", fmt.Sprintf(
			"the ingress keeps %d keys and %d bytes of answers at most, for %v each", s.config.Keys, s.config.KeyBytes, s.config.Lifetime))).again(60).write(w)
	default:
		if a.wants.async {
			s.accepted(w, a.key)
			return
		}
		w.Header().Set("Location", outcomePath(a.key))
		refusal(http.StatusConflict, "in-progress", "the first request with this Idempotency-Key is being served: its answer will be at "+outcomePath(a.key)).again(1).write(w)
	}
}

// accepted answers that a call runs.
func (s *Server) accepted(w http.ResponseWriter, key string) {
	w.Header().Set("Location", outcomePath(key))
	w.Header().Set("Preference-Applied", "respond-async")
	w.Header().Set("Retry-After", "1")
	writeOutcome(w, &durable.Outcome{Status: http.StatusAccepted, MediaType: jsonMedia, Body: []byte(`{"outcome":` + strconv.Quote(outcomePath(key)) + `}`)})
}

// await waits until something is closed, for so long at most; it reports whether it is closed.
func await(ctx context.Context, over <-chan struct{}, most time.Duration) bool {
	t := time.NewTimer(most)
	defer t.Stop()
	select {
	case <-over:
		return true
	case <-t.C:
	case <-ctx.Done():
	}
	return false
}

// outcome serves GET /outcome/KEY.
func (s *Server) outcome(w http.ResponseWriter, r *http.Request) {
	key := r.PathValue("key")
	if err := checkKey(key); err != nil {
		refusal(http.StatusBadRequest, "bad-key", err.Error()).write(w)
		return
	}
	of := scoped(visitOf(r.Context()).scope, key)
	e, over := s.keeper.look(of)
	if wants := preferencesOf(r.Header); e != nil && e.Outcome == nil && wants.wait > 0 {
		await(r.Context(), over, min(wants.wait, s.config.MaxTimeout))
		e, _ = s.keeper.look(of)
	}
	switch {
	case e == nil:
		refusal(http.StatusNotFound, "unknown-key", fmt.Sprintf("no call with this key is known; answers are kept for %v", s.config.Lifetime)).write(w)
	case e.Outcome == nil:
		s.accepted(w, key)
	default:
		s.send(w, e.Outcome)
	}
}
