package control

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
)

// Handler carries out one request of the other side. What it returns, as JSON,
// is the reply's body (nil: none); of an error, code and message are. It may be
// called concurrently; ctx ends with the endpoint's Run.
type Handler func(ctx context.Context, request Message) (any, error)

// Config is what an Endpoint needs.
type Config struct {
	PeerConfig
	// Send hands a datagram to the network. It must not block; an error counts as
	// a lost packet.
	Send func(datagram []byte) error
	// Handle carries out requests; nil refuses all as Unsupported.
	Handle Handler
	// Log receives what nobody else hears of; nil discards it.
	Log *slog.Logger
}

// Endpoint is one end of a conversation: a Peer with a clock and goroutines. All
// methods may be called concurrently.
type Endpoint struct {
	cfg      Config
	wake     chan struct{} // the Peer's deadline may have changed
	ended    chan struct{} // Run is over
	handlers sync.WaitGroup
	slots    chan struct{}

	mu      sync.Mutex
	peer    *Peer
	waiting map[uint64]chan Message // Asks without reply
	room    chan struct{}           // closed when the window may have room again, and made anew
	alarm   *time.Timer             // goes off when the peer has something to do
	running context.Context         //nolint:containedctx // handlers' context: Run's, nil before and after it
}

// NewEndpoint returns an endpoint; it speaks while Run runs.
func NewEndpoint(cfg Config) *Endpoint {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	e := &Endpoint{
		cfg: cfg, peer: NewPeer(cfg.PeerConfig), wake: make(chan struct{}, 1), ended: make(chan struct{}),
		slots: make(chan struct{}, MaxHandlers), waiting: map[uint64]chan Message{}, room: make(chan struct{}), alarm: time.NewTimer(time.Hour),
	}
	e.alarm.Stop()
	return e
}

// Run sends requests again when they are due, until ctx ends. It returns when
// all handlers have; asks that still wait fail as Unavailable. It must be called
// once.
func (e *Endpoint) Run(ctx context.Context) {
	e.mu.Lock()
	e.running = ctx
	e.mu.Unlock()
	for ctx.Err() == nil {
		e.mu.Lock()
		e.peer.Tick(time.Now())
		ready := e.peer.Ready()
		e.wind()
		e.mu.Unlock()
		e.perform(ctx, ready)
		select {
		case <-ctx.Done():
		case <-e.wake:
		case <-e.alarm.C:
		}
	}
	e.mu.Lock()
	e.running = nil
	e.alarm.Stop()
	e.mu.Unlock()
	close(e.ended)
	e.handlers.Wait()
}

// wind sets the alarm to when the peer has something to do next. The caller holds e.mu.
func (e *Endpoint) wind() {
	if at, due := e.peer.Deadline(); due {
		e.alarm.Reset(time.Until(at))
	} else {
		e.alarm.Stop()
	}
}

// Deliver takes a datagram from the other side; it does not block. What is
// malformed, or comes while Run does not run, is dropped.
func (e *Endpoint) Deliver(datagram []byte) {
	e.mu.Lock()
	ctx := e.running
	if ctx == nil {
		e.mu.Unlock()
		return
	}
	err := e.peer.Input(datagram)
	ready := e.peer.Ready()
	e.wind() // an answer leaves nothing to be sent again
	e.mu.Unlock()
	if err != nil {
		e.cfg.Log.Debug("control packet dropped", "err", err)
	}
	e.perform(ctx, ready)
}

// Ask sends a request until it is answered and reads the reply's body into
// reply, unless that is nil. The error is a *fault.Error: what the other side
// answered (remote), Deadline or Canceled with ctx (the outcome is then unknown),
// or Unavailable when the endpoint has ended.
func (e *Endpoint) Ask(ctx context.Context, kind Kind, request, reply any) error {
	return e.asks(ctx, kind, request, reply, 0)
}

// AskInTurn is Ask for what others want to know: Kept requests are left for Ask. It does not fail as Overloaded, but waits until there
// is room. What is in the way may be one request that has no reply: its copies may have got lost.
func (e *Endpoint) AskInTurn(ctx context.Context, kind Kind, request, reply any) error {
	return e.asks(ctx, kind, request, reply, Kept)
}

