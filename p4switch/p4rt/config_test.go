package p4rt

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

const (
	verify    = p4v1.SetForwardingPipelineConfigRequest_VERIFY
	save      = p4v1.SetForwardingPipelineConfigRequest_VERIFY_AND_SAVE
	verifyNow = p4v1.SetForwardingPipelineConfigRequest_VERIFY_AND_COMMIT
	commit    = p4v1.SetForwardingPipelineConfigRequest_COMMIT
	reconcile = p4v1.SetForwardingPipelineConfigRequest_RECONCILE_AND_COMMIT
)

func config(t *testing.T, cookie uint64) *p4v1.ForwardingPipelineConfig {
	return &p4v1.ForwardingPipelineConfig{
		P4Info: testInfo(t), P4DeviceConfig: []byte("{}"), Cookie: &p4v1.ForwardingPipelineConfig_Cookie{Cookie: cookie},
	}
}

// primary runs a test with a primary and no pipeline.
func withPrimary(t *testing.T, f func(*bench, *controller)) {
	t.Helper()
	virtual(t, func(b *bench) {
		c := b.dial()
		c.mustBePrimary(1)
		f(b, c)
	})
}

func (f *fake) isClosed() bool {
	defer f.lock()()
	return f.closed
}

func TestSection14_Verify(t *testing.T) {
	withPrimary(t, func(b *bench, c *controller) {
		if err := c.config(verify, config(t, 1)); err != nil {
			t.Fatal(err)
		}
		if !b.fakes.last(t).isClosed() {
			t.Error("what was only verified is still there")
		}
		if err := c.write(c.insert(exact1)); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("a write after VERIFY: %v", err)
		}
	})
}

func TestSection14_SaveThenCommit(t *testing.T) {
	configured(t, func(b *bench, c *controller) {
		old := b.fakes.last(t)
		c.must(c.insert(exact1))
		if err := c.config(save, config(t, 2)); err != nil {
			t.Fatal(err)
		}
		saved := b.fakes.last(t)
		c.expect(`table_entry { table_id: 0x02000001 }`) // reads refer to the new config
		c.must(c.insert(lpm1))
		if len(saved.entries) != 1 || len(old.entries) != 1 {
			t.Error("a write after SAVE has not gone to the saved config alone")
		}
		// Packets run through the old one until COMMIT.
		c.send(packetOut(t, `metadata { metadata_id: 1 value: "\x01" } metadata { metadata_id: 2 value: "\x00" } metadata { metadata_id: 3 value: "\x00" }`))
		c.silent()
		if len(old.outs) != 1 || len(saved.outs) != 0 {
			t.Error("the packet has not run through the committed program")
		}
		if err := c.config(commit, config(t, 2)); status.Code(err) != codes.InvalidArgument {
			t.Errorf("COMMIT with a config: %v", err)
		}
		if err := c.config(commit, nil); err != nil {
			t.Fatal(err)
		}
		c.expect(`table_entry { table_id: 0x02000002 }`, lpm1)
		if !old.isClosed() || saved.isClosed() {
			t.Error("not the old one has been closed")
		}
		if err := c.config(commit, nil); status.Code(err) != codes.NotFound {
			t.Errorf("COMMIT of nothing: %v", err)
		}
	})
}

func TestSection14_SaveTwice(t *testing.T) {
	configured(t, func(b *bench, c *controller) {
		for range 2 {
			if err := c.config(save, config(t, 2)); err != nil {
				t.Fatal(err)
			}
		}
		if all := b.fakes.all; all[0].isClosed() || !all[1].isClosed() || all[2].isClosed() {
			t.Error("the one that was saved and replaced must be closed, it alone")
		}
	})
}

func TestSection14_CommitClearsTheState(t *testing.T) {
	configured(t, func(b *bench, c *controller) {
		c.populate()
		c.commit(testInfo(t))
		c.expect(`table_entry { table_id: 0x02000001 }`)
		c.expect(`digest_entry {}`)
		if !b.fakes.all[0].isClosed() {
			t.Error("the old one is not closed")
		}
	})
}

