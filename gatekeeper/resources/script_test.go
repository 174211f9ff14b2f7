package resources

import (
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/internal/script"
	"github.com/bifrost-rack/bifrost/internal/frame"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// TestScripts runs testdata/*.txt. Options are words of the form key=value.
//
//	hello BLADE compute|memory port=1 capacity=2 [boot=1] [machine=1]
//	beat BLADE [boot=1] [used=0] [nodes=n1,n2]; beats: all blades in service
//	after 1s                      time passes, in heartbeats of all blades in service
//	silence 1s                    time passes, and no blade reports
//	late 1s                       time passes, and nobody calls Tick; deadline: when it is due
//	join BLADE NAME [token=1]; leave n1 [incarnation=1] [crashed]
//	ended n1 [incarnation=1] [keep]; emptied n1 [incarnation=1]
//	export n1 Service[!] method…  ! is stateful
//	up APP/PROGRAM/NUMBER…        an instance joins and exports what it should
//	crash APP/PROGRAM/NUMBER      its node crashes and is fenced, keeping its address
//	deploy APP PROGRAM nodes=1 [spares=1] [service=S!,T] [blades=a,b] [args=x] [policy=p] [job] [; PROGRAM …]
//	renew APP; rollback APP; undeploy APP; startfailed INSTANCE BLADE
//	drain BLADE; fail BLADE; return BLADE; remove BLADE; unplug PORT
//	policy SERVICE METHOD [POLICY]; target SERVICE METHOD SPREAD
//	blades; nodes; services; apps; memories
//	restart                       the Gatekeeper saves, loads, resumes
func TestScripts(t *testing.T) {
	script.Run(t, "testdata/*.txt", func() script.Command {
		cfg := DefaultConfig()
		r, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return (&rack{r: r, now: time.Unix(1000, 0).UTC(), tokens: 100}).command
	})
}

// rack is the state of one script.
type rack struct {
	r      *Registry
	now    time.Time
	tokens uint64
	out    io.Writer
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
		_, actions, err := k.r.Hello(Hello{
			Blade: o.arg(0), Kind: Kind(o.arg(1)), MAC: frame.MAC{2, 5: byte(o.num("port", 0))}, Machine: Machine(o.num("machine", 0)),
			Capacity: o.num("capacity", 0), Boot: o.num("boot", 1),
		}, Port(o.num("port", 0)), k.now)
		k.print(actions, err)
	case "beat":
		var nodes []netip.Addr
		for _, n := range o.list("nodes") {
			nodes = append(nodes, nodeOf(n))
		}
		known, actions := k.r.Heartbeat(o.arg(0), o.num("boot", 1), o.num("used", 0), nodes, k.now)
		if !known {
			fmt.Fprintln(k.out, "unknown: say hello")
		}
		k.print(actions, nil)
	case "after", "silence":
		return true, k.pass(o.arg(0), name == "after")
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
	case "remove":
		k.print(k.r.Remove(o.arg(0), k.now))
	case "unplug":
		port, err := strconv.Atoi(o.arg(0))
		k.print(k.r.Unplugged(Port(port), k.now), err)
	default:
		return false, nil
	}
	return true, nil
}

// pass lets time go by in steps of half a heartbeat.
func (k *rack) pass(text string, beats bool) error {
	d, err := time.ParseDuration(text)
	for end := k.now.Add(d); k.now.Before(end); {
		k.now = k.now.Add(50 * time.Millisecond)
		for _, b := range k.r.Blades() {
			if beats && b.Status != Failed {
				k.r.Heartbeat(b.Name, b.Boot, b.Used, nil, k.now)
			}
		}
		k.print(k.r.Tick(k.now), nil)
	}
	return err
}

