package ingress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/ingress/gen-go/durable"
	"github.com/bifrost-rack/bifrost/ingress/keys"
	"github.com/bifrost-rack/bifrost/ingress/thriftjson"
	"github.com/bifrost-rack/bifrost/rpc/gen"
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
	return s.observe(s.admit(crossOrigin.Handler(s.below(mux))))
}

// below takes the ingress' own path off that of a request, which has to begin with it.
func (s *Server) below(next http.Handler) http.Handler {
	if s.config.Path == "" {
		return next
	}
	own := http.StripPrefix(s.config.Path, next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.EscapedPath(), s.config.Path+"/") {
			noMethod(fmt.Sprintf("the paths of this rack begin with %s/", s.config.Path)).write(w)
			return
		}
		own.ServeHTTP(w, r)
	})
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
	// in is a body that goes into memory. The arguments beside it are in body then.
	in *inflow
	// raw says that the client takes the result as it is, if it can: by out.
	raw bool
	out *outflow
}

// hash is that of the request. It reads a body that goes into memory, unless it is read already.
func (a *attempt) hash(s *Server) ([]byte, *problem) {
	request := hashOf(a.service, a.method, a.body)
	switch {
	case a.in == nil:
		return request, nil
	case a.in.isOver():
		return withBody(request, a.in.sum), a.in.refused
	}
	sum, err := a.in.each(s, func([]byte) error { return nil })
	if err != nil {
		return nil, a.in.refused
	}
	return withBody(request, sum), nil
}

// call serves POST /call/SERVICE/METHOD.
func (s *Server) call(w http.ResponseWriter, r *http.Request) {
	a, refused := s.attempt(w, r)
	if refused != nil {
		refused.write(w)
		return
	}
	s.run(r.Context(), w, a)
}

// run makes the call, and answers.
func (s *Server) run(ctx context.Context, w http.ResponseWriter, a *attempt) {
	if a.in != nil {
		defer a.in.abandon()
	}
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
	if a.in != nil || request.Raw {
		request.Entry = &durable.Entry{Nonce: newNonce(), Hash: hashOf(a.service, a.method, a.body)}
		request.Timeout = max(a.timeout.Milliseconds(), 1)
		s.await(ctx, w, a, s.caller.fly(ctx, request, a, func() { s.clients.end(a.visit) }))
		return
	}
	defer s.clients.end(a.visit)
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	o, _ := s.perform(ctx, request, nil)
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
	if a.raw = accepts(r.Header, rawMedia); a.raw && !a.wants.async {
		a.out = s.outflow(w)
	}
	if mediaOf(r.Header) == rawMedia {
		if r.ContentLength > s.config.MaxStream {
			return nil, tooLong(s.config.MaxStream)
		}
		a.in, a.body = s.inflow(w, r), []byte(r.URL.Query().Get("arguments"))
		return a, nil
	}
	a.body, refused = s.body(w, r)
	return a, refused
}

// mediaOf is the type of a request's body.
func mediaOf(h http.Header) string {
	media, _, _ := mime.ParseMediaType(h.Get("Content-Type"))
	return media
}

// accepts reports whether a client names a type among those that it takes.
func accepts(h http.Header, media string) bool {
	for _, list := range h.Values("Accept") {
		for _, one := range strings.Split(list, ",") {
			if got, _, err := mime.ParseMediaType(one); err == nil && got == media {
				return true
			}
		}
	}
	return false
}

func tooLong(most int64) *problem {
	return neverBegan(refusal(http.StatusRequestEntityTooLarge, "too-large", fmt.Sprintf("the body has more than %d bytes", most)))
}

// unread is why a body could not be read.
func (s *Server) unread(err error) *problem {
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return tooLong(large.Limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return neverBegan(refusal(http.StatusRequestTimeout, "slow", fmt.Sprintf("the body has not come within %v", s.config.BodyTimeout)))
	}
	return neverBegan(refusal(http.StatusBadRequest, "cut-short", "the body ends too early: "+err.Error()))
}

