package gnmi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/openconfig/gnmi/proto/gnmi"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a switch with two ports.
type fake struct {
	mu      sync.Mutex
	ports   []Port
	changed chan struct{}
	fail    error
}

func newFake() *fake {
	return &fake{changed: make(chan struct{}), ports: []Port{
		{Number: 1, Name: "eth1", Enabled: true, Up: true, Index: 7, MTU: 1500, MAC: "02:00:00:00:00:01", InPackets: 3, InOctets: 1 << 40},
		{Number: 2, Name: "eth2", Enabled: true, OutDiscards: 5},
	}}
}

func (f *fake) GNMIPorts() []Port {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]Port{}, f.ports...)
}

func (f *fake) EnablePort(n uint32, enable bool) error {
	if f.fail != nil {
		return f.fail
	}
	f.change(func() { f.ports[n-1].Enabled, f.ports[n-1].Up = enable, enable })
	return nil
}

func (f *fake) PortsChanged() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

// change changes ports, and tells so.
func (f *fake) change(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
	close(f.changed)
	f.changed = make(chan struct{})
}

// client serves a switch to a client.
func client(t *testing.T, f *fake) pb.GNMIClient {
	t.Helper()
	l := bufconn.Listen(1 << 16)
	srv := grpc.NewServer()
	pb.RegisterGNMIServer(srv, New(f))
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		srv.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return pb.NewGNMIClient(conn)
}

// at is a path as PINS writes it, with at most one key.
func at(text string) *pb.Path {
	p := &pb.Path{}
	for _, e := range strings.Split(text, "/") {
		if e == "" {
			continue
		}
		name, key, keyed := strings.Cut(strings.TrimSuffix(e, "]"), "[")
		elem := &pb.PathElem{Name: name}
		if k, v, ok := strings.Cut(key, "="); keyed && ok {
			elem.Key = map[string]string{k: v}
		}
		p.Elem = append(p.Elem, elem)
	}
	return p
}

func get(t *testing.T, c pb.GNMIClient, path string, of pb.GetRequest_DataType, e pb.Encoding) []*pb.Update {
	t.Helper()
	r, err := c.Get(t.Context(), &pb.GetRequest{Prefix: &pb.Path{Origin: "openconfig", Target: "chassis"}, Path: []*pb.Path{at(path)}, Type: of, Encoding: e})
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	if len(r.GetNotification()) != 1 || r.GetNotification()[0].GetTimestamp() == 0 || r.GetNotification()[0].GetPrefix().GetTarget() != "chassis" {
		t.Fatalf("%s: %s", path, prototext.Format(r))
	}
	return r.GetNotification()[0].GetUpdate()
}

// TestGet_PINS: what PINS' gnmi_helper.cc asks of ports has one update, an object with the last name of the path.
func TestGet_PINS(t *testing.T) {
	c := client(t, newFake())
	for _, tc := range []struct {
		path string
		of   pb.GetRequest_DataType
		want string
	}{
		{"interfaces/interface[name=eth1]/state/oper-status", pb.GetRequest_STATE, `{"openconfig-interfaces:oper-status":"UP"}`},
		{"interfaces/interface[name=eth2]/state/oper-status", pb.GetRequest_STATE, `{"openconfig-interfaces:oper-status":"DOWN"}`},
		{"interfaces/interface[name=eth2]/state/admin-status", pb.GetRequest_STATE, `{"openconfig-interfaces:admin-status":"UP"}`},
		{"interfaces/interface[name=eth1]/state/openconfig-p4rt:id", pb.GetRequest_STATE, `{"openconfig-p4rt:id":1}`},
		{"interfaces/interface[name=eth1]/config/mtu", pb.GetRequest_CONFIG, `{"openconfig-interfaces:mtu":1500}`},
		{"interfaces/interface[name=eth2]/config", pb.GetRequest_CONFIG, `{"openconfig-interfaces:config":{"enabled":true,"name":"eth2","openconfig-p4rt:id":2,"type":"iana-if-type:ethernetCsmacd"}}`},
		{"interfaces/interface[name=eth1]/state/counters", pb.GetRequest_STATE, `{"openconfig-interfaces:counters":{"in-discards":"0","in-octets":"1099511627776","in-pkts":"3","out-discards":"0","out-octets":"0","out-pkts":"0"}}`},
		{"interfaces/interface[name=eth1]/openconfig-if-ethernet:ethernet", pb.GetRequest_ALL, `{"openconfig-if-ethernet:ethernet":{"state":{"mac-address":"02:00:00:00:00:01"}}}`},
	} {
		u := get(t, c, tc.path, tc.of, pb.Encoding_JSON_IETF)
		if len(u) != 1 || string(u[0].GetVal().GetJsonIetfVal()) != tc.want || !proto.Equal(u[0].GetPath(), at(tc.path)) {
			t.Errorf("%s: %v", tc.path, u)
		}
	}
	// All interfaces, as the library reads them: by name, with number and state; and nothing of configuration in state.
	for _, path := range []string{"interfaces", "/"} {
		u := get(t, c, path, pb.GetRequest_STATE, pb.Encoding_JSON_IETF)
		var all struct {
			Interfaces struct {
				Interface []struct {
					Name   string
					Config map[string]any
					State  struct {
						ID   uint32 `json:"openconfig-p4rt:id"`
						Oper string `json:"oper-status"`
					}
				}
			} `json:"openconfig-interfaces:interfaces"`
		}
		if err := json.Unmarshal(u[0].GetVal().GetJsonIetfVal(), &all); err != nil {
			t.Fatal(err)
		}
		list := all.Interfaces.Interface
		if len(list) != 2 || list[0].Name != "eth1" || list[0].State.ID != 1 || list[1].State.Oper != "DOWN" || list[0].Config != nil {
			t.Errorf("%s: %s", path, u[0].GetVal().GetJsonIetfVal())
		}
	}
}