// asks does so if more than so many requests are left then.
func (e *Endpoint) asks(ctx context.Context, kind Kind, request, reply any, left int) error {
	body, err := json.Marshal(request)
	if err != nil {
		return &fault.Error{Code: fault.BadRequest, Op: kind.String(), Err: err}
	}
	answer := make(chan Message, 1)
	id, room, err := e.ask(kind, body, answer, left)
	for ; room != nil; id, room, err = e.ask(kind, body, answer, left) {
		select {
		case <-room:
		case <-ctx.Done():
			return fault.FromContext(kind.String(), ctx.Err())
		case <-e.ended:
			return fault.New(fault.Unavailable, kind.String(), "the control endpoint has ended")
		}
	}
	if err != nil {
		return err
	}
	select {
	case m := <-answer:
		return decodeReply(m, reply)
	case <-ctx.Done():
		err = fault.FromContext(kind.String(), ctx.Err())
	case <-e.ended:
		err = fault.New(fault.Unavailable, kind.String(), "the control endpoint has ended")
	}
	e.mu.Lock()
	e.peer.Cancel(id)
	delete(e.waiting, id)
	e.hasRoom()
	e.mu.Unlock()
	return err
}

// ask sends a request. If that would leave no more than so many, it returns what is closed when it is worth another try.
func (e *Endpoint) ask(kind Kind, body []byte, answer chan Message, left int) (id uint64, room chan struct{}, err error) {
	e.mu.Lock()
	if left > 0 && e.peer.Room() <= left {
		defer e.mu.Unlock()
		return 0, e.room, nil
	}
	id, err = e.peer.Ask(time.Now(), kind, body)
	if err == nil {
		e.waiting[id] = answer
	}
	e.mu.Unlock()
	e.poke()
	return id, nil, err
}

// hasRoom wakes who waits for room in the window. The caller holds e.mu.
func (e *Endpoint) hasRoom() {
	if e.peer.Room() <= Kept {
		return
	}
	close(e.room)
	e.room = make(chan struct{})
}

// poke lets Run look at the Peer again.
func (e *Endpoint) poke() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// perform does what the Peer wants done.
func (e *Endpoint) perform(ctx context.Context, r Ready) {
	for _, b := range r.Send {
		if err := e.cfg.Send(b); err != nil {
			e.cfg.Log.Debug("control packet not sent", "err", err)
		}
	}
	for _, m := range r.Replies {
		e.mu.Lock()
		answer := e.waiting[m.ID]
		delete(e.waiting, m.ID)
		e.hasRoom()
		e.mu.Unlock()
		if answer != nil {
			answer <- m // has room for the one reply
		}
	}
	for _, m := range r.Requests {
		e.serve(ctx, m)
	}
}

// serve handles a request in a goroutine of its own, if there is one to have.
func (e *Endpoint) serve(ctx context.Context, m Message) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.running == nil {
		return
	}
	select {
	case e.slots <- struct{}{}:
	default:
		e.peer.Forget(m)
		return
	}
	e.handlers.Go(func() {
		status, body := e.handle(ctx, m)
		<-e.slots
		e.mu.Lock()
		e.peer.Answer(m, status, body)
		ready := e.peer.Ready()
		e.mu.Unlock()
		e.perform(ctx, ready)
	})
}

// handle calls the handler and puts its result into a reply's form.
func (e *Endpoint) handle(ctx context.Context, m Message) (fault.Code, []byte) {
	if e.cfg.Handle == nil {
		return fault.Unsupported, []byte("this side takes no requests")
	}
	result, err := e.cfg.Handle(ctx, m)
	if err != nil {
		return failure(err)
	}
	if result == nil {
		return fault.OK, nil
	}
	body, err := json.Marshal(result)
	if err != nil {
		return failure(err)
	}
	return fault.OK, body
}

// failure is an error in a reply's form.
func failure(err error) (fault.Code, []byte) {
	var coded *fault.Error
	if errors.As(err, &coded) && coded.Msg != "" && coded.Err == nil {
		return coded.Code, []byte(coded.Msg)
	}
	return fault.CodeOf(err), []byte(err.Error())
}

func decodeReply(m Message, into any) error {
	op := m.Kind.String()
	if m.Status != fault.OK {
		return fault.Remote(m.Status, op, "%s", m.Body)
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(m.Body, into); err != nil {
		return &fault.Error{Code: fault.BadRequest, Op: op, Msg: "malformed reply", Remote: true, Err: err}
	}
	return nil
}

// Decode reads a request's body.
func (m *Message) Decode(into any) error {
	if err := json.Unmarshal(m.Body, into); err != nil {
		return &fault.Error{Code: fault.BadRequest, Op: m.Kind.String(), Msg: "malformed body", Err: err}
	}
	return nil
}
