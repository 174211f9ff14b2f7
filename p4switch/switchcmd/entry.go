package switchcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/p4rt/p4info"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/status"
)

// entryOptions are the flags of `bifrost switch entry` and `entries`.
type entryOptions struct {
	Client
	device, election            uint64
	priority                    int32
	modify, remove, makeDefault bool
}

// entryTimeout bounds what is asked of a switch.
const entryTimeout = 10 * time.Second

func newSwitchEntryCmd() *cobra.Command {
	var o entryOptions
	cmd := &cobra.Command{
		Use:   "entry TABLE [FIELD=VALUE...] [ACTION [PARAM=VALUE...]]",
		Short: "Write an entry to a table of a switch, through P4Runtime",
		Long: `Write an entry to a table of any switch with P4Runtime. While it writes, the command is the
switch's primary controller. The last part of a name is enough for a table, field, action or
parameter. Values are numbers (10, 0xa, 0b1010), IPv4, IPv6 and MAC addresses. VALUE/LENGTH
is a prefix, VALUE&MASK a ternary match, LOW..HIGH a range. A field that is left out matches
anything.`,
		Example: `  bifrost switch entry ipv4_lpm hdr.ipv4.dstAddr=10.0.1.1/32 ipv4_forward dstAddr=08:00:00:00:01:11 port=1
  bifrost switch entry ipv4_lpm hdr.ipv4.dstAddr=10.0.1.1/32 --delete
  bifrost switch entry ipv4_lpm drop --default`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return o.write(cmd.Context(), args) },
	}
	o.register(cmd)
	cmd.Flags().Uint64Var(&o.election, "election-id", 1, "P4Runtime election id; the command fails if a controller with a higher id is connected")
	cmd.Flags().Int32Var(&o.priority, "priority", 0, "priority among ternary, range and optional matches; the largest wins (default: 1 where a priority is needed)")
	cmd.Flags().BoolVar(&o.modify, "modify", false, "change the action of an existing entry")
	cmd.Flags().BoolVar(&o.remove, "delete", false, "delete the entry")
	cmd.Flags().BoolVar(&o.makeDefault, "default", false, "set the table's default action")
	cmd.MarkFlagsMutuallyExclusive("modify", "delete", "default")
	return cmd
}

func newSwitchEntriesCmd() *cobra.Command {
	var o entryOptions
	cmd := &cobra.Command{
		Use:     "entries [TABLE]",
		Short:   "List the entries of a switch's tables, through P4Runtime",
		Long:    "List the entries of one table, or of all tables, in the form that `bifrost switch entry` takes.",
		Example: "  bifrost switch entries\n  bifrost switch entries ipv4_lpm",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.list(cmd.Context(), cmd.OutOrStdout(), strings.Join(args, ""))
		},
	}
	o.register(cmd)
	return cmd
}

func (o *entryOptions) register(cmd *cobra.Command) {
	o.Register(cmd.Flags(), "grpc-addr", "a controller's")
	cmd.Flags().Uint64Var(&o.device, "device-id", 1, "P4Runtime device id")
}

// connect asks a switch for its program.
func (o *entryOptions) connect(ctx context.Context) (p4v1.P4RuntimeClient, *p4info.Info, func(), error) {
	conn, err := o.Dial()
	if err != nil {
		return nil, nil, nil, err
	}
	c := p4v1.NewP4RuntimeClient(conn)
	m, err := c.GetForwardingPipelineConfig(ctx, &p4v1.GetForwardingPipelineConfigRequest{
		DeviceId: o.device, ResponseType: p4v1.GetForwardingPipelineConfigRequest_P4INFO_AND_COOKIE,
	})
	var info *p4info.Info
	switch {
	case err != nil:
		err = fmt.Errorf("no switch answers at %s: %s (see --grpc-addr and --device-id)", o.Address, status.Convert(err).Message())
	case m.GetConfig().GetP4Info() == nil:
		err = fmt.Errorf("the switch at %s has no program with P4Info: start it with --p4info FILE PROGRAM.json", o.Address)
	default:
		info, err = p4info.Parse(m.GetConfig().GetP4Info())
	}
	if err != nil {
		_ = conn.Close()
		return nil, nil, nil, err
	}
	return c, info, func() { _ = conn.Close() }, nil
}

