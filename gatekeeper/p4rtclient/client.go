package p4rtclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/p4rt"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Election is a P4Runtime election id, which must not be zero; the controller
// with the highest one is primary.
type Election struct{ High, Low uint64 }

// Config is what a Client needs.
type Config struct {
	// Conn leads to the switch.
	Conn grpc.ClientConnInterface
	// Program is what runs, or is to run, on the switch.
	Program *Program
	// DeviceID is the switch's device id, at least 1.
	DeviceID uint64
	// Election is this controller's, unless it has to take a higher one (Keep).
	Election Election
	// Log receives what nobody else hears of, such as failed attempts to connect;
	// nil discards it.
	Log *slog.Logger
}

// Client speaks to one switch. All methods may be called concurrently.
// A request that the switch leaves unanswered fails after ten seconds.
type Client struct {
	cfg Config
	rpc p4v1.P4RuntimeClient
	log *slog.Logger

	rules   atomic.Bool // it is primary, or was
	asElect atomic.Pointer[Election]
}

// New returns a Client; it does not connect.
func New(cfg Config) (*Client, error) {
	switch {
	case cfg.Conn == nil || cfg.Program == nil:
		return nil, errors.New("p4rtclient: Config.Conn and Config.Program are required")
	case cfg.DeviceID == 0:
		return nil, errors.New("p4rtclient: device id 0 is reserved by P4Runtime")
	case cfg.Election == Election{}:
		return nil, errors.New("p4rtclient: election id 0 is reserved by P4Runtime")
	}
	c := &Client{cfg: cfg, rpc: p4v1.NewP4RuntimeClient(cfg.Conn), log: cfg.Log}
	c.asElect.Store(&cfg.Election)
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// Program is what the client was made for.
func (c *Client) Program() *Program { return c.cfg.Program }

// Election is the id that this controller has now: that of Config, or a higher one (Keep). While a session lives, it stays.
func (c *Client) Election() Election { return *c.asElect.Load() }

func (c *Client) election() *p4v1.Uint128 {
	e := c.Election()
	return &p4v1.Uint128{High: e.High, Low: e.Low}
}

// after returns the next higher election id.
func (e Election) after() Election {
	if e.Low++; e.Low == 0 {
		e.High++
	}
	return e
}

// SetPipeline makes the switch run the program, unless it does already; it
// reports whether it had to. A new pipeline starts with empty tables. Registers keep what they have if the
// program before had the same ones and the switch is ours (p4rt.KeepRegisters); else they are empty.
func (c *Client) SetPipeline(ctx context.Context) (set bool, err error) {
	asking, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	has, err := c.rpc.GetForwardingPipelineConfig(asking, &p4v1.GetForwardingPipelineConfigRequest{
		DeviceId: c.cfg.DeviceID, ResponseType: p4v1.GetForwardingPipelineConfigRequest_COOKIE_ONLY,
	})
	switch {
	case err == nil && has.GetConfig().GetCookie().GetCookie() == c.cfg.Program.cookie:
		return false, nil
	case err != nil && status.Code(err) != codes.FailedPrecondition && status.Code(err) != codes.NotFound:
		return false, fmt.Errorf("ask for the pipeline: %w", err)
	}
	err = c.commit(metadata.AppendToOutgoingContext(ctx, p4rt.KeepRegisters, "yes"))
	return err == nil, err
}

// ResetPipeline makes the switch run the program, whatever it runs, with empty tables and empty registers.
func (c *Client) ResetPipeline(ctx context.Context) error {
	return c.commit(ctx)
}

// commit sets the pipeline.
func (c *Client) commit(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	_, err := c.rpc.SetForwardingPipelineConfig(ctx, &p4v1.SetForwardingPipelineConfigRequest{
		DeviceId: c.cfg.DeviceID, ElectionId: c.election(),
		Action: p4v1.SetForwardingPipelineConfigRequest_VERIFY_AND_COMMIT,
		Config: &p4v1.ForwardingPipelineConfig{
			P4Info: c.cfg.Program.info, P4DeviceConfig: c.cfg.Program.deviceConfig,
			Cookie: &p4v1.ForwardingPipelineConfig_Cookie{Cookie: c.cfg.Program.cookie},
		},
	})
	if err != nil {
		return fmt.Errorf("set the pipeline: %w", err)
	}
	return nil
}

// Op is what an update does.
type Op uint8

// The operations.
const (
	Insert Op = iota + 1
	Modify
	Delete
)

// String returns the operation's name.
func (o Op) String() string { return [...]string{"?", "insert", "modify", "delete"}[min(o, Delete)] }

// Update is one change of a table.
type Update struct {
	Op    Op
	Entry Entry
}

// Write makes updates, which the switch may apply in any order. When it returns,
// those that succeeded are in force. Each update is checked before any is sent;
// if some fail at the switch, the error is a *BatchError.
func (c *Client) Write(ctx context.Context, updates []Update) error {
	r, err := c.request(updates)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	if _, err := c.rpc.Write(ctx, r); err != nil {
		return batchError(err, len(updates))
	}
	return nil
}

// written is what an update consists of, in one piece of memory.
type written struct {
	update p4v1.Update
	entity p4v1.Entity
	which  p4v1.Entity_TableEntry
	entry  p4v1.TableEntry
}

// request checks updates and makes a request of them.
func (c *Client) request(updates []Update) (*p4v1.WriteRequest, error) {
	r := &p4v1.WriteRequest{DeviceId: c.cfg.DeviceID, ElectionId: c.election(), Updates: make([]*p4v1.Update, len(updates))}
	all := make([]written, len(updates))
	for i := range updates {
		u, w := &updates[i], &all[i]
		if u.Entry.Table == Multicast {
			entity, err := encodeGroup(&u.Entry, u.Op != Delete)
			if err != nil {
				return nil, fmt.Errorf("update %d: %w", i, err)
			}
			r.Updates[i] = &p4v1.Update{Type: p4v1.Update_Type(u.Op), Entity: entity}
			continue
		}
		if err := c.cfg.Program.encode(&w.entry, &u.Entry, u.Op != Delete); err != nil {
			return nil, fmt.Errorf("update %d: %w", i, err)
		}
		w.which.TableEntry, w.entity.Entity = &w.entry, &w.which
		w.update.Type, w.update.Entity = p4v1.Update_Type(u.Op), &w.entity
		r.Updates[i] = &w.update
	}
	return r, nil
}

// Batch says how the samples of a digest come: Size at a time, or those that there are
// when the first has waited for Wait. The zero value is each at once and by itself.
type Batch struct {
	Size int
	Wait time.Duration
}

// EnableDigest asks for a digest.
func (c *Client) EnableDigest(ctx context.Context, name string, b Batch) error {
	id, ok := c.cfg.Program.digests[name]
	if !ok {
		return fmt.Errorf("the program has no digest %q", name)
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	// A switch that had this controller's session before may have it enabled.
	for _, op := range []p4v1.Update_Type{p4v1.Update_INSERT, p4v1.Update_MODIFY} {
		_, err := c.rpc.Write(ctx, &p4v1.WriteRequest{
			DeviceId: c.cfg.DeviceID, ElectionId: c.election(),
			Updates: []*p4v1.Update{{Type: op, Entity: &p4v1.Entity{Entity: &p4v1.Entity_DigestEntry{DigestEntry: &p4v1.DigestEntry{
				DigestId: id, Config: &p4v1.DigestEntry_Config{
					MaxListSize: int32(max(b.Size, 1)), MaxTimeoutNs: b.Wait.Nanoseconds(), //nolint:gosec // a few
				},
			}}}}},
		})
		var batch *BatchError
		if err == nil {
			return nil
		}
		if err = batchError(err, 1); op == p4v1.Update_MODIFY || !errors.As(err, &batch) {
			return fmt.Errorf("enable digest %s: %w", name, err)
		}
	}
	return nil
}

// Read returns the entries of some tables, of all if none is named. Default
// entries are not among them.
func (c *Client) Read(ctx context.Context, tables ...string) ([]Entry, error) {
	if len(tables) == 0 {
		tables = c.cfg.Program.Tables()
	}
	r := &p4v1.ReadRequest{DeviceId: c.cfg.DeviceID}
	for _, name := range tables {
		t := c.cfg.Program.tables[name]
		if t == nil {
			return nil, fmt.Errorf("the program has no table %q", name)
		}
		r.Entities = append(r.Entities, &p4v1.Entity{Entity: &p4v1.Entity_TableEntry{TableEntry: &p4v1.TableEntry{TableId: t.id}}})
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	stream, err := c.rpc.Read(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	var out []Entry
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read: %w", err)
		}
		for _, e := range m.GetEntities() {
			entry, err := c.cfg.Program.decode(e.GetTableEntry())
			if err != nil {
				return nil, fmt.Errorf("read: %w", err)
			}
			out = append(out, entry)
		}
	}
}
