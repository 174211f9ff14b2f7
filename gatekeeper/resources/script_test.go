package resources

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/script"
)

// TestScripts runs testdata/*.txt. Options are words of the form key=value.
//
//	hello BLADE compute|memory capacity=2 [restarted]
//	used BLADE 100                a memory blade tells how many bytes are taken
//	lost BLADE                    it has failed
//	after 1s                      time passes
//	late 1s                       time passes, and nobody calls Tick; deadline: when it is due
//	join BLADE NAME; leave n1 [incarnation=1] [crashed]
//	ended n1 [incarnation=1] [keep]; emptied n1 [incarnation=1]
//	export n1 Service [incarnation=1]
//	announce n1 Service kept=v1 reads=v1,v2    the version of the state that is kept ("-" for none), and those that its program reads
//	up APP/PROGRAM/NUMBER…        an instance joins and exports what it should
//	crash APP/PROGRAM/NUMBER      its node crashes and is fenced, keeping its address
//	deploy APP PROGRAM nodes=1 [spares=1] [service=S!,T] [blades=a,b] [args=x] [policy=p] [job] [; PROGRAM …]
//	run APP/JOB [args=x,y]
//	renew APP; rollback APP; undeploy APP; startfailed INSTANCE BLADE
//	drain BLADE; fail BLADE; return BLADE
//	policy SERVICE METHOD [POLICY] [failures=n]; policies: also of methods S.m and T.m, whose nodes say tainted, and 5 failures
//	blades; nodes; apps
//	restart                       the Gatekeeper saves, loads, resumes
func TestScripts(t *testing.T) {
	script.Run(t, "testdata/*.txt", func() script.Command {
		cfg := DefaultConfig()
		e := exports{}
		r, err := New(cfg, e)
		if err != nil {
			t.Fatal(err)
		}
		return (&rack{r: r, exports: e, now: time.Unix(1000, 0).UTC()}).command
	})
}

// rack is the state of one script.
type rack struct {
	r       *Registry
	exports exports
	now     time.Time
	nodes   uint64 // numbers given out
	out     io.Writer
}

// exports is a Rack: what incarnations of nodes export.
type exports map[export]bool

type export struct {
	node        netip.Addr
	incarnation uint32
	service     string
}

func (e exports) Exports(node netip.Addr, incarnation uint32, service string) bool {
	return e[export{node, incarnation, service}]
}

// of lists what an incarnation of a node exports.
func (e exports) of(n Node) (services []string) {
	for x := range e {
		if x.node == n.Address && x.incarnation == n.Incarnation {
			services = append(services, x.service)
		}
	}
	slices.Sort(services)
	return services
}

func (k *rack) command(out io.Writer, words []string) error {
	k.out = out
	o := parseOptions(words[1:])
	for _, commands := range []func(string, options) (bool, error){k.bladeCommand, k.nodeCommand, k.appCommand, k.show} {
		if known, err := commands(words[0], o); known || err != nil {
			return err
		}
	}
	return fmt.Errorf("unknown command")
}

func (k *rack) bladeCommand(name string, o options) (bool, error) {
	switch name {
	case "hello":
		k.print(k.r.Hello(Hello{Blade: o.arg(0), Kind: Kind(o.arg(1)), Capacity: o.num("capacity", 0), Restarted: o.flag("restarted")}, k.now))
	case "used":
		bytes, err := strconv.ParseUint(o.arg(1), 10, 64)
		k.print(k.r.Used(o.arg(0), bytes), err)
	case "lost":
		k.print(k.r.Lost(o.arg(0), "silent", k.now), nil)
	case "after":
		return true, k.pass(o.arg(0))
	case "late":
		d, err := time.ParseDuration(o.arg(0))
		k.now = k.now.Add(d)
		return true, err
	case "deadline":
		if at, ok := k.r.Deadline(); ok {
			fmt.Fprintln(k.out, "due in", at.Sub(k.now))
		} else {
			fmt.Fprintln(k.out, "nothing is due")
		}
	case "drain":
		k.print(k.r.Drain(o.arg(0), "by operator", k.now))
	case "fail":
		k.print(k.r.MarkFailed(o.arg(0), "by operator", k.now))
	case "return":
		k.print(k.r.Return(o.arg(0), k.now))
	default:
		return false, nil
	}
	return true, nil
}

