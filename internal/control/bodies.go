package control

import (
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/share"
)

// Kinds of blades.
const (
	Compute = "compute"
	Memory  = "memory"
)

// Hello announces a blade (thesis section 5.3: resource type, and capacity or
// specification). The Gatekeeper learns the switch port from the packet itself.
type Hello struct {
	Blade   string `json:"blade"` // name, unique in the rack
	Kind    string `json:"kind"`  // Compute or Memory
	MAC     string `json:"mac"`   // of the blade's interface
	Machine uint8  `json:"machine,omitempty"`
	// Capacity is bytes of memory (memory blades) or concurrent nodes (compute).
	Capacity uint64            `json:"capacity"`
	Spec     map[string]string `json:"spec,omitempty"`
	Boot     uint64            `json:"boot"` // differs after a restart of the daemon
	// Generation (memory blades) is the highest of the regions that this start of the
	// daemon has made; 0 if it has made none.
	Generation uint32 `json:"generation,omitempty"`
	// Birth (memory blades) is the number that the blade drew when its memory of ledgers
	// began. A blade that has lost its ledgers has another one.
	Birth uint64 `json:"birth,omitempty"`
	// Speaks is the daemon's; the Gatekeeper refuses a hello with another protocol.
	Speaks Release `json:"speaks"`
}

// Welcome answers Hello: the blade is registered and its rules are in place.
type Welcome struct {
	Address netip.Addr `json:"address"`
	Machine uint8      `json:"machine,omitempty"` // memory blades: the assigned machine id
	Rack    Rack       `json:"rack"`
	// Speaks is the Gatekeeper's; a daemon with another protocol ends.
	Speaks Release `json:"speaks"`
	// HeartbeatMS is how often to send heartbeats, in milliseconds.
	HeartbeatMS int `json:"heartbeat_ms"`
	// Began tells this rack from those that its blades have belonged to before: it is
	// drawn at random when a Gatekeeper begins with an empty log, and stays in that. A
	// memory server that has belonged to another rack forgets what that knew.
	Began uint64 `json:"began"`
	// Undo (memory blades) says that this Gatekeeper commits executions: the
	// memory server keeps what they change until then. Without it, each change is
	// final at once, for nobody would ever say so.
	Undo bool `json:"undo,omitempty"`
	// Floor (memory blades) is at least the generation of each region that anybody has made in the rack before: a server that begins makes
	// regions of higher generations.
	Floor uint32 `json:"floor,omitempty"`
	// Lost (memory blades) is at least the generation of each region of the daemon's earlier starts, 0 if there was none. Unless
	// there is a Mirror, which says it for itself, these are lost: the server answers Unavailable for them.
	Lost uint32 `json:"lost,omitempty"`
	// Mirror (memory blades) says which copy of its machine the blade is, if two blades
	// serve that.
	Mirror *Mirror `json:"mirror,omitempty"`
	// Batches (memory blades with a copy of their machine) says who may allocate in which batch.
	Batches []BatchOf `json:"batches,omitempty"`
}

// Rack is what nodes and daemons have to know of the rack.
type Rack struct {
	DSMPrefix uint8 `json:"dsm_prefix"`
	MTU       int   `json:"mtu"`
	// Memories are the memory blades in service, with free bytes as of now.
	Memories []MemoryBlade `json:"memories"`
	// Others are the memory machines that take no allocations now: their blades drain,
	// or are out of service. The re-run of an execution may have regions there.
	Others []int `json:"others,omitempty"`
	// PolicyVersion differs when the explicit policies do (KindPolicies); 0 stands
	// for none.
	PolicyVersion uint64 `json:"policy_version,omitempty"`
	// Policies are these, as of PolicyVersion. The Gatekeeper leaves them out; daemons
	// ask for them and add them for their programs.
	Policies []MethodPolicy `json:"policies,omitempty"`
}

