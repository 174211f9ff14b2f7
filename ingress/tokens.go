package ingress

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// Grant is what a token stands for.
type Grant struct {
	// Name says whose token it is. Idempotency keys are the name's: nobody else sees the answers.
	Name string
	// Hash is the SHA-256 of the token.
	Hash [sha256.Size]byte
	// Services are those that may be called; "*" stands for all.
	Services []string
}

// everything is the service that stands for all.
const everything = "*"

// allows reports whether a service may be called.
func (g *Grant) allows(service string) bool {
	return slices.Contains(g.Services, service) || slices.Contains(g.Services, everything)
}

// ParseGrants reads a file of tokens. It has a line for each: NAME, the token's SHA-256 in hexadecimal, and the services that it may call,
// with commas between them; * is all services. Lines that are empty or begin with # count for nothing.
func ParseGrants(b []byte) ([]Grant, error) {
	var all []Grant
	lines := bufio.NewScanner(bytes.NewReader(b))
	for n := 1; lines.Scan(); n++ {
		words := strings.Fields(lines.Text())
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if len(words) != 3 {
			return nil, fmt.Errorf("line %d: %d words, want NAME HASH SERVICE,SERVICE", n, len(words))
		}
		hash, err := hex.DecodeString(words[1])
		if err != nil || len(hash) != sha256.Size {
			return nil, fmt.Errorf("line %d: the hash of %q is not a SHA-256 in hexadecimal", n, words[0])
		}
		g := Grant{Name: words[0], Hash: [sha256.Size]byte(hash), Services: strings.Split(words[2], ",")}
		if slices.Contains(g.Services, "") {
			return nil, fmt.Errorf("line %d: %q names a service without a name", n, words[2])
		}
		if slices.ContainsFunc(all, func(o Grant) bool { return o.Name == g.Name }) {
			return nil, fmt.Errorf("line %d: the name %q is used twice", n, g.Name)
		}
		all = append(all, g)
	}
	return all, lines.Err()
}

// ReadGrants reads a file of tokens that nobody else may write.
func ReadGrants(path string) ([]Grant, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("tokens: %w", err)
	}
	if info.Mode().Perm()&0o022 != 0 {
		return nil, fmt.Errorf("tokens: %s may be written by others (mode %04o): chmod 600 %s", path, info.Mode().Perm(), path)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("tokens: %w", err)
	}
	all, err := ParseGrants(b)
	if err != nil {
		return nil, fmt.Errorf("tokens: %s, %w", path, err)
	}
	return all, nil
}

// Tokens are those of a file, as it is now: a token that is taken out of it is refused from the next request on. A file that cannot be read
// any more grants nothing.
type Tokens struct {
	path string
	log  *slog.Logger

	mu     sync.Mutex
	seen   time.Time // the file's time of change when it was read
	size   int64
	grants []Grant
}

// OpenTokens reads a file of tokens, and again each time that it has changed.
func OpenTokens(path string, log *slog.Logger) (*Tokens, error) {
	if _, err := ReadGrants(path); err != nil {
		return nil, err
	}
	return &Tokens{path: path, log: log}, nil
}

// current are the grants as of now.
func (t *Tokens) current() []Grant {
	t.mu.Lock()
	defer t.mu.Unlock()
	info, err := os.Stat(t.path)
	if err != nil {
		t.seen, t.grants = time.Time{}, nil
		return nil
	}
	if !info.ModTime().Equal(t.seen) || info.Size() != t.size {
		t.seen, t.size = info.ModTime(), info.Size()
		if t.grants, err = ReadGrants(t.path); err != nil && t.log != nil {
			t.log.Error("no token of the file is taken any more", "error", err)
		}
	}
	return t.grants
}

// find returns the grant of a token, nil if there is none. It takes as long for all of them.
func (t *Tokens) find(token string) (found *Grant) {
	got := sha256.Sum256([]byte(token)) // equal lengths, so that the comparison tells nothing
	grants := t.current()
	for i := range grants {
		if subtle.ConstantTimeCompare(got[:], grants[i].Hash[:]) == 1 {
			found = &grants[i]
		}
	}
	return found
}

// tokenOf takes the token out of a request: a bearer token, or for browsers the password of basic authentication.
func tokenOf(r *http.Request) (token string, ok bool) {
	if _, password, ok := r.BasicAuth(); ok {
		return password, true
	}
	scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	return strings.TrimSpace(token), ok && strings.EqualFold(scheme, "bearer")
}