func TestSection14_Errors(t *testing.T) {
	withPrimary(t, func(b *bench, c *controller) {
		bad := func(change func(*configv1.P4Info)) *p4v1.ForwardingPipelineConfig {
			cfg := config(t, 1)
			change(cfg.P4Info)
			return cfg
		}
		for name, cfg := range map[string]*p4v1.ForwardingPipelineConfig{
			"no config":        nil,
			"duplicate id":     bad(func(i *configv1.P4Info) { i.Tables[1].Preamble.Id = i.Tables[0].Preamble.Id }),
			"id 0":             bad(func(i *configv1.P4Info) { i.Actions[0].Preamble.Id = 0 }),
			"no name":          bad(func(i *configv1.P4Info) { i.Actions[0].Preamble.Name = "" }),
			"unknown action":   bad(func(i *configv1.P4Info) { i.Tables[0].ActionRefs[0].Id = 99 }),
			"unknown profile":  bad(func(i *configv1.P4Info) { i.Tables[5].ImplementationId = 99 }),
			"unknown counter":  bad(func(i *configv1.P4Info) { i.Tables[0].DirectResourceIds[0] = 99 }),
			"no width":         bad(func(i *configv1.P4Info) { i.ControllerPacketMetadata[0].Metadata[0].Bitwidth = 0 }),
			"unknown kind":     bad(func(i *configv1.P4Info) { i.Tables[0].MatchFields[0].Match = nil }),
			"unknown struct":   bad(func(i *configv1.P4Info) { i.TypeInfo = nil }),
			"foreign extern":   bad(func(i *configv1.P4Info) { i.Externs = []*configv1.Extern{{}} }),
			"foreign header":   bad(func(i *configv1.P4Info) { i.ControllerPacketMetadata[0].Preamble.Name = "x" }),
			"negative width":   bad(func(i *configv1.P4Info) { i.Actions[2].Params[0].Bitwidth = -1 }),
			"enormous width":   bad(func(i *configv1.P4Info) { i.Actions[2].Params[0].Bitwidth = 1 << 30 }),
			"field ids clash":  bad(func(i *configv1.P4Info) { i.Tables[2].MatchFields[1].Id = 1 }),
			"param ids clash":  bad(func(i *configv1.P4Info) { i.Actions[2].Params[1].Id = 1 }),
			"unsupported type": bad(func(i *configv1.P4Info) { i.Registers[0].TypeSpec = &configv1.P4DataTypeSpec{} }),
		} {
			for _, a := range []p4v1.SetForwardingPipelineConfigRequest_Action{verify, save, verifyNow, reconcile} {
				if err := c.config(a, cfg); status.Code(err) != codes.InvalidArgument {
					t.Errorf("%s: %v: %v", name, a, err)
				}
			}
		}
		if err := c.config(p4v1.SetForwardingPipelineConfigRequest_UNSPECIFIED, config(t, 1)); status.Code(err) != codes.InvalidArgument {
			t.Errorf("no action: %v", err)
		}
		b.fakes.err = errors.New("this program is too much")
		if err := c.config(verifyNow, config(t, 1)); status.Code(err) != codes.InvalidArgument {
			t.Errorf("a program that cannot be loaded: %v", err)
		}
		b.fakes.err = nil
		c.commit(testInfo(t))
		c.must(c.insert(exact1))
		b.fakes.err = errors.New("this program is too much")
		if err := c.config(verifyNow, config(t, 1)); status.Code(err) != codes.InvalidArgument {
			t.Errorf("a program that cannot be loaded: %v", err)
		}
		c.expect(`table_entry { table_id: 0x02000001 }`, exact1) // the old one goes on
	})
}