// TestGet_Encodings: the same in bare JSON and in protobuf, with wildcards and a prefix.
func TestGet_Encodings(t *testing.T) {
	c := client(t, newFake())
	u := get(t, c, "interfaces/interface[name=*]/state/counters/in-pkts", pb.GetRequest_ALL, pb.Encoding_JSON)
	if len(u) != 2 || string(u[0].GetVal().GetJsonVal()) != "3" || u[1].GetPath().GetElem()[1].GetKey()["name"] != "eth2" {
		t.Errorf("%v", u)
	}
	u = get(t, c, "interfaces/interface/state", pb.GetRequest_ALL, pb.Encoding_PROTO)
	values := map[string]string{}
	for _, u := range u {
		values[readable(nil, u.GetPath())] = fmt.Sprint(u.GetVal().GetValue())
	}
	for name, want := range map[string]any{
		"/interfaces/interface[name=eth1]/state/mtu": &pb.TypedValue_UintVal{UintVal: 1500}, "/interfaces/interface[name=eth2]/state/enabled": &pb.TypedValue_BoolVal{BoolVal: true},
		"/interfaces/interface[name=eth2]/state/counters/out-discards": &pb.TypedValue_UintVal{UintVal: 5}, "/interfaces/interface[name=eth1]/state/oper-status": &pb.TypedValue_StringVal{StringVal: "UP"},
	} {
		if values[name] != fmt.Sprint(want) {
			t.Errorf("%s is %v, not %v", name, values[name], want)
		}
	}
	r, err := c.Get(t.Context(), &pb.GetRequest{Prefix: at("interfaces/interface[name=eth2]"), Path: []*pb.Path{at("state/oper-status"), at("config/enabled")}, Encoding: pb.Encoding_JSON})
	if err != nil || len(r.GetNotification()) != 2 || readable(nil, r.GetNotification()[1].GetUpdate()[0].GetPath()) != "/config/enabled" {
		t.Errorf("with a prefix: %v, %v", r, err)
	}
}

