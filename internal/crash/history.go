package crash

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/bifrost-rack/bifrost/dsm"
)

// judgeHistories checks what was seen of memory and of services' states for
// linearizability: each operation could have happened at one instant between its
// beginning and its end.
func (r *Run) judgeHistories() {
	for _, part := range partition(memoryHistory(r.ledger.accesses())) {
		if !porcupine.CheckOperations(registers, part) {
			r.ledger.complain("what was read from memory is not linearizable:%s", table(part))
		}
	}
	for i := range r.p.Services {
		if !porcupine.CheckOperations(counter, r.bookHistory(i)) {
			r.ledger.complain("service %s: the order of its entries is not linearizable", ServiceName(i))
		}
	}
}

// contents is a region's state in the model: its bytes, as far as they are not zero,
// and what they were before the attempt by wrote.
type contents struct {
	now, before string
	by          attempt
	dead        attempt // was rolled back last
}

// registers is the model of memory. An attempt's rollback brings back what was
// there before its first write; it is always the last that wrote.
var registers = porcupine.Model{
	Partition: partition,
	Init:      func() any { return contents{} },
	Step: func(state, input, _ any) (bool, any) {
		s, a := state.(contents), input.(access)
		if a.rollback {
			if s.by == a.by {
				s = contents{now: s.before}
			}
			s.dead = a.by
			return true, s
		}
		if a.fresh {
			return true, contents{by: a.by}
		}
		if !a.write {
			return padded(s.now, a)[a.at:a.end()] == string(a.data), s
		}
		if s.dead == a.by {
			return true, s // it was fenced
		}
		if s.by != a.by {
			s.by, s.before = a.by, s.now
		}
		b := padded(s.now, a)
		s.now = b[:a.at] + string(a.data) + b[a.end():]
		return true, s
	},
	DescribeOperation: func(input, _ any) string {
		a := input.(access)
		return fmt.Sprintf("operation %d of %+v: write %t [%d:%d], fresh %t, rollback %t", a.op, a.by, a.write, a.at, a.end(), a.fresh, a.rollback)
	},
}

// table prints a history for people.
func table(history []porcupine.Operation) string {
	var b strings.Builder
	slices.SortFunc(history, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	for _, op := range history {
		a := op.Input.(access)
		fmt.Fprintf(&b, "\n\t%s to %s: %s, digest %x", time.Duration(op.Call), time.Duration(op.Return), registers.DescribeOperation(op.Input, nil), digest(a.data))
	}
	return b.String()
}

func (a *access) end() int { return a.at + len(a.data) }

// padded is a region's bytes, with zeros up to where an access ends.
func padded(s string, a access) string {
	return s + strings.Repeat("\x00", max(0, a.end()-len(s)))
}

// partition parts a history by regions. A rollback concerns all regions that its
// attempt has written to.
func partition(history []porcupine.Operation) (parts [][]porcupine.Operation) {
	index := map[dsm.Pointer]int{}
	wrote := map[attempt]map[int]bool{} // parts
	for _, op := range history {
		a := op.Input.(access)
		if a.rollback {
			continue
		}
		i, ok := index[a.region]
		if !ok {
			i = len(parts)
			index[a.region] = i
			parts = append(parts, nil)
		}
		parts[i] = append(parts[i], op)
		if a.write && wrote[a.by] == nil {
			wrote[a.by] = map[int]bool{}
		}
		if a.write {
			wrote[a.by][i] = true
		}
	}
	for _, op := range history {
		if a := op.Input.(access); a.rollback {
			for i := range wrote[a.by] {
				parts[i] = append(parts[i], op)
			}
		}
	}
	return parts
}

// memoryHistory leaves out reads whose end nobody saw: they say nothing.
func memoryHistory(all []access) (history []porcupine.Operation) {
	for _, a := range all {
		if a.write || a.fresh || a.rollback || a.to != never {
			history = append(history, porcupine.Operation{Input: a, Call: a.from, Return: a.to})
		}
	}
	return history
}

// counter is the model of a service's state: each entry is the next one.
var counter = porcupine.Model{
	Init:              func() any { return 0 },
	Step:              func(state, _, output any) (bool, any) { return output.(int) == state.(int)+1, output },
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("operation %v is entry %v", input, output) },
}

// bookHistory are a service's entries in the times of the calls that made them.
func (r *Run) bookHistory(service int) (history []porcupine.Operation) {
	outer := r.p.outer()
	for n, m := range r.audited[service].marks {
		s, ok := r.ledger.span(outer[m.Op])
		if !ok {
			r.ledger.complain("service %s: nobody has made the call of operation %d", ServiceName(service), m.Op)
			continue
		}
		history = append(history, porcupine.Operation{Input: m.Op, Output: n + 1, Call: s.from, Return: s.to})
	}
	return history
}
