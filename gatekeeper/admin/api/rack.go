package api

import (
	"net/netip"
	"time"
)

// Status is the Gatekeeper and its rack at a glance.
type Status struct {
	Version   string    `json:"version" doc:"Version of the Gatekeeper's program" example:"v0.3.0"`
	Boot      string    `json:"boot" doc:"Names this run of the Gatekeeper; the first part of every event id" example:"9f86d081884c7d65"`
	Election  string    `json:"election" doc:"P4Runtime election id, HIGH:LOW; the Gatekeeper with the highest is in charge" example:"0:1790000000000000000"`
	Time      time.Time `json:"time" doc:"When this was true"`
	Switch    Switch    `json:"switch"`
	MTU       int       `json:"mtu" doc:"The rack's largest IPv6 packet in bytes" example:"9000"`
	DSMPrefix int       `json:"dsm_prefix" minimum:"1" maximum:"255" doc:"Byte 4 of every global pointer" example:"16"`
	Heartbeat float64   `json:"heartbeat_seconds" doc:"How often blades report; one that is silent three times as long has failed" example:"1"`
	Counts    Counts    `json:"counts"`
	Counters  Counters  `json:"counters"`
	// Recoveries are few: one for each node that has failed just now.
	Recoveries []Recovery `json:"recoveries" doc:"Nodes that have failed, and are not back or cleaned up after yet"`
}

// Recovery is what becomes of a node that has failed.
type Recovery struct {
	Node        netip.Addr `json:"node" format:"ipv6"`
	Incarnation uint32     `json:"incarnation" doc:"The one that has failed"`
	Gone        bool       `json:"gone,omitempty" doc:"It does not come back: nobody has deployed its program"`
	Cause       string     `json:"cause,omitempty"`
	Phase       string     `json:"phase" enum:"fencing,restoring" doc:"fencing: it is being cut off; restoring: what it did is taken back, and it may start elsewhere"`
	Since       time.Time  `json:"since"`
	Waits       []string   `json:"waits" doc:"For what: switch, spare, or a memory blade by its name" example:"[\"m2\"]"`
}

// Switch is the rack's switch as the Gatekeeper sees it.
type Switch struct {
	Connected bool   `json:"connected" doc:"The switch obeys, and its tables are what they should be"`
	DeviceID  uint64 `json:"device_id" doc:"P4Runtime device id" example:"1"`
}

// Counts say how much of everything there is now.
type Counts struct {
	Blades      BladeCounts `json:"blades"`
	Nodes       int         `json:"nodes" doc:"Nodes that have joined"`
	Services    int         `json:"services" doc:"Services that at least one node exports"`
	Regions     int         `json:"regions" doc:"Regions that are allocated, those included that are just being freed"`
	Missing     []string    `json:"missing,omitempty" doc:"Who has not answered, so that regions and recorded are not complete: memory blades, and switch"`
	Calls       int         `json:"calls" doc:"Calls that have been under way for 20 ms, as their callees have told last"`
	Recorded    int         `json:"recorded" doc:"Calls with open slots in the switch, when somebody asked for regions or calls last"`
	LogRecords  int         `json:"log_records" doc:"Records on the log; 0 without one"`
	LogBytes    uint64      `json:"log_bytes" doc:"Bytes of these"`
	FreeBatches int         `json:"free_batches" doc:"Batches of region slots whose nodes have gone: each has a record on the log until another node gets it"`
	FullStates  int         `json:"full_states" doc:"Nodes whose states and checkpoints have more than eight tenths of what these may have in a ledger: /v1/nodes says max_states"`
}

// BladeCounts count blades by status.
type BladeCounts struct {
	Free     int `json:"free"`
	InUse    int `json:"in_use"`
	Draining int `json:"draining"`
	Failed   int `json:"failed"`
}

