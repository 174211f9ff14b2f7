package ingress

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/bifrost-rack/bifrost/internal/duration"
	"github.com/bifrost-rack/bifrost/internal/share"
)

// visit is a request: who makes it, and what is told of it when it is over.
type visit struct {
	grant *Grant // nil where nobody is asked for a token
	// client is whose limits count, and scope whose keys.
	client, scope string
	// service and method are those that are called, once it is known that there are such.
	service, method string
	// reason says why the request was refused before it was looked at, "" if it was not.
	reason string
}

// mayCall reports whether the client may call a service.
func (v *visit) mayCall(service string) bool { return v.grant == nil || v.grant.allows(service) }

type visitKey struct{}

func visitOf(ctx context.Context) *visit { return ctx.Value(visitKey{}).(*visit) }

// clients are those whose requests came of late, with their limits.
type clients struct {
	limit rate.Limit
	burst int
	most  int

	mu       sync.Mutex
	rates    map[string]*rate.Limiter
	underWay *share.Pool[string]
}

// maxClients is how many clients are told apart; further ones share one rate.
const maxClients = 16384

func newClients(c *Config) *clients {
	return &clients{
		limit: rate.Limit(c.Rate), burst: c.Burst, most: c.Concurrent, rates: map[string]*rate.Limiter{},
		underWay: share.New[string](uint64(c.Concurrent)), //nolint:gosec // positive
	}
}

// take counts a request. If it is one too many, it says after how long there may be another one.
func (c *clients) take(client string) (pause time.Duration, ok bool) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.rates[client]
	if l == nil {
		if len(c.rates) >= maxClients { // whoever has its whole burst is as good as new
			maps.DeleteFunc(c.rates, func(_ string, l *rate.Limiter) bool { return l.TokensAt(now) >= float64(c.burst) })
		}
		if len(c.rates) >= maxClients {
			client = ""
		}
		if l = c.rates[client]; l == nil {
			l = rate.NewLimiter(c.limit, c.burst)
			c.rates[client] = l
		}
	}
	if l.AllowN(now, 1) {
		return 0, true
	}
	return duration.Seconds((1 - l.TokensAt(now)) / float64(c.limit)), false
}

// begin counts a call that is under way, until end.
func (c *clients) begin(v *visit) *problem {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.underWay.Take(v.client, 1) {
		return nil
	}
	v.reason = "concurrent"
	return neverBegan(refusal(http.StatusServiceUnavailable, "busy", fmt.Sprintf(
		"%d calls of this client are under way, and %d of %d in all", c.underWay.Held(v.client), c.underWay.Used(), c.most))).again(1)
}

func (c *clients) end(v *visit) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.underWay.Release(v.client, 1)
}

// calls is how many calls are under way.
func (c *clients) calls() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.underWay.Used()
}

// admit finds out who makes a request, and refuses those who may not.
func (s *Server) admit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v := visitOf(r.Context())
		refused := s.alive()
		if refused == nil {
			refused = s.identify(w, r, v)
		}
		if refused == nil {
			if pause, ok := s.clients.take(v.client); !ok {
				v.reason = "rate"
				refused = neverBegan(refusal(http.StatusTooManyRequests, "rate", fmt.Sprintf(
					"this client may make %v requests a second, and %d at once", s.config.Rate, s.config.Burst))).again(int(math.Ceil(max(pause.Seconds(), 1))))
			}
		}
		if refused != nil {
			refused.write(w)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// alive refuses requests when another incarnation of the node may be the ingress.
func (s *Server) alive() *problem {
	select {
	case <-s.node.Done():
		return neverBegan(refusal(http.StatusServiceUnavailable, "ended", "the ingress has lost its place in the rack")).again(1)
	default:
		return nil
	}
}

// identify says who a client is.
func (s *Server) identify(w http.ResponseWriter, r *http.Request, v *visit) *problem {
	v.client = addressOf(r)
	if s.config.Tokens == nil {
		if loopbackHost(r.Host) {
			return nil
		}
		v.reason = "host"
		return neverBegan(refusal(http.StatusForbidden, "forbidden", fmt.Sprintf(
			"host %.128q: without a file of tokens this ingress serves loopback addresses only", r.Host)))
	}
	challenge := `Bearer realm="bifrost", Basic realm="bifrost"`
	token, ok := tokenOf(r)
	if ok {
		if v.grant = s.config.Tokens.find(token); v.grant != nil {
			v.client, v.scope = "token "+v.grant.Name, v.grant.Name
			return nil
		}
		challenge = `Bearer realm="bifrost", error="invalid_token"`
	}
	if _, ok := s.clients.take(v.client); !ok { // who guesses is slowed down
		v.reason = "rate"
		return neverBegan(refusal(http.StatusTooManyRequests, "rate", "too many requests without a valid token")).again(1)
	}
	v.reason = "token"
	w.Header().Set("WWW-Authenticate", challenge)
	return neverBegan(refusal(http.StatusUnauthorized, "unauthorized", "this needs a valid token: Authorization: Bearer TOKEN"))
}

// addressOf is the address of a client, without its port.
func addressOf(r *http.Request) string {
	if a, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		return a.Addr().Unmap().String()
	}
	return r.RemoteAddr
}

// loopbackHost reports whether the host that a client has asked for is this machine itself. A page of elsewhere whose name has been made to
// lead here (DNS rebinding) asks for another one.
func loopbackHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	a, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && a.IsLoopback()
}
