package rpc

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// Now is the time of day. Exactly-once executions must get it here: it is
// journalled, so that a re-run sees the same. It has no monotonic reading. When
// a re-run has diverged, which its answer will tell, it is the time of the re-run.
func Now(ctx context.Context) time.Time {
	b := branchOf(ctx)
	if !b.journalled() {
		return time.Unix(0, time.Now().UnixNano())
	}
	now := time.Now().UnixNano()
	o, err := b.begin("rpc.Now", trailer.Time)
	if err != nil {
		return time.Unix(0, now)
	}
	defer o.end()
	switch {
	case o.known == nil:
		o.record(trailer.Time, binary.BigEndian.AppendUint64(nil, uint64(now)))
	case len(o.known.Data) != 8:
		_ = o.diverged("a time of %d bytes", len(o.known.Data))
	default:
		now = int64(binary.BigEndian.Uint64(o.known.Data))
	}
	return time.Unix(0, now)
}

// Random fills b with random bytes from the system's secure source. Exactly-once
// executions must get randomness here: it is journalled, and so it costs room in
// the execution's next message.
func Random(ctx context.Context, b []byte) error {
	branch := branchOf(ctx)
	if !branch.journalled() {
		_, err := rand.Read(b)
		return err
	}
	o, err := branch.begin("rpc.Random", trailer.Random)
	if err != nil {
		return err
	}
	defer o.end()
	if o.known == nil {
		_, _ = rand.Read(b) // never fails
		o.record(trailer.Random, append([]byte(nil), b...))
		return nil
	}
	if len(o.known.Data) != len(b) {
		return o.diverged("%d random bytes, there were %d when the execution ran before", len(b), len(o.known.Data))
	}
	copy(b, o.known.Data)
	return nil
}

// Effect does something outside of the rack, or asks something there, and returns
// what f does. In an exactly-once execution the result is journalled and f is not
// run again, unless a crash comes before the execution's next message: so it runs
// at least once, and f should pass the key on, for the other side to tell a
// repetition. The key has at most 65,535 bytes.
//
// The context that f gets belongs to no execution: calls that it makes are part of
// the effect. An error of f is journalled as well, and comes back as an *Error
// with its code (Application if it has none) and message.
func Effect(ctx context.Context, key string, f func(ctx context.Context) ([]byte, error)) ([]byte, error) {
	b := branchOf(ctx)
	outside := context.WithValue(ctx, branchKey{}, (*strand)(nil))
	if !b.journalled() {
		return f(outside)
	}
	op := "effect " + key
	if len(key) > 0xffff {
		return nil, fault.New(BadRequest, "effect", "a key of %d bytes", len(key))
	}
	o, err := b.begin(op, trailer.Effect)
	if err != nil {
		return nil, err
	}
	defer o.end()
	if o.known != nil {
		return o.sameEffect(key)
	}
	b.e.promote()
	if !o.durable(record.Call{}) {
		return nil, b.e.node.whyEnded()
	}
	result, err := f(outside)
	data := binary.BigEndian.AppendUint16(nil, uint16(len(key)))
	data = append(data, key...)
	if err != nil {
		failure := plain(op, err)
		data = append(data, byte(failure.Code))
		o.record(trailer.Effect, append(data, failure.Msg...))
		return nil, failure
	}
	data = append(data, byte(OK))
	o.record(trailer.Effect, append(data, result...))
	return result, nil
}

// sameEffect is what the effect was when the execution ran before.
func (o *operation) sameEffect(key string) ([]byte, error) {
	data := o.known.Data
	if len(data) < 2 {
		return nil, o.diverged("an effect's entry of %d bytes", len(data))
	}
	n := int(binary.BigEndian.Uint16(data))
	if data = data[2:]; len(data) < n+1 {
		return nil, o.diverged("an effect's entry of %d bytes with a key of %d", len(data), n)
	}
	if was := string(data[:n]); was != key {
		return nil, o.diverged("the effect's key was %q when the execution ran before", was)
	}
	code, rest := Code(data[n]), data[n+1:]
	if code != OK {
		return nil, &Error{Code: code, Op: o.op, Msg: string(rest)}
	}
	return append([]byte{}, rest...), nil
}
