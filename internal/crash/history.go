package crash

import (
	"fmt"
	"strings"

	"github.com/anishathalye/porcupine"
)

// judgeHistories checks what was seen of memory and of services' states for
// linearizability: each operation could have happened at one instant between its
// beginning and its end.
func (r *Run) judgeHistories() {
	if !porcupine.CheckOperations(registers, memoryHistory(r.ledger.accesses())) {
		r.ledger.complain("what was read from memory is not linearizable")
	}
	for i := range r.p.Services {
		if !porcupine.CheckOperations(counter, r.bookHistory(i)) {
			r.ledger.complain("service %s: the order of its entries is not linearizable", ServiceName(i))
		}
	}
}

// registers is the model of memory: a region's bytes, which are zero at first.
var registers = porcupine.Model{
	Partition: func(history []porcupine.Operation) (parts [][]porcupine.Operation) {
		index := map[any]int{}
		for _, op := range history {
			region := op.Input.(access).region
			i, ok := index[region]
			if !ok {
				i = len(parts)
				index[region] = i
				parts = append(parts, nil)
			}
			parts[i] = append(parts[i], op)
		}
		return parts
	},
	Init: func() any { return "" },
	Step: func(state, input, _ any) (bool, any) {
		s, a := state.(string), input.(access)
		end := a.at + len(a.data)
		if len(s) < end {
			s += strings.Repeat("\x00", end-len(s))
		}
		if a.write {
			return true, s[:a.at] + string(a.data) + s[end:]
		}
		return s[a.at:end] == string(a.data), s
	},
	DescribeOperation: func(input, _ any) string {
		a := input.(access)
		return fmt.Sprintf("operation %d: write %t [%d:%d]", a.op, a.write, a.at, a.at+len(a.data))
	},
}

// memoryHistory leaves out reads whose end nobody saw: they say nothing.
func memoryHistory(all []access) (history []porcupine.Operation) {
	for _, a := range all {
		if a.write || a.to != never {
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
	for n, m := range r.audited[service].marks {
		s, ok := r.ledger.span(r.p.callOf(m.Op))
		if !ok {
			r.ledger.complain("service %s: nobody has made the call of operation %d", ServiceName(service), m.Op)
			continue
		}
		history = append(history, porcupine.Operation{Input: m.Op, Output: n + 1, Call: s.from, Return: s.to})
	}
	return history
}

// callOf is the call or one-way whose script an operation is in, 0 for a client's.
func (p *Program) callOf(n int) (call int) {
	var in func(s *Script, of int)
	in = func(s *Script, of int) {
		for i := range s.Ops {
			op := &s.Ops[i]
			if op.N == n {
				call = of
			}
			of := of
			if op.Kind == Call || op.Kind == Post {
				of = op.N
			}
			for j := range op.Body {
				in(&op.Body[j], of)
			}
		}
	}
	for i := range p.Clients {
		in(&p.Clients[i].Script, 0)
	}
	return call
}