// body reads the body of a request, which the client has BodyTimeout for.
func (s *Server) body(w http.ResponseWriter, r *http.Request) ([]byte, *problem) {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(s.config.BodyTimeout)) // a recorder of tests has none
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(s.config.MaxBody)))
	if err != nil {
		return nil, s.unread(err)
	}
	_ = control.SetReadDeadline(time.Time{})
	if len(body) > 0 && mediaOf(r.Header) != jsonMedia {
		return nil, neverBegan(refusal(http.StatusUnsupportedMediaType, "media-type",
			fmt.Sprintf("the body is of type %.128q: want Content-Type: %s, or %s", r.Header.Get("Content-Type"), jsonMedia, rawMedia)))
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
	request := &durable.Request{Target: a.service, Method: m.Name, NoAnswer: m.Oneway, Policy: m.Policy}
	beside := *m // the arguments in JSON
	if a.in != nil {
		body, err := bodyOf(m)
		if err != nil {
			return nil, neverBegan(refusal(http.StatusUnsupportedMediaType, "media-type", err.Error()))
		}
		request.Body = &body.ID
		beside.Arguments = slices.DeleteFunc(slices.Clone(m.Arguments), func(f gen.Field) bool { return f.ByReference })
	}
	request.Raw = a.raw && m.ResultByReference && (a.in != nil || givesRaw(m))
	if request.Arguments, err = thriftjson.Arguments(&beside, a.body); err != nil {
		return nil, mismatch(err)
	}
	return request, nil
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
	if a.in == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, a.timeout)
		defer cancel()
	}
	key := scoped(a.visit.scope, a.key)
	for range mostTries {
		if e, over := s.keeper.look(key); e != nil {
			hash, refused := a.hash(s)
			if refused != nil {
				refused.write(w)
				return
			}
			if keys.Verdict(e, hash) == durable.Verdict_RUNNING && !a.wants.async && a.wants.wait > 0 && await(ctx, over, min(a.wants.wait, a.timeout)) {
				continue
			}
			s.known(w, a, keys.Verdict(e, hash), e.Outcome)
			return
		}
		if a.in != nil && a.in.isOver() {
			break // the body is not there any more
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
		request.Entry = &durable.Entry{Key: key, Hash: hashOf(a.service, a.method, a.body), Nonce: newNonce(), Accepted: time.Now().UnixMilli()}
		f := s.caller.fly(ctx, request, a, func() { s.clients.end(a.visit) })
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
	if a.in != nil {
		select {
		case <-a.in.over:
		case <-f.done:
		case <-ctx.Done(): // the client is gone, or too slow
			if refused := a.in.abandon(); refused != nil {
				refused.write(w)
				return false
			}
		}
		if a.key != "" {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, a.timeout)
			defer cancel()
		}
	}
	select {
	case <-claimed:
		s.accepted(w, a.key)
		return false
	case <-ctx.Done():
		if a.out.end() {
			<-f.done
			return false
		}
		p := refusal(http.StatusGatewayTimeout, "timeout", "the call goes on: its answer will be at "+s.outcomePath(a.key)).again(1)
		w.Header().Set("Location", s.outcomePath(a.key))
		p.write(w)
		return false
	case <-f.done:
	}
	switch {
	case a.out.end(): // the result has left
	case f.err != nil && a.in != nil && a.in.refused != nil:
		a.in.refused.write(w)
	case f.err != nil:
		p := failed(f.err)
		if p.NeverBegan = p.NeverBegan || a.in != nil && a.in.sum == nil; a.key != "" {
			p.Detail = "come again with the same key: " + p.Detail
			p.again(1)
		}
		p.write(w)
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
		w.Header().Set("Location", s.outcomePath(a.key))
		refusal(http.StatusConflict, "in-progress", "the first request with this Idempotency-Key is being served: its answer will be at "+s.outcomePath(a.key)).again(1).write(w)
	}
}

// accepted answers that a call runs.
func (s *Server) accepted(w http.ResponseWriter, key string) {
	w.Header().Set("Location", s.outcomePath(key))
	w.Header().Set("Preference-Applied", "respond-async")
	w.Header().Set("Retry-After", "1")
	writeOutcome(w, &durable.Outcome{Status: http.StatusAccepted, MediaType: jsonMedia, Body: []byte(`{"outcome":` + strconv.Quote(s.outcomePath(key)) + `}`)})
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
