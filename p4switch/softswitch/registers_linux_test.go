package softswitch

import (
	"bytes"
	"context"
	"math/big"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/internal/sample"
	"github.com/bifrost-rack/bifrost/p4switch/p4rt"
	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

// Registers of the program that some tests use: regions' words, and the first and the last cell of calls.
var someCells = []struct {
	register string
	index    int64
}{{"words", 70_000}, {"state", 1}, {"calls", 0}, {"calls", 1<<16 - 1}}

// cellOf is a register's cell as P4Runtime names it.
func (r *rack) cellOf(register string, index int64) *p4v1.RegisterEntry {
	r.t.Helper()
	for _, x := range r.info.Registers {
		if x.Name == r.prefix+register {
			return &p4v1.RegisterEntry{RegisterId: x.ID, Index: &p4v1.Index{Index: index}}
		}
	}
	r.t.Fatalf("no register %q", register)
	return nil
}

// setCells writes a value, and those that follow, into someCells.
func (r *rack) setCells(value byte) {
	r.t.Helper()
	for i, c := range someCells {
		e := r.cellOf(c.register, c.index)
		e.Data = &p4v1.P4Data{Data: &p4v1.P4Data_Bitstring{Bitstring: []byte{value + byte(i)}}}
		r.write(p4v1.Update_MODIFY, &p4v1.Entity{Entity: &p4v1.Entity_RegisterEntry{RegisterEntry: e}})
	}
}

// haveCells expects what setCells has written; all are 0 if value is.
func (r *rack) haveCells(when string, value byte) {
	r.t.Helper()
	for i, c := range someCells {
		q, err := r.client.Read(context.Background(), &p4v1.ReadRequest{DeviceId: testDevice, Entities: []*p4v1.Entity{
			{Entity: &p4v1.Entity_RegisterEntry{RegisterEntry: r.cellOf(c.register, c.index)}},
		}})
		var m *p4v1.ReadResponse
		if err == nil {
			m, err = q.Recv()
		}
		want := int64(value) + int64(i)
		if value == 0 {
			want = 0
		}
		if got := new(big.Int).SetBytes(m.GetEntities()[0].GetRegisterEntry().GetData().GetBitstring()); err != nil || got.Int64() != want {
			r.t.Errorf("%s: %s[%d] is %v, want %d, %v", when, c.register, c.index, got, want, err)
		}
	}
}

// update sets a program, with our extension if keep is set.
func (r *rack) update(action p4v1.SetForwardingPipelineConfigRequest_Action, keep bool, config *p4v1.ForwardingPipelineConfig) {
	r.t.Helper()
	ctx := context.Background()
	if keep {
		ctx = metadata.AppendToOutgoingContext(ctx, p4rt.KeepRegisters, "yes")
	}
	if _, err := r.client.SetForwardingPipelineConfig(ctx, &p4v1.SetForwardingPipelineConfigRequest{
		DeviceId: testDevice, ElectionId: electionID, Action: action, Config: config,
	}); err != nil {
		r.t.Fatal(err)
	}
}

const (
	anew      = p4v1.SetForwardingPipelineConfigRequest_VERIFY_AND_COMMIT
	reconcile = p4v1.SetForwardingPipelineConfigRequest_RECONCILE_AND_COMMIT
)

// otherRegisters is the sample program, but that words are wider.
func otherRegisters(t *testing.T, config *p4v1.ForwardingPipelineConfig) *p4v1.ForwardingPipelineConfig {
	t.Helper()
	c := proto.CloneOf(config)
	c.P4DeviceConfig = bytes.Replace(c.P4DeviceConfig, []byte(`"bitwidth" : 54`), []byte(`"bitwidth" : 55`), 1)
	if bytes.Equal(c.P4DeviceConfig, config.P4DeviceConfig) {
		t.Fatal("nothing was changed")
	}
	for _, x := range c.P4Info.Registers {
		if x.Preamble.Name == "SampleIngress.words" {
			x.TypeSpec.TypeSpec.(*configv1.P4DataTypeSpec_Bitstring).Bitstring.GetBit().Bitwidth = 55
		}
	}
	return c
}

// Registers outlive an update of the program, if it has the same ones, by a reconciliation and by our extension of VERIFY_AND_COMMIT. That alone clears
// them, and so does a program that has others. Entries outlive the reconciliation only.
func TestRegisters_OutliveAnUpdate(t *testing.T) {
	for name, load := range map[string]Loader{"go": LoadGo, "ebpf": LoadEBPF} {
		t.Run(name, func(t *testing.T) {
			if name == "ebpf" {
				needRoot(t)
			}
			r := newSwitchOn(t, load, sample.JSON, sample.Info, sample.Prefix)
			config := r.config.GetConfig()
			entry := r.entry("next_hop", "forward", [][]byte{{0, 1}, make([]byte, 6), make([]byte, 6)}, datapath.Match{Value: []byte{0, 1}})
			r.setCells(40)
			r.write(p4v1.Update_INSERT, entry)
			r.update(reconcile, false, config)
			r.haveCells("reconciled", 40)
			r.write(p4v1.Update_DELETE, entry)
			r.write(p4v1.Update_INSERT, entry)
			r.setCells(50) // the new executor's
			r.update(anew, true, config)
			r.haveCells("with our extension", 50)
			r.write(p4v1.Update_INSERT, entry) // it has gone
			r.update(anew, false, config)
			r.haveCells("as P4Runtime has it", 0)
			r.setCells(60)
			other := otherRegisters(t, config)
			r.update(anew, true, other)
			r.haveCells("of a program with other registers", 0)
			r.setCells(70)
			r.update(reconcile, false, other)
			r.haveCells("reconciled again", 70)
		})
	}
}

// What packets write while the next program is being loaded, which takes a while, is there when it is committed.
func TestRegisters_WrittenMeanwhile(t *testing.T) {
	for name, load := range map[string]Loader{"go": LoadGo, "ebpf": LoadEBPF} {
		t.Run(name, func(t *testing.T) {
			if name == "ebpf" {
				needRoot(t)
			}
			var r *rack
			meanwhile := func(deviceConfig []byte, env Env) (Executor, error) {
				x, err := load(deviceConfig, env)
				if e := env.Former; e != nil && err == nil {
					err = e.SetRegister("SampleIngress.words", 70_000, []byte{0, 0, 0, 0, 0, 0, 80})
				}
				return x, err
			}
			r = newSwitchOn(t, meanwhile, sample.JSON, sample.Info, sample.Prefix)
			r.setCells(60)
			r.update(reconcile, false, r.config.GetConfig())
			if b, err := r.sw.Register("SampleIngress.words", 70_000); err != nil || b[6] != 80 {
				t.Errorf("the register is %x, %v", b, err)
			}
		})
	}
}

// A machine's registers outlive its switches, and are empty when it is lost.
func TestRegisters_OutliveTheSwitch(t *testing.T) {
	machine := new(Registers)
	r := newSwitchWith(t, Config{Registers: machine}, sample.JSON, sample.Info, sample.Prefix)
	r.setCells(30)
	if err := r.sw.Close(); err != nil {
		t.Fatal(err)
	}
	restart := func(when string, value byte) {
		t.Helper()
		sw, err := New(Config{DeviceID: testDevice, CPUPort: sample.CPUPort, Registers: machine})
		if err != nil {
			t.Fatal(err)
		}
		if err := sw.Server().LoadConfig(r.config.GetConfig()); err != nil { // keeps registers
			t.Fatal(err)
		}
		if b, err := sw.Register("SampleIngress.words", 70_000); err != nil || b[len(b)-1] != value {
			t.Errorf("%s: the register is %x, %v, want %d", when, b, err, value)
		}
		if err := sw.Close(); err != nil {
			t.Fatal(err)
		}
	}
	restart("after the switch has ended", 30)
	restart("once more", 30)
	machine.Lose()
	restart("after the machine was lost", 0)
}
