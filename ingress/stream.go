package ingress

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/ingress/gen-go/durable"
	"github.com/bifrost-rack/bifrost/ingress/thriftjson"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/gen"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
)

// A body of any size goes into memory as it comes, and a result of any size leaves as it is read:
//
//	HTTP ── call ──▶ Caller.call ── receive ──▶ Caller.receive: body ─▶ a region
//	                    │ ◀── the region ───────────┘
//	                    ├── claim, the client's call with the region, settle
//	                    └── the result's region ─▶ HTTP
//
// Both are executions of the ingress' node, so each region is one execution's at any time, and is freed with it, whoever dies. An execution
// of receive whose body was cut short by the end of the ingress fails when it is run again: the key is not claimed then, and the client
// comes again. What was received whole is the call's, which goes on without the client. A result leaves as an effect of the
// execution, so it is settled by then what the result is.

const (
	// rawMedia is the type of a body that is an argument, or a result, as it is.
	rawMedia = "application/octet-stream"
	// chunk is how much of a body the ingress has at a time.
	chunk = 256 << 10
)

// bodyOf is the argument that a request's body can be: the only one by reference, which is binary.
func bodyOf(m *gen.Method) (body *gen.Field, err error) {
	for i := range m.Arguments {
		if f := &m.Arguments[i]; f.ByReference {
			if body != nil || f.Type.Kind != gen.Binary {
				body = nil
				break
			}
			body = f
		}
	}
	if body == nil {
		return nil, fmt.Errorf("a body of type %s needs a method with one argument that is marked (bifrost.ref), a binary", rawMedia)
	}
	if m.ResultByReference && m.Result.Kind != gen.Binary {
		return nil, fmt.Errorf("a body of type %s needs a method whose result is a binary if it is marked (bifrost.ref)", rawMedia)
	}
	return body, nil
}

// givesRaw reports whether a method that is called without a body can have its result leave as it is.
func givesRaw(m *gen.Method) bool {
	return m.ResultByReference && m.Result.Kind == gen.Binary && !slices.ContainsFunc(m.Arguments, func(f gen.Field) bool { return f.ByReference })
}

// pace gives a client time for a body: so long for each so many bytes.
type pace struct {
	each  int64
	long  time.Duration
	until func(time.Time) error // sets the connection's deadline; a recorder of tests has none

	done, next int64
}

// step is called before each part.
func (p *pace) step() {
	if p.done >= p.next {
		p.next = p.done + p.each
		_ = p.until(time.Now().Add(p.long))
	}
}

// errGone: nobody sends, or takes, the body any more.
var errGone = rpc.Errorf(rpc.Canceled, "the client is gone")

// inflow is a body that goes into memory.
type inflow struct {
	length int64 // as the client says; -1 if it does not
	pace   pace
	over   chan struct{} // closed when refused or sum is known

	mu      sync.Mutex
	from    io.Reader // nil when nobody may read any more
	refused *problem  // why the body did not come whole
	sum     []byte
}

// inflow takes the body of a request.
func (s *Server) inflow(w http.ResponseWriter, r *http.Request) *inflow {
	return &inflow{
		length: r.ContentLength, over: make(chan struct{}), from: http.MaxBytesReader(w, r.Body, s.config.MaxStream),
		pace: pace{each: int64(s.config.MaxBody), long: s.config.BodyTimeout, until: http.NewResponseController(w).SetReadDeadline},
	}
}

// read fills b, unless the body ends before.
func (i *inflow) read(s *Server, b []byte) (n int, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.from == nil {
		return 0, errGone
	}
	i.pace.next = i.pace.done // what became of the last part took no time of the client's
	for n < len(b) && err == nil {
		var m int
		i.pace.step()
		m, err = i.from.Read(b[n:min(len(b), n+int(i.pace.next-i.pace.done))])
		n += m
		i.pace.done += int64(m)
	}
	if err != nil && err != io.EOF { //nolint:errorlint // it is not wrapped
		i.refused = s.unread(err)
		err = rpc.Errorf(rpc.Canceled, "%s", i.refused.Detail)
	}
	return n, err
}

// end ends the reading. The sum is the body's, nil if it did not come whole.
func (i *inflow) end(sum []byte) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.from != nil {
		if i.from, i.sum = nil, sum; sum != nil {
			_ = i.pace.until(time.Time{}) // else the server takes a client that is silent for one that is gone
		}
		close(i.over)
	}
}

// isOver reports whether the body is read, or will not be.
func (i *inflow) isOver() bool {
	select {
	case <-i.over:
		return true
	default:
		return false
	}
}

// abandon ends the reading, though somebody reads now. It returns why the body did not come whole, if that was so before.
func (i *inflow) abandon() *problem {
	if !i.isOver() {
		_ = i.pace.until(time.Unix(1, 0))
		i.end(nil)
	}
	return i.refused
}

// each hands out the body part by part, and returns its hash.
func (i *inflow) each(s *Server, f func(b []byte) error) (sum []byte, err error) {
	h, b := sha256.New(), make([]byte, chunk)
	for err == nil {
		var n int
		if n, err = i.read(s, b); n > 0 && (err == nil || err == io.EOF) { //nolint:errorlint // it is not wrapped
			_, _ = h.Write(b[:n]) // it does not fail
			if failed := f(b[:n]); failed != nil {
				err = failed
			}
		}
	}
	if err == io.EOF { //nolint:errorlint // likewise
		sum, err = h.Sum(nil), nil
	}
	i.end(sum)
	return sum, err
}

