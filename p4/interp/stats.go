package interp

import (
	"sync/atomic"

	"github.com/bifrost-rack/bifrost/p4/datapath"
)

// Stats counts what has become of packets.
type Stats struct {
	// In are the packets handed to Process and PacketOut.
	In uint64
	// Out are the packets emitted, ToCPU those of them that went to the sink.
	Out, ToCPU uint64
	// Dropped are the packets, copies included, that the program dropped.
	Dropped uint64
	// Asserted were dropped because an assertion of the program failed.
	Asserted uint64
	// ParserErrors are the packets whose parser ended with an error.
	ParserErrors uint64
	// Looped were dropped because one packet had made too many copies, or an action
	// had made too many steps.
	Looped uint64
}

// stats is Stats for a shard.
type stats struct {
	in, out, toCPU, dropped, asserted, parserErrors, looped atomic.Uint64
}

// Stats sums up what has been counted so far.
func (x *Executor) Stats() Stats {
	var t Stats
	for i := range x.lock.shards {
		s := &x.lock.shards[i].stats
		t.In += s.in.Load()
		t.Out += s.out.Load()
		t.ToCPU += s.toCPU.Load()
		t.Dropped += s.dropped.Load()
		t.Asserted += s.asserted.Load()
		t.ParserErrors += s.parserErrors.Load()
		t.Looped += s.looped.Load()
	}
	return t
}

// tableCount is datapath.TableCounts for a shard.
type tableCount struct{ hits, misses atomic.Uint64 }

// TableStats counts the lookups in every table with a key, by its name.
func (x *Executor) TableStats() map[string]datapath.TableCounts {
	all := map[string]datapath.TableCounts{}
	for _, def := range x.c.prog.Tables {
		if len(def.Key) == 0 {
			continue
		}
		var t datapath.TableCounts
		for i := range x.lock.shards {
			n := &x.lock.shards[i].tables[def.Index]
			t.Hits += n.hits.Load()
			t.Misses += n.misses.Load()
		}
		all[def.Name] = t
	}
	return all
}
