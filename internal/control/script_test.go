package control

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/script"

	"github.com/bifrost-rack/bifrost/internal/fault"
)

// TestScripts plays the conversations of testdata: a command line, its output
// indented below. The two ends are g (the Gatekeeper) and d (a daemon), the
// packets on the wire are numbered, and a script decides what becomes of each:
//
//	ask END KIND BODY      cancel END ID          answer END ID [CODE] BODY
//	deliver N...           forget END ID          tick END DURATION (since the start)
//	reboot END             elect N (a new Gatekeeper with that election id)
func TestScripts(t *testing.T) {
	script.RunInline(t, "testdata/*.txt", func() script.Command {
		s := &stage{ends: map[string]*Peer{}, boots: map[string]uint64{}}
		s.start("g", PeerConfig{Election: Election{Low: 1}})
		s.start("d", PeerConfig{Follow: true, MaxDatagram: HeaderSize + 40})
		return func(out io.Writer, words []string) error {
			s.out = out
			return s.command(words[0], words[1:])
		}
	})
}

// stage is two peers with a wire between them on which nothing happens by itself.
type stage struct {
	ends     map[string]*Peer
	boots    map[string]uint64
	configs  [2]PeerConfig
	wire     []packetOn
	requests []request
	now      time.Time
	out      io.Writer
}

type packetOn struct {
	from string
	b    []byte
}

type request struct {
	at string
	m  Message
}

var origin = time.Unix(0, 0)

func (s *stage) start(end string, cfg PeerConfig) {
	s.boots[end]++
	cfg.Boot = s.boots[end]
	if end == "g" {
		cfg.Boot += 100
	}
	s.configs[index(end)] = cfg
	s.ends[end] = NewPeer(cfg)
	if s.now.IsZero() {
		s.now = origin
	}
}

func index(end string) int { return map[string]int{"g": 0, "d": 1}[end] }

func (s *stage) command(name string, args []string) error {
	switch name {
	case "deliver":
		for _, n := range args {
			if err := s.deliver(n); err != nil {
				return err
			}
		}
		return nil
	case "elect":
		low, err := strconv.ParseUint(args[0], 10, 64)
		s.start("g", PeerConfig{Election: Election{Low: low}})
		return err
	}
	end, p := args[0], s.ends[args[0]]
	if p == nil {
		return fmt.Errorf("no end %q", end)
	}
	defer s.ready(end)
	switch name {
	case "ask":
		id, err := p.Ask(s.now, kindOf(args[1]), []byte(strings.Join(args[2:], " ")))
		if err != nil {
			fmt.Fprintf(s.out, "error: %v\n", err)
		} else {
			fmt.Fprintf(s.out, "request %d\n", id)
		}
	case "tick":
		d, err := time.ParseDuration(args[1])
		s.now = origin.Add(d)
		p.Tick(s.now)
		return err
	case "reboot":
		s.start(end, s.configs[index(end)])
	case "cancel", "answer", "forget":
		id, err := strconv.ParseUint(args[1], 10, 64)
		if err != nil {
			return err
		}
		return s.settle(name, p, s.find(end, id), id, args[2:])
	default:
		return fmt.Errorf("no command %q", name)
	}
	return nil
}

func (s *stage) settle(name string, p *Peer, m Message, id uint64, args []string) error {
	switch name {
	case "cancel":
		p.Cancel(id)
	case "forget":
		p.Forget(m)
	case "answer":
		status := fault.OK
		if args[0] == "stale" {
			status, args = fault.Stale, args[1:]
		}
		p.Answer(m, status, []byte(strings.Join(args, " ")))
	}
	return nil
}

// find returns the latest request with that id at an end.
func (s *stage) find(end string, id uint64) (m Message) {
	for _, r := range s.requests {
		if r.at == end && r.m.ID == id {
			m = r.m
		}
	}
	return m
}

// deliver hands packet number n over, as often as it is told to.
func (s *stage) deliver(n string) error {
	i, err := strconv.Atoi(n)
	if err != nil || i < 1 || i > len(s.wire) {
		return fmt.Errorf("no packet %q", n)
	}
	to := map[string]string{"g": "d", "d": "g"}[s.wire[i-1].from]
	if err := s.ends[to].Input(s.wire[i-1].b); err != nil {
		fmt.Fprintf(s.out, "error: %v\n", err)
	}
	s.ready(to)
	return nil
}

// ready writes down what a peer wants done.
func (s *stage) ready(end string) {
	r := s.ends[end].Ready()
	for _, b := range r.Send {
		m, err := Parse(b)
		if err != nil {
			fmt.Fprintf(s.out, "sends garbage: %v\n", err)
		}
		s.wire = append(s.wire, packetOn{end, b})
		fmt.Fprintf(s.out, "packet %d from %s: %s\n", len(s.wire), end, describe(m))
	}
	for _, m := range r.Requests {
		s.requests = append(s.requests, request{end, m})
		fmt.Fprintf(s.out, "%s is asked: %s\n", end, describe(m))
	}
	for _, m := range r.Replies {
		fmt.Fprintf(s.out, "%s has its answer: %s\n", end, describe(m))
	}
	if at, ok := s.ends[end].Deadline(); ok {
		fmt.Fprintf(s.out, "%s waits until %v\n", end, at.Sub(origin))
	}
}

func describe(m Message) string {
	s := fmt.Sprintf("%s %d floor %d boot %d election %d", m.Kind, m.ID, m.Floor, m.Sender, m.Election.Low)
	if m.Reply {
		s = fmt.Sprintf("%s %d reply (%s) boot %d election %d", m.Kind, m.ID, m.Status, m.Sender, m.Election.Low)
	}
	switch p := m.Part; {
	case p.Ack:
		return s + fmt.Sprintf(" has %d of %d", p.Offset, p.Total)
	case p != (Part{}):
		s += fmt.Sprintf(" [%d of %d, more %t]", p.Offset, p.Total, p.More)
	}
	return s + " " + string(m.Body)
}

func kindOf(name string) Kind {
	for k, n := range kindNames {
		if n == name {
			return k
		}
	}
	return 99
}