// MemoryBlade is where a client can allocate.
type MemoryBlade struct {
	Machine uint8  `json:"machine"`
	Free    uint64 `json:"free"`
	// Copies is how many blades have the machine's content, each of which may be lost: 2 of a
	// mirrored machine whose copies are both there.
	Copies int `json:"copies,omitempty"`
}

// Heartbeat says that a blade is alive and what it uses.
type Heartbeat struct {
	Blade string `json:"blade"`
	Boot  uint64 `json:"boot"`
	Used  uint64 `json:"used"` // bytes (memory) or nodes (compute)
	// Generation is as in Hello.
	Generation uint32       `json:"generation,omitempty"`
	Nodes      []netip.Addr `json:"nodes,omitempty"`
	// Incarnations are those of Nodes, in the same order.
	Incarnations []uint32 `json:"incarnations,omitempty"`
	// Named says how many milliseconds ago the blade has last told a caller of each of Nodes, plus 1; 0 if it has not for MostAgo. Bound
	// says so of callers of policy none.
	Named []uint32 `json:"named,omitempty"`
	Bound []uint32 `json:"bound,omitempty"`
	// Token is that of the last Join so far. The nodes of this and earlier tokens
	// that are neither among Nodes nor in Unsettled are no more, or never were: a
	// Gatekeeper that began after a Join may take a late copy of it for a new one.
	Token uint64 `json:"token,omitempty"`
	// Unsettled are the tokens of nodes that are about to begin here, or have ended
	// and are about to leave.
	Unsettled []uint64 `json:"unsettled,omitempty"`
	// Programs are those that the Gatekeeper has started here and that run.
	Programs []string `json:"programs,omitempty"`
	// Diverged (memory blades) counts how often nodes have said in MirrorEpoch that the
	// machine's copies answer differently.
	Diverged    uint64 `json:"diverged,omitempty"`
	MirrorEpoch uint32 `json:"mirror_epoch,omitempty"`
	// Ledgers (memory blades) is what ledgers take.
	Ledgers *LedgerSpace `json:"ledgers,omitempty"`
	// Fill (memory blades) is how far the copy has got that is being filled from here.
	Fill *FillProgress `json:"fill,omitempty"`
}

// HeartbeatReply brings a blade's view up to date. Known false asks for a new
// Hello (the Gatekeeper has restarted or had given the blade up).
type HeartbeatReply struct {
	Known bool `json:"known"`
	Rack  Rack `json:"rack"`
	// Gone are those of the heartbeat's nodes that have no identity here (any
	// more): they were fenced, or live elsewhere. The daemon ends their programs.
	Gone []netip.Addr `json:"gone,omitempty"`
}

// Ended says that the daemon of a memory blade has ended, and all that it held is lost. A
// process that the daemon has started says so, when the daemon's own cannot any more.
type Ended struct {
	Blade string `json:"blade"`
	Boot  uint64 `json:"boot"` // of the daemon that has ended
}

// Join asks for a node on behalf of a program that the daemon has accepted.
type Join struct {
	Blade string `json:"blade"`
	Name  string `json:"name"` // what people call it, e.g. "arrays-server"
	Token uint64 `json:"token"`
	// Instance is the name under which the Gatekeeper has started the program,
	// empty for one that somebody else has.
	Instance string `json:"instance,omitempty"`
	// NoLedger says that the program runs no exactly-once calls: it gets no ledger, and no caller
	// sends it such a call.
	NoLedger bool `json:"no_ledger,omitempty"`
	// User is the Unix user that the program runs as. With the blade's port it is who is charged for the node (share.Owner).
	User uint32 `json:"user,omitempty"`
}

// Joined names the new node; its rules are in place.
type Joined struct {
	Address     netip.Addr `json:"address"`
	Incarnation uint32     `json:"incarnation"`
	Rack        Rack       `json:"rack"`
	// Ledger is where the node keeps its ledger; nil in a rack without ledgers.
	Ledger *LedgerPlace `json:"ledger,omitempty"`
	// Blocks are the node's blocks of call slots (rpcpacket.BlockSlots each).
	Blocks []uint32 `json:"blocks,omitempty"`
	// Before is the incarnation before this one, 0 for none, and Exited is Leave's of that.
	Before uint32 `json:"before,omitempty"`
	Exited bool   `json:"exited,omitempty"`
	// Row is the node's place in the switch's registers; 0 for none.
	Row uint16 `json:"row,omitempty"`
}

