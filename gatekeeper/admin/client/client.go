// Package client is the Go client of the Gatekeeper's admin API, which
// `bifrost status` and the other commands use.
package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
)

// maxAnswer bounds an answer in bytes; the largest page has a few MiB.
const maxAnswer = 64 << 20

// pageSize is how many items a page has that All asks for.
const pageSize = 1000

// Config says where the API is.
type Config struct {
	// Address is unix:PATH, HOST:PORT (plain text, or TLS if TLS is set), or a URL.
	Address string
	// Token is sent with every request; a Unix socket needs none.
	Token string
	// TLS is used for https; nil means what the system trusts.
	TLS *tls.Config
}

// Client asks one Gatekeeper. Its methods may be called concurrently.
type Client struct {
	base  *url.URL
	where string // the address, for people
	token string
	http  *http.Client
}

// New returns a Client; it does not connect.
func New(cfg Config) (*Client, error) {
	t := &http.Transport{TLSClientConfig: cfg.TLS, ForceAttemptHTTP2: true, ResponseHeaderTimeout: time.Minute}
	address := cfg.Address
	path, unix := strings.CutPrefix(address, "unix:")
	switch {
	case unix:
		address = "http://gatekeeper"
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}
	case strings.Contains(address, "://"):
	case cfg.TLS != nil:
		address = "https://" + address
	default:
		address = "http://" + address
	}
	base, err := url.Parse(address)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, fmt.Errorf("admin address %q: want HOST:PORT, unix:PATH or a URL", cfg.Address)
	}
	if !unix && cfg.Token != "" && base.Scheme == "http" && !loopback(base.Hostname()) {
		return nil, fmt.Errorf("%w: %s", ErrClearText, base.Host)
	}
	where := base.Host
	if unix {
		where = path
	}
	return &Client{base: base, where: where, token: cfg.Token, http: &http.Client{Transport: t}}, nil
}

// ErrClearText is what New fails with when a token would travel in clear text.
var ErrClearText = errors.New("the token would travel in clear text to another machine, where anybody on the way could read it")

// loopback says whether a host is this machine.
func loopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}

// Close ends idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// do makes a request; the caller must close the body of a response. What is not a
// success is an error: an *api.Problem if the server says what is wrong.
func (c *Client) do(ctx context.Context, method, path string, query url.Values, header http.Header, body io.Reader) (*http.Response, error) {
	u := c.base.JoinPath(path)
	u.RawQuery = query.Encode()
	r, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	for k, v := range header {
		r.Header[k] = v
	}
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return nil, &unreachable{c.where, err}
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, c.problem(resp)
}

// unreachable is that no answer has come. It says why without the words of HTTP and of sockets.
type unreachable struct {
	where string
	err   error
}

func (u *unreachable) Error() string {
	why := u.err
	var request *url.Error
	if errors.As(why, &request) {
		why = request.Err
	}
	says := "has not answered"
	var op *net.OpError
	if errors.As(why, &op) {
		if why = op.Err; op.Op == "dial" {
			says = "cannot be reached"
		}
	}
	var call *os.SyscallError
	if errors.As(why, &call) {
		why = call.Err
	}
	switch {
	case errors.Is(why, context.DeadlineExceeded):
		return fmt.Sprintf("the Gatekeeper at %s %s in time", u.where, says)
	case errors.Is(why, io.EOF):
		return fmt.Sprintf("the Gatekeeper at %s %s: it has closed the connection", u.where, says)
	}
	return fmt.Sprintf("the Gatekeeper at %s %s: %v", u.where, says, why)
}

func (u *unreachable) Unwrap() error { return u.err }

// problem reads an error response.
func (c *Client) problem(resp *http.Response) error {
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	var p api.Problem
	if mediaType(resp) == "application/problem+json" && json.Unmarshal(b, &p) == nil && p.Status != 0 {
		return &p
	}
	return &api.Problem{Title: resp.Status, Status: resp.StatusCode, Detail: fmt.Sprintf("what listens at %s does not seem to be a Gatekeeper: name the Gatekeeper with --admin-addr", c.where)}
}

func mediaType(resp *http.Response) string {
	t, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return t
}

// get asks for something.
func get[T any](ctx context.Context, c *Client, path string, query url.Values) (out T, err error) {
	return ask[T](ctx, c, http.MethodGet, path, query, nil)
}

// ask makes a request, with in as its body unless that is nil.
func ask[T any](ctx context.Context, c *Client, method, path string, query url.Values, in any) (out T, err error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return out, err
		}
		body = bytes.NewReader(b)
	}
	resp, err := c.do(ctx, method, path, query, nil, body)
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	if t := mediaType(resp); t != "application/json" {
		return out, fmt.Errorf("what listens at %s does not seem to be a Gatekeeper: its answer is of type %q", c.where, t)
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(&out); err != nil {
		return out, fmt.Errorf("answer of the Gatekeeper: %w", err)
	}
	return out, nil
}