// TestRefused: what is not there, and what cannot be, has a code and says what would be right.
func TestRefused(t *testing.T) {
	f := newFake()
	c := client(t, f)
	bad := func(what string, err error, code codes.Code, says string) {
		t.Helper()
		if st, _ := status.FromError(err); st.Code() != code || !strings.Contains(st.Message(), says) {
			t.Errorf("%s: %v, not %s %q", what, err, code, says)
		}
	}
	long := strings.Repeat("/a", maxElems+1)
	for _, tc := range []struct {
		path string
		e    pb.Encoding
		code codes.Code
		says string
	}{
		{"components", pb.Encoding_JSON, codes.NotFound, "/interfaces/interface"}, {"interfaces/interface[name=eth3]", pb.Encoding_JSON, codes.NotFound, "eth3"},
		{"interfaces/interface[index=1]", pb.Encoding_JSON, codes.InvalidArgument, "the only key"}, {"interfaces", pb.Encoding_ASCII, codes.Unimplemented, "JSON_IETF"},
		{long, pb.Encoding_JSON, codes.InvalidArgument, "elements"},
	} {
		_, err := c.Get(t.Context(), &pb.GetRequest{Path: []*pb.Path{at(tc.path)}, Encoding: tc.e})
		bad(tc.path, err, tc.code, tc.says)
	}
	_, err := c.Get(t.Context(), &pb.GetRequest{Prefix: at("interfaces/interface"), Path: []*pb.Path{at("state")}})
	bad("a wide prefix", err, codes.InvalidArgument, "a prefix means one thing")
	_, err = c.Get(t.Context(), &pb.GetRequest{Path: make([]*pb.Path, maxPaths+1)})
	bad("many paths", err, codes.InvalidArgument, "paths")
	_, err = c.Get(t.Context(), &pb.GetRequest{Path: []*pb.Path{{Element: []string{"interfaces"}}}})
	bad("the old form", err, codes.Unimplemented, "elem")
	if both, err := c.Get(t.Context(), &pb.GetRequest{Path: []*pb.Path{{Element: []string{"interfaces"}, Elem: at("interfaces").GetElem()}}}); err != nil { // as gnmi_cli does
		t.Errorf("both forms: %v, %v", both, err)
	}
	text := func(s string) *pb.TypedValue {
		return &pb.TypedValue{Value: &pb.TypedValue_JsonIetfVal{JsonIetfVal: []byte(s)}}
	}
	for _, tc := range []struct {
		path, value string
		code        codes.Code
	}{
		{"interfaces/interface[name=eth1]/config/enabled", `"yes"`, codes.InvalidArgument}, {"interfaces/interface[name=eth1]/config/enabled", `{`, codes.InvalidArgument},
		{"interfaces/interface[name=eth1]/config/mtu", `9000`, codes.Unimplemented}, {"interfaces/interface[name=eth1]/config", `7`, codes.InvalidArgument},
		{"interfaces/interface[name=eth1]/config/openconfig-p4rt:id", `2`, codes.FailedPrecondition}, {"interfaces/interface/config/enabled", `true`, codes.InvalidArgument},
		{"interfaces/interface[name=eth1]/state/enabled", `true`, codes.InvalidArgument}, {"", `{}`, codes.InvalidArgument}, {"interfaces/interface[name=eth9]/config/enabled", `true`, codes.NotFound},
	} {
		_, err := c.Set(t.Context(), &pb.SetRequest{Update: []*pb.Update{
			{Path: at("interfaces/interface[name=eth1]/config/enabled"), Val: text("false")}, {Path: at(tc.path), Val: text(tc.value)},
		}})
		bad(tc.path+" "+tc.value, err, tc.code, "")
	}
	_, err = c.Set(t.Context(), &pb.SetRequest{Delete: []*pb.Path{at("interfaces")}})
	bad("delete", err, codes.Unimplemented, "config/enabled")
	if !f.GNMIPorts()[0].Enabled {
		t.Error("a part of a refused Set was done")
	}
	for failure, code := range map[error]codes.Code{ErrUnsupported: codes.Unimplemented, errors.New("no right"): codes.Internal} {
		f.fail = failure
		_, err = c.Set(t.Context(), &pb.SetRequest{Update: []*pb.Update{{Path: at("interfaces/interface[name=eth1]/config/enabled"), Val: text("false")}}})
		bad("the switch", err, code, failure.Error())
	}
}

// TestSet: an interface is disabled and enabled, in each form of the value, by update and by replace.
func TestSet(t *testing.T) {
	f := newFake()
	c := client(t, f)
	ietf := func(s string) *pb.TypedValue {
		return &pb.TypedValue{Value: &pb.TypedValue_JsonIetfVal{JsonIetfVal: []byte(s)}}
	}
	for i, tc := range []struct {
		path  string
		value *pb.TypedValue
	}{
		{"interfaces/interface[name=eth1]/config/enabled", ietf(`{"enabled":false}`)}, // as PINS has it
		{"interfaces/interface[name=eth1]/config/enabled", ietf(`{"openconfig-interfaces:enabled":true}`)},
		{"interfaces/interface[name=eth1]/config/enabled", ietf(`false`)},
		{"interfaces/interface[name=eth1]/config", &pb.TypedValue{Value: &pb.TypedValue_JsonVal{JsonVal: []byte(`{"enabled":true,"openconfig-p4rt:id":1}`)}}},
		{"interfaces/interface[name=eth1]/config/enabled", &pb.TypedValue{Value: &pb.TypedValue_BoolVal{}}},
	} {
		r := &pb.SetRequest{Update: []*pb.Update{{Path: at(tc.path), Val: tc.value}}}
		op := pb.UpdateResult_UPDATE
		if i%2 == 0 {
			r, op = &pb.SetRequest{Replace: r.GetUpdate()}, pb.UpdateResult_REPLACE
		}
		answer, err := c.Set(t.Context(), r)
		if err != nil || len(answer.GetResponse()) != 1 || answer.GetResponse()[0].GetOp() != op {
			t.Fatalf("%s %v: %v, %v", tc.path, tc.value, answer, err)
		}
		if got, want := f.GNMIPorts()[0].Enabled, i%2 == 1; got != want {
			t.Errorf("%s %v: enabled is %t", tc.path, tc.value, got)
		}
	}
}