// Export registers what a node serves. A second Export of a service replaces the first.
type Export struct {
	Node        netip.Addr `json:"node"`
	Incarnation uint32     `json:"incarnation"`
	Service     string     `json:"service"`
	Methods     []Method   `json:"methods"`
	Stateful    bool       `json:"stateful,omitempty"`
	// IDL is the Thrift definition of the service, if the program tells it; at most MaxIDL
	// bytes.
	IDL string `json:"idl,omitempty"`
	// NotServing says that the program is there, and that the service should not be called:
	// it says so to those who ask. Calls go on to be routed to it.
	NotServing bool `json:"not_serving,omitempty"`
	// State tells of the state of a service that has some. If its program does not read what is kept, the Gatekeeper refuses the
	// service.
	State *StateForm `json:"state,omitempty"`
	// Withdraw takes all services of the node out of service instead; nothing else is
	// set. The answer says that no new call reaches the node, and that it has answered
	// those that are held for it. The node is about to leave.
	Withdraw bool `json:"withdraw,omitempty"`
}

// StateForm tells which version of a service's state is kept, and which ones its program reads: at most MaxVersions, each of at
// most MaxVersion bytes. "" is a form that names no version; Kept is nil while nothing is kept.
type StateForm struct {
	Kept  *string  `json:"kept,omitempty"`
	Reads []string `json:"reads"`
}

// Bounds of a StateForm.
const (
	MaxVersions = 64
	MaxVersion  = 255
)

// Check refuses what is beyond the bounds. Nothing is told by nil.
func (f *StateForm) Check(op string) error {
	if f == nil {
		return nil
	}
	tooLong := func(v string) bool { return len(v) > MaxVersion }
	if len(f.Reads) > MaxVersions || f.Kept != nil && tooLong(*f.Kept) || slices.ContainsFunc(f.Reads, tooLong) {
		return fault.New(fault.BadRequest, op, "its program reads %d versions of the state: at most %d, each of at most %d bytes", len(f.Reads), MaxVersions, MaxVersion)
	}
	return nil
}

// Exported answers Export. Key is what the service's executions name the calls with that they
// make (rpc/endpoint.Key): it is for the nodes of the service only.
type Exported struct {
	Key []byte `json:"key,omitempty"`
}

// Method is one exported method by its full name. MaxFailures is after how many failures a call of it is given up,
// nil for the default, 0 for never. Policy is as
// rpc/rpcpacket.Policy writes it; "" is the service's default.
type Method struct {
	Name        string `json:"name"`
	Policy      string `json:"policy,omitempty"`
	MaxFailures *int   `json:"max_failures,omitempty"`
	Oneway      bool   `json:"oneway,omitempty"`
}

// Who asks what is known of the node at an address.
type Who struct {
	Node netip.Addr `json:"node"`
}

// NodeInfo is what the Gatekeeper knows of a node.
type NodeInfo struct {
	Name     string   `json:"name"`
	Blade    string   `json:"blade"`
	Services []string `json:"services,omitempty"` // that it exports, in order; at most MaxServices
	// Deployment and Program are the app that the node belongs to and its program there;
	// "" for a program that somebody has started by hand.
	Deployment string `json:"deployment,omitempty"`
	Program    string `json:"program,omitempty"`
	// Incarnation is the node's present one. Away says that it has failed, and that the
	// node may come back as the next one.
	Incarnation uint32 `json:"incarnation,omitempty"`
	Away        bool   `json:"away,omitempty"`
	// Left says, in the place of all else, that the node has left for good, and that direct
	// calls that are out to it have never run (NodeCalls.Over).
	Left bool `json:"left,omitempty"`
}