func (o *entryOptions) write(ctx context.Context, args []string) error {
	ctx, cancel := context.WithTimeout(ctx, entryTimeout)
	defer cancel()
	c, info, closeConn, err := o.connect(ctx)
	if err != nil {
		return err
	}
	defer closeConn()
	e, err := o.entry(info, args)
	if err != nil {
		return err
	}
	stream, err := c.StreamChannel(ctx)
	if err != nil {
		return err
	}
	id := &p4v1.Uint128{Low: o.election}
	err = stream.Send(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Arbitration{
		Arbitration: &p4v1.MasterArbitrationUpdate{DeviceId: o.device, ElectionId: id},
	}})
	if err != nil {
		return err
	}
	m, err := stream.Recv()
	if err != nil {
		return err
	}
	if m.GetArbitration().GetStatus().GetCode() != 0 {
		return errors.New("another controller is the primary: stop that one, or give a higher --election-id")
	}
	op := p4v1.Update_INSERT
	switch {
	case o.remove:
		op = p4v1.Update_DELETE
	case o.modify, o.makeDefault:
		op = p4v1.Update_MODIFY
	}
	_, err = c.Write(ctx, &p4v1.WriteRequest{DeviceId: o.device, ElectionId: id, Updates: []*p4v1.Update{
		{Type: op, Entity: &p4v1.Entity{Entity: &p4v1.Entity_TableEntry{TableEntry: e}}},
	}})
	return writeError(err)
}

// writeError says what was wrong with the one update of a Write.
func writeError(err error) error {
	for _, d := range status.Convert(err).Details() {
		if e, ok := d.(*p4v1.Error); ok && e.GetMessage() != "" {
			return errors.New(e.GetMessage())
		}
	}
	return err
}

// entry makes an entry of the command's arguments.
func (o *entryOptions) entry(info *p4info.Info, args []string) (*p4v1.TableEntry, error) {
	t, err := named(info.TableOrder, args[0], func(t *p4info.Table) string { return t.Name })
	if err != nil {
		return nil, fmt.Errorf("table %w", err)
	}
	e := &p4v1.TableEntry{TableId: t.ID, IsDefaultAction: o.makeDefault, Priority: o.priority}
	if t.NeedsPriority && o.priority == 0 && !o.makeDefault {
		e.Priority = 1
	}
	args = args[1:]
	for ; len(args) > 0 && strings.Contains(args[0], "="); args = args[1:] {
		name, value, _ := strings.Cut(args[0], "=")
		f, err := named(t.Fields, name, func(f p4info.Field) string { return f.Name })
		if err != nil {
			return nil, fmt.Errorf("field %w", err)
		}
		m, err := fieldMatch(f, value)
		if err != nil {
			return nil, fmt.Errorf("field %s: %w", f.Name, err)
		}
		e.Match = append(e.Match, m)
	}
	switch {
	case len(args) == 0 && !o.remove:
		return nil, fmt.Errorf("the entry needs an action behind the fields: %s", strings.Join(actionsOf(info, t), ", "))
	case len(args) == 0:
		return e, nil
	}
	a, err := o.action(info, t, args)
	e.Action = &p4v1.TableAction{Type: &p4v1.TableAction_Action{Action: a}}
	return e, err
}