// all yields the items of all pages of a list.
func all[T any](ctx context.Context, c *Client, path string, query url.Values) iter.Seq2[T, error] {
	return partly[T](ctx, c, path, query, nil)
}

// partly is all of a list that may not be complete: missing, if it is not nil, gets the names of those that have not answered.
func partly[T any](ctx context.Context, c *Client, path string, query url.Values, missing *[]string) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for more := true; more; {
			page, err := get[api.List[T]](ctx, c, path, query)
			if err != nil {
				var zero T
				yield(zero, err)
				return
			}
			if missing != nil {
				*missing = slices.Compact(slices.Sorted(slices.Values(append(*missing, page.Missing...))))
			}
			for _, item := range page.Items {
				if !yield(item, nil) {
					return
				}
			}
			query.Set("cursor", page.Next)
			more = page.Next != ""
		}
	}
}

// Status returns the Gatekeeper and its rack at a glance.
func (c *Client) Status(ctx context.Context) (api.Status, error) {
	return get[api.Status](ctx, c, "/v1/status", nil)
}

// Blades returns all blades.
func (c *Client) Blades(ctx context.Context) ([]api.Blade, error) {
	l, err := get[api.List[api.Blade]](ctx, c, "/v1/blades", nil)
	return l.Items, err
}

// Blade returns one blade.
func (c *Client) Blade(ctx context.Context, name string) (api.Blade, error) {
	return get[api.Blade](ctx, c, "/v1/blades/"+url.PathEscape(name), nil)
}

// Machines returns all memory machines.
func (c *Client) Machines(ctx context.Context) ([]api.Machine, error) {
	l, err := get[api.List[api.Machine]](ctx, c, "/v1/machines", nil)
	return l.Items, err
}

// Nodes returns all nodes.
func (c *Client) Nodes(ctx context.Context) ([]api.Node, error) {
	l, err := get[api.List[api.Node]](ctx, c, "/v1/nodes", nil)
	return l.Items, err
}

// Services returns all services.
func (c *Client) Services(ctx context.Context) ([]api.Service, error) {
	l, err := get[api.List[api.Service]](ctx, c, "/v1/services", nil)
	return l.Items, err
}

// Service returns one service, its IDL included.
func (c *Client) Service(ctx context.Context, name string) (api.Service, error) {
	return get[api.Service](ctx, c, "/v1/services/"+url.PathEscape(name), nil)
}

// Denied returns the latest denied accesses, oldest first.
func (c *Client) Denied(ctx context.Context) ([]api.Denial, error) {
	l, err := get[api.List[api.Denial]](ctx, c, "/v1/denied", nil)
	return l.Items, err
}

// Stopped returns what was stopped of each port's packets.
func (c *Client) Stopped(ctx context.Context) ([]api.Stopped, error) {
	l, err := get[api.List[api.Stopped]](ctx, c, "/v1/stopped", nil)
	return l.Items, err
}

// RegionFilter selects regions; the zero value selects all.
type RegionFilter struct {
	Node    netip.Addr // that controls, has allocated or leases them
	Pointer netip.Addr // that lies in it
	// Missing, if it is not nil, gets the names of those that have not answered: memory blades, whose regions are left out, and switch.
	Missing *[]string
}

// Regions yields regions.
func (c *Client) Regions(ctx context.Context, f RegionFilter) iter.Seq2[api.Region, error] {
	return partly[api.Region](ctx, c, "/v1/regions", pages("node", text(f.Node), "pointer", text(f.Pointer)), f.Missing)
}

// SlotFilter selects open call slots; its zero value takes all.
type SlotFilter struct {
	Node   netip.Addr // the caller, or the callee
	Leases bool       // only standing leases
	// Missing, if it is not nil, gets "switch" if that has not told of all slots.
	Missing *[]string
}

// Slots yields the call slots that are open in the switch, by slot.
func (c *Client) Slots(ctx context.Context, f SlotFilter) iter.Seq2[api.Slot, error] {
	kind := ""
	if f.Leases {
		kind = "lease"
	}
	return partly[api.Slot](ctx, c, "/v1/slots", pages("node", text(f.Node), "kind", kind), f.Missing)
}

// Calls yields the calls under way, oldest first; only those of a node if one is
// given.
func (c *Client) Calls(ctx context.Context, node netip.Addr) iter.Seq2[api.Call, error] {
	return all[api.Call](ctx, c, "/v1/calls", pages("node", text(node)))
}

// Call returns one call that is under way or on record.
func (c *Client) Call(ctx context.Context, id string) (api.Call, error) {
	return get[api.Call](ctx, c, "/v1/calls/"+url.PathEscape(id), nil)
}