// Sharing asks what a node is to think of a caller: whose it is, and whether it may share its fate with the node, that is whether the failure of
// one may have the program of the other started anew.
type Sharing struct {
	Node        netip.Addr `json:"node"` // that was called
	Incarnation uint32     `json:"incarnation"`
	Caller      netip.Addr `json:"caller"`
	// Service and Method, by its full name, are what is called; "" if only Kin and Owner are asked for.
	Service string `json:"service,omitempty"`
	Method  string `json:"method,omitempty"`
}

// SharingReply answers it.
type SharingReply struct {
	// Kin says that both belong to one deployment or, of programs that somebody has started by hand, run as one user of one
	// blade. That does not change.
	Kin bool `json:"kin,omitempty"`
	// Declared says that an operator or the deployment has given the method a policy that shares fates.
	Declared bool `json:"declared,omitempty"`
	// Owner is who is charged for the caller, as for its ledger; zero if that is not known now. It changes when the node goes on at another blade.
	Owner share.Owner `json:"owner,omitzero"`
}

// Owners asks who is charged for nodes.
type Owners struct {
	Nodes []netip.Addr `json:"nodes"` // MaxOwners at most
}

// OwnersReply answers it, in the same order. The zero Owner stands for nobody known now.
type OwnersReply struct {
	Owners []share.Owner `json:"owners"`
}

// MaxOwners is of how many nodes Owners speaks at most.
const MaxOwners = 64

// MostAgo is how far back a Heartbeat looks.
const MostAgo = time.Hour

// Serving asks which nodes take calls of a method: those that the switch has a route to (package resolve).
type Serving struct {
	Service string `json:"service"`
	Method  string `json:"method"` // its full name
	// AtMostOnce says that the calls have policy none: nodes without a ledger take them, too.
	AtMostOnce bool `json:"at_most_once,omitempty"`
}

// ServingList names them, or some of many.
type ServingList struct {
	Nodes []netip.Addr `json:"nodes,omitempty"`
	// Incarnations are those of Nodes, in the same order.
	Incarnations []uint32 `json:"incarnations,omitempty"`
	// Awaited says that no node serves the method now, and that Nodes are to: they have failed and are to come back, or
	// move to another blade. A call to one of them waits there.
	Awaited bool `json:"awaited,omitempty"`
	// Why says for people why there are no nodes, and what can be done.
	Why string `json:"why,omitempty"`
}

// BlockQuery asks for call slots, in blocks, so that a node has Want of them in all.
type BlockQuery struct {
	Node        netip.Addr `json:"node"`
	Incarnation uint32     `json:"incarnation"`
	Want        int        `json:"want"`
}

// BlockReply lists all blocks that the node has. They are fewer than it wants if its owner has its share, or the rack has no more.
type BlockReply struct {
	Blocks []uint32 `json:"blocks"`
}

// LedgerQuery asks where a node keeps its ledger. A node that has joined before a memory machine was in service has none.
type LedgerQuery struct {
	Node        netip.Addr `json:"node"`
	Incarnation uint32     `json:"incarnation"`
}

// LedgerReply answers it; Ledger is nil while no memory machine is in service.
type LedgerReply struct {
	Ledger *LedgerPlace `json:"ledger,omitempty"`
}

// NoLedger is a ServingList's Why if the nodes of a method take no exactly-once calls.
const NoLedger = "no node that serves it has a ledger: exactly-once calls need a memory blade in service (bifrost memory), and a service whose runtime keeps a ledger (Go); or use policy none"

// MaxServices is how many services of a node a NodeInfo names at most.
const MaxServices = 256

// MaxIDL is how many bytes the IDL of a service has at most.
const MaxIDL = 128 << 10

// MaxServiceNames is how many names of services a ServiceInfo has at most.
const MaxServiceNames = 4096

// Service asks what is known of a service, or, without a name, which services there are.
type Service struct {
	Name string `json:"name"`
}

