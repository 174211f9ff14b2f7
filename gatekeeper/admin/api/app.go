package api

import (
	"net/netip"
	"time"
)

// App is a deployment: programs that belong together, and what has become of them.
type App struct {
	Name      string              `json:"name" example:"shop"`
	Programs  []Program           `json:"programs" doc:"What is wanted"`
	State     string              `json:"state" enum:"stuck,rolled back,blocked,well" doc:"stuck: its programs fail again and again, and there is nothing to go back to; rolled back: what it was to be last has failed, and it is what it was before; blocked: an instance needs somebody's help"`
	Removed   bool                `json:"removed,omitempty" doc:"It is being undeployed"`
	Instances []Instance          `json:"instances" doc:"What there is"`
	Spares    map[string][]string `json:"spares,omitempty" doc:"Blades on which room is kept, by program"`
	Rollout   *Rollout            `json:"rollout,omitempty" doc:"How far the last change of what its programs run is"`
}

// Rollout tells how far a change of a deployment's programs is. Its nodes are started again
// with the new programs, one of each program after the other, when they have finished their
// calls.
type Rollout struct {
	Revision int       `json:"revision" doc:"Grows with each change of what the programs run" example:"2"`
	Former   int       `json:"former,omitempty" doc:"The revision to which a rollback goes back; absent if there is none"`
	Done     bool      `json:"done" doc:"All nodes run this revision and have been ready"`
	Ready    int       `json:"ready" doc:"How many nodes run it and are ready"`
	Nodes    int       `json:"nodes" doc:"How many are to"`
	Since    time.Time `json:"since" doc:"When the programs changed"`
	Back     string    `json:"back,omitempty" doc:"Why the programs of a former revision came back; absent if they are new"`
	First    string    `json:"first,omitempty" doc:"The instance that is the first to run it; the others have their turn when it has been ready for a while. Absent when that is over" example:"shop/arrays/1"`
	Until    time.Time `json:"until,omitzero" doc:"Until when the first one is watched, if it stays ready"`
	Stuck    string    `json:"stuck,omitempty" doc:"Why nodes do not become ready: they fail again and again, and there is no former revision to go back to. They are started again all the same"`
}

// AppSpec is what a deployment is to be.
type AppSpec struct {
	_        struct{}  `additionalProperties:"false"`
	Programs []Program `json:"programs" minItems:"1" maxItems:"100" doc:"They start in this order"`
}

// Program is one program of a deployment.
type Program struct {
	_           struct{}          `additionalProperties:"false"`
	Name        string            `json:"name" maxLength:"64" doc:"Unique in the deployment" example:"arrays"`
	Args        []string          `json:"args" minItems:"1" doc:"What to run; the first is a path, or a name on the PATH of the blades' daemons"`
	Env         map[string]string `json:"env,omitempty" doc:"Added to the daemon's environment; values are hidden from tokens that may not deploy"`
	Binary      string            `json:"binary,omitempty" pattern:"^[0-9a-f]{64}$" doc:"SHA-256 of the program's file: nodes run that content only, which blades keep when they have run it; any if absent"`
	Services    []ProgramService  `json:"services,omitempty" doc:"What it exports; a node is ready when it exports all of them"`
	Policy      string            `json:"policy,omitempty" enum:"none,recover,fate-share,tainted" doc:"Of methods for which nothing else is said; the IDL's if absent"`
	MaxFailures *int              `json:"max_failures,omitempty" minimum:"0" maximum:"1000000" doc:"Of methods of which nothing else is said: after how many ends of its program an exactly-once call is given up; 0: never; the IDL's if absent"`
	Nodes       int               `json:"nodes" minimum:"0" maximum:"256" doc:"How many nodes run it; those that export a service are on blades of their own"`
	Spares      int               `json:"spares,omitempty" minimum:"0" maximum:"256" doc:"On how many further blades room for one node is kept"`
	Blades      []string          `json:"blades,omitempty" doc:"Which blades may run it; any compute blade if absent"`
	Liveness    *Liveness         `json:"liveness,omitempty" doc:"When it counts as hung; the defaults if absent"`
	Job         bool              `json:"job,omitempty" doc:"It has an end: it is not started again after it has ended well"`
}

// Liveness says when a program counts as hung: it is killed then and started again, as after
// any failure. In all thresholds 0 stands for the default, and a negative one is none.
type Liveness struct {
	_        struct{} `additionalProperties:"false"`
	Answer   float64  `json:"answer,omitempty" doc:"For how many seconds it may leave its daemon's questions unanswered; 30 by default" example:"5"`
	Progress float64  `json:"progress,omitempty" doc:"For how many seconds it may have calls waiting and take up none; no threshold by default"`
	Ready    float64  `json:"ready,omitempty" doc:"How many seconds after its start it must export all its services; no threshold by default"`
}

// ProgramService is a service that a program exports.
type ProgramService struct {
	_        struct{}       `additionalProperties:"false"`
	Name     string         `json:"name" example:"Arrays"`
	Stateful bool           `json:"stateful,omitempty" doc:"It runs one call at a time, on one node"`
	Methods  []MethodPolicy `json:"methods,omitempty" doc:"Methods of which something else is said than of the program's others"`
}