func (o *entryOptions) action(info *p4info.Info, t *p4info.Table, args []string) (*p4v1.Action, error) {
	var of []*p4info.Action
	for id := range t.Actions {
		of = append(of, info.Actions[id])
	}
	a, err := named(of, args[0], func(a *p4info.Action) string { return a.Name })
	if err != nil {
		return nil, fmt.Errorf("action %w", err)
	}
	out := &p4v1.Action{ActionId: a.ID}
	for _, arg := range args[1:] {
		name, value, _ := strings.Cut(arg, "=")
		p, err := named(a.Params, name, func(p p4info.Param) string { return p.Name })
		if err != nil {
			return nil, fmt.Errorf("parameter %w", err)
		}
		b, err := parseValue(value, p.Strings)
		if err != nil {
			return nil, fmt.Errorf("parameter %s: %w", p.Name, err)
		}
		out.Params = append(out.Params, &p4v1.Action_Param{ParamId: p.ID, Value: b})
	}
	return out, nil
}

func actionsOf(info *p4info.Info, t *p4info.Table) []string {
	var names []string
	for id := range t.Actions {
		names = append(names, info.Actions[id].Name)
	}
	return names
}

// named finds the one thing of a name, or of a name that ends so.
func named[T any](all []T, name string, of func(T) string) (found T, err error) {
	var names []string
	n := 0
	for _, t := range all {
		names = append(names, of(t))
		switch {
		case of(t) == name:
			return t, nil
		case strings.HasSuffix(of(t), "."+name):
			found = t
			n++
		}
	}
	if n != 1 {
		return found, fmt.Errorf("%q is not one of %s", name, strings.Join(names, ", "))
	}
	return found, nil
}

// fieldMatch reads a match in the field's kind.
func fieldMatch(f p4info.Field, text string) (*p4v1.FieldMatch, error) {
	m := &p4v1.FieldMatch{FieldId: f.ID}
	value, more := text, ""
	for kind, sep := range map[p4info.Kind]string{p4info.LPM: "/", p4info.Ternary: "&", p4info.Range: ".."} {
		if f.Kind == kind {
			value, more, _ = strings.Cut(text, sep)
		}
	}
	v, err := parseValue(value, f.Strings)
	if err != nil {
		return nil, err
	}
	switch f.Kind {
	case p4info.Exact:
		m.FieldMatchType = &p4v1.FieldMatch_Exact_{Exact: &p4v1.FieldMatch_Exact{Value: v}}
	case p4info.Optional:
		m.FieldMatchType = &p4v1.FieldMatch_Optional_{Optional: &p4v1.FieldMatch_Optional{Value: v}}
	case p4info.LPM:
		n := f.Width
		if more != "" {
			if _, err := fmt.Sscan(more, &n); err != nil {
				return nil, fmt.Errorf("prefix length %q: %w", more, err)
			}
		}
		m.FieldMatchType = &p4v1.FieldMatch_Lpm{Lpm: &p4v1.FieldMatch_LPM{Value: v, PrefixLen: int32(n)}}
	case p4info.Ternary:
		mask := new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), uint(f.Width)), big.NewInt(1)).Bytes()
		if more != "" {
			if mask, err = parseValue(strings.TrimLeft(more, "&"), nil); err != nil {
				return nil, err
			}
		}
		m.FieldMatchType = &p4v1.FieldMatch_Ternary_{Ternary: &p4v1.FieldMatch_Ternary{Value: v, Mask: mask}}
	case p4info.Range:
		high := v
		if more != "" {
			if high, err = parseValue(more, nil); err != nil {
				return nil, err
			}
		}
		m.FieldMatchType = &p4v1.FieldMatch_Range_{Range: &p4v1.FieldMatch_Range{Low: v, High: high}}
	}
	return m, nil
}

// parseValue reads a number or an address, big-endian and without leading zeros; or, of a type that is translated to strings,
// the string.
func parseValue(s string, of *p4info.Strings) ([]byte, error) {
	if of != nil {
		return []byte(s), nil
	}
	if mac, err := net.ParseMAC(s); err == nil {
		return canonical(new(big.Int).SetBytes(mac)), nil
	}
	if a, err := netip.ParseAddr(s); err == nil {
		return canonical(new(big.Int).SetBytes(a.AsSlice())), nil
	}
	n, ok := new(big.Int).SetString(s, 0)
	if !ok || n.Sign() < 0 {
		return nil, fmt.Errorf("%q is neither a number nor an address", s)
	}
	return canonical(n), nil
}