// Counters count what has happened since the Gatekeeper started.
type Counters struct {
	Held         uint64 `json:"held" doc:"Packets that the switch has held"`
	Reclaims     uint64 `json:"reclaims" doc:"Regions freed because nobody had them any more"`
	RulesWritten uint64 `json:"rules_written" doc:"Entries inserted, modified or deleted"`
	Denied       uint64 `json:"denied" doc:"Accesses that the switch has denied"`
	Deadlocks    uint64 `json:"deadlocks" doc:"Calls refused because they would have waited for themselves"`
	GivenUp      uint64 `json:"given_up" doc:"Exactly-once calls given up because their programs have ended too often while they executed them"`
	Refused      uint64 `json:"refused" doc:"Requests of daemons and programs that the Gatekeeper has refused"`
	Malformed    uint64 `json:"malformed" doc:"Held packets that make no sense"`
	Foreign      uint64 `json:"foreign" doc:"Held packets from somebody who may not say that"`
	Failures     uint64 `json:"failures" doc:"Rules or commands refused by the switch or a blade"`
	Unsent       uint64 `json:"unsent" doc:"Packets that found no room towards the switch"`
	Deaf         uint64 `json:"deaf" doc:"Times in which no blade could be heard: the way from the switch was stalled, or the Gatekeeper did not run"`
	Reconciled   uint64 `json:"reconciled" doc:"Entries repaired after the switch's tables were read back"`
	Logged       uint64 `json:"logged" doc:"Records put on the log"`
	CopiesLost   uint64 `json:"copies_lost" doc:"Copies of memory machines that had two and have one"`
}

// Blade is a physical resource of the rack.
type Blade struct {
	Name     string            `json:"name" doc:"Unique in the rack" example:"m1"`
	Kind     string            `json:"kind" enum:"compute,memory"`
	Status   string            `json:"status" enum:"free,in use,draining,failed" doc:"free: nobody uses it; in use: it runs nodes or holds regions; draining: it takes nothing new, what is there may finish; failed: out of service"`
	Cause    string            `json:"cause,omitempty" doc:"Why it is draining or has failed"`
	Address  netip.Addr        `json:"address" format:"ipv6" doc:"Its own address" example:"fd00:b1f0:0:1::4"`
	Port     uint16            `json:"port,omitzero" doc:"Port of the switch; absent while it has failed" example:"4"`
	MAC      string            `json:"mac" doc:"Ethernet address" example:"02:00:00:00:00:04"`
	Machine  uint8             `json:"machine,omitzero" doc:"Machine id of a memory blade: byte 5 of its pointers" example:"1"`
	Capacity uint64            `json:"capacity" doc:"A memory blade's bytes; how many nodes a compute blade may run"`
	Used     uint64            `json:"used" doc:"How much of the capacity is taken, as the blade last reported"`
	Ledgers  *LedgerSpace      `json:"ledgers,omitempty" doc:"A memory blade's space for ledgers, as it last reported"`
	Keeps    int               `json:"keeps,omitempty" doc:"How many nodes there are whose states or checkpoints this memory blade alone has: it is not drained before they are undeployed"`
	Nodes    []netip.Addr      `json:"nodes" doc:"Nodes that run here"`
	Spec     map[string]string `json:"spec,omitempty" doc:"What the blade says about itself"`
}

// LedgerSpace is the space that a memory blade has for ledgers.
type LedgerSpace struct {
	Used    uint64 `json:"used" doc:"Bytes that ledgers take"`
	Total   uint64 `json:"total" doc:"Bytes that all ledgers may take"`
	Space   uint64 `json:"space" doc:"Bytes that one ledger may take"`
	Count   int    `json:"count" doc:"How many ledgers there are"`
	Refused uint64 `json:"refused" doc:"Requests and commands about ledgers that were refused since the blade began"`
}

// Machine is a memory machine: one blade serves it, or two of which each holds a copy.
type Machine struct {
	Machine   uint8    `json:"machine" minimum:"1" doc:"Byte 5 of its pointers" example:"1"`
	Blades    []string `json:"blades" doc:"The blades that are to serve it: one, or two" example:"[\"m1\",\"m2\"]"`
	Copies    []string `json:"copies" doc:"The blades that have a complete copy; the first one answers reads" example:"[\"m1\",\"m2\"]"`
	InService int      `json:"in_service" doc:"How many of the copies are in service; with none, the machine's regions are unavailable" example:"2"`
	Epoch     uint32   `json:"epoch,omitzero" doc:"Counts the sets of copies that the machine has had; absent if it is to have one"`
	Why       string   `json:"why,omitempty" doc:"Why there are not two copies"`
	Filling   *Filling `json:"filling,omitempty" doc:"How far the second copy is filled; absent if none is"`
	Capacity  uint64   `json:"capacity" doc:"Bytes; with two copies, those of the smaller blade"`
	Used      uint64   `json:"used" doc:"How much of the capacity is taken, as the blades last reported"`
}

