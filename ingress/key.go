package ingress

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/internal/duration"
)

// maxKey is how many bytes an idempotency key has at most.
const maxKey = 255

// keyOf is a request's idempotency key; "" if it has none. The header's value is a string of structured fields (RFC 9651), "abc", or the
// key as it stands.
func keyOf(h http.Header) (string, error) {
	values := h.Values("Idempotency-Key")
	if len(values) == 0 {
		return "", nil
	}
	if len(values) > 1 {
		return "", errors.New("more than one Idempotency-Key")
	}
	key := strings.TrimSpace(values[0])
	if strings.HasPrefix(key, `"`) {
		var ok bool
		if key, ok = unquote(key); !ok {
			return "", errors.New("Idempotency-Key: a string in quotes ends with a quote, and has \\\" and \\\\ for a quote and a backslash")
		}
	}
	return key, checkKey(key)
}

// checkKey refuses what is no key.
func checkKey(key string) error {
	switch {
	case key == "", key == ".", key == "..":
		return fmt.Errorf("Idempotency-Key %q is no key: take a UUID", key)
	case len(key) > maxKey:
		return fmt.Errorf("Idempotency-Key has %d bytes: at most %d", len(key), maxKey)
	case strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r > '~' }):
		return errors.New("Idempotency-Key has characters that are not printable ASCII")
	}
	return nil
}

// unquote takes a string of structured fields out of its quotes.
func unquote(s string) (string, bool) {
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '"':
			return b.String(), i == len(s)-1
		case '\\':
			i++
			if i == len(s) || s[i] != '"' && s[i] != '\\' {
				return "", false
			}
		}
		b.WriteByte(s[i])
	}
	return "", false
}

// scoped is a key as it is kept: each token has keys of its own.
func scoped(token, key string) []byte { return []byte(token + "\x00" + key) }

// outcomePath is where the answer to the call with a key is.
func (s *Server) outcomePath(key string) string {
	return s.config.Path + "/outcome/" + url.PathEscape(key)
}

// hashOf tells requests with the same key apart: it is of all that must be the same.
func hashOf(service, method string, body []byte) []byte {
	h := sha256.New()
	for _, part := range [][]byte{[]byte(service), []byte(method), body} {
		_, _ = h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part)))) // it does not fail
		_, _ = h.Write(part)
	}
	return h.Sum(nil)
}

// withBody is hashOf a request whose body goes into memory: of the hash of the rest, and of that of the body.
func withBody(request, body []byte) []byte { return hashOf(rawMedia, string(request), body) }

// preferences are what a request asks for by Prefer (RFC 7240).
type preferences struct {
	async bool
	wait  time.Duration
}

// preferencesOf reads them. What is not understood is left out, as the RFC wants it.
func preferencesOf(h http.Header) (p preferences) {
	for _, list := range h.Values("Prefer") {
		for _, one := range strings.Split(list, ",") {
			one, _, _ = strings.Cut(one, ";")
			name, value, _ := strings.Cut(strings.TrimSpace(one), "=")
			switch strings.ToLower(strings.TrimSpace(name)) {
			case "respond-async":
				p.async = true
			case "wait":
				if n, err := strconv.ParseUint(strings.Trim(strings.TrimSpace(value), `"`), 10, 31); err == nil {
					p.wait = duration.Times(int64(n), time.Second) //nolint:gosec // 31 bits
				}
			}
		}
	}
	return p
}

// timeoutOf is how long a request may wait: what its header Request-Timeout says, in seconds.
func (c *Config) timeoutOf(h http.Header) (time.Duration, error) {
	value := h.Get("Request-Timeout")
	if value == "" {
		return c.Timeout, nil
	}
	n, err := strconv.ParseFloat(value, 64)
	if err != nil || !(n > 0) || n > c.MaxTimeout.Seconds() {
		return 0, fmt.Errorf("Request-Timeout %.64q: want a number of seconds, more than 0 and at most %v", value, c.MaxTimeout.Seconds())
	}
	return max(duration.Seconds(n), 1), nil
}
