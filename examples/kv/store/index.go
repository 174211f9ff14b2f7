package store

import (
	"context"
	"maps"
	"slices"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/examples/kv/gen-go/kv"
)

// Snapshot implements rpc.State: the whole index.
func (s *Store) Snapshot() ([]byte, error) {
	clear(s.changed)
	return s.encode(slices.Sorted(maps.Keys(s.places)))
}

// Delta implements rpc.IncrementalState: what the last calls have changed.
func (s *Store) Delta() ([]byte, error) {
	if len(s.changed) == 0 {
		return nil, nil
	}
	b, err := s.encode(slices.Sorted(maps.Keys(s.changed)))
	clear(s.changed)
	return b, err
}

// Restore implements rpc.State.
func (s *Store) Restore(snapshot []byte) error {
	clear(s.places)
	return s.Apply(snapshot)
}

// Apply implements rpc.IncrementalState.
func (s *Store) Apply(delta []byte) error {
	ctx := context.Background() // Thrift asks for one
	part := kv.NewPlaces()
	if err := thrift.NewTDeserializer().Read(ctx, part, delta); err != nil {
		return err
	}
	s.version = part.Version
	for _, p := range part.Places {
		if p.Version == 0 {
			delete(s.places, p.Key)
		} else {
			s.places[p.Key] = p
		}
	}
	clear(s.changed)
	return nil
}

// encode writes the places of keys; of one that is removed, that it is.
func (s *Store) encode(keys []string) ([]byte, error) {
	part := &kv.Places{Version: s.version}
	for _, key := range keys {
		p := s.places[key]
		if p == nil {
			p = &kv.Place{Key: key}
		}
		part.Places = append(part.Places, p)
	}
	return thrift.NewTSerializer().Write(context.Background(), part)
}
