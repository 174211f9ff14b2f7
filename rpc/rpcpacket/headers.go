package rpcpacket

import (
	"encoding/binary"
	"fmt"

	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
)

// Limits of the headers of one message. 8 KiB is what HTTP servers and gRPC take, too.
const (
	MaxHeaders     = 64
	MaxHeaderBytes = 8 << 10
)

// A KeyValue is one header of a call or answer: a string for middleware and handlers,
// such as a trace context. Keys have at least one byte; case counts.
type KeyValue struct{ Key, Value string }

// AppendHeaders appends the wire form of headers, which stands in front of the Thrift
// message of a packet with FlagHeaders: bytes of all headers (2), then for each the
// length of the key (2), the key, the length of the value (2), the value. It refuses
// more than MaxHeaders or MaxHeaderBytes, and an empty key.
func AppendHeaders(b []byte, headers []KeyValue) ([]byte, error) {
	size := 0
	for _, h := range headers {
		if h.Key == "" {
			return b, fmt.Errorf("a header without a key")
		}
		size += 4 + len(h.Key) + len(h.Value)
	}
	if len(headers) > MaxHeaders || size > MaxHeaderBytes {
		return b, fmt.Errorf("%d headers with %d bytes; a message has at most %d with %d bytes", len(headers), size, MaxHeaders, MaxHeaderBytes)
	}
	be := binary.BigEndian
	b = be.AppendUint16(b, uint16(size)) //nolint:gosec // at most MaxHeaderBytes
	for _, h := range headers {
		b = append(be.AppendUint16(b, uint16(len(h.Key))), h.Key...)     //nolint:gosec // as above
		b = append(be.AppendUint16(b, uint16(len(h.Value))), h.Value...) //nolint:gosec // as above
	}
	return b, nil
}

// TakeHeaders takes the headers off a payload of a packet with FlagHeaders, and returns
// the Thrift message behind them. The error wraps wirefmt.ErrFormat.
func TakeHeaders(payload []byte) (headers []KeyValue, message []byte, err error) {
	b, message, ok := takeString(payload)
	if !ok || len(b) > MaxHeaderBytes {
		return nil, nil, wirefmt.Errorf("headers: %d bytes of payload are too few, or the headers too long", len(payload))
	}
	for len(b) > 0 {
		key, rest, ok := takeString(b)
		if !ok || len(key) == 0 {
			return nil, nil, wirefmt.Errorf("headers: no key %d bytes before the end", len(b))
		}
		value, rest, ok := takeString(rest)
		if !ok {
			return nil, nil, wirefmt.Errorf("headers: no value of %q", key)
		}
		if len(headers) == MaxHeaders {
			return nil, nil, wirefmt.Errorf("headers: more than %d", MaxHeaders)
		}
		headers, b = append(headers, KeyValue{string(key), string(value)}), rest
	}
	return headers, message, nil
}

// takeString takes a length (2 bytes) and as many bytes off b.
func takeString(b []byte) (s, rest []byte, ok bool) {
	if len(b) < 2 {
		return nil, nil, false
	}
	n := int(binary.BigEndian.Uint16(b))
	if len(b)-2 < n {
		return nil, nil, false
	}
	return b[2 : 2+n], b[2+n:], true
}
