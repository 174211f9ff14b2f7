package recovery

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/execution"
	scripts "github.com/bifrost-rack/bifrost/gatekeeper/internal/script"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// TestScripts runs testdata/*.txt: what happens, and what both cores make of it.
//
//	up A                     A's next incarnation joins and exports its service
//	serial A                 that service runs one call at a time
//	join C                   C joins and exports nothing
//	call s1 C A              a plain client's first call
//	call x A B in s1 [WORD…] a call of an execution: lend, oneway, arg=V, journal=V
//	reply x [delta=V]        the callee answers
//	begin M; checkpoint M 3 [done]
//	fail A… [gone]           nodes fail together
//	unidentified A; fenced m1 A; rolledback x
//	server m1; noserver m1   memory servers
//	again; restart           the Gatekeeper is killed, and begins with its log
//	log; recoveries; state A
//
// Admissions, commits and leases are answered at once.
func TestScripts(t *testing.T) {
	scripts.Run(t, "testdata/*.txt", func() scripts.Command { return newScript().command })
}

// script is the state of one script. It uses a rack's log, and none of the rest.
type script struct {
	rack
	serial map[string]bool
	inc    map[string]uint32
	calls  map[rpcpacket.ID]rpcpacket.Message
	out    io.Writer
}

func newScript() *script {
	return &script{
		rack:   rack{disk: map[wal.Key]wal.Record{}, table: execution.New(3), machine: New()},
		serial: map[string]bool{}, inc: map[string]uint32{}, calls: map[rpcpacket.ID]rpcpacket.Message{},
	}
}

func (s *script) node(name string) wal.Node {
	return wal.Node{Address: rackaddr.Node(uint64(name[0] - 'A' + 1)), Incarnation: s.inc[name]}
}

func nameOf(a netip.Addr) string { return string('A' + rune(a.As16()[15]) - 1) }

func idOf(name string) (id rpcpacket.ID) {
	if n, err := strconv.Atoi(strings.TrimPrefix(name, "s")); err == nil {
		return rpcpacket.SessionID(1, uint64(n))
	}
	if name == "M" {
		return endpoint.MainID("M")
	}
	copy(id[:], name)
	return id
}

func idText(id rpcpacket.ID) string {
	switch {
	case id == endpoint.MainID("M"):
		return "M"
	case id.Session() == 1:
		return fmt.Sprintf("s%d", id.Sequence())
	}
	return strings.TrimRight(string(id[:]), "\x00")
}

func (s *script) command(out io.Writer, f []string) error {
	s.out = out
	switch f[0] {
	case "serial":
		s.serial[f[1]] = true
	case "up", "join":
		s.inc[f[1]]++
		s.join(f[1], f[0] == "up")
	case "call":
		s.call(f)
	case "reply":
		s.reply(f)
	case "begin":
		o, err := s.table.Begin(idOf("M"), "M", s.node(f[1]), 1, 0)
		s.perform(o)
		return err
	case "checkpoint":
		s.checkpoint(f)
	case "fail":
		s.fail(f[1:])
	case "unidentified":
		s.act(s.machine.Unidentified(s.node(f[1])))
	case "fenced":
		s.act(s.machine.Fenced(Server(f[1]), s.node(f[2])))
	case "rolledback":
		s.perform(s.table.RolledBack(idOf(f[1])))
	case "server":
		s.act(s.machine.AddServer(Server(f[1])))
	case "noserver":
		s.act(s.machine.RemoveServer(Server(f[1])))
	case "again":
		s.perform(s.table.Again())
	case "restart":
		return s.restart(f[1:])
	default:
		return s.show(f)
	}
	return nil
}

func (s *script) join(name string, export bool) {
	s.act(s.machine.Joined(s.node(name), now))
	if export {
		s.perform(s.table.Up(s.node(name), uint64(name[0])))
	}
}

// words returns the values of WORD=V, and "" for a lone WORD.
func words(f []string) map[string]string {
	w := map[string]string{}
	for _, word := range f {
		k, v, _ := strings.Cut(word, "=")
		w[k] = v
	}
	return w
}

