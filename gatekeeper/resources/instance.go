package resources

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// InstanceStatus is where an instance is in its life; see the package's drawing.
type InstanceStatus string

// The statuses.
const (
	Waiting  InstanceStatus = "waiting"  // for a blade, or for the end of a pause after a failure
	Starting InstanceStatus = "starting" // its blade was told to run it
	Running  InstanceStatus = "running"  // it has joined
	Ending   InstanceStatus = "ending"   // its node is being fenced
	Finished InstanceStatus = "finished" // a job that is done
)

// Instance is one node's worth of a deployed program.
type Instance struct {
	// Name is APP/PROGRAM/NUMBER, the name under which daemons know it.
	Name    string         `json:"name"`
	App     string         `json:"app"`
	Program string         `json:"program"`
	Number  int            `json:"number"`
	Status  InstanceStatus `json:"status"`
	// Blade is where it runs, or ran last.
	Blade string `json:"blade,omitempty"`
	// Node is its address while it has one.
	Node netip.Addr `json:"node,omitzero"`
	// Keep is what its next node takes over from the last one.
	Keep Keep `json:"keep,omitzero"`
	// Failures counts those in a row, Failure is the cause of the last one and Failed its time; Since is when Status
	// last changed; NotBefore is when it may be started again.
	Failures  int       `json:"failures,omitempty"`
	Failure   string    `json:"failure,omitempty"`
	Failed    time.Time `json:"failed,omitzero"`
	Since     time.Time `json:"since"`
	NotBefore time.Time `json:"not_before,omitzero"`
	// Begun: its daemon runs the program, which has not joined yet.
	Begun bool `json:"begun,omitempty"`
	// Retired: it is not wanted any more. Leaving: another one is to take its
	// place first, because its blade is being drained. Draining: since when it gets
	// no new calls, and finishes those that it has. Stopped: its daemon was told to
	// stop it.
	Retired  bool      `json:"retired,omitempty"`
	Leaving  bool      `json:"leaving,omitempty"`
	Draining time.Time `json:"emptying,omitzero"`
	Stopped  bool      `json:"stopped,omitempty"`
	// Renew: it is to be stopped when its turn comes, and started again.
	Renew bool `json:"renew,omitempty"`
	// Revision is what it runs, or ran last. Owes: its last node may not have finished its
	// calls, so the next one runs the same. Finishes: it is such a one, and not what is
	// wanted now. Tries counts the nodes that have ended so since the programs changed.
	// Paused: its node leaves before its durable main is over.
	Revision int  `json:"revision,omitempty"`
	Owes     bool `json:"owes,omitempty"`
	Tries    int  `json:"tries,omitempty"`
	Finishes bool `json:"finishes,omitempty"`
	Paused   bool `json:"paused,omitempty"`
	// Heir: what was started last is an heir (StartNode.Heir).
	Heir bool `json:"heir,omitempty"`
	// Worked: its node may have begun something that its next one has to finish (Registry.Began).
	Worked bool `json:"worked,omitempty"`
	// Args are added to those of a job's program (RunJob).
	Args []string `json:"args,omitempty"`
	// Done: a job has left in an orderly way.
	Done bool `json:"done,omitempty"`
	// Next is a blade on which room is kept for it while it is being stopped.
	Next string `json:"next,omitempty"`
	// Avoid is a blade that could not start it.
	Avoid string `json:"avoid,omitempty"`
	// NoRoom is since when no blade has room for it, or no other one if its own drains.
	NoRoom time.Time `json:"-"`

	// Deployments says these, and nobody else: Settled, it is what it is to be; Why, what it waits for; and since when it is
	// Blocked, which means that somebody has to help. Blocked is zero while it goes on by itself.
	Settled bool      `json:"-"`
	Why     string    `json:"-"`
	Blocked time.Time `json:"-"`
}

// Keep is the identity that a moved node takes along; zero for none.
type Keep struct {
	Address netip.Addr `json:"address,omitzero"`
	After   uint32     `json:"after,omitempty"` // the incarnation before
}

