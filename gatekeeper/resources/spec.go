package resources

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Limits of services.
const (
	MaxServiceName = 255 // bytes
	// MaxShare is how many nodes can share a service at most: the switch spreads calls by
	// the last byte of their ids.
	MaxShare = 256
)

// Spec is what `bifrost deploy app.yaml` asks for: programs that belong
// together, under one name. Programs start in the order given, as far as there
// is room for them.
type Spec struct {
	Name     string    `json:"name"`
	Programs []Program `json:"programs"`
}

// Program is one program of a deployment.
type Program struct {
	// Name is unique in the deployment.
	Name string `json:"name"`
	// Args is what to run; Args[0] is the program's file. Env is added to the
	// daemon's environment.
	Args []string          `json:"args"`
	Env  map[string]string `json:"env,omitempty"`
	// Binary is the SHA-256 of the program's file, in hexadecimal. A node runs a file with
	// that content only; "" takes what is there.
	Binary string `json:"binary,omitempty"`
	// Services are what the program exports once it has joined. A node counts
	// as ready when it exports all of them. A program without services only
	// calls.
	Services []ServiceSpec `json:"services,omitempty"`
	// Word is of methods for which nothing else is said; what it says nothing of is left to the IDL.
	Word
	// Nodes is how many nodes run the program; two of them share no blade if it
	// exports a service. At most 1 if a service is stateful.
	Nodes int `json:"nodes"`
	// Spares is on how many further blades room for one node is kept, for nodes
	// that have to move.
	Spares int `json:"spares,omitempty"`
	// Blades are the blades that may run it, the preferred first; empty for any
	// compute blade.
	Blades []string `json:"blades,omitempty"`
	// Job says that the program has an end: it is not started again after it
	// has left in an orderly way.
	Job bool `json:"job,omitempty"`
	// Liveness says when a node counts as hung.
	Liveness Liveness `json:"liveness,omitzero"`
}

// Liveness says when a program counts as hung: its daemon kills it then, and it is started
// again as after any failure. 0 stands for the default; a negative threshold is none.
type Liveness struct {
	// Answer is for how long it may leave its daemon unanswered; by default DefaultAnswer.
	Answer time.Duration `json:"answer,omitempty"`
	// Progress is for how long it may have calls waiting and take up none; by default for ever.
	Progress time.Duration `json:"progress,omitempty"`
	// Ready is how long after its start it must export all its services; by default for ever.
	Ready time.Duration `json:"ready,omitempty"`
}

// DefaultAnswer is Liveness.Answer unless it is given. Programs answer within milliseconds; a
// machine that is overloaded may take seconds.
const DefaultAnswer = 30 * time.Second

// least and most bound the thresholds.
const (
	leastThreshold = 100 * time.Millisecond
	mostThreshold  = 24 * time.Hour
)

// validate checks the thresholds.
func (l Liveness) validate(op, program string) error {
	for _, t := range []struct {
		name string
		at   time.Duration
	}{{"answer", l.Answer}, {"progress", l.Progress}, {"ready", l.Ready}} {
		if t.at > 0 && (t.at < leastThreshold || t.at > mostThreshold) {
			return fault.New(fault.BadRequest, op, "program %s: liveness %s of %v: must be %v to %v, or off", program, t.name, t.at, leastThreshold, mostThreshold)
		}
	}
	return nil
}

// WithDefaults returns the thresholds that count; 0 is none.
func (l Liveness) WithDefaults() Liveness {
	if l.Answer == 0 {
		l.Answer = DefaultAnswer
	}
	return Liveness{Answer: max(l.Answer, 0), Progress: max(l.Progress, 0), Ready: max(l.Ready, 0)}
}

// ServiceSpec is one service that a program exports.
type ServiceSpec struct {
	Name     string `json:"name"`
	Stateful bool   `json:"stateful,omitempty"`
	// Methods lists those of which something else is said than of the program's others.
	Methods []MethodSpec `json:"methods,omitempty"`
}

// MethodSpec is what is said of a method.
type MethodSpec struct {
	Name string `json:"name"`
	Word
}

// Limits of a deployment.
const (
	MaxName     = 64  // bytes of a name
	MaxPrograms = 100 // programs of a deployment
)

// Validate reports the first thing that is wrong with the specification, as a
// *fault.Error with code BadRequest.
func (s *Spec) Validate() error {
	if err := checkName("deployment", s.Name); err != nil {
		return err
	}
	if len(s.Programs) == 0 || len(s.Programs) > MaxPrograms {
		return fault.New(fault.BadRequest, "deploy "+s.Name, "%d programs: must be 1 to %d", len(s.Programs), MaxPrograms)
	}
	seen := map[string]bool{}
	for i := range s.Programs {
		p := &s.Programs[i]
		if seen[p.Name] {
			return fault.New(fault.BadRequest, "deploy "+s.Name, "two programs are called %q", p.Name)
		}
		seen[p.Name] = true
		if err := p.validate(s.Name); err != nil {
			return err
		}
	}
	return nil
}