// ServiceInfo is what the Gatekeeper knows of a service.
type ServiceInfo struct {
	Nodes   []ServiceNode `json:"nodes"`   // that export it, the first one first; at most MaxServices
	Methods []string      `json:"methods"` // in order
	// IDL is that of the first node which has told one.
	IDL string `json:"idl,omitempty"`
	// Names are those of all services that nodes export, in order: the answer to a question without a name. At most MaxServiceNames.
	Names []string `json:"names,omitempty"`
}

// ServiceNode is a node that exports a service.
type ServiceNode struct {
	Node       netip.Addr `json:"node"`
	NotServing bool       `json:"not_serving,omitempty"`
}

// Leave says that a node has ended; its regions and leases are cleaned up.
type Leave struct {
	Node        netip.Addr `json:"node"`
	Incarnation uint32     `json:"incarnation"`
	Reason      string     `json:"reason,omitempty"`
	// Crashed tells an end without Close from an orderly one. Exited says in addition that the node's program has ended: not that the
	// node has given its identity back since something below it has failed.
	Crashed bool `json:"crashed,omitempty"`
	Exited  bool `json:"exited,omitempty"`
}

// Fence makes a memory server refuse everything from a node's incarnations up
// to and including this one.
type Fence struct {
	Node        netip.Addr `json:"node"`
	Incarnation uint32     `json:"incarnation"`
	// Forsaken says that nobody is left to decide about the executions about which the node
	// decided: it is gone for good, or has lost its ledger. What they did is taken back.
	Forsaken bool `json:"forsaken,omitempty"`
}

// Fenced answers Fence: the regions that those incarnations have allocated by
// requests that they had not settled. Their answers may be lost, and nobody is left
// who would ask for them again, but for a re-run of the execution.
type Fenced struct {
	Regions []RegionID `json:"regions,omitempty"`
	// More says that there are more than MaxRegions.
	More bool `json:"more,omitempty"`
	// Unsettled is what else they had not settled.
	Unsettled Unsettled `json:"unsettled,omitzero"`
}

// Unsettled is what incarnations that are fenced had not settled at a copy of a machine with two: it may have reached this copy
// only. The copy tells it with each fence until it is levelled, or the machine has other copies.
type Unsettled struct {
	// Writes, Frees and Allocs are MaxUnsettled at most; Frees are regions. More says that there are others.
	Writes []Span               `json:"writes,omitempty"`
	Frees  []dsmpacket.RegionID `json:"frees,omitempty"`
	Allocs []Unheard            `json:"allocs,omitempty"`
	More   bool                 `json:"more,omitempty"`
	// Floor is the incarnation's: all of its requests below were settled.
	Floor uint64 `json:"floor,omitempty"`
	// Ledgers are those that the incarnations had open, and the node's own: they are sealed now.
	Ledgers []Ledger `json:"ledgers,omitempty"`
}

// Unheard is a region whose allocation was not settled, and the number of that request.
type Unheard struct {
	ID      dsmpacket.RegionID `json:"id"`
	Request uint64             `json:"request"`
}

// Beside are the regions that the copy has allocated and the other one has not. Nobody has heard of them.
func (u *Unsettled) Beside(other *Unsettled) (all []dsmpacket.RegionID) {
	for _, a := range u.Allocs {
		if a.Request >= other.Floor && !slices.Contains(other.Allocs, a) {
			all = append(all, a.ID)
		}
	}
	return all
}

// MaxUnsettled is how many writes, frees and allocations an Unsettled names at most.
const MaxUnsettled = 1024

// Outcome answers a command that is not to be asked for again if it is refused: Mirror,
// Grant, Fill, Complete, Level.
type Outcome struct {
	Code    fault.Code `json:"code,omitempty"` // OK: it is done
	Message string     `json:"message,omitempty"`
}

// Span is a part of a memory machine's region.
type Span struct {
	ID     dsmpacket.RegionID `json:"id"`
	Offset uint64             `json:"offset"`
	Length uint64             `json:"length"`
}