func canonical(n *big.Int) []byte {
	if n.Sign() == 0 {
		return []byte{0}
	}
	return n.Bytes()
}

// list prints entries.
func (o *entryOptions) list(ctx context.Context, w io.Writer, table string) error {
	ctx, cancel := context.WithTimeout(ctx, entryTimeout)
	defer cancel()
	c, info, closeConn, err := o.connect(ctx)
	if err != nil {
		return err
	}
	defer closeConn()
	q := &p4v1.TableEntry{}
	if table != "" {
		t, err := named(info.TableOrder, table, func(t *p4info.Table) string { return t.Name })
		if err != nil {
			return fmt.Errorf("table %w", err)
		}
		q.TableId = t.ID
	}
	r, err := c.Read(ctx, &p4v1.ReadRequest{DeviceId: o.device, Entities: []*p4v1.Entity{{Entity: &p4v1.Entity_TableEntry{TableEntry: q}}}})
	for err == nil {
		var m *p4v1.ReadResponse
		if m, err = r.Recv(); err == nil {
			for _, e := range m.GetEntities() {
				if _, err := fmt.Fprintln(w, describeEntry(info, e.GetTableEntry())); err != nil {
					return err
				}
			}
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// describeEntry writes an entry as `bifrost switch entry` takes it.
func describeEntry(info *p4info.Info, e *p4v1.TableEntry) string {
	t := info.Tables[e.GetTableId()]
	if t == nil {
		return e.String()
	}
	words := []string{t.Name}
	for _, m := range e.GetMatch() {
		for _, f := range t.Fields {
			if f.ID == m.GetFieldId() {
				words = append(words, f.Name+"="+describeMatch(f, m))
			}
		}
	}
	if a := info.Actions[e.GetAction().GetAction().GetActionId()]; a != nil {
		words = append(words, a.Name)
		for _, v := range e.GetAction().GetAction().GetParams() {
			for _, p := range a.Params {
				if p.ID == v.GetParamId() {
					words = append(words, p.Name+"="+describeValue(p.Width, p.Strings, v.GetValue()))
				}
			}
		}
	}
	if e.GetPriority() != 0 {
		words = append(words, fmt.Sprintf("--priority %d", e.GetPriority()))
	}
	return strings.Join(words, " ")
}

func describeMatch(f p4info.Field, m *p4v1.FieldMatch) string {
	value := func(b []byte) string { return describeValue(f.Width, f.Strings, b) }
	switch v := m.GetFieldMatchType().(type) {
	case *p4v1.FieldMatch_Lpm:
		return fmt.Sprintf("%s/%d", value(v.Lpm.GetValue()), v.Lpm.GetPrefixLen())
	case *p4v1.FieldMatch_Ternary_:
		return value(v.Ternary.GetValue()) + "&" + value(v.Ternary.GetMask())
	case *p4v1.FieldMatch_Range_:
		return value(v.Range.GetLow()) + ".." + value(v.Range.GetHigh())
	case *p4v1.FieldMatch_Optional_:
		return value(v.Optional.GetValue())
	}
	return value(m.GetExact().GetValue())
}

// describeValue writes a value as an address where it is as wide as one, and as it is where it is a string.
func describeValue(width int, of *p4info.Strings, b []byte) string {
	if of != nil {
		return string(b)
	}
	n := new(big.Int).SetBytes(b)
	switch whole := make([]byte, (width+7)/8); {
	case n.BitLen() > width:
	case width == 48:
		return net.HardwareAddr(n.FillBytes(whole)).String()
	case width == 32, width == 128:
		a, _ := netip.AddrFromSlice(n.FillBytes(whole))
		return a.String()
	}
	return n.String()
}