// deployment is an app and what has become of it. Removed ones go when their
// last instance has.
type deployment struct {
	Spec     Spec       `json:"spec"`
	Removed  bool       `json:"removed,omitempty"`
	Programs []*running `json:"programs"`
	// Revision grows with each change of what programs run. Former are revisions that
	// instances still run, and the one to which Rollback goes back. Proven: all nodes of this
	// one run and have been ready.
	Revision int        `json:"revision,omitempty"`
	Former   []Revision `json:"former,omitempty"`
	Proven   bool       `json:"proven,omitempty"`
	// Since is when it became the revision. Faults counts failures of nodes that run it until
	// it is proven, Faulty is the instance that failed last, with the cause. Back is why it is one
	// that was there before.
	Since  time.Time `json:"since,omitzero"`
	Faults int       `json:"faults,omitempty"`
	Faulty string    `json:"faulty,omitempty"`
	Back   string    `json:"back,omitempty"`
	// First is the instance that is the first to run the revision in the place of another one, "" if there is none yet. The
	// others have their turn when it has been Watched: it has been ready since FirstReady without trouble.
	First      string    `json:"first,omitempty"`
	FirstReady time.Time `json:"first_ready,omitzero"`
	Watched    bool      `json:"watched,omitempty"`
	// Unfit is why a program of the revision cannot go on, however often it is started: it cannot read the state.
	Unfit string `json:"unfit,omitempty"`
	// Kept is the version of the state that is kept of each service; Reads are the versions that the revision's programs read.
	Kept  map[string]string   `json:"kept,omitempty"`
	Reads map[string][]string `json:"reads,omitempty"`
}

// running is a program of a deployment: program i of the specification.
type running struct {
	app       *deployment
	spec      *Program
	Instances []*Instance `json:"instances,omitempty"`
	// Numbers are never used twice, so that a late join meets no namesake.
	LastNumber int `json:"last_number"`
	// Spares are the blades on which room is reserved.
	Spares []string `json:"spares,omitempty"`
	// Short is what was last reported as missing.
	Short [2]int `json:"short,omitzero"`
}

// add makes one more instance, which waits for a blade.
func (p *running) add(now time.Time) *Instance {
	p.LastNumber++
	i := &Instance{
		Name: p.name(p.LastNumber), App: p.app.Spec.Name, Program: p.spec.Name, Number: p.LastNumber,
		Status: Waiting, Since: now, Revision: p.app.Revision,
	}
	p.Instances = append(p.Instances, i)
	return i
}

func (p *running) name(number int) string {
	return fmt.Sprintf("%s/%s/%d", p.app.Spec.Name, p.spec.Name, number)
}

// instance finds an instance by its name, nil if there is none.
func (r *Registry) instance(name string) (*running, *Instance) {
	app, _, ok := strings.Cut(name, "/")
	a := r.apps[app]
	if !ok || a == nil {
		return nil, nil
	}
	for _, p := range a.Programs {
		for _, i := range p.Instances {
			if i.Name == name {
				return p, i
			}
		}
	}
	return nil, nil
}

// hosted reports whether the instance takes a place on its blade although it has
// no node there.
func (i *Instance) hosted() bool { return i.Status == Starting }

// wanted reports whether the instance counts towards the program's nodes.
func (i *Instance) wanted() bool { return !i.Retired && !i.Leaving }

// goesOn reports whether the instance is to have another node after this one.
func (i *Instance) goesOn() bool { return i.wanted() && !i.Done }

// empties reports whether the instance ends, or has another node, as soon as it has
// finished its calls.
func (i *Instance) empties() bool { return !i.Draining.IsZero() }

// owes reports whether an instance that is not wanted any more has to finish calls: if
// its node ends before, another one goes on with them. So does one whose blade drains while its successor finds no
// place. The next node of a deployment that was taken back is an heir.
func (p *running) owes(i *Instance) bool {
	if i.wanted() || !i.empties() && !i.Leaving {
		return false
	}
	return !p.app.Removed || i.Owes && i.Tries < attempts
}

// set changes the status.
func (i *Instance) set(s InstanceStatus, now time.Time) { i.Status, i.Since, i.Begun = s, now, false }

// How long an instance must have run for its former failures not to count: so many
// times as long as it paused before, but this long at least.
const (
	calmFactor = 4
	leastCalm  = time.Second
)

// maxCause bounds what is kept of the cause of a failure, in bytes.
const maxCause = 256

// failed notes that an instance failed by itself, and why, and waits until it may be
// started again. After it has run for much longer than it paused before, the count
// begins anew: what fails once in a while is started at once.
func (r *Registry) failed(i *Instance, cause string, now time.Time) {
	if i.Status == Running && now.Sub(i.Since) >= max(calmFactor*r.cfg.backoff(i.Failures), leastCalm) {
		i.Failures = 0
	}
	i.Failures++
	i.Failure, i.Failed = strings.ToValidUTF8(cause[:min(len(cause), maxCause)], ""), now
	r.faulty(i)
	r.emit(ProgramFailed{Instance: i.Name, Blade: i.Blade, Failures: i.Failures, Cause: i.Failure})
	i.NotBefore = now.Add(r.cfg.backoff(i.Failures))
}
