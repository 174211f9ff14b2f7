package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/bifrost-rack/bifrost/bench/peer"
)

// maxLine is the longest request in bytes.
const maxLine = 1 << 20

// agent is one process's state.
type agent struct {
	server peer.Server
	client peer.Client
	phases peer.Phases
}

// Run does what comes in as requests until in ends, and then closes what it has opened.
func Run(ctx context.Context, in io.Reader, out io.Writer) (err error) {
	a := &agent{}
	defer func() { err = errors.Join(err, a.close()) }()
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
	answers := json.NewEncoder(out)
	for lines.Scan() {
		var r Request
		answer, err := Answer{}, json.Unmarshal(lines.Bytes(), &r)
		if err == nil {
			answer, err = a.do(ctx, r)
		}
		if err != nil {
			answer = Answer{Error: err.Error()}
		}
		if err := answers.Encode(answer); err != nil {
			return fmt.Errorf("answer the harness: %w", err)
		}
	}
	return lines.Err()
}

func (a *agent) close() (err error) {
	if a.client != nil {
		err = a.client.Close()
	}
	if a.server != nil {
		err = errors.Join(err, a.server.Close())
	}
	return err
}

func (a *agent) do(ctx context.Context, r Request) (answer Answer, err error) {
	switch {
	case r.Serve != nil && a.server == nil:
		var p peer.Peer
		if p, err = r.Serve.find(); err == nil {
			a.server, err = p.Serve(ctx, r.Serve.Site)
		}
	case r.Dial != nil && a.client == nil:
		var p peer.Peer
		if p, err = r.Dial.find(); err == nil {
			a.client, err = p.Dial(ctx, r.Dial.Site)
		}
	case r.Measure != nil && a.client != nil:
		answer.Result, err = a.measure(ctx, *r.Measure)
	case r.Phases && a.client != nil:
		answer.Phases = a.phases.Take()
	case r.Phases && a.server != nil:
		if p := peer.Served.Phases(); p != nil {
			answer.Phases = p.Take()
		}
		peer.Served.Enable()
	default:
		err = errors.New("a request that means nothing, or too early, or twice")
	}
	return answer, err
}

// find checks a role.
func (r *Role) find() (peer.Peer, error) {
	if len(r.Site.Servers) == 0 || r.Site.Index < 0 || r.Site.Index >= len(r.Site.Servers) {
		return peer.Peer{}, fmt.Errorf("%s: no server %d of %d", r.Peer, r.Site.Index, len(r.Site.Servers))
	}
	return peer.Find(r.Peer)
}