func TestCapabilities(t *testing.T) {
	r, err := client(t, newFake()).Capabilities(t.Context(), &pb.CapabilityRequest{})
	if err != nil || len(r.GetSupportedEncodings()) != 3 || r.GetSupportedModels()[0].GetName() != "openconfig-interfaces" {
		t.Errorf("%v, %v", r, err)
	}
}

// subscribed is a stream, and what comes of it.
type subscribed struct {
	t *testing.T
	s pb.GNMI_SubscribeClient
}

func subscribe(t *testing.T, c pb.GNMIClient, list *pb.SubscriptionList) subscribed {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	s, err := c.Subscribe(ctx)
	if err == nil {
		err = s.Send(&pb.SubscribeRequest{Request: &pb.SubscribeRequest_Subscribe{Subscribe: list}})
	}
	if err != nil {
		t.Fatal(err)
	}
	return subscribed{t, s}
}

// next is what is told next: paths with values, and ! before those that are gone; "sync" when all was told.
func (s subscribed) next() string {
	s.t.Helper()
	r, err := s.s.Recv()
	if err != nil {
		return "error " + status.Convert(err).Message()
	}
	if r.GetSyncResponse() {
		return "sync"
	}
	var words []string
	for _, u := range r.GetUpdate().GetUpdate() {
		words = append(words, strings.TrimPrefix(readable(nil, u.GetPath()), "/interfaces/interface")+"="+string(u.GetVal().GetJsonIetfVal()))
	}
	for _, p := range r.GetUpdate().GetDelete() {
		words = append(words, "!"+strings.TrimPrefix(readable(nil, p), "/interfaces/interface"))
	}
	return strings.Join(words, " ")
}

func (s subscribed) expect(want ...string) {
	s.t.Helper()
	for _, w := range want {
		if got := s.next(); got != w {
			s.t.Fatalf("told %q, not %q", got, w)
		}
	}
}

func list(mode pb.SubscriptionList_Mode, subs ...*pb.Subscription) *pb.SubscriptionList {
	return &pb.SubscriptionList{Mode: mode, Encoding: pb.Encoding_JSON_IETF, Subscription: subs}
}

// TestSubscribe_Once: everything is told, and that it was, and then the stream ends; each time that a client polls, the same.
func TestSubscribe_Once(t *testing.T) {
	f := newFake()
	c := client(t, f)
	oper := &pb.Subscription{Path: at("interfaces/interface[name=*]/state/oper-status")}
	s := subscribe(t, c, list(pb.SubscriptionList_ONCE, oper))
	s.expect(`[name=eth1]/state/oper-status="UP" [name=eth2]/state/oper-status="DOWN"`, "sync", "error EOF")
	s = subscribe(t, c, list(pb.SubscriptionList_POLL, oper))
	s.expect(`[name=eth1]/state/oper-status="UP" [name=eth2]/state/oper-status="DOWN"`, "sync")
	f.change(func() { f.ports[1].Up = true })
	if err := s.s.Send(&pb.SubscribeRequest{Request: &pb.SubscribeRequest_Poll{Poll: &pb.Poll{}}}); err != nil {
		t.Fatal(err)
	}
	s.expect(`[name=eth1]/state/oper-status="UP" [name=eth2]/state/oper-status="UP"`, "sync")
	if err := s.s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	s.expect("error EOF")
}

// TestSubscribe_OnChange: what changes is told as it does, and nothing else: also an interface that comes, and one that goes.
func TestSubscribe_OnChange(t *testing.T) {
	f := newFake()
	s := subscribe(t, client(t, f), list(pb.SubscriptionList_STREAM, &pb.Subscription{Path: at("interfaces/interface[name=*]/state/oper-status"), Mode: pb.SubscriptionMode_ON_CHANGE}))
	s.expect(`[name=eth1]/state/oper-status="UP" [name=eth2]/state/oper-status="DOWN"`, "sync")
	f.change(func() { f.ports[0].MTU = 9000 })
	f.change(func() { f.ports[1].Up = true })
	s.expect(`[name=eth2]/state/oper-status="UP"`)
	f.change(func() { f.ports = append(f.ports, Port{Number: 3, Name: "eth3"}) })
	s.expect(`[name=eth3]/state/oper-status="DOWN"`)
	f.change(func() { f.ports = f.ports[:1] })
	if got := s.next(); !strings.Contains(got, "![name=eth2]/state/oper-status") || !strings.Contains(got, "![name=eth3]/state/oper-status") {
		t.Errorf("told %q", got)
	}
}

