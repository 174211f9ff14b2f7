//lint:file-ignore SA1019 this file is where the protocol's deprecated fields are touched

//nolint:staticcheck // this file is where the protocol's deprecated fields are touched
package p4rt

import (
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
)

// The deprecated fields of P4Runtime 1.4: some are to be served still, others
// are read only to be refused.

// numericRole is a role's numeric id, which has given way to its name.
func numericRole(r *p4v1.Role) uint64 { return r.GetId() }

// cookie is an entry's 64-bit metadata, which reads back as it was written.
func cookie(m *p4v1.TableEntry) uint64 { return m.GetControllerMetadata() }

func setCookie(m *p4v1.TableEntry, v uint64) { m.ControllerMetadata = v }

// watched is a member of a group or of an action set, which may depend on a port
// by its number or, since 1.2, by a byte string.
type watched interface {
	GetWatch() int32
	GetWatchPort() []byte
}

// watchesNumber tells whether a member depends on a port that is given as a number.
func watchesNumber(m watched) bool { return m.GetWatch() != 0 }

// egressPort is a replica's port as a number; ok is false if it is not one.
func egressPort(m *p4v1.Replica) (port uint32, ok bool) {
	k, ok := m.GetPortKind().(*p4v1.Replica_EgressPort)
	if !ok {
		return 0, false
	}
	return k.EgressPort, true
}
