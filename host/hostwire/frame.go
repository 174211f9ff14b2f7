package hostwire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"unicode/utf8"
)

const (
	// Version is that of the protocol. A host refuses a child that speaks another one.
	Version = 1
	// Variable is the environment variable that tells the child the number of the descriptor on which its host is.
	Variable = "BIFROST_HOST_FD"
	// headSize is how many bytes stand in front of a frame's body.
	headSize = 9
	// MaxHello is how many bytes the body of a HELLO has at most.
	MaxHello = 4 << 20
	// MaxBeside is how many bytes a frame has beside the Thrift message, value or result in it, at most.
	MaxBeside = 256 << 10
	// MaxKey is how many bytes the key of an entry of the state, or of an effect, has at most.
	MaxKey = 4 << 10
	// MaxRandom is how many random bytes a child gets at once.
	MaxRandom = 64 << 10
)

// Kind says what a frame is.
type Kind uint8

// The kinds.
const (
	Hello      Kind = 1 + iota // child: its services, as JSON
	Welcome                    // host: the node, as JSON
	Ready                      // host: the rack routes calls
	Call                       // host: a call
	Cancel                     // host: the call's context has ended
	Answer                     // child: the call's answer
	Fail                       // child: the call fails with a code
	Broken                     // child: the handler has not come to an end of its own
	Get                        // child asks: an entry of the state
	Set                        // child asks: to set one
	Delete                     // child asks: to delete one
	Keys                       // child asks: which keys there are
	Now                        // child asks: the time
	Random                     // child asks: random bytes
	Effect                     // child asks: may an effect run
	Run                        // host: it may; the child says EffectDone
	EffectDone                 // child: what the effect has come to
	Invoke                     // child asks: a call of another service
	Result                     // host: what has become of what the child asks
	Log                        // child: a line of a log
	lastKind   = Log
)

var kindNames = [...]string{
	Hello: "hello", Welcome: "welcome", Ready: "ready", Call: "call", Cancel: "cancel", Answer: "answer", Fail: "fail", Broken: "broken",
	Get: "get", Set: "set", Delete: "delete", Keys: "keys", Now: "now", Random: "random", Effect: "effect", Run: "run",
	EffectDone: "effect done", Invoke: "invoke", Result: "result", Log: "log",
}

// String is the kind's name.
func (k Kind) String() string {
	if k.Known() {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Known reports whether there is such a kind.
func (k Kind) Known() bool { return k >= Hello && k <= lastKind }

// FromChild reports whether the child sends frames of this kind.
func (k Kind) FromChild() bool {
	switch k {
	case Hello, Answer, Fail, Broken, EffectDone, Log:
		return true
	default:
		return k.Asks()
	}
}

// Asks reports whether a frame of this kind asks for a [Result].
func (k Kind) Asks() bool {
	switch k {
	case Get, Set, Delete, Keys, Now, Random, Effect, Invoke:
		return true
	default:
		return false
	}
}

// Frame is one frame. Call is the number of the call that it is about; 0 for a frame that is about none.
type Frame struct {
	Kind Kind
	Call uint32
	Body []byte
}

// ErrFrame is what a frame that does not parse fails with, wrapped.
var ErrFrame = errors.New("malformed frame")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrFrame, fmt.Sprintf(format, args...))
}

// AppendHead appends what stands in front of a body of so many bytes.
func AppendHead(b []byte, k Kind, call uint32, body int) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(headSize-4+body)) //nolint:gosec // the body of a frame is shorter than 4 GiB
	return binary.BigEndian.AppendUint32(append(b, byte(k)), call)
}

// Append appends the frame.
func (f *Frame) Append(b []byte) []byte {
	return append(AppendHead(b, f.Kind, f.Call, len(f.Body)), f.Body...)
}

// Read reads a frame whose body has at most so many bytes. It returns io.EOF if the stream ends in front of a frame, io.ErrUnexpectedEOF
// if it ends within one. Memory is taken as bytes come.
func Read(r io.Reader, limit int) (f Frame, err error) {
	var head [headSize]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return f, err
	}
	size := int64(binary.BigEndian.Uint32(head[:])) - (headSize - 4)
	f.Kind, f.Call = Kind(head[4]), binary.BigEndian.Uint32(head[5:])
	switch {
	case !f.Kind.Known():
		return f, malformed("%s, of %d bytes: there is no such kind", f.Kind, size)
	case size < 0:
		return f, malformed("%s: a length of %d: want %d at least", f.Kind, size+headSize-4, headSize-4)
	case size > int64(limit):
		return f, malformed("%s of %d bytes: want %d at most", f.Kind, size, limit)
	}
	if size <= smallBody {
		f.Body = make([]byte, size)
		_, err = io.ReadFull(r, f.Body)
	} else {
		var b bytes.Buffer
		_, err = io.CopyN(&b, r, size)
		f.Body = b.Bytes()
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return f, err
}

// smallBody is up to how many bytes of a body memory is taken at once.
const smallBody = 64 << 10

// fields are the fields of a body that are still to be read.
type fields struct {
	rest []byte
	err  error
}

// take takes n bytes off; nil if there are fewer.
func (f *fields) take(n uint64, what string) []byte {
	if f.err == nil && n > uint64(len(f.rest)) {
		f.err = malformed("%s needs %d bytes, and %d are left", what, n, len(f.rest))
	}
	if f.err != nil {
		return nil
	}
	b := f.rest[:n:n]
	f.rest = f.rest[n:]
	return b
}

func (f *fields) byte(what string) byte {
	if b := f.take(1, what); b != nil {
		return b[0]
	}
	return 0
}

func (f *fields) number(what string) uint32 {
	if b := f.take(4, what); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

// text takes a text of at most so many bytes off, with its length in front.
func (f *fields) text(what string, limit int) string {
	n := f.number(what)
	if f.err == nil && uint64(n) > uint64(limit) {
		f.err = malformed("%s of %d bytes: want %d at most", what, n, limit)
	}
	b := f.take(uint64(n), what)
	if f.err == nil && !utf8.Valid(b) {
		f.err = malformed("%s is no UTF-8", what)
	}
	return string(b)
}

// end refuses what follows the last field.
func (f *fields) end() error {
	if f.err == nil && len(f.rest) > 0 {
		f.err = malformed("%d bytes behind the last field", len(f.rest))
	}
	return f.err
}

func appendText(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(min(len(s), math.MaxUint32))), s...) //nolint:gosec // bounded
}