func (s *script) call(f []string) {
	m := rpcpacket.Message{Header: rpcpacket.Header{
		Type: rpcpacket.Call, Flags: rpcpacket.FlagHeld.WithPolicy(rpcpacket.PolicyRecover), Call: idOf(f[1]),
		CallerIncarnation: s.inc[f[2]], Service: uint64(f[3][0]),
	}}
	w := words(f[4:])
	if len(f) > 5 && f[4] == "in" {
		m.Parent = idOf(f[5])
		m.Index, m.Branch = uint32(m.Call[1]), 0
	} else {
		m.Flags |= rpcpacket.FlagSession
		m.Floor = m.Call.Sequence()
	}
	if _, ok := w["oneway"]; ok {
		m.Type = rpcpacket.Oneway
	}
	if _, ok := w["lend"]; ok {
		m.Pointers = []dsmpacket.Pointer{dsmpacket.Make(1, 1, 4096)}
	}
	m.Payload = []byte(w["arg"])
	if j := w["journal"]; j != "" {
		m.Trailer = trailer.Section{Type: trailer.Random, Data: []byte(j)}.Append(nil)
	}
	s.calls[m.Call] = m
	b := m.Append(nil)
	v, o := s.table.Call(execution.Request{Message: &m, Datagram: b, Caller: s.node(f[2]), Callee: s.node(f[3]), Serial: s.serial[f[3]], Now: now})
	fmt.Fprintln(s.out, v)
	s.perform(o)
}

func (s *script) reply(f []string) {
	m := s.calls[idOf(f[1])]
	a, _ := s.table.Callee(m.Call)
	if !a.IsValid() {
		a = s.node("A").Address
	}
	m.Type, m.CalleeIncarnation, m.Pointers = rpcpacket.Reply, s.inc[nameOf(a)], nil
	m.Trailer = nil
	if d := words(f[2:])["delta"]; d != "" {
		m.Trailer = trailer.Section{Type: trailer.Delta, Data: []byte(d)}.Append(nil)
	}
	v, o := s.table.Reply(execution.Response{Message: &m, Datagram: m.Append(nil), Callee: s.node(nameOf(a)), Now: now})
	fmt.Fprintln(s.out, v)
	s.perform(o)
}

func (s *script) checkpoint(f []string) {
	index, _ := strconv.Atoi(f[2])
	m := rpcpacket.Message{Header: rpcpacket.Header{
		Type: rpcpacket.Call, Flags: rpcpacket.FlagHeld | rpcpacket.FlagCheckpoint, Call: idOf("cp" + f[2]), Parent: idOf("M"),
		Index: uint32(index), CallerIncarnation: s.inc[f[1]],
	}, Trailer: trailer.Section{Type: trailer.State, Data: []byte("state" + f[2])}.Append(nil)}
	if len(f) > 3 {
		m.Flags |= rpcpacket.FlagDone
	}
	v, o := s.table.Checkpoint(execution.Request{Message: &m, Datagram: m.Append(nil), Caller: s.node(f[1]), Now: now})
	fmt.Fprintln(s.out, v)
	s.perform(o)
}

func (s *script) fail(names []string) {
	gone := slices.Contains(names, "gone")
	var all []Failure
	for _, n := range names {
		if n != "gone" {
			all = append(all, Failure{Node: s.node(n), Gone: gone, Cause: "test"})
		}
	}
	s.act(s.machine.Fail(now, all...))
}

// restart kills the Gatekeeper; servers and nodes are those named.
func (s *script) restart(f []string) (err error) {
	if s.table, err = execution.Load(3, s.records()); err != nil {
		return err
	}
	if s.machine, err = Load(s.records()); err != nil {
		return err
	}
	for _, name := range f {
		if len(name) > 1 {
			s.machine.AddServer(Server(name))
		}
	}
	s.perform(s.table.Resume(now))
	s.act(s.machine.Resume())
	for _, name := range f {
		if len(name) == 1 {
			s.join(name, true)
		}
	}
	return nil
}

func (s *script) keep(put []wal.Record, strike []wal.Key) {
	for _, r := range put {
		s.seq++
		r.Sequence = s.seq
		s.disk[r.Key()] = r
	}
	for _, k := range strike {
		delete(s.disk, k)
	}
}

func (s *script) act(o Output) {
	s.keep(o.Put, o.Delete)
	for _, a := range o.Actions {
		switch a := a.(type) {
		case Cut:
			fmt.Fprintf(s.out, "cut %s\n", s.text(a.Node))
			s.perform(s.table.Fail(a.Node, a.Gone, now))
		case FailCalls:
			fmt.Fprintf(s.out, "fail calls of policy none to %s\n", s.text(a.Node))
		case Unidentify:
			fmt.Fprintf(s.out, "unidentify %s\n", s.text(a.Node))
		case Fence:
			fmt.Fprintf(s.out, "fence %s at %s\n", s.text(a.Node), a.Server)
		case Fenced:
			s.perform(s.table.Fenced(a.Node))
		case Place:
			fmt.Fprintf(s.out, "place %s, keep %v\n", s.text(a.Node), a.Keep)
		case Recovered:
			fmt.Fprintf(s.out, "%s recovered\n", s.text(a.Node))
		}
	}
}