// Level has the first copy of a machine make the second one equal to itself in what a node had not settled when both were fenced. The
// content goes over the stream by which the second copy was filled. The answer comes when the second copy has it.
type Level struct {
	Epoch uint32 `json:"epoch"` // the machine's present mirror epoch
	Fence Fence  `json:"fence"`
	// First and Second are what the copies have told.
	First  Unsettled `json:"first,omitzero"`
	Second Unsettled `json:"second,omitzero"`
}

// Equal reports whether the copies are equal, as far as they know.
func (l *Level) Equal() bool {
	for _, u := range []*Unsettled{&l.First, &l.Second} {
		if u.More || len(u.Writes)+len(u.Frees) > 0 {
			return false
		}
	}
	return len(l.First.Beside(&l.Second))+len(l.Second.Beside(&l.First)) == 0 && slices.Equal(l.First.Ledgers, l.Second.Ledgers)
}

// Fill has a memory server fill another copy of its machine, or be filled. Both are told
// the same, but for Source. The server that is to be filled forgets what it has, and is
// told first.
type Fill struct {
	Token  uint64 `json:"token"`
	Source bool   `json:"source,omitempty"`
	// Epoch is the machine's present mirror epoch, Incarnation that of the new copy.
	Epoch       uint32     `json:"epoch"`
	Incarnation uint32     `json:"incarnation"`
	From        netip.Addr `json:"from"` // the source's blade
	To          netip.Addr `json:"to"`   // the blade to be filled
	// Rate is how many bytes a second the source sends at most; 0 is no limit.
	Rate uint64 `json:"rate,omitempty"`
}

// Complete has the source of a Fill complete the copy. From then on it changes nothing,
// until the copy has all. Then both are copies of the machine in Mirror's epoch: the
// source the first one, as Mirror says, and the other one the second.
type Complete struct {
	Token  uint64 `json:"token"`
	Mirror Mirror `json:"mirror"`
}

// FillProgress is how far a Fill has got.
type FillProgress struct {
	Token uint64 `json:"token"`
	Done  uint64 `json:"done"` // bytes sent
	Left  uint64 `json:"left"` // bytes to be sent, of what there is now
	// Ready says that little is left, so that Complete will not take long.
	Ready bool `json:"ready,omitempty"`
	// Failed is why the copy cannot be filled; OK while it can.
	Failed  fault.Code `json:"failed,omitempty"`
	Message string     `json:"message,omitempty"`
}

// Mirror tells a memory server which copy of its machine it is from now on. It obeys no
// lower epoch. A copy of another incarnation than before forgets all that it has.
type Mirror struct {
	Epoch       uint32 `json:"epoch"`
	Incarnation uint32 `json:"incarnation"`
	Copy        uint8  `json:"copy"`
	Members     uint8  `json:"members"`
	// Birth is the machine's birth number, which both copies have (Hello.Birth of the first
	// one); 0 leaves a copy that forgets its ledgers to draw one.
	Birth uint64 `json:"birth,omitempty"`
	// Lost is the highest generation of the machine's regions that are lost, since it was without a copy;
	// 0 if it never was. The copies answer Unavailable for them.
	Lost uint32 `json:"lost,omitempty"`
}

// Grant says which node may allocate in which batch of region slots, at each copy of the machine.
type Grant struct {
	Batches []BatchOf `json:"batches"`
}

// BatchOf is a batch, and the node that has it; the zero Addr for nobody. Owner is who is charged for that incarnation of the node, zero if that is
// not known now.
type BatchOf struct {
	Batch       uint32      `json:"batch"`
	Node        netip.Addr  `json:"node"`
	Incarnation uint32      `json:"incarnation,omitempty"`
	Owner       share.Owner `json:"owner,omitzero"`
}

// BatchQuery asks for batches of region slots of a memory machine, so that a node has Want of them in all there.
type BatchQuery struct {
	Node        netip.Addr `json:"node"`
	Incarnation uint32     `json:"incarnation"`
	Machine     uint8      `json:"machine"`
	Want        int        `json:"want"`
}

// BatchReply lists all batches that the node has on the machine. They are fewer than it wants if it or its owner has its share, or the rack
// has no more.
type BatchReply struct {
	Batches []uint32 `json:"batches"`
}

