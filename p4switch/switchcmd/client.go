package switchcmd

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// DefaultAddress is where a switch serves P4Runtime, and where commands look for one.
const DefaultAddress = "unix:/run/bifrost-switch.sock"

// Client are the flags that say which switch a command speaks to, and how. Its methods are for one goroutine.
type Client struct {
	Address       string // unix:PATH, or HOST:PORT
	flag          string // the address's
	ca, cert, key string
	insecure      bool
}

// Register adds the flags; flag is the name of the one for the address. self is who shows a certificate, as in "the Gatekeeper's".
func (o *Client) Register(f *pflag.FlagSet, flag, self string) {
	o.flag = flag
	f.StringVar(&o.Address, flag, DefaultAddress, "the switch's P4Runtime `ADDRESS`: unix:PATH, or HOST:PORT with TLS")
	f.BoolVar(&o.insecure, "insecure", false, "connect to HOST:PORT without TLS: anybody on the network path can then control the switch")
	f.StringVar(&o.ca, "tls-ca", "", "use TLS: PEM `FILE` with the CA that has signed the switch's certificate")
	f.StringVar(&o.cert, "tls-cert", "", "PEM `FILE` with "+self+" certificate, which the switch checks")
	f.StringVar(&o.key, "tls-key", "", "PEM `FILE` with the key of --tls-cert")
}

// credentials are plain text without --tls-ca, which a Unix socket needs not.
func (o *Client) credentials() (credentials.TransportCredentials, error) {
	if o.ca == "" {
		if o.cert != "" || o.key != "" {
			return nil, errors.New("a certificate is given but TLS is off: add --tls-ca")
		}
		if !strings.HasPrefix(o.Address, "unix:") && !o.insecure {
			return nil, fmt.Errorf("--%s %s: anybody on the way could control the switch: add --tls-ca, --tls-cert and --tls-key, or accept it with --insecure", o.flag, o.Address)
		}
		return insecure.NewCredentials(), nil
	}
	pem, err := os.ReadFile(o.ca)
	if err != nil {
		return nil, fmt.Errorf("--tls-ca: %w", err)
	}
	cfg := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	if !cfg.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("--tls-ca: %s holds no certificate", o.ca)
	}
	if (o.cert == "") != (o.key == "") {
		return nil, errors.New("--tls-cert and --tls-key go together")
	}
	if o.cert != "" {
		pair, err := tls.LoadX509KeyPair(o.cert, o.key)
		if err != nil {
			return nil, fmt.Errorf("--tls-cert, --tls-key: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return credentials.NewTLS(cfg), nil
}

// Dial makes a connection, which is not used yet. An error names the flag that is wrong.
func (o *Client) Dial(options ...grpc.DialOption) (*grpc.ClientConn, error) {
	c, err := o.credentials()
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient(target(o.Address), append(options, grpc.WithTransportCredentials(c))...)
	if err != nil {
		return nil, fmt.Errorf("--%s %s: %w", o.flag, o.Address, err)
	}
	return conn, nil
}

// target makes a gRPC target of HOST:PORT or unix:PATH.
func target(address string) string {
	if strings.HasPrefix(address, "unix:") {
		return address
	}
	return "dns:///" + address
}
