// Package pathtests makes test scripts of a compiled program: a packet for each way through the program that a search finds, with what comes out.
//
// The search derives entries and packets from the program (package inputs), and keeps those packets that take a way which none took before: the
// parser's states, the conditions' outcomes, what tables find, copies, drops. It is no proof: it misses ways that need values which the program's
// own constants and its entries do not suggest.
package pathtests

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/inputs"
	"github.com/bifrost-rack/bifrost/p4switch/interp"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// Options say how long to search.
type Options struct {
	Seed    uint64 // of entries and packets
	Entries int    // that the tables get, all together
	Packets int    // to try
}

// Result is a script, and what was found.
type Result struct {
	Script []byte
	Ways   int // packets in the script, each of another way
	// Open counts ways that are not in the script, since what comes out of them depends on the clock or on random numbers.
	Open int
}

// ErrNothing means that no packet's way can be told: what comes out is never the same.
var ErrNothing = errors.New("no packet does the same twice")

// leastFrame is the shortest frame of a script: what the kernel executor can run.
const leastFrame = 60

// input is a packet of a script.
type input struct {
	port  datapath.Port
	frame []byte
}

// Generate searches for ways through a program.
func Generate(prog *v1model.Program, o Options) (*Result, error) {
	a := inputs.New(prog, o.Seed)
	way := &tracer{}
	x, err := start(prog, interp.Config{Tracer: way})
	if err != nil {
		return nil, err
	}
	defer func() { _ = x.Close() }()
	var entries []datapath.Entry
	for range o.Entries {
		if e, ok := a.Entry(); ok && x.Apply(datapath.Insert, e) == nil {
			entries = append(entries, e)
		}
	}
	var kept []input
	seen := map[string]bool{}
	for range o.Packets {
		port, frame := a.Packet()
		frame = append(frame, make([]byte, max(leastFrame-len(frame), 0))...)
		way.b.Reset()
		x.Process(datapath.Port(port), bytes.Clone(frame), nil)
		if w := way.b.String(); !seen[w] {
			seen[w] = true
			kept = append(kept, input{datapath.Port(port), frame})
		}
	}
	return script(prog, entries, kept)
}

// start makes an executor that says nothing.
func start(prog *v1model.Program, cfg interp.Config) (*interp.Executor, error) {
	cfg.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	return interp.New(prog, cfg)
}

// tracer writes down the way of a packet.
type tracer struct{ b strings.Builder }

// Trace implements interp.Tracer.
func (t *tracer) Trace(e interp.Event) {
	switch e.Kind {
	case interp.TraceIn, interp.TraceOut, interp.TraceRead, interp.TraceWrite: // of values, not of the way
	default:
		fmt.Fprintf(&t.b, "%d %s %t %s\n", e.Kind, e.Name, e.Hit, e.Action)
	}
}

// script writes the packets that do the same at any time, with what they do.
func script(prog *v1model.Program, entries []datapath.Entry, in []input) (*Result, error) {
	r := &Result{}
	for {
		var runs [8][]string
		for i := range runs {
			began := time.Unix(int64(1+1000*i), 0)
			var err error
			now := func() time.Time {
				began = began.Add(time.Millisecond)
				return began
			}
			random := rand.New(rand.NewPCG(uint64(i), 0)) //nolint:gosec // two different ones
			if runs[i], err = outputs(prog, entries, in, interp.Config{Now: now, Random: random.Uint64}); err != nil {
				return nil, err
			}
		}
		var same []input
		for i := range in {
			all := true
			for _, r := range runs {
				all = all && r[i] == runs[0][i]
			}
			if all {
				same = append(same, in[i])
			}
		}
		if len(same) < len(in) { // those behind may differ without them
			r.Open += len(in) - len(same)
			in = same
			continue
		}
		if len(in) == 0 {
			return nil, ErrNothing
		}
		var b bytes.Buffer
		for i := range entries {
			b.WriteString(entryLine(prog, &entries[i]))
		}
		for i, p := range in {
			fmt.Fprintf(&b, "packet %d %s\n%s", p.port, hex.EncodeToString(p.frame), runs[0][i])
		}
		r.Script, r.Ways = b.Bytes(), len(in)
		return r, nil
	}
}

// outputs is what packets become, one after the other, as lines of a script.
func outputs(prog *v1model.Program, entries []datapath.Entry, in []input, cfg interp.Config) ([]string, error) {
	x, err := start(prog, cfg)
	if err != nil {
		return nil, err
	}
	defer func() { _ = x.Close() }()
	for _, e := range entries {
		if err := x.Apply(datapath.Insert, e); err != nil {
			return nil, err
		}
	}
	var out []string
	for _, p := range in {
		var b strings.Builder
		x.Process(p.port, bytes.Clone(p.frame), func(to datapath.Port, frame []byte) {
			fmt.Fprintf(&b, "expect %d %s$\n", to, hex.EncodeToString(frame))
		})
		out = append(out, b.String())
	}
	return out, nil
}

// entryLine is an entry as a line of a script.
func entryLine(prog *v1model.Program, e *datapath.Entry) string {
	t := prog.Table(e.Table)
	words := []string{"add", t.Name}
	if e.Priority != 0 {
		words = append(words, fmt.Sprint(e.Priority))
	}
	for i, m := range e.Match {
		if m.Wildcard {
			continue // what is left out matches anything
		}
		k, value := t.Key[i], "0x"+hex.EncodeToString(m.Value)
		switch {
		case k.Kind == v1model.MatchRange:
			value += "..0x" + hex.EncodeToString(m.High)
		case k.Kind == v1model.MatchLPM:
			value += fmt.Sprintf("/%d", m.PrefixLen)
		case m.Mask != nil:
			value = digits(m.Value, m.Mask)
		}
		words = append(words, k.Name+":"+value)
	}
	var params []string
	for i, p := range paramsOf(t, e.Action.Name) {
		params = append(params, p+":0x"+hex.EncodeToString(e.Action.Params[i]))
	}
	return strings.Join(words, " ") + " " + e.Action.Name + "(" + strings.Join(params, ", ") + ")\n"
}

func paramsOf(t *v1model.Table, action string) (names []string) {
	for _, a := range t.Actions {
		if a.Name == action {
			for _, p := range a.Params {
				names = append(names, p.Name)
			}
		}
	}
	return names
}

// digits is a masked value in binary, with * for what does not matter.
func digits(value, mask []byte) string {
	v, m := new(big.Int).SetBytes(value), new(big.Int).SetBytes(mask)
	b := []byte("0b")
	for i := 8*len(value) - 1; i >= 0; i-- {
		switch {
		case m.Bit(i) == 0:
			b = append(b, '*')
		case v.Bit(i) == 1:
			b = append(b, '1')
		default:
			b = append(b, '0')
		}
	}
	return string(b)
}
