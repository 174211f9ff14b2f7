// Package store is the service of the kv example. Its state is an index: where each
// value stands in distributed memory. The values are not part of it, for memory
// blades outlive the service's node.
//
//	call ──▶ Store ── index: key → place ──▶ in the ledger with the answer, as a delta
//	           │                 │
//	           └─ read, write ───▶ region on a memory blade; what a crashed call
//	                              has written there is taken back before it runs again
//
// A handler is run again from its start when its node dies, so it must do the same
// again: nothing here looks at a clock, at chance, or at the order of a map.
package store

import (
	"context"
	"maps"
	"slices"
	"strconv"

	"github.com/bifrost-rack/bifrost/examples/kv/gen-go/kv"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/form"
)

// Name is what the service is exported as.
const Name = "Store"

// maxKey is how long a key may be, in bytes.
const maxKey = 256

// Store implements the service. The runtime calls its methods one at a time, as the
// IDL says that it has state.
type Store struct {
	version int64
	places  map[string]*kv.Place
	changed map[string]bool // since the last Delta
}

var _ kv.StoreRefHandler = (*Store)(nil)

// New returns an empty store.
func New() *Store {
	return &Store{places: map[string]*kv.Place{}, changed: map[string]bool{}}
}

// Get implements the service. The copy that it returns is the caller's: the value's
// own region stays with the service.
func (s *Store) Get(ctx context.Context, key string) (*rpc.Ref[*kv.Entry], error) {
	p := s.places[key]
	if p == nil {
		return nil, &kv.NoSuchKey{Key: key}
	}
	value, err := load(ctx, p)
	if err != nil {
		return nil, err
	}
	return rpc.NewRef(form.Struct(kv.NewEntry), &kv.Entry{Version: p.Version, Value: value}), nil
}

// Put implements the service.
func (s *Store) Put(ctx context.Context, key string, value *rpc.Ref[[]byte]) (int64, error) {
	b, err := value.Load(ctx)
	if err != nil {
		return 0, err
	}
	return s.set(ctx, key, b)
}

// CompareAndSet implements the service.
func (s *Store) CompareAndSet(ctx context.Context, key string, version int64, value *rpc.Ref[[]byte]) (int64, error) {
	var is int64
	if p := s.places[key]; p != nil {
		is = p.Version
	}
	if is != version {
		return 0, &kv.Conflict{Key: key, Version: is}
	}
	return s.Put(ctx, key, value)
}

// Append implements the service. It writes behind the value as long as the value's
// region has room.
func (s *Store) Append(ctx context.Context, key string, more *rpc.Ref[[]byte]) (int64, error) {
	b, err := more.Load(ctx)
	if err != nil {
		return 0, err
	}
	p := s.at(key)
	if p.Length+int64(len(b)) > p.Room {
		old, err := load(ctx, p)
		if err != nil {
			return 0, err
		}
		_, err = s.set(ctx, key, append(old, b...))
		return p.Length + int64(len(b)), err
	}
	if err := write(ctx, p, p.Length, b); err != nil {
		return 0, err
	}
	p.Length += int64(len(b))
	_, err = s.commit(p)
	return p.Length, err
}

// Increment implements the service.
func (s *Store) Increment(ctx context.Context, key string, by int64) (int64, error) {
	var n int64
	if p := s.places[key]; p != nil {
		b, err := load(ctx, p)
		if err != nil {
			return 0, err
		}
		if n, err = strconv.ParseInt(string(b), 10, 64); err != nil {
			return 0, &kv.NotANumber{Key: key}
		}
	}
	_, err := s.set(ctx, key, strconv.AppendInt(nil, n+by, 10))
	return n + by, err
}

// Remove implements the service.
func (s *Store) Remove(ctx context.Context, key string) error {
	p := s.places[key]
	if p == nil {
		return &kv.NoSuchKey{Key: key}
	}
	if err := free(ctx, p); err != nil {
		return err
	}
	s.version++
	delete(s.places, key)
	s.changed[key] = true
	return nil
}

// keysBytes is how much of the index one answer holds: it has to fit a packet.
const keysBytes = 4 << 10

// Keys implements the service.
func (s *Store) Keys(_ context.Context, after string) ([]string, error) {
	keys := slices.Sorted(maps.Keys(s.places))
	at, found := slices.BinarySearch(keys, after)
	if found {
		at++
	}
	end, room := at, keysBytes
	for ; end < len(keys) && room > 0; end++ {
		room -= len(keys[end])
	}
	return keys[at:end], nil
}

// set makes b the value of a key and returns its version.
func (s *Store) set(ctx context.Context, key string, b []byte) (int64, error) {
	if key == "" || len(key) > maxKey {
		return 0, rpc.Errorf(rpc.BadRequest, "a key of %d bytes: want 1 to %d", len(key), maxKey)
	}
	p := s.at(key)
	if err := store(ctx, p, b); err != nil {
		return 0, err
	}
	return s.commit(p)
}

// at returns a copy of a key's place, or a new one.
func (s *Store) at(key string) *kv.Place {
	if p := s.places[key]; p != nil {
		same := *p
		return &same
	}
	return &kv.Place{Key: key}
}

// commit makes a place the key's. All that can fail has been done by then, so a
// handler that returns an error has changed nothing.
func (s *Store) commit(p *kv.Place) (int64, error) {
	s.version++
	p.Version = s.version
	s.places[p.Key] = p
	s.changed[p.Key] = true
	return p.Version, nil
}
