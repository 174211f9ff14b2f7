package lease

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/script"
)

// TestScripts runs testdata/*.txt: commands with the steps that they lead to.
//
//	node A B                     nodes A and B are there
//	alloc A r                    a memory blade allocates region r for A
//	call c A B p… [under c0]     A calls B with pointers (r, r+8, r-1)
//	reply c B A p…               B answers A
//	oneway c A B p…; withdrawn c A B p…
//	free A p; freed r [failed]
//	gone A; lost M [rMK]         a node, a memory machine is gone; later regions begin at rMK
//	cut c                        a call's callee has failed
//	done [all]                   the switch has applied the oldest rules, or all
//	rules; regions; pending
//
// A command ends with & to leave its transitions in progress; otherwise they
// are done at once. Region rMK is region K of machine M, of 4 KiB.
func TestScripts(t *testing.T) {
	script.Run(t, "testdata/*.txt", func() script.Command { return (&scripted{m: New()}).command })
}

// scripted is the state of one script.
type scripted struct {
	m      *Machine
	moving []uint64 // transitions in progress, oldest first
	out    io.Writer
}

func (s *scripted) command(out io.Writer, f []string) error {
	s.out = out
	later := f[len(f)-1] == "&"
	if later {
		f = f[:len(f)-1]
	}
	switch f[0] {
	case "node":
		for _, n := range f[1:] {
			s.m.AddNode(nodeOf(n))
		}
	case "rules", "regions", "pending":
		return s.show(f[0])
	case "gone":
		s.print(s.m.RemoveNode(nodeOf(f[1])), later)
	case "cut":
		steps, _ := s.m.Cut(callOf(f[1]), nil)
		s.print(steps, later)
	case "lost":
		n, err := strconv.Atoi(f[1])
		var upTo uint32
		if len(f) > 2 {
			upTo = regionOf(f[2]).Base.ID().Generation() - 1
		}
		s.print(s.m.RemoveMachine(rackaddr.DefaultDSMPrefix, uint8(n), upTo), later)
		return err
	case "done":
		for len(s.moving) > 0 {
			id := s.moving[0]
			s.moving = s.moving[1:]
			s.print(s.m.Done(id), true)
			if len(f) == 1 {
				break
			}
		}
	default:
		e, err := parseEvent(f)
		if err != nil {
			return err
		}
		s.print(s.m.Submit(e, nil), later)
	}
	return nil
}

func (s *scripted) print(steps []Step, later bool) {
	for len(steps) > 0 {
		step := steps[0]
		steps = steps[1:]
		fmt.Fprintf(s.out, "%s: %s", eventText(step.Event), step.Outcome)
		if step.Refusal != nil {
			fmt.Fprintf(s.out, ": %s (%s)", rename(step.Refusal.Error()), step.Refusal.Code())
		}
		if later && step.ID != 0 {
			s.moving = append(s.moving, step.ID)
			fmt.Fprint(s.out, " …")
		}
		fmt.Fprintln(s.out)
		for _, r := range step.Revoke {
			fmt.Fprintf(s.out, "  revoke %s\n", rename(r.String()))
		}
		for _, r := range step.Grant {
			fmt.Fprintf(s.out, "  grant %s\n", rename(r.String()))
		}
		for _, r := range step.Reclaim {
			fmt.Fprintf(s.out, "  reclaim %s\n", regionText(r))
		}
		if !later && step.ID != 0 {
			steps = append(steps, s.m.Done(step.ID)...)
		}
	}
}

func (s *scripted) show(what string) error {
	var lines []string
	switch what {
	case "pending":
		lines = append(lines, fmt.Sprintf("%d pending, %d parked, %d calls", s.m.Pending(), s.m.Parked(), s.m.Calls()))
	case "rules":
		for r := range s.m.Rules() {
			lines = append(lines, rename(r.String()))
		}
	case "regions":
		for r := range s.m.Regions() {
			line := fmt.Sprintf("%s controlled by %s", regionText(r.Region), nodeText(r.Controller))
			if r.Freeing {
				line += ", freeing"
			}
			var leases []string
			for _, l := range r.Leases {
				leases = append(leases, fmt.Sprintf(", leased to %s by %s", nodeText(l.Node), callText(l.Call)))
			}
			slices.Sort(leases)
			lines = append(lines, line+strings.Join(leases, ""))
		}
	}
	slices.Sort(lines)
	for _, l := range lines {
		fmt.Fprintln(s.out, l)
	}
	return nil
}

