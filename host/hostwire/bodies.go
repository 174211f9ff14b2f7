package hostwire

import (
	"encoding/binary"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Bodies of frames. The last field of each has no length: it takes the rest of the body.

const (
	// FlagOneway marks a call that has no answer.
	FlagOneway = 1
	// FlagNeverBegan marks the result of a call of another service that certainly did not begin.
	FlagNeverBegan = 1
	// FlagRemote marks a result that the other side has reported.
	FlagRemote = 2
	// NoPolicy stands for the policy that the rack gives to a call which asks for none.
	NoPolicy = 0xff

	maxName = 1 << 10 // bytes of the name of a service, of an id and of an address
)

// Header is one of a call.
type Header struct{ Key, Value string }

// CallBody is that of a [Call]: flags (1 byte), timeout (4), service, id, caller and headers, then the Thrift message. Each text has its
// length in front (4 bytes), and the headers their number (4 bytes).
type CallBody struct {
	Flags   uint8
	Timeout uint32 // milliseconds that the caller waits; 0 is no limit
	Service string
	ID      string // of the call: the same each time that an exactly-once call runs
	Caller  string // address of the node that calls
	Headers []Header
	Message []byte // the Thrift message, in the binary protocol
}

// Append appends the body.
func (c *CallBody) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(append(b, c.Flags), c.Timeout)
	b = appendText(appendText(appendText(b, c.Service), c.ID), c.Caller)
	return append(appendHeaders(b, c.Headers), c.Message...)
}

// ParseCall parses the body of a [Call]. The message is part of b.
func ParseCall(b []byte) (c CallBody, err error) {
	f := fields{rest: b}
	c.Flags, c.Timeout = f.byte("flags"), f.number("timeout")
	c.Service, c.ID, c.Caller = f.text("service", maxName), f.text("id", maxName), f.text("caller", maxName)
	c.Headers = f.headers()
	if f.err == nil && c.Flags&^FlagOneway != 0 {
		f.err = malformed("flags %#x of a call", c.Flags)
	}
	c.Message = f.rest
	return c, f.err
}

func appendHeaders(b []byte, headers []Header) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(headers))) //nolint:gosec // few
	for _, h := range headers {
		b = appendText(appendText(b, h.Key), h.Value)
	}
	return b
}

func (f *fields) headers() (all []Header) {
	n := f.number("headers")
	if f.err == nil && n > rpcpacket.MaxHeaders {
		f.err = malformed("%d headers: want %d at most", n, rpcpacket.MaxHeaders)
	}
	for ; n > 0 && f.err == nil; n-- {
		all = append(all, Header{f.text("header", rpcpacket.MaxHeaderBytes), f.text("header", rpcpacket.MaxHeaderBytes)})
	}
	return all
}

// FailBody is that of a [Fail], of a [Cancel] and of the outcome of an effect ([EffectDone]): a code (1 byte), then a text, or
// if the code is OK the effect's result.
type FailBody struct {
	Code fault.Code
	Data []byte
}

// Append appends the body.
func (f *FailBody) Append(b []byte) []byte { return append(append(b, byte(f.Code)), f.Data...) }

// ParseFail parses such a body. The data is part of b.
func ParseFail(b []byte) (f FailBody, err error) {
	r := fields{rest: b}
	f.Code, f.Data = r.code(), r.rest
	return f, r.err
}

func (f *fields) code() fault.Code {
	c := fault.Code(f.byte("code"))
	if f.err == nil && !c.Known() {
		f.err = malformed("code %d: there is no such code", uint8(c))
	}
	return c
}

// ResultBody is that of a [Result]: a code (1 byte) and flags (1 byte), then the data if the code is OK, else a text.
type ResultBody struct {
	Code  fault.Code
	Flags uint8
	Data  []byte
}

// Append appends the body.
func (r *ResultBody) Append(b []byte) []byte {
	return append(append(b, byte(r.Code), r.Flags), r.Data...)
}