func TestSection14_ChecksInOrder(t *testing.T) {
	withPrimary(t, func(_ *bench, c *controller) {
		for name, tc := range map[string]struct {
			r    *p4v1.SetForwardingPipelineConfigRequest
			code codes.Code
		}{
			"unknown device": {&p4v1.SetForwardingPipelineConfigRequest{DeviceId: 8}, codes.NotFound},
			"unknown role":   {&p4v1.SetForwardingPipelineConfigRequest{DeviceId: device, Role: "x"}, codes.NotFound},
			"not primary":    {&p4v1.SetForwardingPipelineConfigRequest{DeviceId: device, ElectionId: id128(2)}, codes.PermissionDenied},
		} {
			if _, err := c.SetForwardingPipelineConfig(context.Background(), tc.r); status.Code(err) != tc.code {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestSection14_ReconcilePreservesTheState(t *testing.T) {
	configured(t, func(b *bench, c *controller) {
		c.populate()
		c.must(c.modify(`table_entry { table_id: 0x02000005 priority: 1 counter_data { packet_count: 9 } }`))
		before := c.everythingThere()
		if err := c.config(reconcile, config(t, 5)); err != nil {
			t.Fatal(err)
		}
		if after := c.everythingThere(); !slices.Equal(before, after) {
			t.Errorf("the state has changed: %q\nbefore: %q", after, before)
		}
		if len(b.fakes.all) != 2 || !b.fakes.all[0].isClosed() {
			t.Error("the old one is not closed")
		}
		// A program without the LPM table cannot hold its entry.
		cfg := config(t, 6)
		cfg.P4Info.Tables = slices.Delete(cfg.P4Info.Tables, 1, 2)
		if err := c.config(reconcile, cfg); status.Code(err) != codes.InvalidArgument {
			t.Errorf("impossible reconciliation: %v", err)
		}
		if after := c.everythingThere(); !slices.Equal(before, after) {
			t.Error("a refused reconciliation has changed the state")
		}
		c.must(c.del(lpm1))
		if err := c.config(reconcile, cfg); err != nil {
			t.Errorf("possible reconciliation: %v", err)
		}
	})
}

// Registers of a data plane that can share them are the new pipeline's, with what packets write there until it is committed, and after. So it is with
// our extension of VERIFY_AND_COMMIT, which clears everything else; without it they are empty.
func TestSection14_RegistersGoOn(t *testing.T) {
	configured(t, func(b *bench, c *controller) {
		b.fakes.shareRegisters = true
		write := func(v byte) {
			f := b.fakes.last(t)
			if err := f.SetRegister("ingress.seen", 1, []byte{0, v}); err != nil {
				t.Fatal(err)
			}
		}
		has := func(when string, v byte) {
			t.Helper()
			if got, _ := b.fakes.last(t).Register("ingress.seen", 1); got[1] != v {
				t.Errorf("%s: the register has %d, want %d", when, got[1], v)
			}
		}
		write(7)
		if err := c.config(reconcile, config(t, 5)); err != nil {
			t.Fatal(err)
		}
		has("after a reconciliation", 7)
		c.must(c.insert(exact1))
		c.keepRegisters = true
		if err := c.config(verifyNow, config(t, 6)); err != nil {
			t.Fatal(err)
		}
		c.keepRegisters = false
		has("with our extension", 7)
		if err := c.write(c.insert(exact1)); err != nil {
			t.Errorf("the entry is still there: %v", err)
		}
		if err := c.config(save, config(t, 7)); err != nil {
			t.Fatal(err)
		}
		has("of one that is saved", 0)
		if err := c.config(verifyNow, config(t, 8)); err != nil {
			t.Fatal(err)
		}
		has("without it", 0)
	})
}

// A pipeline that was loaded to go on with the registers of one that is committed no more is refused.
func TestSection14_RegistersOfAnother(t *testing.T) {
	configured(t, func(b *bench, c *controller) {
		b.fakes.loading, b.fakes.loaded = make(chan struct{}), make(chan struct{})
		done := make(chan error, 1)
		go func() { done <- c.config(reconcile, config(t, 5)) }()
		<-b.fakes.loading
		b.fakes.loading = nil
		if err := b.srv.LoadConfig(config(t, 6)); err != nil {
			t.Fatal(err)
		}
		b.fakes.loaded <- struct{}{}
		if err := <-done; status.Code(err) != codes.Aborted {
			t.Errorf("%v, want Aborted", err)
		}
	})
}

// A data plane without meters for default entries: one of them has counted, which is all
// that there is to preserve.
func TestSection14_ReconcileADefaultEntryThatHasCounted(t *testing.T) {
	virtual(t, func(b *bench) {
		b.fakes.noDefaultMeters = true
		c := b.dial()
		c.mustBePrimary(1)
		c.commit(testInfo(t))
		entry := datapath.Entry{Table: "ingress.exact"}
		if err := b.fakes.all[0].SetEntryCounts(entry, datapath.Counts{Packets: 1, Bytes: 60}); err != nil {
			t.Fatal(err)
		}
		if err := c.config(reconcile, config(t, 5)); err != nil {
			t.Fatal(err)
		}
		if got, err := b.fakes.all[1].EntryCounts(entry); err != nil || got.Packets != 1 {
			t.Errorf("the default entry has counted %+v, %v", got, err)
		}
	})
}

// What a program's loading takes, nobody else waits: neither a write nor a new primary. A
// program of a controller that is no primary any more does not come into force.
func TestSection14_LoadingStopsNobody(t *testing.T) {
	configured(t, func(b *bench, c *controller) {
		next := b.dial()
		b.fakes.loading, b.fakes.loaded = make(chan struct{}), make(chan struct{})
		done := make(chan error)
		for _, a := range []p4v1.SetForwardingPipelineConfigRequest_Action{verify, verifyNow} {
			go func() { done <- c.config(a, config(t, 5)) }()
			<-b.fakes.loading
			if a == verify {
				c.must(c.insert(lpm1))
				c.expect(`table_entry { table_id: 0x02000002 }`, lpm1)
			} else {
				next.mustBePrimary(2)
				next.must(next.del(lpm1))
			}
			b.fakes.loaded <- struct{}{}
			if err := <-done; (err == nil) != (a == verify) || err != nil && status.Code(err) != codes.PermissionDenied {
				t.Errorf("%v: %v", a, err)
			}
		}
		if got, err := next.GetForwardingPipelineConfig(context.Background(), &p4v1.GetForwardingPipelineConfigRequest{DeviceId: device}); err != nil || got.GetConfig().GetCookie().GetCookie() == 5 {
			t.Errorf("the program of the previous primary is in force: %v, %v", got.GetConfig().GetCookie(), err)
		}
		for i, f := range b.fakes.all {
			if f.isClosed() != (i > 0) {
				t.Errorf("program %d: closed is %t", i, f.isClosed())
			}
		}
	})
}

func TestSection15_GetForwardingPipelineConfig(t *testing.T) {
	withPrimary(t, func(_ *bench, c *controller) {
		get := func(typ p4v1.GetForwardingPipelineConfigRequest_ResponseType) (*p4v1.ForwardingPipelineConfig, error) {
			m, err := c.GetForwardingPipelineConfig(context.Background(), &p4v1.GetForwardingPipelineConfigRequest{DeviceId: device, ResponseType: typ})
			return m.GetConfig(), err
		}
		if cfg, err := get(p4v1.GetForwardingPipelineConfigRequest_ALL); err != nil || cfg != nil {
			t.Errorf("before any config: %v, %v", cfg, err)
		}
		c.commit(testInfo(t))
		want := config(t, 99)
		cookie := &p4v1.ForwardingPipelineConfig{Cookie: want.Cookie}
		info := &p4v1.ForwardingPipelineConfig{P4Info: want.P4Info, Cookie: want.Cookie}
		dev := &p4v1.ForwardingPipelineConfig{P4DeviceConfig: want.P4DeviceConfig, Cookie: want.Cookie}
		for typ, want := range map[p4v1.GetForwardingPipelineConfigRequest_ResponseType]*p4v1.ForwardingPipelineConfig{
			p4v1.GetForwardingPipelineConfigRequest_ALL: want, p4v1.GetForwardingPipelineConfigRequest_COOKIE_ONLY: cookie,
			p4v1.GetForwardingPipelineConfigRequest_P4INFO_AND_COOKIE: info, p4v1.GetForwardingPipelineConfigRequest_DEVICE_CONFIG_AND_COOKIE: dev,
		} {
			if got, err := get(typ); err != nil || !proto.Equal(got, want) {
				t.Errorf("%v: got %v, %v", typ, got, err)
			}
		}
		if _, err := get(9); status.Code(err) != codes.InvalidArgument {
			t.Errorf("unknown response type: %v", err)
		}
		_, err := c.GetForwardingPipelineConfig(context.Background(), &p4v1.GetForwardingPipelineConfigRequest{DeviceId: 8})
		if status.Code(err) != codes.NotFound {
			t.Errorf("another device: %v", err)
		}
	})
}

func TestSection17_Capabilities(t *testing.T) {
	virtual(t, func(b *bench) {
		c := b.dial()
		for id, code := range map[uint64]codes.Code{0: codes.OK, device: codes.OK, 8: codes.NotFound} {
			m, err := c.Capabilities(context.Background(), &p4v1.CapabilitiesRequest{DeviceId: id})
			if status.Code(err) != code || err == nil && m.GetP4RuntimeApiVersion() != APIVersion {
				t.Errorf("device %d: %v, %v", id, m, err)
			}
		}
	})
}

// LoadConfig is for a program that is there before any controller.
func TestLoadConfig(t *testing.T) {
	virtual(t, func(b *bench) {
		if err := b.srv.LoadConfig(config(t, 3)); err != nil {
			t.Fatal(err)
		}
		c := b.dial()
		c.mustBePrimary(1)
		c.must(c.insert(exact1))
		if err := b.srv.LoadConfig(&p4v1.ForwardingPipelineConfig{P4Info: &configv1.P4Info{Tables: []*configv1.Table{{}}}}); err == nil {
			t.Error("a broken P4Info has been loaded")
		}
		c.expect(`table_entry { table_id: 0x02000001 }`, exact1)
	})
}

func TestDeviceConfig(t *testing.T) {
	wrapped := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 1)
	wrapped = protowire.AppendBytes(protowire.AppendTag(wrapped, 3, protowire.BytesType), []byte(`{"x": 1}`))
	for in, want := range map[string]string{
		"": "", `{"x": 1}`: `{"x": 1}`, "\n{}": "\n{}", string(wrapped): `{"x": 1}`,
		string(wrapped[:len(wrapped)-1]): string(wrapped[:len(wrapped)-1]),
	} {
		if got := deviceConfig([]byte(in)); string(got) != want {
			t.Errorf("%q: got %q", in, got)
		}
	}
}

func FuzzDeviceConfig(f *testing.F) {
	f.Add([]byte(`{"header_types": []}`))
	f.Add([]byte{8, 1, 26, 2, '{', '}'})
	f.Fuzz(func(t *testing.T, b []byte) {
		got := deviceConfig(b)
		if !bytes.Contains(b, got) {
			t.Errorf("%x is not in %x", got, b)
		}
		message := protowire.AppendBytes(protowire.AppendTag(nil, 3, protowire.BytesType), b)
		if inside := deviceConfig(message); string(inside) != string(b) {
			t.Errorf("%x, in a message, is read as %x", b, inside)
		}
	})
}
