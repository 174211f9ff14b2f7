//go:build linux

package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Multicast groups and clone sessions are lists of replicas in one LPM trie, for
// the reason that tables are (doc.go). A list's layout:
//
//	0 how many replicas there are       u32
//	4 the copies' longest length plus one, or 0   u32
//	8 the replicas: port u16, instance u16
const (
	listCount    = 0
	listLimit    = 4
	listReplicas = 8

	// maxReplicas is how many replicas a group or session has at most: a power
	// of two.
	maxReplicas = 256
	listSize    = listReplicas + 4*maxReplicas

	// maxLists is how many groups and sessions there may be together.
	maxLists = 1 << 14
	// maxGroup and maxSession are the largest ids, as in bmv2.
	maxGroup   = 1<<16 - 1
	maxSession = 1<<15 - 1
	// sessionKey is added to a session's id to make its key.
	sessionKey = 1 << 16
)

// makeCopyMaps makes the maps of a program that makes copies.
func (x *Executor) makeCopyMaps(g *gen) error {
	o := &x.maps
	var err [4]error
	o.groups, err[0] = newMap(&ebpf.MapSpec{
		Name: "groups", Type: ebpf.LPMTrie, Flags: bpfNoPrealloc, KeySize: 8, ValueSize: listSize, MaxEntries: maxLists,
	})
	perCPU := func(name string, size int) (*ebpf.Map, error) {
		return newMap(&ebpf.MapSpec{Name: name, Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: uint32(size), MaxEntries: maxJobs})
	}
	o.lists, err[1] = perCPU("lists", listSize)
	o.jobs, err[2] = perCPU("jobs", jobState+g.st.copied-stOwn)
	o.outputs, err[3] = newMap(&ebpf.MapSpec{
		Name: "outputs", Type: ebpf.Array, KeySize: 4, ValueSize: uint32(binary.Size(sentCopy{})), MaxEntries: uint32(x.testOutputs),
	})
	return errors.Join(err[:]...)
}

// Multicast implements datapath.Datapath.
func (x *Executor) Multicast(id uint32, replicas []datapath.Replica) error {
	var err error
	switch {
	case id == 0 || id > maxGroup:
		err = datapath.ErrUnsupported
	case !x.prog.Std.MulticastGroup.Valid():
		err = fmt.Errorf("%w: the program has no mcast_grp", datapath.ErrUnsupported)
	default:
		err = x.setReplicas(id, replicas, 0)
	}
	if err != nil {
		return fmt.Errorf("multicast group %d: %w", id, err)
	}
	return nil
}

// Clone implements datapath.Datapath.
func (x *Executor) Clone(id uint32, replicas []datapath.Replica, truncate int) error {
	err := datapath.ErrUnsupported
	if id <= maxSession {
		err = x.setReplicas(id|sessionKey, replicas, truncate)
	}
	if err != nil {
		return fmt.Errorf("clone session %d: %w", id, err)
	}
	return nil
}

// setReplicas writes a list, or removes it if there are no replicas. A program
// that makes no copies has no lists, and nothing to do with them.
func (x *Executor) setReplicas(id uint32, replicas []datapath.Replica, truncate int) error {
	m := x.maps.groups
	if m == nil {
		return nil
	}
	if len(replicas) > maxReplicas {
		return fmt.Errorf("%w: %d replicas; there may be %d", datapath.ErrFull, len(replicas), maxReplicas)
	}
	ne := binary.NativeEndian
	key := ne.AppendUint32(ne.AppendUint32(nil, 32), id)
	if len(replicas) == 0 {
		if err := deleteElement(m, key); !errors.Is(err, unix.ENOENT) {
			return err
		}
		return nil
	}
	list := make([]byte, listSize)
	ne.PutUint32(list[listCount:], uint32(len(replicas)))
	if truncate > 0 {
		ne.PutUint32(list[listLimit:], uint32(min(truncate, maxFrame))+1)
	}
	for i, r := range replicas {
		if r.Port >= numPorts {
			return fmt.Errorf("%w: port %d; there are %d", datapath.ErrUnsupported, r.Port, numPorts)
		}
		at := list[listReplicas+4*i:]
		ne.PutUint16(at, uint16(r.Port))
		ne.PutUint16(at[2:], uint16(r.Instance))
	}
	err := putElement(m, key, list)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.ENOMEM) {
		return fmt.Errorf("%w: %w", datapath.ErrFull, err)
	}
	return err
}