func (p *Program) validate(app string) error {
	op := "deploy " + app
	if err := checkName("program", p.Name); err != nil {
		return err
	}
	switch {
	case len(p.Args) == 0 || p.Args[0] == "":
		return fault.New(fault.BadRequest, op, "program %s: nothing to run", p.Name)
	case p.Nodes < 0 || p.Nodes > MaxShare || p.Spares < 0 || p.Spares > MaxShare:
		return fault.New(fault.BadRequest, op, "program %s: %d nodes and %d spares: must be 0 to %d each", p.Name, p.Nodes, p.Spares, MaxShare)
	case p.Binary != "" && !isSHA256(p.Binary):
		return fault.New(fault.BadRequest, op, "program %s: binary %q is no SHA-256 in hexadecimal", p.Name, p.Binary)
	case p.Job && len(p.Services) > 0:
		return fault.New(fault.BadRequest, op, "program %s: a job cannot export services", p.Name)
	}
	if err := p.Validate(); err != nil {
		return err
	}
	if err := p.Liveness.validate(op, p.Name); err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, s := range p.Services {
		if seen[s.Name] {
			return fault.New(fault.BadRequest, op, "program %s: service %s is listed twice", p.Name, s.Name)
		}
		seen[s.Name] = true
		if s.Stateful && p.Nodes > 1 {
			return fault.New(fault.BadRequest, op, "program %s: %d nodes: service %s is stateful, so there can be one", p.Name, p.Nodes, s.Name)
		}
		if err := s.validate(op); err != nil {
			return err
		}
	}
	return nil
}

// isSHA256 reports whether a text is a SHA-256 as Program.Binary has it.
func isSHA256(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == sha256.Size && hex.EncodeToString(b) == s
}

func (s *ServiceSpec) validate(op string) error {
	if s.Name == "" {
		return fault.New(fault.BadRequest, op, "a service has no name")
	}
	for _, m := range s.Methods {
		if _, err := rpcpacket.MethodOf(m.Name); err != nil {
			return fault.New(fault.BadRequest, op, "service %s: %v", s.Name, err)
		}
		if err := m.Validate(); err != nil {
			return err
		}
	}
	return nil
}

// ParsePolicy reads a policy as rpcpacket.Policy writes it; "" means that none is given.
func ParsePolicy(s string) (p rpcpacket.Policy, given bool, err error) {
	if s == "" {
		return rpcpacket.PolicyNone, false, nil
	}
	p, known := rpcpacket.ParsePolicy(s)
	if !known {
		return rpcpacket.PolicyNone, false, fault.New(fault.BadRequest, "policy", "%q: must be none, recover, fate-share or tainted", s)
	}
	return p, true, nil
}

// checkName allows what fits paths, URLs and shell words.
func checkName(what, s string) error {
	ok := s != "" && len(s) <= MaxName && strings.IndexFunc(s, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("-_.", c)
	}) < 0
	if !ok {
		return fault.New(fault.BadRequest, what, "name %q: must be 1 to %d letters, digits, dashes, dots or underscores", s, MaxName)
	}
	return nil
}

// stateful reports whether the program exports a stateful service.
func (p *Program) stateful() bool {
	return slices.ContainsFunc(p.Services, func(s ServiceSpec) bool { return s.Stateful })
}

// moves reports whether a node of the program keeps its address when its blade is
// drained: nobody else can stand in for one that has state, or calls only.
func (p *Program) moves() bool { return len(p.Services) == 0 || p.stateful() }

// sameWork reports whether q runs the same as p: only numbers of nodes, blades
// and policies differ. A program whose content nobody has named is the same as any.
func (p *Program) sameWork(q *Program) bool {
	return p.sameCommand(q) && p.Job == q.Job && p.Liveness == q.Liveness &&
		(p.Binary == "" || q.Binary == "" || p.Binary == q.Binary) &&
		slices.EqualFunc(p.Services, q.Services, func(a, b ServiceSpec) bool { return a.Name == b.Name && a.Stateful == b.Stateful })
}

// sameCommand reports whether q is started as p is.
func (p *Program) sameCommand(q *Program) bool {
	return slices.Equal(p.Args, q.Args) && maps.Equal(p.Env, q.Env)
}

// word is what the specification says about a method.
func (p *Program) word(service, method string) (w Word) {
	for _, s := range p.Services {
		for _, m := range s.Methods {
			if s.Name == service && rpcpacket.PlainMethod(m.Name) == method {
				w = w.or(m.Word)
			}
		}
	}
	return w.or(p.Word)
}

// clone copies the specification, so that nobody shares it.
func (s *Spec) clone() Spec {
	c := Spec{Name: s.Name, Programs: slices.Clone(s.Programs)}
	for i := range c.Programs {
		p := &c.Programs[i]
		p.Args, p.Env, p.Blades = slices.Clone(p.Args), maps.Clone(p.Env), slices.Clone(p.Blades)
		p.Services = slices.Clone(p.Services)
		for j := range p.Services {
			p.Services[j].Methods = slices.Clone(p.Services[j].Methods)
		}
	}
	return c
}
