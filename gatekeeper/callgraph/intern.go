package callgraph

import "net/netip"

// interned gives values that occur again and again small numbers, as long as
// somebody uses them.
type interned[K comparable, V any] struct {
	index map[K]int32
	slab  slab[entry[K, V]]
}

type entry[K comparable, V any] struct {
	key   K
	uses  int32
	value V
}

func newInterned[K comparable, V any]() interned[K, V] {
	return interned[K, V]{index: map[K]int32{}}
}

// use returns the number of a key and counts one more use of it.
func (t *interned[K, V]) use(k K) int32 {
	i, ok := t.index[k]
	if !ok {
		i = t.slab.add()
		t.slab.at(i).key = k
		t.index[k] = i
	}
	t.slab.at(i).uses++
	return i
}

// release ends one use, and reports whether it was the last: then the number is
// free.
func (t *interned[K, V]) release(i int32) bool {
	e := t.slab.at(i)
	if e.uses--; e.uses > 0 {
		return false
	}
	delete(t.index, e.key)
	t.slab.remove(i)
	return true
}

func (t *interned[K, V]) key(i int32) K    { return t.slab.at(i).key }
func (t *interned[K, V]) value(i int32) *V { return &t.slab.at(i).value }
func (t *interned[K, V]) find(k K) int32   { return t.index[k] }
func (t *interned[K, V]) rename(i int32, k K) {
	delete(t.index, t.slab.at(i).key)
	t.slab.at(i).key = k
	t.index[k] = i
}

// nodeKey is a Node without Go pointers.
type nodeKey struct {
	address     [16]byte
	incarnation uint32
}

func (n Node) key() nodeKey { return nodeKey{n.Address.As16(), n.Incarnation} }

func (k nodeKey) node() Node { return Node{netip.AddrFrom16(k.address), k.incarnation} }

// node is what the graph knows of a node.
type node struct {
	sent    ends // byCaller
	servers []int32
}

// serverKey is a service on a node.
type serverKey struct{ node, service int32 }

// server is what the graph knows of it: the calls that it runs (a serial one: the
// first) or has queued, in order.
type server struct {
	calls  ends // byServer
	serial bool
}

// methodKey is a method of a service.
type methodKey struct{ service, method string }