// Filling is how far a blade has got that is to be a machine's second copy.
type Filling struct {
	Blade string  `json:"blade" doc:"The blade that is filled, from the machine's first copy" example:"m2"`
	Done  uint64  `json:"done" doc:"Bytes that are copied; what is written meanwhile is copied again, and counts again"`
	Total uint64  `json:"total" doc:"Those, and what is left as far as is known"`
	Rate  uint64  `json:"rate" doc:"Bytes in a second, as it goes now"`
	Left  float64 `json:"left_seconds" doc:"How long it will take at this rate; 0 while that is not known" example:"12"`
}

// Node is a logical processor: a program with an address of its own.
type Node struct {
	Address     netip.Addr `json:"address" format:"ipv6" example:"fd00:b1f0:0:2::1"`
	Name        string     `json:"name" doc:"The program's name" example:"arrays"`
	Blade       string     `json:"blade" doc:"Where it runs" example:"s2"`
	Incarnation uint32     `json:"incarnation" doc:"Counts its starts"`
	Services    []string   `json:"services" doc:"What it exports"`
	LedgerRoom  *uint64    `json:"ledger_room,omitempty" doc:"Bytes that new calls may still take in its ledger, as it told last"`
	States      uint64     `json:"states,omitempty" doc:"Bytes that the states of its services and the checkpoints of its durable mains have in its ledger, as it told last"`
	MaxStates   uint64     `json:"max_states,omitempty" doc:"Bytes that these may have together: half of the ledger. Calls and checkpoints that would take more fail as no space"`
	// Awaited nodes belong to no deployment, and keep states or durable mains.
	Awaited *time.Time `json:"awaited,omitempty" doc:"Since when it waits for its program, which somebody had started by hand and which has ended; absent if the node is there"`
}

// NodeName is how people call a node.
type NodeName struct {
	Address netip.Addr `json:"address" format:"ipv6" example:"fd00:b1f0:0:2::1"`
	Blade   string     `json:"blade" doc:"Where it runs, or has joined last" example:"s2"`
	Name    string     `json:"name" example:"arrays"`
	Left    bool       `json:"left,omitempty" doc:"It is not there any more"`
}

// Service is what a Thrift IDL declares, with the routes to it.
type Service struct {
	Name    string       `json:"name" example:"Arrays"`
	Address netip.Addr   `json:"address" format:"ipv6" doc:"Callers send to it; the switch picks the node" example:"fd00:b1f0:0:3:8c5e:1f2a:77d0:4b19"`
	Nodes   []netip.Addr `json:"nodes" doc:"Nodes that serve it"`
	Methods []Method     `json:"methods"`
	// NotServing and IDL are what programs say (rpc.Node.SetServing, rpc.WithIDL).
	NotServing []netip.Addr `json:"not_serving" doc:"Nodes that say that the service should not be called there"`
	IDL        string       `json:"idl,omitempty" doc:"The Thrift definition, if a program tells it; only of one service, not in the list"`
}

// Method is one method of a service.
type Method struct {
	Name   string  `json:"name" example:"addRef"`
	Routes []Route `json:"routes" doc:"Which calls go where"`
}

// Route sends some of a method's calls to a node: those whose id's last byte
// begins with the Bits highest bits of Spread.
type Route struct {
	Spread uint8      `json:"spread" doc:"Value of the call id's last byte"`
	Bits   int        `json:"bits" minimum:"0" maximum:"8" doc:"How many of its bits count"`
	Node   netip.Addr `json:"node" format:"ipv6"`
}