// pass lets time go by in steps of 50 ms.
func (k *rack) pass(text string) error {
	d, err := time.ParseDuration(text)
	for end := k.now.Add(d); k.now.Before(end); {
		k.now = k.now.Add(50 * time.Millisecond)
		k.print(k.r.Tick(k.now), nil)
	}
	return err
}

func (k *rack) nodeCommand(name string, o options) (bool, error) {
	switch name {
	case "join":
		k.join(o.arg(0), o.arg(1))
	case "leave":
		k.print(k.r.Leave(nodeOf(o.arg(0)), uint32(o.num("incarnation", 1)), o.flag("crashed"), "left", k.now), nil)
	case "ended":
		k.print(k.r.Ended(nodeOf(o.arg(0)), uint32(o.num("incarnation", 1)), o.flag("keep"), k.now), nil)
	case "emptied":
		k.print(k.r.Emptied(nodeOf(o.arg(0)), uint32(o.num("incarnation", 1)), k.now), nil)
	case "export":
		n := nodeOf(o.arg(0))
		k.export(n, uint32(o.num("incarnation", uint64(k.r.nodes[n].incarnation()))), o.arg(1))
	case "announce":
		kept := strings.Trim(o.text("kept", ""), "-")
		f := Form{Kept: &kept}
		for _, v := range o.list("reads") {
			f.Reads = append(f.Reads, strings.Trim(v, "-"))
		}
		actions, why := k.r.Announced(nodeOf(o.arg(0)), o.arg(1), f, k.now)
		if why != "" {
			fmt.Fprintln(k.out, "unreadable:", why)
		}
		k.print(actions, nil)
	case "up":
		for _, i := range o.args {
			k.up(i)
		}
	case "crash":
		_, i := k.r.instance(o.arg(0))
		n := *k.r.nodes[i.Node]
		k.print(k.r.Leave(n.Address, n.Incarnation, true, "crashed", k.now), nil)
		k.print(k.r.Ended(n.Address, n.Incarnation, true, k.now), nil)
	case "restart":
		return true, k.restart()
	default:
		return false, nil
	}
	return true, nil
}

// join has a program join, and shows the node that it is. The node is the zero Node if it
// was refused.
func (k *rack) join(blade, name string) Node {
	next := Node{Address: rackaddr.Node(k.nodes + 1), Incarnation: 1}
	if _, i := k.r.instance(name); i != nil {
		next.Incarnation += i.Keep.After // the first of another node has the same number here
	}
	n, actions, err := k.r.Join(blade, name, next, k.now)
	if err == nil {
		if n.Incarnation == 1 {
			k.nodes++
		}
		fmt.Fprintf(k.out, "node: %s.%d %s on %s\n", nodeText(n.Address), n.Incarnation, n.Name, n.Blade)
	}
	k.print(actions, err)
	return n
}

func (n *Node) incarnation() uint32 {
	if n == nil {
		return 0
	}
	return n.Incarnation
}

func (k *rack) up(instance string) {
	p, i := k.r.instance(instance)
	if i == nil {
		fmt.Fprintf(k.out, "no instance %s\n", instance)
		return
	}
	n := k.join(i.Blade, instance)
	if !n.Address.IsValid() {
		return
	}
	for _, s := range p.spec.Services {
		k.export(n.Address, n.Incarnation, s.Name)
	}
}

// export has a node export a service, if it may.
func (k *rack) export(node netip.Addr, incarnation uint32, service string) {
	if err := k.r.MayExport(node, incarnation, service); err != nil {
		k.print(nil, err)
		return
	}
	k.exports[export{node, incarnation, service}] = true
	k.r.Began(node)
	k.print(k.r.Exported(k.now), nil)
}

func (k *rack) restart() error {
	data, err := k.r.Save()
	if err != nil {
		return err
	}
	if k.r, err = Load(k.r.cfg, k.exports, data, k.now); err != nil {
		return err
	}
	again, err := k.r.Save()
	if err == nil && len(again) != len(data) {
		err = fmt.Errorf("saved again, %s became %s", data, again)
	}
	k.print(k.r.Resume(k.now), err)
	return nil
}