func (k *rack) nodeCommand(name string, o options) (bool, error) {
	switch name {
	case "join":
		k.tokens++
		_, actions, err := k.r.Join(o.arg(0), o.arg(1), o.num("token", k.tokens), k.now)
		k.print(actions, err)
	case "leave":
		k.print(k.r.Leave(nodeOf(o.arg(0)), uint32(o.num("incarnation", 1)), o.flag("crashed"), "left", k.now), nil)
	case "ended":
		k.print(k.r.Ended(nodeOf(o.arg(0)), uint32(o.num("incarnation", 1)), o.flag("keep"), k.now), nil)
	case "emptied":
		k.print(k.r.Emptied(nodeOf(o.arg(0)), uint32(o.num("incarnation", 1)), k.now), nil)
	case "export":
		var methods []Method
		for _, m := range o.args[2:] {
			m, oneway := strings.CutSuffix(m, "/oneway")
			methods = append(methods, Method{Name: m, Oneway: oneway})
		}
		service, stateful := strings.CutSuffix(o.arg(1), "!")
		n := nodeOf(o.arg(0))
		k.print(k.r.Export(n, uint32(o.num("incarnation", uint64(k.r.nodes[n].incarnation()))), service, stateful, methods, k.now))
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
	k.tokens++
	n, actions, err := k.r.Join(i.Blade, instance, k.tokens, k.now)
	k.print(actions, err)
	if err != nil {
		return
	}
	for _, s := range p.spec.Services {
		k.print(k.r.Export(n.Address, n.Incarnation, s.Name, s.Stateful, []Method{{Name: "run"}}, k.now))
	}
}

func (k *rack) restart() error {
	data, err := k.r.Save()
	if err != nil {
		return err
	}
	if k.r, err = Load(k.r.cfg, data, k.now); err != nil {
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
	case "renew":
		k.print(k.r.Restart(o.arg(0), k.now))
	case "undeploy":
		k.print(k.r.Undeploy(o.arg(0), k.now))
	case "startfailed":
		k.print(k.r.StartFailed(o.arg(0), o.arg(1), k.now), nil)
	case "policy":
		k.print(nil, k.r.SetPolicy(o.arg(0), o.arg(1), o.arg(2)))
	case "target":
		m, err := rpcpacket.MethodOf(o.arg(1))
		if err != nil {
			return true, err
		}
		spread, err := strconv.Atoi(o.arg(2))
		if err != nil {
			return true, err
		}
		to, err := k.r.Target(ServiceHash(o.arg(0)), m, uint8(spread))
		k.print(nil, err)
		if err == nil {
			fmt.Fprintf(k.out, "%s serves %s.%s, policy %s, stateful %t, one-way %t\n",
				nodeText(to.Node.Address), to.Service, to.Method, to.Policy, to.Stateful, to.Oneway)
		}
	default:
		return false, nil
	}
	return true, nil
}

func programOf(o options) Program {
	p := Program{
		Name: o.arg(0), Nodes: int(o.num("nodes", 1)), Spares: int(o.num("spares", 0)), Blades: o.list("blades"),
		Args: []string{o.text("args", o.arg(0))}, Binary: o.text("binary", ""), Policy: o.text("policy", ""), Job: o.flag("job"),
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
			fmt.Fprintf(k.out, "%s: %s %s, %d of %d%s\n", b.Name, b.Kind, b.Status, b.Used, b.Capacity, because(b.Cause))
		}
	case "memories":
		for _, b := range k.r.Memories() {
			fmt.Fprintf(k.out, "machine %d: %s, %d bytes free\n", b.Machine, b.Name, b.Free())
		}
	case "nodes":
		for _, n := range k.r.Nodes("") {
			fmt.Fprintf(k.out, "%s.%d %s on %s, hop %d%s\n", nodeText(n.Address), n.Incarnation, n.Name, n.Blade, n.Hop, because(n.Cause))
		}
	case "services":
		for _, s := range k.r.Services() {
			for _, m := range s.Methods {
				fmt.Fprintf(k.out, "%s.%s, policy %s: %s\n", s.Name, m.Name, m.Policy, prefixText(m.Routes))
			}
		}
	case "apps":
		for _, d := range k.r.Deployments() {
			for _, i := range d.Instances {
				state := ""
				if i.empties() {
					state = ", draining"
				}
				if i.Revision != d.Rollout.Revision {
					state += fmt.Sprintf(", revision %d", i.Revision)
				}
				fmt.Fprintf(k.out, "%s: %s on %s%s\n", i.Name, i.Status, i.Blade, state)
			}
			if o := d.Rollout; o.Revision > 1 {
				fmt.Fprintf(k.out, "%s: revision %d, %d of %d ready, done %t, back to %d%s\n", d.Spec.Name, o.Revision, o.Ready, o.Nodes, o.Done, o.Former, because(o.Back))
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