// parseEvent reads an event command.
func parseEvent(f []string) (Event, error) {
	if len(f) < 2 {
		return nil, fmt.Errorf("too few words")
	}
	var under CallID
	if i := slices.Index(f, "under"); i > 0 {
		under = callOf(f[i+1])
		f = f[:i]
	}
	switch f[0] {
	case "alloc":
		return Alloc{nodeOf(f[1]), regionOf(f[2])}, nil
	case "call":
		return Call{callOf(f[1]), under, nodeOf(f[2]), nodeOf(f[3]), pointersOf(f[4:])}, nil
	case "reply":
		return Reply{callOf(f[1]), nodeOf(f[3]), nodeOf(f[2]), pointersOf(f[4:])}, nil
	case "oneway":
		return Oneway{callOf(f[1]), nodeOf(f[2]), nodeOf(f[3]), pointersOf(f[4:])}, nil
	case "withdrawn":
		return Withdrawn{callOf(f[1]), under, nodeOf(f[2]), nodeOf(f[3]), pointersOf(f[4:])}, nil
	case "free":
		return Free{nodeOf(f[1]), pointersOf(f[2:])[0]}, nil
	case "freed":
		return Freed{regionOf(f[1]), len(f) == 2}, nil
	}
	return nil, fmt.Errorf("unknown command")
}

func nodeOf(s string) Node { return rackaddr.Node(uint64(s[0] - 'A' + 1)) }

func nodeText(n Node) string {
	if !n.IsValid() {
		return "nobody"
	}
	return string('A' + rune(n.As16()[15]) - 1)
}

func callOf(s string) (id CallID) { copy(id[:], s); return id }

func callText(id CallID) string { return strings.TrimRight(string(id[:]), "\x00") }

// regionOf reads rMK: region K of machine M.
func regionOf(s string) dsmpacket.Region {
	return dsmpacket.Region{Base: dsmpacket.Make(rackaddr.DefaultDSMPrefix, s[1]-'0', dsmpacket.IDOf(7, uint32(s[2]-'0'+1))), Class: 12}
}

func regionText(r dsmpacket.Region) string {
	return fmt.Sprintf("r%d%d", r.Base.Machine(), r.Base.ID().Generation()-1)
}

func pointersOf(words []string) (ps []dsmpacket.Pointer) {
	for _, w := range words {
		at := strings.IndexAny(w, "+-")
		if at < 0 {
			at = len(w)
		}
		offset, _ := strconv.ParseInt("0"+strings.Trim(w[at:], "+-"), 10, 64)
		if strings.Contains(w, "-") {
			offset = -offset
		}
		ps = append(ps, regionOf(w[:at]).Base.Add(offset))
	}
	return ps
}

// rename replaces the addresses of nodes and regions by their names.
func rename(s string) string {
	var pairs []string
	for m := range 4 {
		for k := range 10 {
			r := regionOf(fmt.Sprintf("r%d%d", m, k))
			pairs = append(pairs, r.String(), regionText(r), r.Base.String(), regionText(r))
		}
	}
	for n := 'Z'; n >= 'A'; n-- {
		pairs = append(pairs, rackaddr.Node(uint64(n-'A'+1)).String(), string(n))
	}
	return strings.NewReplacer(pairs...).Replace(s)
}

func eventText(e Event) string {
	switch e := e.(type) {
	case Alloc:
		return fmt.Sprintf("alloc %s %s", nodeText(e.Node), regionText(e.Region))
	case Call:
		return fmt.Sprintf("call %s %s→%s", callText(e.ID), nodeText(e.Caller), nodeText(e.Callee))
	case Reply:
		return fmt.Sprintf("reply %s %s→%s", callText(e.ID), nodeText(e.Callee), nodeText(e.Caller))
	case Oneway:
		return fmt.Sprintf("oneway %s %s→%s", callText(e.ID), nodeText(e.Caller), nodeText(e.Callee))
	case Withdrawn:
		return fmt.Sprintf("withdrawn %s %s→%s", callText(e.ID), nodeText(e.Caller), nodeText(e.Callee))
	case Free:
		return fmt.Sprintf("free %s %s", nodeText(e.Node), rename(e.Pointer.String()))
	case Freed:
		return fmt.Sprintf("freed %s", regionText(e.Region))
	case Ended:
		return fmt.Sprintf("ended %s", callText(e.ID))
	case Orphaned:
		return fmt.Sprintf("orphaned %s", regionText(e.Region))
	case Lost:
		return fmt.Sprintf("lost %s", regionText(e.Region))
	}
	return "?"
}
