package switches

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
	"github.com/bifrost-rack/bifrost/p4"
	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/prototext"
)

// deviceID is that of every switch under test.
const deviceID = 1

// batch is how many rules are loaded with one Write.
const batch = 1000

// controller controls a switch through P4Runtime.
type controller struct {
	conn    *grpc.ClientConn
	client  *p4rtclient.Client
	session *p4rtclient.Session
	counter uint32 // id of the verdicts
}

// connect makes the switch run Bifröst's program, with the hosts and rules.
func connect(ctx context.Context, j *joint, rules int) (*controller, error) {
	c, err := dial(j)
	if err != nil {
		return nil, err
	}
	if err := c.setUp(ctx, j.loaded, rules); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

// dial makes a controller that has not said anything yet.
func dial(j *joint) (*controller, error) {
	opts := append(p4rtclient.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	conn, err := grpc.NewClient(j.addr, opts...)
	return &controller{conn: conn}, err
}

// open becomes the switch's controller, and makes it run a program.
func (c *controller) open(ctx context.Context, p program, loaded bool) error {
	prog, err := p4rtclient.ParseProgram(p.info, p.json)
	if err != nil {
		return err
	}
	c.client, err = p4rtclient.New(p4rtclient.Config{
		Conn: c.conn, Program: prog, DeviceID: deviceID, Election: p4rtclient.Election{Low: 1},
	})
	if err != nil {
		return err
	}
	if c.session, err = c.client.Open(ctx); err == nil && !loaded {
		_, err = c.client.SetPipeline(ctx)
	}
	return err
}

func (c *controller) setUp(ctx context.Context, loaded bool, rules int) error {
	var err error
	if c.counter, err = counterID(); err != nil {
		return err
	}
	if err := c.open(ctx, bifrostProgram, loaded); err != nil {
		return err
	}
	if err := c.client.Write(ctx, inserts(hostEntries()...)); err != nil {
		return fmt.Errorf("hosts: %w", err)
	}
	if err := c.session.Send(p4rtclient.PacketOut{Payload: rebuilt(), Metadata: []uint64{0, 0}}); err != nil {
		return fmt.Errorf("registers: %w", err)
	}
	for from := 0; from < rules; from += batch {
		var us []p4rtclient.Update
		for i := from; i < min(from+batch, rules); i++ {
			us = append(us, p4rtclient.Update{Op: p4rtclient.Insert, Entry: rule(i)})
		}
		if err := c.client.Write(ctx, us); err != nil {
			return fmt.Errorf("rules from %d on: %w", from, err)
		}
	}
	return nil
}

func (c *controller) close() error {
	if c == nil {
		return nil
	}
	if c.session != nil {
		c.session.Close()
	}
	return c.conn.Close()
}

// verdicts tells how many packets had each verdict, of all ports together.
func (c *controller) verdicts(ctx context.Context) (v [16]int64, err error) {
	stream, err := p4v1.NewP4RuntimeClient(c.conn).Read(ctx, &p4v1.ReadRequest{DeviceId: deviceID, Entities: []*p4v1.Entity{
		{Entity: &p4v1.Entity_CounterEntry{CounterEntry: &p4v1.CounterEntry{CounterId: c.counter}}},
	}})
	for err == nil {
		var m *p4v1.ReadResponse
		if m, err = stream.Recv(); err == nil {
			for _, e := range m.GetEntities() {
				_, verdict := p4.VerdictOf(e.GetCounterEntry().GetIndex().GetIndex())
				v[verdict] += e.GetCounterEntry().GetData().GetPacketCount()
			}
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return v, err
}

func counterID() (uint32, error) {
	info := &configv1.P4Info{}
	if err := prototext.Unmarshal(p4.Info, info); err != nil {
		return 0, err
	}
	for _, c := range info.GetCounters() {
		if c.GetPreamble().GetName() == "BifrostIngress.verdicts" {
			return c.GetPreamble().GetId(), nil
		}
	}
	return 0, errors.New("the program does not count verdicts")
}

func inserts(es ...p4rtclient.Entry) []p4rtclient.Update { return updates(p4rtclient.Insert, es) }

func updates(op p4rtclient.Op, es []p4rtclient.Entry) []p4rtclient.Update {
	us := make([]p4rtclient.Update, len(es))
	for i, e := range es {
		us[i] = p4rtclient.Update{Op: op, Entry: e}
	}
	return us
}

// hostEntries tell Bifröst's program of the hosts.
func hostEntries() (es []p4rtclient.Entry) {
	for i, h := range hosts {
		port := p4rtclient.Uint(uint64(i + 1))
		addr := p4rtclient.Addr(h.addr)
		es = append(es, identity(i),
			entry("l3", "to_hop", []p4rtclient.Param{{Name: "hop", Value: port}}, p4rtclient.Match{Field: "destination", Value: addr, PrefixLen: 128}),
			entry("next_hop", "forward", []p4rtclient.Param{
				{Name: "port", Value: port}, {Name: "dst", Value: p4rtclient.Bytes(h.mac)}, {Name: "src", Value: p4rtclient.Bytes([]byte{2, 0, 0, 0, 0, 0xff})},
			}, p4rtclient.Match{Field: "hop", Value: port}))
		for to := range hosts {
			es = append(es, entry("tcp_allowed", "permit", nil,
				p4rtclient.Match{Field: "ingress_port", Value: port}, p4rtclient.Match{Field: "hop", Value: p4rtclient.Uint(uint64(to + 1))}))
		}
	}
	return es
}

// identity lets a host speak. It has a row.
func identity(i int) p4rtclient.Entry {
	return entry("identity", "known", []p4rtclient.Param{{Name: "kind", Value: p4rtclient.Uint(1)}, {Name: "row", Value: p4rtclient.Uint(uint64(i + 1))}, {Name: "incarnation", Value: p4rtclient.Uint(0)}},
		p4rtclient.Match{Field: "ingress_port", Value: p4rtclient.Uint(uint64(i + 1))},
		p4rtclient.Match{Field: "source", Value: p4rtclient.Addr(hosts[i].addr), PrefixLen: 128})
}

// rule is one of many rules, which let a hundred nodes allocate in batches of regions.
func rule(i int) p4rtclient.Entry {
	return allocates(uint64(2+i%100), uint64(soakRegions+i/100)) //nolint:gosec // not negative
}

// allocates lets the node of a row allocate in a batch of machine 1.
func allocates(row, batch uint64) p4rtclient.Entry {
	return entry("control_rule", "allocates", []p4rtclient.Param{{Name: "tells", Value: p4rtclient.Uint(0)}},
		p4rtclient.Match{Field: "row", Value: p4rtclient.Uint(row)},
		p4rtclient.Match{Field: "machine", Value: p4rtclient.Uint(1)},
		p4rtclient.Match{Field: "batch", Value: p4rtclient.Uint(batch)})
}

func entry(table, action string, params []p4rtclient.Param, match ...p4rtclient.Match) p4rtclient.Entry {
	return p4rtclient.Entry{Table: table, Match: match, Action: action, Params: params}
}

// rebuilt is the Gatekeeper's word that registers are as they should be, without which no request to memory passes.
func rebuilt() []byte {
	const op, length = 8, 64
	b := append(make([]byte, 12), 0x88, 0xb5, op)
	b = append(b, make([]byte, length-1)...)
	b[14+15] = 1 // an election id
	return b
}