func (s *script) text(n wal.Node) string {
	return fmt.Sprintf("%s%d", nameOf(n.Address), n.Incarnation)
}

func (s *script) perform(o execution.Output) {
	s.keep(o.Put, o.Delete)
	for _, a := range o.Actions {
		switch a := a.(type) {
		case execution.Admit:
			s.perform(s.table.Admitted(a.Call, nil))
		case execution.Hand:
			s.perform(s.table.Handed(a.Call))
		case execution.Deliver:
			fmt.Fprintf(s.out, "deliver %s to %s%s\n", idText(a.Call), s.text(a.To), s.detail(a))
		case execution.Answer:
			fmt.Fprintf(s.out, "answer %s to %s%s\n", idText(a.Call), nameOf(a.To), s.outcome(a.Call))
		case execution.Except:
			fmt.Fprintf(s.out, "except %s to %s: %s\n", idText(a.Call), nameOf(a.To), a.Why.Code)
		case execution.Ack:
			fmt.Fprintf(s.out, "ack %s to %s\n", idText(a.Call), nameOf(a.To))
		case execution.Commit:
			fmt.Fprintf(s.out, "commit %s\n", idText(a.Execution))
			s.perform(s.table.Committed(a.Execution))
		case execution.Return:
			fmt.Fprintf(s.out, "return %s, aborted %v\n", idText(a.Call), a.Aborted)
			s.perform(s.table.Returned(a.Call, nil, now))
		case execution.Rollback:
			fmt.Fprintf(s.out, "roll back %s\n", idText(a.Execution))
		case execution.Whole:
			s.act(s.machine.Whole(a.Node, now))
		case execution.Begun:
			state, journal, index := s.table.Main(a.Main)
			fmt.Fprintf(s.out, "main begins at %s, state %q, journal %q, index %d, over %v\n", s.text(a.At), content(state), content(journal), index, a.Over)
		case execution.Diverged:
			fmt.Fprintf(s.out, "%s diverges from what %s did\n", idText(a.Call), idText(a.Parent))
		case execution.Aborted:
			fmt.Fprintf(s.out, "%s aborted: %s\n", idText(a.Call), a.Why.Msg)
		}
	}
}

func (s *script) detail(d execution.Deliver) (t string) {
	if d.Order > 0 {
		t += fmt.Sprintf(", number %d", d.Order)
	}
	if d.Attempt > 0 {
		t += fmt.Sprintf(", attempt %d, journal %q", d.Attempt, content(d.Journal))
	}
	if d.Replay {
		t += ", replay"
	}
	return t
}

func (s *script) outcome(id rpcpacket.ID) string {
	m, err := rpcpacket.Parse(s.disk[wal.Key{Kind: wal.KindReply, ID: wal.ID(id)}].Packet)
	switch {
	case err != nil:
		return ", which is not logged"
	case m.Code != fault.OK:
		return ": " + m.Code.String()
	}
	return ""
}

// content is the data of all sections.
func content(b []byte) (s string) {
	sections, _ := trailer.Parse(b)
	for _, x := range sections {
		s += string(x.Data)
	}
	return s
}

func (s *script) show(f []string) error {
	switch f[0] {
	case "log":
		for r := range s.records() {
			id := idText(rpcpacket.ID(r.ID))
			switch r.Kind {
			case wal.KindRecovery, wal.KindCut:
				id = s.text(r.Callee)
			case wal.KindState, wal.KindSession:
				id = fmt.Sprint(r.Order)
			}
			fmt.Fprintf(s.out, "%s %s\n", r.Kind, id)
		}
	case "recoveries":
		for _, v := range s.machine.Recoveries() {
			fmt.Fprintf(s.out, "%s %s, waits for %+v\n", s.text(v.Node), v.Phase, v.Waits)
		}
	case "state":
		sections, next := s.table.State(uint64(f[1][0]))
		fmt.Fprintf(s.out, "%q, next %d\n", content(sections), next)
	default:
		return fmt.Errorf("unknown command")
	}
	return nil
}
