package stf

import (
	"fmt"
	"math/big"
	"strings"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// object runs a command on a multicast group, clone session, register or
// counter.
func (r *Runner) object(verb string, words []string) error {
	name := ""
	if verb == "register_write" || verb == "register" || verb == "counter" || verb == "meter" {
		if len(words) == 0 {
			return fmt.Errorf("%s of what?", verb)
		}
		name, words = words[0], words[1:]
	}
	var n []uint64
	if verb == "counter" && len(words) == 2 && words[0] == "*" {
		return r.checkSum(name, words[1])
	}
	for _, w := range words {
		v, err := number(w)
		if err != nil {
			return err
		}
		n = append(n, v.Uint64())
	}
	need := map[string]int{"mc_mgrp_create": 1, "mc_node_create": 1, "counter": 2, "meter": 2}
	if want := max(need[verb], 1); len(n) < want || need[verb] == 0 && len(n) < 2 {
		return fmt.Errorf("%s with %d numbers", verb, len(n))
	}
	switch verb {
	case "mc_mgrp_create":
		return nil
	case "mc_node_create":
		return r.node(uint32(n[0]), n[1:])
	case "mc_node_associate":
		return r.associate(uint32(n[0]), n[1])
	case "mirroring_add":
		return r.sw.Clone(uint32(n[0]), []datapath.Replica{{Port: datapath.Port(n[1])}}, 0)
	case "mirroring_add_mc":
		r.sessions[uint32(n[0])] = uint32(n[1])
		return r.sw.Clone(uint32(n[0]), r.groups[uint32(n[1])], 0)
	case "register_write":
		return r.writeRegister(name, int(n[0]), n[1])
	case "register":
		return r.checkRegister(name, int(n[0]), n[1])
	case "meter":
		return r.meter(name, int(n[0]), n[1])
	}
	return r.checkCounter(name, int(n[0]), n[1:])
}

func (r *Runner) node(rid uint32, ports []uint64) error {
	var node []datapath.Replica
	for _, p := range ports {
		node = append(node, datapath.Replica{Port: datapath.Port(p), Instance: rid})
	}
	r.nodes = append(r.nodes, node)
	return nil
}

func (r *Runner) associate(group uint32, node uint64) error {
	if node >= uint64(len(r.nodes)) {
		return fmt.Errorf("no node %d", node)
	}
	r.groups[group] = append(r.groups[group], r.nodes[node]...)
	if err := r.sw.Multicast(group, r.groups[group]); err != nil {
		return err
	}
	for session, g := range r.sessions {
		if g == group {
			if err := r.sw.Clone(session, r.groups[group], 0); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *Runner) writeRegister(name string, index int, v uint64) error {
	for _, reg := range r.prog.Registers {
		if strings.HasSuffix(reg.Name, name) {
			value, _ := number(fmt.Sprint(v))
			return r.sw.SetRegister(reg.Name, index, fill(value, reg.Width))
		}
	}
	return fmt.Errorf("no register %q", name)
}

func (r *Runner) checkRegister(name string, index int, want uint64) error {
	for _, reg := range r.prog.Registers {
		if !strings.HasSuffix(reg.Name, name) {
			continue
		}
		b, err := r.sw.Register(reg.Name, index)
		if got := new(big.Int).SetBytes(b); err == nil && got.Cmp(new(big.Int).SetUint64(want)) != 0 {
			err = fmt.Errorf("register %s[%d] is %s, not %d", reg.Name, index, got, want)
		}
		return err
	}
	return fmt.Errorf("no register %q", name)
}

// checkCounter compares a cell's packets, and its bytes if they are given.
func (r *Runner) checkCounter(name string, index int, want []uint64) error {
	c, err := r.counter(name)
	if err != nil {
		return err
	}
	got, err := r.sw.Counter(c.Name, index)
	if err == nil && (got.Packets != want[0] || len(want) > 1 && got.Bytes != want[1]) {
		err = fmt.Errorf("counter %s[%d] is %+v, not %d", c.Name, index, got, want)
	}
	return err
}

// checkSum compares the packets of all cells together.
func (r *Runner) checkSum(name, packets string) error {
	want, err := number(packets)
	if err != nil {
		return err
	}
	c, err := r.counter(name)
	if err != nil {
		return err
	}
	var sum uint64
	for i := range c.Size {
		got, err := r.sw.Counter(c.Name, i)
		if err != nil {
			return err
		}
		sum += got.Packets
	}
	if sum != want.Uint64() {
		return fmt.Errorf("counter %s has %d packets, not %d", c.Name, sum, want)
	}
	return nil
}

func (r *Runner) counter(name string) (*v1model.Counter, error) {
	for _, c := range r.prog.Counters {
		if name != "" && strings.HasSuffix(c.Name, name) {
			return c, nil
		}
	}
	return nil, fmt.Errorf("no counter %q", name)
}

// meter makes a meter's cell find everything green (0), yellow (1) or red (2).
func (r *Runner) meter(name string, index int, colour uint64) error {
	const plenty = 1_000_000
	switch colour {
	case 0:
		return r.sw.Meter(name, index, nil)
	case 1:
		return r.sw.Meter(name, index, &datapath.MeterConfig{PIR: plenty, PBurst: plenty})
	case 2:
		return r.sw.Meter(name, index, &datapath.MeterConfig{})
	}
	return fmt.Errorf("meter %s: colour %d", name, colour)
}
