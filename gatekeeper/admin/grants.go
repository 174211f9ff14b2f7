package admin

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// A file of tokens has a line for each: NAME ROLE SHA-256 in hexadecimal. Lines that are
// empty or begin with # count for nothing. The tokens themselves are in no file.

// ParseGrants reads a file of tokens.
func ParseGrants(b []byte) ([]Grant, error) {
	var all []Grant
	lines := bufio.NewScanner(bytes.NewReader(b))
	for n := 1; lines.Scan(); n++ {
		words := strings.Fields(lines.Text())
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if len(words) != 3 {
			return nil, fmt.Errorf("line %d: %d words, want NAME ROLE HASH", n, len(words))
		}
		g := Grant{Name: words[0]}
		var err error
		if g.Role, err = RoleOf(words[1]); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		hash, err := hex.DecodeString(words[2])
		if err != nil || len(hash) != sha256.Size {
			return nil, fmt.Errorf("line %d: the hash of %q is not a SHA-256 in hexadecimal", n, g.Name)
		}
		g.Hash = [sha256.Size]byte(hash)
		if slices.ContainsFunc(all, func(o Grant) bool { return o.Name == g.Name }) {
			return nil, fmt.Errorf("line %d: the name %q is used twice", n, g.Name)
		}
		all = append(all, g)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	return all, nil
}

// ReadGrants reads a file of tokens that nobody else may write; a file that is not
// there has none.
func ReadGrants(path string) ([]Grant, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("admin tokens: %w", err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("admin tokens: %w", err)
	}
	if info.Mode().Perm()&0o022 != 0 {
		return nil, fmt.Errorf("admin tokens: %s may be written by others (mode %04o): chmod 600 %s", path, info.Mode().Perm(), path)
	}
	all, err := ParseGrants(b)
	if err != nil {
		return nil, fmt.Errorf("admin tokens: %s, %w", path, err)
	}
	return all, nil
}

// WriteGrants replaces a file of tokens as a whole.
func WriteGrants(path string, all []Grant) error {
	var b strings.Builder
	b.WriteString("# Tokens of the admin API: NAME ROLE SHA-256. See `bifrost token --help`.\n")
	for _, g := range all {
		fmt.Fprintf(&b, "%s %s %x\n", g.Name, g.Role, g.Hash)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("admin tokens: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".admin.tokens.*") // mode 0600
	if err != nil {
		return fmt.Errorf("admin tokens: %w", err)
	}
	_, err = f.WriteString(b.String())
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("admin tokens: %w", err), os.Remove(f.Name()))
	}
	return nil
}

// DefaultGrantsFile is where a Gatekeeper looks for tokens with roles.
func DefaultGrantsFile() (string, error) {
	path, err := DefaultTokenFile()
	if err != nil {
		return "", err
	}
	return filepath.Join(filepath.Dir(path), "admin.tokens"), nil
}

// GrantsFile is the tokens of a file, as it is now: a token that is taken out of it is
// refused from the next request on. A file that cannot be read any more grants nothing.
type GrantsFile struct {
	Path string
	// Admin is a token for everything beside those of the file; "" for none.
	Admin string
	Log   *slog.Logger

	mu     sync.Mutex
	seen   time.Time // the file's time of change when it was read
	size   int64
	grants []Grant // of the file
}

// Current implements Grants.
func (f *GrantsFile) Current() []Grant {
	f.mu.Lock()
	defer f.mu.Unlock()
	if info, err := os.Stat(f.Path); err != nil {
		f.seen, f.size, f.grants = time.Time{}, 0, nil
	} else if !info.ModTime().Equal(f.seen) || info.Size() != f.size {
		f.seen, f.size = info.ModTime(), info.Size()
		if f.grants, err = ReadGrants(f.Path); err != nil && f.Log != nil {
			f.Log.Error("no token of the file is taken any more", "error", err)
		}
	}
	all := slices.Clone(f.grants)
	if f.Admin != "" {
		all = append(all, OneToken(f.Admin).Current()...)
	}
	return all
}