// TestSubscribe_Sample: what is sampled is told time and again, or only if it has changed; with updates_only not at the start; a heartbeat tells all.
func TestSubscribe_Sample(t *testing.T) {
	f := newFake()
	c := client(t, f)
	packets := func(suppress bool, beat time.Duration) *pb.Subscription {
		return &pb.Subscription{
			Path: at("interfaces/interface[name=eth1]/state/counters/in-pkts"), Mode: pb.SubscriptionMode_SAMPLE,
			SampleInterval: uint64(leastInterval), SuppressRedundant: suppress, HeartbeatInterval: uint64(beat),
		}
	}
	const three, four = `[name=eth1]/state/counters/in-pkts="3"`, `[name=eth1]/state/counters/in-pkts="4"`
	subscribe(t, c, list(pb.SubscriptionList_STREAM, packets(false, 0))).expect(three, "sync", three, three)
	quiet := list(pb.SubscriptionList_STREAM, packets(false, 0))
	quiet.UpdatesOnly = true
	subscribe(t, c, quiet).expect("sync", three)
	subscribe(t, c, list(pb.SubscriptionList_STREAM, packets(true, 150*time.Millisecond))).expect(three, "sync", three, three)
	s := subscribe(t, c, list(pb.SubscriptionList_STREAM, packets(true, 0)))
	s.expect(three, "sync")
	f.mu.Lock()
	f.ports[0].InPackets = 4 // and nobody is told
	f.mu.Unlock()
	s.expect(four)
}

// TestSubscribe_Refused: what cannot be subscribed to is refused at once, and so is what a client may not say later.
func TestSubscribe_Refused(t *testing.T) {
	c := client(t, newFake())
	stream := pb.SubscriptionList_STREAM
	for _, tc := range []struct {
		list *pb.SubscriptionList
		says string
	}{
		{nil, "subscriptions"}, {list(stream), "subscriptions"}, {list(stream, make([]*pb.Subscription, maxPaths+1)...), "subscriptions"},
		{list(stream, &pb.Subscription{Path: at("interfaces/interface/state/colour")}), "there is no"}, {list(stream, &pb.Subscription{Path: at("components")}), "there is no"},
		{list(stream, &pb.Subscription{Path: at("interfaces"), Mode: pb.SubscriptionMode_ON_CHANGE}), "sample it"},
		{list(stream, &pb.Subscription{Path: at("interfaces"), Mode: pb.SubscriptionMode_SAMPLE, SampleInterval: 1}), "sample_interval"},
		{list(stream, &pb.Subscription{Path: at("interfaces"), Mode: pb.SubscriptionMode_SAMPLE, SampleInterval: 1 << 63}), "sample_interval"},
		{list(stream, &pb.Subscription{Path: at("interfaces"), Mode: pb.SubscriptionMode_SAMPLE, HeartbeatInterval: 1}), "heartbeat_interval"},
		{&pb.SubscriptionList{Encoding: pb.Encoding_BYTES, Subscription: []*pb.Subscription{{Path: at("interfaces")}}}, "JSON_IETF"},
	} {
		if got := subscribe(t, c, tc.list).next(); !strings.HasPrefix(got, "error ") || !strings.Contains(got, tc.says) {
			t.Errorf("%v: %q does not say %q", tc.list, got, tc.says)
		}
	}
	early, err := c.Subscribe(t.Context())
	if err == nil {
		err = early.Send(&pb.SubscribeRequest{Request: &pb.SubscribeRequest_Poll{Poll: &pb.Poll{}}})
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := (subscribed{t, early}).next(); !strings.Contains(got, "the first request") {
		t.Errorf("a poll first: %q", got)
	}
	for _, mode := range []pb.SubscriptionList_Mode{stream, pb.SubscriptionList_POLL} {
		again := list(mode, &pb.Subscription{Path: at("interfaces/interface[name=eth1]/name"), Mode: pb.SubscriptionMode_ON_CHANGE})
		s := subscribe(t, c, again)
		s.expect(`[name=eth1]/name="eth1"`, "sync")
		if err := s.s.Send(&pb.SubscribeRequest{Request: &pb.SubscribeRequest_Subscribe{Subscribe: again}}); err != nil {
			t.Fatal(err)
		}
		if got := s.next(); !strings.Contains(got, "takes") {
			t.Errorf("%s: a second request: %q", mode, got)
		}
	}
}
