package rpc

import (
	"bytes"

	"github.com/bifrost-rack/bifrost/internal/fault"
)

// The snapshot of a VersionedState is logged behind a header that names the version: 16 bytes
// that no other snapshot begins with, drawn at random once for all, then the version's length
// in a byte, then the version.

// versionMark begins such a header.
var versionMark = []byte("\xb7\x1f\x05\x9e\xd3\x6a\x48\xc2\x93\x7d\xe1\x50\x2b\xf8\x84\x66")

// snapshot returns the state as it is logged.
func (k *stateManager) snapshot() ([]byte, error) {
	s, err := k.state.Snapshot()
	if err != nil || k.versioned == nil {
		return s, err
	}
	v := k.versioned.Version()
	if v == "" || len(v) > 255 {
		return nil, fault.New(BadRequest, "", "a version of %d bytes: must be 1 to 255", len(v))
	}
	return bytes.Join([][]byte{versionMark, {byte(len(v))}, []byte(v), s}, nil), nil
}

// load replaces the state by what is logged of it.
func (k *stateManager) load(logged []byte) error {
	version, snapshot, err := versionOf(logged)
	switch {
	case err != nil:
		return err
	case k.versioned != nil:
		return k.versioned.RestoreVersion(version, snapshot)
	case version != "":
		return fault.New(BadRequest, "", "version %q of the state is logged, and the state has no RestoreVersion", version)
	}
	return k.state.Restore(snapshot)
}

// sameVersion reports whether a logged snapshot is of the version that the state writes, so that
// deltas may follow it.
func (k *stateManager) sameVersion(logged []byte) bool {
	version, _, err := versionOf(logged)
	if k.versioned == nil {
		return err == nil && version == ""
	}
	return err == nil && version == k.versioned.Version()
}

// versionOf splits a logged snapshot.
func versionOf(logged []byte) (version string, snapshot []byte, err error) {
	rest, ok := bytes.CutPrefix(logged, versionMark)
	if !ok {
		return "", logged, nil
	}
	if len(rest) == 0 || rest[0] == 0 || len(rest) < 1+int(rest[0]) {
		return "", nil, fault.New(Internal, "", "the logged state ends in the middle of its version")
	}
	n := 1 + int(rest[0])
	return string(rest[1:n]), rest[n:], nil
}