// ParseResult parses the body of a [Result]. The data is part of b.
func ParseResult(b []byte) (r ResultBody, err error) {
	f := fields{rest: b}
	r.Code, r.Flags, r.Data = f.code(), f.byte("flags"), f.rest
	if f.err == nil && r.Flags&^(FlagNeverBegan|FlagRemote) != 0 {
		f.err = malformed("flags %#x of a result", r.Flags)
	}
	return r, f.err
}

// SetBody is that of a [Set]: a key with its length in front (4 bytes), then the value.
type SetBody struct {
	Key   string
	Value []byte
}

// Append appends the body.
func (s *SetBody) Append(b []byte) []byte { return append(appendText(b, s.Key), s.Value...) }

// ParseSet parses the body of a [Set]. The value is part of b.
func ParseSet(b []byte) (s SetBody, err error) {
	f := fields{rest: b}
	s.Key = f.text("key", MaxKey)
	s.Value = f.rest
	return s, f.err
}

// ParseKey parses the body of a [Get], a [Delete], a [Keys] or an [Effect]: a key, or what keys begin with.
func ParseKey(b []byte) (string, error) {
	f := fields{rest: appendText(nil, string(b))}
	key := f.text("key", MaxKey)
	return key, f.err
}

// AppendKeys appends the data of the result of a [Keys]: each key with its length in front (4 bytes).
func AppendKeys(b []byte, keys []string) []byte {
	for _, k := range keys {
		b = appendText(b, k)
	}
	return b
}

// ParseKeys parses such data.
func ParseKeys(b []byte) (keys []string, err error) {
	f := fields{rest: b}
	for f.err == nil && len(f.rest) > 0 {
		keys = append(keys, f.text("key", MaxKey))
	}
	return keys, f.err
}

// ParseRandom parses the body of a [Random]: how many bytes the child wants (4 bytes).
func ParseRandom(b []byte) (int, error) {
	f := fields{rest: b}
	n := f.number("random bytes")
	if f.err == nil && n > MaxRandom {
		f.err = malformed("%d random bytes: want %d at most", n, MaxRandom)
	}
	return int(n), f.end()
}

// InvokeBody is that of an [Invoke]: a policy (1 byte) or [NoPolicy], a timeout (4), the service and headers as in [CallBody], then
// the Thrift message.
type InvokeBody struct {
	Policy  uint8
	Timeout uint32 // milliseconds; 0 is that of the call in which this one is made
	Service string
	Headers []Header
	Message []byte
}

// Append appends the body.
func (i *InvokeBody) Append(b []byte) []byte {
	b = appendText(binary.BigEndian.AppendUint32(append(b, i.Policy), i.Timeout), i.Service)
	return append(appendHeaders(b, i.Headers), i.Message...)
}

// ParseInvoke parses the body of an [Invoke]. The message is part of b.
func ParseInvoke(b []byte) (i InvokeBody, err error) {
	f := fields{rest: b}
	i.Policy, i.Timeout, i.Service, i.Headers = f.byte("policy"), f.number("timeout"), f.text("service", maxName), f.headers()
	if f.err == nil && i.Policy > uint8(rpcpacket.PolicyTainted) && i.Policy != NoPolicy {
		f.err = malformed("policy %d: there is no such policy", i.Policy)
	}
	i.Message = f.rest
	return i, f.err
}

// LogBody is that of a [Log]: a level (1 byte), then the text.
type LogBody struct {
	Level uint8 // 0 debug, 1 info, 2 warning, 3 error
	Text  string
}

// Append appends the body.
func (l *LogBody) Append(b []byte) []byte { return append(append(b, l.Level), l.Text...) }

// ParseLog parses the body of a [Log].
func ParseLog(b []byte) (l LogBody, err error) {
	f := fields{rest: b}
	l.Level, l.Text = f.byte("level"), string(f.rest)
	if f.err == nil && (l.Level > 3 || len(l.Text) > MaxBeside) {
		f.err = malformed("a line of level %d, of %d bytes: want a level up to 3, and %d bytes at most", l.Level, len(l.Text), MaxBeside)
	}
	return l, f.err
}
