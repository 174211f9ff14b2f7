package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin"
	"github.com/bifrost-rack/bifrost/gatekeeper/history"
)

// defaultAdmin is where the admin API is, for servers and clients.
const defaultAdmin = "127.0.0.1:8045"

// tokenVariable is the environment variable with the admin token.
const tokenVariable = "BIFROST_ADMIN_TOKEN"

// adminOptions are the flags of `bifrost gatekeeper` for its admin API.
type adminOptions struct {
	addresses []string
	tokenFile string
	grants    string
	cert, key string
}

func (o *adminOptions) register(f *pflag.FlagSet) {
	f.StringSliceVar(&o.addresses, "admin-addr", []string{defaultAdmin},
		"serve the admin API and page at `ADDRESS`: HOST:PORT or unix:PATH, several with commas; none turns it off")
	f.StringVar(&o.tokenFile, "admin-token-file", "",
		"`FILE` of mode 0600 with the token that requests over TCP need; made if it is not there (default: $"+tokenVariable+
			", or else bifrost/admin.token in the user's configuration directory)")
	f.StringVar(&o.grants, "admin-tokens", "",
		"`FILE` with further tokens, each with a name and a role; changes count at once (default: admin.tokens beside the file of the admin token; see bifrost token)")
	f.StringVar(&o.cert, "admin-tls-cert", "", "PEM `FILE` with a certificate: the admin API speaks TLS, as it must beyond loopback")
	f.StringVar(&o.key, "admin-tls-key", "", "PEM `FILE` with its key")
}

// open listens at all addresses and makes the server; nil if it is turned off.
// Whoever gets listeners must hand them to Run.
func (o *adminOptions) open(gk admin.Backend, past *history.History, log *slog.Logger) (*admin.Server, []admin.Listener, error) {
	if len(o.addresses) == 1 && o.addresses[0] == "none" {
		return nil, nil, nil
	}
	cfg, err := o.tls()
	if err != nil {
		return nil, nil, err
	}
	token, err := o.token(log)
	if err != nil {
		return nil, nil, err
	}
	grants, err := o.tokens(token, log)
	if err != nil {
		return nil, nil, err
	}
	s, err := admin.New(admin.Config{Backend: gk, History: past, Grants: grants, Version: versionString(), Log: log})
	if err != nil {
		return nil, nil, err
	}
	var all []admin.Listener
	for _, address := range o.addresses {
		l, err := admin.Listen(address, cfg)
		if err != nil {
			for _, open := range all {
				err = errors.Join(err, open.Close())
			}
			if errors.Is(err, syscall.EADDRINUSE) {
				err = fmt.Errorf("%w: another Gatekeeper may run there; choose another address, or none", err)
			}
			return nil, nil, fmt.Errorf("--admin-addr: %w", err)
		}
		all = append(all, l)
	}
	return s, all, nil
}

// tls is nil without a certificate.
func (o *adminOptions) tls() (*tls.Config, error) {
	if (o.cert == "") != (o.key == "") {
		return nil, errors.New("--admin-tls-cert and --admin-tls-key go together")
	}
	if o.cert == "" {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(o.cert, o.key)
	if err != nil {
		return nil, fmt.Errorf("--admin-tls-cert, --admin-tls-key: %w", err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}, nil
}

// token is the one given; for addresses that need one, it is made up otherwise.
func (o *adminOptions) token(log *slog.Logger) (string, error) {
	if o.tokenFile != "" {
		return admin.ReadOrMakeToken(o.tokenFile)
	}
	if token := os.Getenv(tokenVariable); token != "" {
		return token, nil
	}
	needed := false
	for _, address := range o.addresses {
		needed = needed || !strings.HasPrefix(address, "unix:")
	}
	if !needed {
		return "", nil
	}
	path, err := admin.DefaultTokenFile()
	if err != nil {
		return "", err
	}
	token, err := admin.ReadOrMakeToken(path)
	log.Info("admin token", "file", path)
	return token, err
}

// tokens is what requests over TCP may carry: the admin token, and those of the file;
// nil if there is neither, as for Unix sockets alone.
func (o *adminOptions) tokens(token string, log *slog.Logger) (admin.Grants, error) {
	path := o.grants
	switch {
	case path != "":
	case token == "":
		return nil, nil
	case o.tokenFile != "":
		path = filepath.Join(filepath.Dir(o.tokenFile), "admin.tokens")
	default:
		var err error
		if path, err = admin.DefaultGrantsFile(); err != nil {
			return admin.OneToken(token), nil //nolint:nilerr // without a home there is no such file
		}
	}
	if token != "" {
		if err := admin.CheckToken(token); err != nil {
			return nil, err
		}
	}
	if _, err := admin.ReadGrants(path); err != nil {
		return nil, err
	}
	return &admin.GrantsFile{Path: path, Admin: token, Log: log}, nil
}

// serveAdmin serves the API until ctx ends. The rack does not depend on it, so a
// failure is logged and no more.
func serveAdmin(ctx context.Context, s *admin.Server, listeners []admin.Listener, log *slog.Logger) {
	if s == nil {
		return
	}
	if err := s.Run(ctx, listeners...); err != nil {
		log.Error("the admin API has ended", "error", err)
	}
}
