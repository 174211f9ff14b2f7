package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
)

// addressVariable is the environment variable with the admin API's address.
const addressVariable = "BIFROST_ADMIN_ADDR"

// rackVariable is the environment variable with the name of a rack of namespaces on this machine.
const rackVariable = "BIFROST_RACK"

// clientOptions are the flags of all commands that ask a Gatekeeper.
type clientOptions struct {
	address, rack, tokenFile, ca string
	json                         bool
}

// command makes a command that asks a Gatekeeper.
func (o *clientOptions) command(cmd *cobra.Command) *cobra.Command {
	f := cmd.Flags()
	f.StringVar(&o.address, "admin-addr", "", "`ADDRESS` of the Gatekeeper's admin API: HOST:PORT, unix:PATH or a URL "+
		"(default: $"+addressVariable+", or else the rack $"+rackVariable+" or the one that is up on this machine, or else "+defaultAdmin+")")
	f.StringVar(&o.rack, "rack", "", "ask the Gatekeeper of the rack of this `NAME` (bifrost rack up --rack NAME) (default: $"+rackVariable+")")
	f.StringVar(&o.tokenFile, "admin-token-file", "", "`FILE` with the token for an address over TCP "+
		"(default: $"+tokenVariable+", or else the file where a Gatekeeper of this user keeps its token)")
	f.StringVar(&o.ca, "admin-ca", "", "PEM `FILE` with the CA of the Gatekeeper's certificate; without it, the connection to HOST:PORT has no TLS")
	f.BoolVar(&o.json, "json", false, "print JSON, one value on a line")
	return cmd
}

// connect returns a client of the Gatekeeper that is meant.
func (o *clientOptions) connect() (*client.Client, error) {
	cfg, err := o.target()
	if err != nil {
		return nil, err
	}
	c, err := client.New(cfg)
	if errors.Is(err, client.ErrClearText) {
		err = fmt.Errorf("%w: name the CA of the Gatekeeper's certificate with --admin-ca, or bring its port here: ssh -L", err)
	}
	return c, err
}

// target finds the Gatekeeper that is meant, and what it takes to talk to it.
func (o *clientOptions) target() (cfg client.Config, err error) {
	if cfg.Address, err = o.find(); err != nil {
		return cfg, err
	}
	if o.ca != "" {
		if cfg.TLS, err = trusting(o.ca); err != nil {
			return cfg, err
		}
	}
	if !strings.HasPrefix(cfg.Address, "unix:") {
		cfg.Token, err = o.token()
	}
	return cfg, err
}

// find returns the address of the Gatekeeper that is meant.
func (o *clientOptions) find() (string, error) {
	switch {
	case o.address != "" && o.rack != "":
		return "", errors.New("--admin-addr and --rack both say which Gatekeeper: give one")
	case o.address != "":
		return o.address, nil
	case o.rack != "":
		return adminOf(o.rack)
	}
	switch address, name := os.Getenv(addressVariable), os.Getenv(rackVariable); {
	case address != "" && name != "":
		return "", fmt.Errorf("$%s and $%s both say which Gatekeeper: unset one, or give --admin-addr or --rack", addressVariable, rackVariable)
	case address != "":
		return address, nil
	case name != "":
		return adminOf(name)
	}
	racks, err := racksHere()
	switch {
	case err != nil || len(racks) == 0:
		return defaultAdmin, nil //nolint:nilerr // no rack of this machine that we may see
	case len(racks) > 1:
		return "", fmt.Errorf("several racks are up: choose one with --rack: %s", strings.Join(racks, ", "))
	}
	return adminOf(racks[0])
}

// token is the one given, or the one that a Gatekeeper of this user has made up;
// none if there is neither, for the Gatekeeper to complain.
func (o *clientOptions) token() (string, error) {
	if o.tokenFile != "" {
		return admin.ReadToken(o.tokenFile)
	}
	if token := os.Getenv(tokenVariable); token != "" {
		return token, nil
	}
	path, err := admin.DefaultTokenFile()
	if err != nil {
		return "", err
	}
	token, err := admin.ReadToken(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return token, err
}

// trusting trusts the certificates of a PEM file and no others.
func trusting(path string) (*tls.Config, error) {
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--admin-ca: %w", err)
	}
	cfg := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	if !cfg.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("--admin-ca: %s holds no certificate", path)
	}
	return cfg, nil
}

// run connects, has f ask, and adds a remedy to what goes wrong.
func (o *clientOptions) run(f func(c *client.Client) error) error {
	c, err := o.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	err = f(c)
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return fmt.Errorf("%w: is a Gatekeeper running there? Start one with `bifrost rack up` or `bifrost gatekeeper`, or name it with --admin-addr", err)
	}
	if client.IsUnauthorized(err) {
		return fmt.Errorf("%w: give its token with --admin-token-file or $%s", err, tokenVariable)
	}
	return err
}

// table prints rows in columns; a row is cells separated by tabs.
func table(w io.Writer, rows ...string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(t, oneLine(row))
	}
	return t.Flush()
}

// jsonLines prints values, each on a line of its own.
func jsonLines[T any](w io.Writer, values []T) error {
	e := json.NewEncoder(w)
	for _, v := range values {
		if err := e.Encode(v); err != nil {
			return err
		}
	}
	return nil
}
