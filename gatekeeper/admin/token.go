package admin

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// NewToken draws a token of 256 bits.
func NewToken() string { return rand.Text() + rand.Text() }

// CheckToken refuses tokens that could be guessed or could not be sent.
func CheckToken(token string) error {
	if len(token) < minToken {
		return fmt.Errorf("the admin token has %d characters: make it %d at least", len(token), minToken)
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("the admin token has spaces or characters beyond ASCII")
	}
	return nil
}

// DefaultTokenFile is where a Gatekeeper keeps the token that it made up, and where
// its user's commands find it.
func DefaultTokenFile() (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("no place for the admin token: %w: name a file with --admin-token-file", err)
	}
	return filepath.Join(dir, "bifrost", "admin.token"), nil
}

// ReadToken reads a token from a file that nobody else may read.
func ReadToken(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("admin token: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("admin token: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return "", fmt.Errorf("admin token: %s may be read by others (mode %04o): chmod 600 %s", path, info.Mode().Perm(), path)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("admin token: %w", err)
	}
	token := strings.TrimSpace(string(b))
	if err := CheckToken(token); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return token, nil
}

// ReadOrMakeToken is ReadToken, but makes the file with a new token if there is
// none. Several processes that do so at a time get the same token.
func ReadOrMakeToken(path string) (string, error) {
	if token, err := ReadToken(path); !errors.Is(err, fs.ErrNotExist) {
		return token, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", fmt.Errorf("admin token: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".admin.token.*") // mode 0600
	if err != nil {
		return "", fmt.Errorf("admin token: %w", err)
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.WriteString(NewToken() + "\n")
	if err = errors.Join(err, f.Close()); err != nil {
		return "", fmt.Errorf("admin token: %w", err)
	}
	// The file appears whole or not at all, and whoever is first wins.
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("admin token: %w", err)
	}
	return ReadToken(path)
}
