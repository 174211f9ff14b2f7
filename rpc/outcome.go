package rpc

import (
	"encoding/binary"
	"errors"
	"hash/fnv"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/wirefmt"
	"github.com/bifrost-rack/bifrost/rpc/packet"
)

// outcome is how a call of an exactly-once execution ended, as it is journalled:
// error code (1 byte), fingerprint of the call (8), then the error's message. After code 0
// comes nothing if the answer is in the log. If it is not, as with policy none, its type
// (1), code (1) and payload come.
type outcome struct {
	code        Code
	fingerprint uint64
	message     string
	neverBegan  bool
	answer      *packet.Message // of policy none; nil for a one-way
}

const outcomeSize = 9

// outcomeUnbegun in the error code's byte: the call never began.
const outcomeUnbegun = 0x80

// outcomeHeaders in the byte of an answer's type: the payload begins with headers.
const outcomeHeaders = 0x80

func (o outcome) append(b []byte) []byte {
	code := byte(o.code)
	if o.neverBegan {
		code |= outcomeUnbegun
	}
	b = append(b, code)
	b = binary.BigEndian.AppendUint64(b, o.fingerprint)
	if o.code != OK {
		return append(b, o.message...)
	}
	if o.answer != nil {
		kind := byte(o.answer.Type)
		if o.answer.Flags&packet.FlagHeaders != 0 {
			kind |= outcomeHeaders
		}
		b = append(b, kind, byte(o.answer.Code))
		b = append(b, o.answer.Payload...)
	}
	return b
}

func parseOutcome(b []byte) (o outcome, err error) {
	if len(b) < outcomeSize {
		return o, wirefmt.Errorf("outcome of %d bytes, want %d", len(b), outcomeSize)
	}
	o.neverBegan = b[0]&outcomeUnbegun != 0
	o.code, o.fingerprint = Code(b[0]&^outcomeUnbegun), binary.BigEndian.Uint64(b[1:])
	b = b[outcomeSize:]
	switch {
	case o.code != OK:
		o.message = string(b)
	case len(b) == 1:
		return o, wirefmt.Errorf("outcome: an answer of 1 byte")
	case len(b) > 1:
		o.answer = &packet.Message{Header: packet.Header{Type: packet.Type(b[0] &^ outcomeHeaders), Code: Code(b[1])}, Payload: b[2:]}
		if b[0]&outcomeHeaders != 0 {
			o.answer.Flags = packet.FlagHeaders
		}
	}
	return o, nil
}

// plain makes an error what it is after a replay, so that both attempts of an
// execution see the same: code and message, without the cause.
func plain(op string, err error) *Error {
	var e *Error
	if !errors.As(err, &e) {
		return fault.New(Application, op, "%s", err)
	}
	msg := e.Msg
	if e.Err != nil {
		if msg != "" {
			msg += ": "
		}
		msg += e.Err.Error()
	}
	return &Error{Code: e.Code, Op: op, Msg: msg[:min(len(msg), maxMessage)], NeverBegan: e.NeverBegan}
}

// fingerprint tells calls apart: service, arguments and pointers. Headers may be others when an
// execution runs again, since they may tell of the run.
func (c *client) fingerprint(codec *codec) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(binary.BigEndian.AppendUint64(nil, c.hash)) // never fails
	_, _ = h.Write(codec.buf.out[packet.HeaderSize+codec.headed:])
	return h.Sum64()
}