// TimelineFilter selects calls; the zero value selects all.
type TimelineFilter struct {
	Node         netip.Addr    // that made or served them
	Caller       netip.Addr    // that made them
	Service      string        // of the method
	Method       string        // the method
	Code         string        // how they ended: ok, or an error's
	Failed       bool          // refused, ended with an exception, or run again
	Rerun        bool          // run again after a failure
	Roots        bool          // made by no other call that is remembered
	Longer       time.Duration // took this long, or have been under way for that long
	Since, Until time.Time     // sent in this time
}

// Timelines yields the latest calls with all that has happened to them, the last one
// first.
func (c *Client) Timelines(ctx context.Context, f TimelineFilter) iter.Seq2[api.Timeline, error] {
	flag := func(on bool) string {
		if on {
			return "true"
		}
		return ""
	}
	longer := ""
	if f.Longer > 0 {
		longer = strconv.FormatFloat(f.Longer.Seconds(), 'g', -1, 64)
	}
	return all[api.Timeline](ctx, c, "/v1/timelines", pages("node", text(f.Node), "caller", text(f.Caller), "service", f.Service, "method", f.Method, "code", f.Code,
		"failed", flag(f.Failed), "rerun", flag(f.Rerun), "roots", flag(f.Roots), "longer", longer, "since", instant(f.Since), "until", instant(f.Until)))
}

// Methods returns what has become of the calls of each method since the Gatekeeper began.
func (c *Client) Methods(ctx context.Context) ([]api.MethodFigures, error) {
	l, err := get[api.List[api.MethodFigures]](ctx, c, "/v1/methods", nil)
	return l.Items, err
}

// Timeline tells what became of a call, and of those that belong together with it.
func (c *Client) Timeline(ctx context.Context, id string) (api.Trace, error) {
	return get[api.Trace](ctx, c, "/v1/calls/"+url.PathEscape(id)+"/timeline", nil)
}

// Rules yields entries of a table of the switch, of all tables if that is "".
func (c *Client) Rules(ctx context.Context, table string) iter.Seq2[api.Rule, error] {
	return all[api.Rule](ctx, c, "/v1/rules", pages("table", table))
}

// Recent returns the latest events of some kinds, of all if none is named, oldest
// first, limit at most.
func (c *Client) Recent(ctx context.Context, limit int, f EventFilter) ([]api.Event, error) {
	l, err := get[api.List[api.Event]](ctx, c, "/v1/events/recent", values(append(f.pairs(), "limit", strconv.Itoa(limit))...))
	return l.Items, err
}

// Names returns the names of all nodes, those included that have left, as far as they are remembered.
func (c *Client) Names(ctx context.Context) ([]api.NodeName, error) {
	l, err := get[api.List[api.NodeName]](ctx, c, "/v1/names", nil)
	return l.Items, err
}

// History returns how many calls there were in each minute of the last two days.
func (c *Client) History(ctx context.Context) (api.History, error) {
	return get[api.History](ctx, c, "/v1/history", nil)
}

// EventFilter selects events; the zero value selects all.
type EventFilter struct {
	Kinds   []string
	Blade   string
	Node    netip.Addr // who did it, or with whom
	Service string
	App     string // APP, APP/PROGRAM or APP/PROGRAM/NUMBER
}

func (f *EventFilter) pairs() []string {
	return []string{"kind", strings.Join(f.Kinds, ","), "blade", f.Blade, "node", text(f.Node), "service", f.Service, "app", f.App}
}

// instant is a time for a query, nothing for none.
func instant(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// values makes a query of names and values; those without a value are left out.
func values(pairs ...string) url.Values {
	v := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			v.Set(pairs[i], pairs[i+1])
		}
	}
	return v
}

func pages(pairs ...string) url.Values {
	return values(append(pairs, "limit", strconv.Itoa(pageSize))...)
}

// text is an address, nothing for none.
func text(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// IsNotFound reports whether the API says that something does not exist.
func IsNotFound(err error) bool {
	var p *api.Problem
	return errors.As(err, &p) && p.Status == http.StatusNotFound
}

// IsUnauthorized reports whether the API wants another token.
func IsUnauthorized(err error) bool {
	var p *api.Problem
	return errors.As(err, &p) && p.Status == http.StatusUnauthorized
}

// LogFilter says which lines are wanted: the Last ones, or those from Since on, or those
// behind a Cursor, which is Next of the answer before. Only one of the three may be set.
type LogFilter struct {
	Program string // APP, APP/PROGRAM or APP/PROGRAM/NUMBER
	Last    int
	Since   time.Time
	Cursor  string
}

// Logs returns a part of what programs have printed, on whichever blades.
func (c *Client) Logs(ctx context.Context, f LogFilter) (api.Logs, error) {
	q := values("program", f.Program, "cursor", f.Cursor)
	if f.Last > 0 {
		q.Set("last", strconv.Itoa(f.Last))
	}
	if !f.Since.IsZero() {
		q.Set("since", f.Since.UTC().Format(time.RFC3339Nano))
	}
	return get[api.Logs](ctx, c, "/v1/logs", q)
}