// store puts the body into a region of the execution.
func (i *inflow) store(ctx context.Context, s *Server) (*durable.Body, error) {
	memory := rpc.Memory(ctx)
	var at dsm.Pointer
	size, room := int64(0), int64(0)
	sum, err := i.each(s, func(b []byte) error {
		if need := size + int64(len(b)); need > room {
			room = min(max(need, 2*room, i.length), s.config.MaxStream)
			larger, err := enlarged(ctx, memory, at, size, room)
			if err != nil {
				return err
			}
			at = larger
		}
		_, err := memory.Write(ctx, at.Add(size), b)
		size += int64(len(b))
		return err
	})
	if err != nil {
		return nil, err // the execution's regions go with it
	}
	return &durable.Body{Content: &bifrost.Reference{Pointer: rpc.GlobalPointer(at), Length: size}, Hash: sum}, nil
}

// enlarged returns a region with the first bytes of another one, which it frees.
func enlarged(ctx context.Context, memory *dsm.Client, was dsm.Pointer, size, room int64) (dsm.Pointer, error) {
	at, err := memory.Alloc(ctx, uint64(room)) //nolint:gosec // positive
	if err != nil || size == 0 {
		return at, err
	}
	b := make([]byte, min(chunk, size))
	for done := int64(0); done < size; done += int64(len(b)) {
		b = b[:min(int64(len(b)), size-done)]
		if _, err := memory.Read(ctx, was.Add(done), b); err != nil {
			return at, err
		}
		if _, err := memory.Write(ctx, at.Add(done), b); err != nil {
			return at, err
		}
	}
	return at, memory.Free(ctx, was)
}

// outflow is a result that leaves as it is read.
type outflow struct {
	pace pace

	mu    sync.Mutex
	to    http.ResponseWriter // nil when nobody may write any more
	began bool
}

func (s *Server) outflow(w http.ResponseWriter) *outflow {
	return &outflow{to: w, pace: pace{each: int64(s.config.MaxBody), long: s.config.BodyTimeout, until: http.NewResponseController(w).SetWriteDeadline}}
}

// send sends so many bytes.
func (o *outflow) send(length int64, read func(at int64, b []byte) error) error {
	if o == nil {
		return errGone
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.to == nil {
		return errGone
	}
	b := make([]byte, chunk)
	for o.pace.done < length {
		b = b[:min(chunk, length-o.pace.done)]
		if err := read(o.pace.done, b); err != nil {
			return err
		}
		if !o.began {
			o.began = true
			o.to.Header().Set("Content-Type", rawMedia)
			o.to.Header().Set("Content-Length", strconv.FormatInt(length, 10))
			o.to.WriteHeader(http.StatusOK)
		}
		o.pace.step()
		n, err := o.to.Write(b)
		o.pace.done += int64(n)
		if err != nil {
			return err
		}
	}
	return nil
}

// end ends the sending, after which nobody sends. It reports whether something was sent.
func (o *outflow) end() bool {
	if o == nil {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.to = nil
	return o.began
}

// deliver makes an outcome of a result by reference. What is too large to be kept leaves at once, if the client takes it as it is and is
// still there.
func (s *Server) deliver(ctx context.Context, r *durable.Request, result *bifrost.Reference) *durable.Outcome {
	most := int64(s.config.MaxAnswer)
	if !r.Raw {
		most = int64(base64.StdEncoding.DecodedLen(s.config.MaxAnswer)) - 3
	}
	at, err := pointerOf(result)
	switch memory := rpc.Memory(ctx); {
	case err != nil:
		return unreadable(err).outcome()
	case result.Length > most && r.Raw:
		if _, err := rpc.Effect(ctx, "send", func(ctx context.Context) ([]byte, error) {
			return nil, s.caller.flight(r.Entry.Nonce).out.send(result.Length, func(offset int64, b []byte) error {
				_, err := memory.Read(ctx, at.Add(offset), b)
				return err
			})
		}); err != nil {
			s.log.Debug("a result has not reached its client", "service", r.Target, "method", r.Method, "error", err)
		}
		return tooLarge
	case result.Length > most:
		return unreadable(thriftjson.ErrTooLarge).outcome()
	case result.Value == nil && result.Length > 0:
		result.Value = make([]byte, result.Length)
		if _, err := memory.Read(ctx, at, result.Value); err != nil {
			return unreadable(err).outcome()
		}
	}
	if r.Raw {
		return &durable.Outcome{Status: http.StatusOK, MediaType: rawMedia, Body: result.Value}
	}
	return jsonResult(strconv.AppendQuote(nil, base64.StdEncoding.EncodeToString(result.Value)))
}

// pointerOf is where a result stands. It refuses one that cannot be: the service may be faulty.
func pointerOf(result *bifrost.Reference) (at dsm.Pointer, err error) {
	at, err = rpc.PointerOf(result.Pointer)
	if err == nil && (result.Length < 0 || result.Length > rpc.MaxRef || result.Value != nil && int64(len(result.Value)) != result.Length ||
		result.Value == nil && result.Length > 0 && at.IsNil()) {
		err = errors.New("the reference that it has answered with is none")
	}
	return at, err
}