func (k *rack) appCommand(name string, o options) (bool, error) {
	switch name {
	case "deploy":
		s := Spec{Name: o.arg(0)}
		for _, words := range split(o.words[1:], ";") {
			s.Programs = append(s.Programs, programOf(parseOptions(words)))
		}
		k.print(k.r.Deploy(s, k.now))
	case "rollback":
		k.print(k.r.Rollback(o.arg(0), k.now))
	case "run":
		app, program, _ := strings.Cut(o.arg(0), "/")
		k.print(k.r.RunJob(app, program, o.list("args"), k.now))
	case "renew":
		k.print(k.r.Restart(o.arg(0), k.now))
	case "undeploy":
		k.print(k.r.Undeploy(o.arg(0), k.now))
	case "startfailed":
		k.print(k.r.StartFailed(o.arg(0), o.arg(1), "no such file", k.now), nil)
	case "policy":
		k.print(nil, k.r.SetPolicy(o.arg(0), o.arg(1), o.word(o.arg(2))))
	default:
		return false, nil
	}
	return true, nil
}

// word is what a policy and failures=n say.
func (o options) word(policy string) Word {
	w := Word{Policy: policy}
	if o.keys["failures"] != "" {
		w.MaxFailures = new(int(o.num("failures", 0)))
	}
	return w
}

func programOf(o options) Program {
	p := Program{
		Name: o.arg(0), Nodes: int(o.num("nodes", 1)), Spares: int(o.num("spares", 0)), Blades: o.list("blades"),
		Args: []string{o.text("args", o.arg(0))}, Binary: o.text("binary", ""), Word: o.word(o.text("policy", "")), Job: o.flag("job"),
	}
	for _, s := range o.list("service") {
		s, stateful := strings.CutSuffix(s, "!")
		p.Services = append(p.Services, ServiceSpec{Name: s, Stateful: stateful})
	}
	return p
}

func (k *rack) show(what string, _ options) (bool, error) {
	switch what {
	case "blades":
		for _, b := range k.r.Blades() {
			state := cmp.Or(string(b.Mark), "in service")
			if b.Down && b.Mark == "" {
				state = "lost"
			}
			if b.Kind == Compute {
				state += fmt.Sprintf(", %d of %d", k.r.hostedBy(b.Name), b.Capacity)
			}
			fmt.Fprintf(k.out, "%s: %s, %s%s\n", b.Name, b.Kind, state, because(b.Cause))
		}
	case "nodes":
		for _, n := range k.r.Nodes("") {
			fmt.Fprintf(k.out, "%s.%d %s on %s%s\n", nodeText(n.Address), n.Incarnation, n.Name, n.Blade, because(n.Cause))
		}
	case "policies":
		for _, p := range k.r.AllPolicies([]ExportedPolicy{{"S", "m", Word{Policy: "tainted"}}, {"T", "m", Word{MaxFailures: new(5)}}}) {
			fmt.Fprintf(k.out, "%s.%s: %s, by %s; %d failures, by %s\n", p.Service, p.Method, p.Policy, p.Origin, p.MaxFailures, p.FailuresOrigin)
		}
	case "apps":
		for _, d := range k.r.Deployments() {
			for _, i := range d.Instances {
				state := ""
				if i.empties() {
					state = ", draining"
				}
				if i.Failures > 0 {
					state += fmt.Sprintf(", failed %d times%s", i.Failures, because(i.Failure))
				}
				if i.Revision != d.Rollout.Revision {
					state += fmt.Sprintf(", revision %d", i.Revision)
				}
				if i.Why != "" {
					state += "; " + i.Why
				}
				if !i.Blocked.IsZero() {
					state += fmt.Sprintf("; blocked for %v", k.now.Sub(i.Blocked))
				}
				fmt.Fprintf(k.out, "%s: %s on %s%s\n", i.Name, i.Status, i.Blade, state)
			}
			if o := d.Rollout; o.Revision > 1 {
				fmt.Fprintf(k.out, "%s: revision %d, %d of %d ready, done %t, back to %d%s\n", d.Spec.Name, o.Revision, o.Ready, o.Nodes, o.Done, o.Former, because(o.Back))
			}
			if stuck := d.Rollout.Stuck; stuck != "" {
				fmt.Fprintf(k.out, "%s is stuck%s\n", d.Spec.Name, because(stuck))
			}
			for _, p := range d.Spec.Programs {
				if spares := d.Spares[p.Name]; len(spares) > 0 {
					fmt.Fprintf(k.out, "%s/%s: spares on %s\n", d.Spec.Name, p.Name, strings.Join(spares, ", "))
				}
			}
		}
	default:
		return false, nil
	}
	return true, nil
}