// MethodPolicy is the policy of a method.
type MethodPolicy struct {
	_           struct{} `additionalProperties:"false"`
	Name        string   `json:"name"`
	Policy      string   `json:"policy,omitempty" enum:"none,recover,fate-share,tainted"`
	MaxFailures *int     `json:"max_failures,omitempty" minimum:"0" maximum:"1000000" doc:"After how many ends of its program a call is given up; 0: never"`
}

// Instance is one node's worth of a program.
type Instance struct {
	Name     string     `json:"name" doc:"APP/PROGRAM/NUMBER" example:"shop/arrays/1"`
	Program  string     `json:"program"`
	Status   string     `json:"status" enum:"waiting,starting,running,draining,ending,finished" doc:"waiting: for a blade, or after a failure; starting: its blade runs it; running: it has joined; draining: it finishes its calls, gets no others, and is stopped then; ending: its node is being fenced; finished: a job that is done"`
	Since    time.Time  `json:"since" doc:"When the status last changed"`
	Blade    string     `json:"blade,omitempty" doc:"Where it runs, or ran last"`
	Node     netip.Addr `json:"node,omitzero" format:"ipv6" doc:"Its address while it has one"`
	Failures int        `json:"failures,omitempty" doc:"How often it has failed in a row"`
	Failure  string     `json:"failure,omitempty" doc:"Why it has failed last" example:"program shop/arrays/1 has ended: exit status 1"`
	Failed   time.Time  `json:"failed,omitzero" doc:"When it has failed last"`
	Settled  bool       `json:"settled" doc:"It is what it is to be: it runs what the deployment says and serves; or it is a job that runs or is done"`
	Why      string     `json:"why,omitempty" doc:"What it waits for" example:"no blade has room for it: c1 is draining"`
	Blocked  time.Time  `json:"blocked,omitzero" doc:"Since when it does not go on by itself: somebody has to help; why says how"`
	Revision int        `json:"revision,omitempty" doc:"Which revision of its program it runs, or ran last"`
}

// Policy says what becomes of calls of a method when a node fails. Without a
// method it is for all methods of the service of which there is no other.
type Policy struct {
	Service        string `json:"service" example:"Arrays"`
	Method         string `json:"method,omitempty" doc:"Absent: all methods of the service of which nothing else is said" example:"addRef"`
	Policy         string `json:"policy" enum:"none,recover,fate-share,tainted" doc:"none: at most once; recover: exactly once, what a failure cut off runs again; fate-share: the other side's unfinished execution is taken back, too; tainted: so are all unfinished descendants"`
	Origin         string `json:"origin" enum:"operator,deployment,service,default" doc:"Who says so. What a caller asks for goes before service and default, and is not known here"`
	MaxFailures    int    `json:"max_failures" doc:"After how many ends of its program an exactly-once call is given up; 0: never"`
	FailuresOrigin string `json:"max_failures_origin" enum:"operator,deployment,service,default" doc:"Who says that"`
}

// SetPolicy is what an operator says of a method. What is absent stays as it is.
type SetPolicy struct {
	_           struct{} `additionalProperties:"false"`
	Policy      string   `json:"policy,omitempty" enum:"none,recover,fate-share,tainted" doc:"It holds for calls that are sent from when their nodes know, within a heartbeat"`
	MaxFailures *int     `json:"max_failures,omitempty" minimum:"0" maximum:"1000000" doc:"After how many ends of its program an exactly-once call is given up; 0: never"`
}

// Cause says why somebody does something to the rack, for people.
type Cause struct {
	_     struct{} `additionalProperties:"false"`
	Cause string   `json:"cause,omitempty" maxLength:"200" doc:"Why, for people; it is shown with the blade and in events" example:"new fans"`
}

// JobArgs are what a job is run with.
type JobArgs struct {
	_    struct{} `additionalProperties:"false"`
	Args []string `json:"args,omitempty" maxItems:"256" doc:"Behind the arguments of its program" example:"[\"--month\",\"5\"]"`
}

// Reconciled is what reading the switch's tables back has led to.
type Reconciled struct {
	Repaired int `json:"repaired" doc:"Entries that were wrong, missing or not wanted, and are right now"`
}

// MirrorOnto names the blade that is to hold a machine's second copy.
type MirrorOnto struct {
	Onto string `json:"onto" minLength:"1" maxLength:"255" doc:"A memory blade that serves nothing" example:"m2"`
}

// Logs is a part of what programs have printed, in the order of the times.
type Logs struct {
	Items   []LogLine         `json:"items"`
	Next    string            `json:"next" doc:"Where to go on, as cursor; also when there is nothing more yet"`
	More    bool              `json:"more,omitempty" doc:"There are further lines already"`
	Silent  map[string]string `json:"silent,omitempty" doc:"Blades that have not answered, with the reason: their lines are missing"`
	Dropped uint64            `json:"dropped,omitempty" doc:"How many lines the blades could not keep, for want of room on their disks"`
}

// LogLine is one line that a program has printed.
type LogLine struct {
	Time    time.Time `json:"time" doc:"When, by the blade's clock"`
	Blade   string    `json:"blade" example:"s2"`
	Program string    `json:"program" doc:"The instance" example:"shop/arrays/1"`
	Text    string    `json:"text"`
}