// Reclaim frees regions; one that is gone already is no error. Reclaimed answers it.
type Reclaim struct {
	// Boot is the start of the daemon that the command is for (Hello.Boot). Another
	// start refuses it as Stale.
	Boot    uint64     `json:"boot"`
	Regions []RegionID `json:"regions"`
}

// Reclaimed answers Reclaim. The other regions of the command are gone.
type Reclaimed struct {
	// Refused are those that are no regions, and those that the named execution's next
	// run has allocated again.
	Refused []RegionID `json:"refused,omitempty"`
}

// Regions asks for a memory blade's regions from an id on, some at a time.
type Regions struct {
	From dsmpacket.RegionID `json:"from"`
	Max  int                `json:"max"`
}

// RegionList is a part of a memory blade's regions; Next is 0 at the end.
type RegionList struct {
	Regions []RegionID         `json:"regions"`
	Next    dsmpacket.RegionID `json:"next"`
}

// RegionID names a region, the node that allocated it, and on behalf of which
// execution, if that has not been committed.
type RegionID struct {
	ID        dsmpacket.RegionID `json:"id"`
	Class     uint8              `json:"class"`
	Owner     netip.Addr         `json:"owner,omitzero"`
	Execution ExecutionID        `json:"execution,omitzero"`
}

// AnyClass stands for a region's size class in Reclaim, if it is not known.
const AnyClass = 255

// Region returns the region on machine m.
func (r RegionID) Region(prefix, m uint8) dsmpacket.Region {
	return dsmpacket.Region{Base: dsmpacket.Make(prefix, m, r.ID), Class: r.Class}
}

// Start runs a program as a node. One that runs already is left as it is, unless
// its node has ended, or Start gives another incarnation: then it is killed first.
type Start struct {
	Name string            `json:"name"`
	Args []string          `json:"args"` // Args[0] is the program
	Env  map[string]string `json:"env,omitempty"`
	// Binary is the SHA-256 that the program's file must have, in hexadecimal; "" for any. A
	// blade that has another file there runs the one with that content that it has kept.
	Binary string `json:"binary,omitempty"`
	// Address says which node the program will be when it joins, if it goes on as one that
	// was before, and After that one's incarnation; else it gets a new address.
	Address netip.Addr `json:"address,omitzero"`
	After   uint32     `json:"after,omitempty"`
	// AnswerMS, ProgressMS and ReadyMS say when the daemon takes the program for hung, and
	// kills it: when it has not answered for so long, has calls waiting and has taken up none
	// for so long, or does not export Services so long after its start. 0 is never.
	AnswerMS   int64    `json:"answer_ms,omitempty"`
	ProgressMS int64    `json:"progress_ms,omitempty"`
	ReadyMS    int64    `json:"ready_ms,omitempty"`
	Services   []string `json:"services,omitempty"`
	// Heir asks for an heir of the node instead (rpc/heir): it answers from the node's ledger for Services and
	// others that the node had, and runs nothing of the program.
	Heir bool `json:"heir,omitempty"`
}

// Stop ends a node's program: SIGTERM, then SIGKILL after GraceMS.
type Stop struct {
	Name    string `json:"name"`
	GraceMS int    `json:"grace_ms"`
}

// MaxPolicies bounds the explicit policies of a rack; a daemon takes no more.
const MaxPolicies = 1024

// MethodPolicy is the policy of a method, as rpc/rpcpacket.Policy writes it, and after how many
// failures a call of it is given up. With no method it is that of all methods of the service for which there is no other
// entry. "" and nil say nothing.
type MethodPolicy struct {
	Service     string `json:"service"`
	Method      string `json:"method,omitempty"`
	Policy      string `json:"policy,omitempty"`
	MaxFailures *int   `json:"max_failures,omitempty"`
}

// PolicyList is the explicit policies. A daemon asks for them without a body.
type PolicyList struct {
	Version  uint64         `json:"version"`
	Policies []MethodPolicy `json:"policies"`
}
